"""ViT against transformers and torchvision."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, load, merged, randomise, relative_error

from examples.models import vit

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(vit.tiny(dtype=jnp.float32), layers=3)
IMAGES = np.random.default_rng(0).standard_normal((3, CONFIG.image, CONFIG.image, 3), np.float32)


def error(config: vit.ViTConfig, weights: dict[str, np.ndarray], wanted: Any) -> float:
    graphdef, state = nnx.split(vit.create(config))
    with jax.default_matmul_precision("highest"):
        got = nnx.jit(nnx.merge(graphdef, load(state, weights)))(IMAGES)
    return relative_error(got, wanted)


def embeddings(source: Source, token: str, positions: str, patches: str) -> dict[str, np.ndarray]:
    return source.convolution(patches, "embeddings.patches") | {
        "embeddings.token": source.raw(token)[0, 0],
        "embeddings.positions": source.raw(positions)[0]}


@pytest.mark.parametrize("attention", [None, "xla"])
def test_logits_of_transformers(attention: str | None) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    reference = randomise(transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=CONFIG.hidden, num_hidden_layers=CONFIG.layers, hidden_act="gelu",
        num_attention_heads=CONFIG.heads, intermediate_size=CONFIG.intermediate,
        image_size=CONFIG.image, patch_size=CONFIG.patch, num_labels=CONFIG.classes,
        # Products of size 1, as in a trained model; by default all scores are nearly 0 at this
        # size, and an error in the attention would not show.
        initializer_range=0.15)).eval())
    assert reference.config.layer_norm_eps == CONFIG.layer_norm_eps

    source = Source(reference)
    names = {"attention.q_proj": "attention.query", "attention.k_proj": "attention.key",
             "attention.v_proj": "attention.value", "attention.o_proj": "attention.out",
             "mlp.fc1": "up", "mlp.fc2": "down"}
    parts = [source.norm("vit.layernorm", "norm"), source.dense("classifier", "head"),
             embeddings(source, "vit.embeddings.cls_token", "vit.embeddings.position_embeddings",
                        "vit.embeddings.patch_embeddings.projection")]
    for i in range(CONFIG.layers):
        parts += [source.dense(f"vit.layers.{i}.{theirs}", f"layers.{i}.{ours}")
                  for theirs, ours in names.items()]
        parts += [source.norm(f"vit.layers.{i}.layernorm_before", f"layers.{i}.attention_norm"),
                  source.norm(f"vit.layers.{i}.layernorm_after", f"layers.{i}.norm")]
    source.assert_empty()

    with torch.no_grad():
        wanted = reference(torch.tensor(IMAGES.transpose(0, 3, 1, 2))).logits
    assert error(dataclasses.replace(CONFIG, attention=attention), merged(*parts),
                 wanted) <= TOLERANCE


def test_logits_of_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    reference = randomise(torchvision.models.VisionTransformer(
        CONFIG.image, CONFIG.patch, CONFIG.layers, CONFIG.heads, CONFIG.hidden,
        CONFIG.intermediate, num_classes=CONFIG.classes).eval())
    with torch.no_grad():    # torchvision starts from zeros, which would hide an error
        reference.heads.head.weight.normal_(0, 0.1)
        reference.class_token.normal_()
        wanted = reference(torch.tensor(IMAGES.transpose(0, 3, 1, 2)))

    source = Source(reference)
    parts = [source.norm("encoder.ln", "norm"), source.dense("heads.head", "head"),
             embeddings(source, "class_token", "encoder.pos_embedding", "conv_proj")]
    for i in range(CONFIG.layers):
        theirs, ours = f"encoder.layers.encoder_layer_{i}", f"layers.{i}"
        parts += [source.norm(f"{theirs}.ln_1", f"{ours}.attention_norm"),
                  source.norm(f"{theirs}.ln_2", f"{ours}.norm"),
                  source.dense(f"{theirs}.self_attention.out_proj", f"{ours}.attention.out"),
                  source.dense(f"{theirs}.mlp.0", f"{ours}.up"),
                  source.dense(f"{theirs}.mlp.3", f"{ours}.down")]
        kernels = np.split(source.linear(f"{theirs}.self_attention.in_proj_weight"), 3, axis=1)
        biases = np.split(source.vector(f"{theirs}.self_attention.in_proj_bias"), 3)
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            parts.append({f"{ours}.attention.{name}.kernel": kernel,
                          f"{ours}.attention.{name}.bias": bias})
    source.assert_empty()
    assert error(dataclasses.replace(CONFIG, layer_norm_eps=1e-6), merged(*parts),
                 wanted) <= TOLERANCE


def test_published_size() -> None:
    shapes = nnx.eval_shape(lambda: vit.create(vit.b16()))
    assert sum(x.size for x in jax.tree.leaves(nnx.state(shapes))) == 86_567_656

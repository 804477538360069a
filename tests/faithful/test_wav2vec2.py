"""Wav2Vec2 against transformers: logits, CTC loss, gradients, AdamW."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, flat_leaves, load, merged, randomise, relative_error

from examples.models import wav2vec2

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

# All seven convolutions, as in the published form, but narrow.
CONFIG = dataclasses.replace(
    wav2vec2.tiny(dtype=jnp.float32), channels=(16,) * 7, kernels=wav2vec2.base().kernels,
    strides=wav2vec2.base().strides, position_kernel=16, weight_norm=True)
SAMPLES = 8000
LABELS = np.array([[3, 3, 1, 7, 2, 5, -100], [4, -100, -100, -100, -100, -100, -100],
                   [1, 2, 3, 4, 5, 6, 7]])


def weights(source: Source, *, weight_norm: bool = True) -> dict[str, np.ndarray]:
    model, conv = "wav2vec2", "wav2vec2.encoder.pos_conv_embed.conv"
    parts = [
        source.norm(f"{model}.feature_extractor.conv_layers.0.layer_norm", "features.norm"),
        source.norm(f"{model}.feature_projection.layer_norm", "feature_norm"),
        source.dense(f"{model}.feature_projection.projection", "projection"),
        source.norm(f"{model}.encoder.layer_norm", "norm"),
        source.dense("lm_head", "head"),
    ]
    for i in range(len(CONFIG.channels)):
        parts.append(source.convolution(f"{model}.feature_extractor.conv_layers.{i}.conv",
                                        f"features.convs.{i}", bias=False))
    gain = source.raw(f"{conv}.parametrizations.weight.original0").reshape(-1)
    direction = source.conv(f"{conv}.parametrizations.weight.original1")
    parts.append({"positions.kernel": direction, "positions.gain": gain} if weight_norm else {
        "positions.kernel": wav2vec2.weight_normed(jnp.asarray(direction), jnp.asarray(gain))})
    parts.append({"positions.bias": source.vector(f"{conv}.bias")})
    for i in range(CONFIG.layers):
        theirs, ours = f"{model}.encoder.layers.{i}", f"layers.{i}"
        for a, b in {"q_proj": "query", "k_proj": "key", "v_proj": "value",
                     "out_proj": "out"}.items():
            parts.append(source.dense(f"{theirs}.attention.{a}", f"{ours}.attention.{b}"))
        parts += [source.norm(f"{theirs}.layer_norm", f"{ours}.attention_norm"),
                  source.norm(f"{theirs}.final_layer_norm", f"{ours}.norm"),
                  source.dense(f"{theirs}.feed_forward.intermediate_dense", f"{ours}.up"),
                  source.dense(f"{theirs}.feed_forward.output_dense", f"{ours}.down")]
    # Stands in for masked frames in pre-training.
    source.assert_empty(ignore=("wav2vec2.masked_spec_embed",))
    return merged(*parts)


def ctc_model(config: wav2vec2.Wav2Vec2Config = CONFIG) -> Any:
    torch.manual_seed(0)
    model = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(
        hidden_size=config.hidden, num_hidden_layers=config.layers, vocab_size=config.vocabulary,
        num_attention_heads=config.heads, intermediate_size=config.intermediate,
        conv_dim=config.channels, conv_kernel=config.kernels, conv_stride=config.strides,
        num_feat_extract_layers=len(config.channels), pad_token_id=wav2vec2.BLANK,
        num_conv_pos_embeddings=config.position_kernel, ctc_loss_reduction="mean",
        num_conv_pos_embedding_groups=config.position_groups,
        # Products of size 1, as in a trained model; by default all scores are nearly 0 at this
        # size, and an error in the attention would not show.
        initializer_range=0.2)).eval()
    with torch.no_grad():    # neither the norm of its direction nor equal for all taps
        gain = model.wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0
        gain.mul_(torch.linspace(0.5, 2, gain.numel()).reshape(gain.shape))
    return randomise(model)


@pytest.fixture
def audio() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, SAMPLES), np.float32)


def merge(config: wav2vec2.Wav2Vec2Config, mapping: dict[str, np.ndarray]) -> wav2vec2.Wav2Vec2:
    graphdef, state = nnx.split(wav2vec2.create(config))
    return nnx.merge(graphdef, load(state, mapping))


@pytest.mark.parametrize("weight_norm", [True, False])
@pytest.mark.parametrize("attention", [None, "xla"])
@pytest.mark.parametrize("position_kernel", [16, 15])
def test_logits(audio: np.ndarray, attention: str | None, weight_norm: bool,
                position_kernel: int) -> None:
    config = dataclasses.replace(CONFIG, attention=attention, weight_norm=weight_norm,
                                 position_kernel=position_kernel)
    reference = ctc_model(config)
    model = merge(config, weights(Source(reference), weight_norm=weight_norm))
    with torch.no_grad():
        wanted = reference(torch.tensor(audio)).logits
    with jax.default_matmul_precision("highest"):
        got = nnx.jit(model)(audio)
    assert got.shape == (3, config.frames(SAMPLES), config.vocabulary)
    assert relative_error(got, wanted) <= TOLERANCE


def test_loss_gradients_and_updates(audio: np.ndarray) -> None:
    reference = ctc_model()
    reference.freeze_feature_encoder()
    training = wav2vec2.training(merge(CONFIG, weights(Source(reference))))
    loss = reference(torch.tensor(audio), labels=torch.tensor(LABELS)).loss
    loss.backward()
    in_place_of_weights = copy.deepcopy(reference)
    with torch.no_grad():
        for ours, theirs in zip(in_place_of_weights.parameters(), reference.parameters(),
                                strict=True):
            ours.copy_(torch.zeros(()) if theirs.grad is None else theirs.grad)
    wanted = weights(Source(in_place_of_weights))

    step = jax.jit(training.step)
    moments = training.optimiser.init(training.weights)
    with jax.default_matmul_precision("highest"):
        ours, (_, (adam, *_)) = step(training.frozen, (training.weights, moments), audio, LABELS)
    assert relative_error(ours, loss) <= TOLERANCE
    # From zeros, the first moment after one step is 1 - b1 = 0.1 of the gradient.
    gradients = {name: leaf / 0.1 for name, leaf in flat_leaves(adam.mu).items()}
    assert set(wanted) - set(gradients) == {n for n in wanted if n.startswith("features.")}
    for name, gradient in gradients.items():
        # Adds the same to all scores of a query, which softmax ignores: its gradient is 0.
        if name.endswith("key.bias"):
            size = np.linalg.norm(wanted[name.replace("key", "query")])
            assert np.linalg.norm(gradient) <= 1e-4 * size
        else:
            assert relative_error(gradient, wanted[name]) <= TOLERANCE, name

    before = weights(Source(reference))
    optimiser = torch.optim.AdamW([p for p in reference.parameters() if p.requires_grad], lr=1e-4,
                                  weight_decay=0.005)
    carry = (training.weights, moments)
    for _ in range(3):
        optimiser.zero_grad()
        reference(torch.tensor(audio), labels=torch.tensor(LABELS)).loss.backward()
        optimiser.step()
        with jax.default_matmul_precision("highest"):
            _, carry = step(training.frozen, carry, audio, LABELS)
    after = weights(Source(reference))
    for name, leaf in flat_leaves(carry[0]).items():
        if not name.endswith("key.bias"):
            # Adam divides by the gradient's size: where it is small, its error counts in full.
            assert relative_error(leaf - before[name], after[name] - before[name]) <= 1e-2, name


def test_published_size() -> None:
    for weight_norm, parameters in ((True, 94_395_552), (False, 94_395_424)):
        shapes = nnx.eval_shape(
            lambda weight_norm=weight_norm: wav2vec2.create(wav2vec2.base(weight_norm=weight_norm)))
        assert sum(x.size for x in jax.tree.leaves(nnx.state(shapes))) == parameters
    assert wav2vec2.base().frames(16000) == 49

"""CLIP against transformers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, load, merged, randomise, relative_error

from examples.models import clip, encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = clip.tiny(dtype=jnp.float32)
IMAGE, TEXT = CONFIG.image, CONFIG.text


def tower(source: Source, theirs: str, ours: str, config: encoder.EncoderConfig,
          ) -> dict[str, np.ndarray]:
    """The layers, which both towers have in the same form."""
    parts = []
    for i in range(config.layers):
        a, b = f"{theirs}.encoder.layers.{i}", f"{ours}.layers.{i}"
        for name, part in {"q_proj": "query", "k_proj": "key", "v_proj": "value",
                           "out_proj": "out"}.items():
            parts.append(source.dense(f"{a}.self_attn.{name}", f"{b}.attention.{part}"))
        parts += [source.norm(f"{a}.layer_norm1", f"{b}.attention_norm"),
                  source.norm(f"{a}.layer_norm2", f"{b}.norm"),
                  source.dense(f"{a}.mlp.fc1", f"{b}.up"),
                  source.dense(f"{a}.mlp.fc2", f"{b}.down")]
    return merged(*parts)


def weights(source: Source) -> dict[str, np.ndarray]:
    vision, text = "vision_model", "text_model"
    out = merged(
        tower(source, vision, "image", IMAGE), tower(source, text, "text", TEXT),
        source.convolution(f"{vision}.embeddings.patch_embedding", "image.embeddings.patches",
                           bias=False),
        {"image.embeddings.token": source.vector(f"{vision}.embeddings.class_embedding"),
         "image.embeddings.positions":
             source.embedding(f"{vision}.embeddings.position_embedding.weight"),
         "logit_scale": source.raw("logit_scale")},
        source.norm(f"{vision}.pre_layrnorm", "image.first_norm"),
        source.norm(f"{vision}.post_layernorm", "image.norm"),
        source.dense("visual_projection", "image.projection", bias=False),
        source.table(f"{text}.embeddings.token_embedding", "text.words"),
        source.table(f"{text}.embeddings.position_embedding", "text.positions"),
        source.norm(f"{text}.final_layer_norm", "text.norm"),
        source.dense("text_projection", "text.projection", bias=False))
    source.assert_empty(ignore=("*.position_ids",))
    return out


@pytest.mark.parametrize("attention", [None, "xla"])
# 2 stands in the published configuration and means the highest id there.
@pytest.mark.parametrize("end_in_config", [2, TEXT.vocabulary - 1])
def test_embeddings_and_similarity(attention: str | None, end_in_config: int) -> None:
    def sizes(config: clip.ImageConfig | clip.TextConfig) -> dict[str, object]:
        return {"hidden_size": config.hidden, "num_hidden_layers": config.layers,
                "num_attention_heads": config.heads, "intermediate_size": config.intermediate,
                "projection_dim": config.projection}

    torch.manual_seed(0)
    reference = randomise(transformers.CLIPModel(transformers.CLIPConfig(
        text_config=dict(**sizes(TEXT), vocab_size=TEXT.vocabulary,
                         max_position_embeddings=TEXT.positions, bos_token_id=0, pad_token_id=1,
                         eos_token_id=end_in_config),
        vision_config=dict(**sizes(IMAGE), image_size=IMAGE.image, patch_size=IMAGE.patch),
        projection_dim=IMAGE.projection)).eval())
    assert reference.config.text_config.hidden_act == "quick_gelu"
    config = clip.ClipConfig(*(dataclasses.replace(c, attention=attention) for c in (IMAGE, TEXT)))
    graphdef, state = nnx.split(clip.create(config))
    model = nnx.merge(graphdef, load(state, weights(Source(reference))))

    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, IMAGE.image, IMAGE.image, 3), np.float32)
    ids = rng.integers(2, TEXT.vocabulary - 1, (3, 20))
    for row, length in enumerate((5, 0, 19)):    # one end of text; padded with anything, or with it
        ids[row, length] = TEXT.vocabulary - 1
    ids[0, 8:] = TEXT.vocabulary - 1
    with torch.no_grad():
        theirs = reference(torch.tensor(ids), torch.tensor(images.transpose(0, 3, 1, 2)))
    with jax.default_matmul_precision("highest"):
        ours = nnx.jit(model)(images, ids)
    assert relative_error(ours.images, theirs.image_embeds) <= TOLERANCE
    assert relative_error(ours.texts, theirs.text_embeds) <= TOLERANCE
    assert relative_error(ours.logits, theirs.logits_per_image) <= TOLERANCE
    assert ours.logits.shape == (2, 3)


def test_published_size() -> None:
    shapes = nnx.eval_shape(lambda: clip.create(clip.b32()))
    assert sum(x.size for x in jax.tree.leaves(nnx.state(shapes))) == 151_277_313

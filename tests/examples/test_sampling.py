"""Texts drawn at random: against a loop in Python, and as often as the logits say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from examples.models import gpt2
from examples.models.cache import grown
from examples.models.sampling import sample


@pytest.mark.parametrize(("top_k", "temperature"), [
    (5, 0.7), pytest.param(None, 2.0, marks=pytest.mark.slow)])
def test_against_a_loop_in_python(top_k: int | None, temperature: float) -> None:
    graphdef, state = nnx.split(gpt2.create(gpt2.tiny(dtype=jnp.float32)))
    model = nnx.merge(graphdef, jax.tree.map(lambda a: a * 10 if a.ndim == 2 else a + 0.1, state))
    prompt, key = jnp.asarray([[3, 1, 4], [1, 5, 9]]), jax.random.key(2)
    drawn = nnx.jit(lambda m, p, k: m.sample(p, k, new_tokens=6, temperature=temperature,
                                             top_k=top_k))(model, prompt, key)
    x, cache = nnx.jit(lambda m, p: m.states(p))(model, prompt)
    step = nnx.jit(lambda m, *args: m(*args))
    logits, cache = model.words.attend(x[:, -1]), grown(cache, 9)
    tokens, going = np.asarray(prompt), np.ones(2, bool)
    for position in range(3, 9):
        key, now = jax.random.split(key)
        scaled = np.asarray(logits) / temperature
        if top_k is None:
            token = np.asarray(jax.random.categorical(now, scaled))
        else:
            order = np.argsort(-scaled, axis=-1, kind="stable")[:, :top_k]
            chosen = np.asarray(jax.random.categorical(now, np.take_along_axis(scaled, order, 1)))
            token = np.take_along_axis(order, chosen[:, None], 1)[:, 0]
        token = np.where(going, token, model.end)
        going &= token != model.end
        tokens = np.concatenate([tokens, token[:, None]], axis=1)
        logits, cache = step(model, jnp.asarray(token), jnp.int32(position), cache)
    np.testing.assert_array_equal(drawn, tokens)


def _drawn(probabilities: list[float], n: int, **how: Any) -> np.ndarray[Any, Any]:
    """The tokens of ``n`` texts, one new one each."""
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(probabilities)), (n, len(probabilities)))
    prompt = jnp.zeros((n, 1), jnp.int32)
    texts = jax.jit(lambda k: sample(lambda *_: (logits, ()), logits, (), prompt, k, length=2,
                                     end=9, **how))(jax.random.key(0))
    return np.asarray(texts)[:, 1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("how", "expected"), [
    ({"top_k": None}, [0.1, 0.2, 0.3, 0.4]), ({"top_k": 2}, [0, 0, 3 / 7, 4 / 7]),
    ({"top_k": None, "temperature": 0.5}, [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
    ({"top_k": 1, "temperature": 5.0}, [0, 0, 0, 1])])
def test_as_often_as_the_logits_say(how: dict[str, Any], expected: list[float]) -> None:
    tokens = _drawn([0.1, 0.2, 0.3, 0.4], 4000, **how)
    found = np.bincount(tokens, minlength=4) / len(tokens)
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_a_text_that_has_ended_is_filled_up() -> None:
    logits = jnp.log(jnp.asarray([[0.9, 0.1, 0.0]] * 64) + 1e-9)

    def step(token: Any, position: Any, cache: Any) -> Any:
        return logits, cache + 1

    out = jax.jit(lambda k: sample(step, logits, jnp.int32(0), jnp.ones((64, 1), jnp.int32), k,
                                   length=400, end=0, top_k=None))(jax.random.key(1))
    texts = np.asarray(out)[:, 1:]
    for text in texts:
        ended = int(np.argmax(text == 0))
        assert (text[ended:] == 0).all() and (text[:ended] == 1).all()
    assert (texts != 0).any()


@pytest.mark.parametrize(("how", "message"), [
    ({"length": 1}, "length=1 leaves no token to draw: the prompt has 1"),
    ({"temperature": 0.0}, "temperature=0.0 has to be above 0"),
    ({"top_k": 5}, "top_k=5 of 4 tokens"), ({"top_k": 0}, "top_k=0 of 4 tokens")])
def test_what_makes_no_sense_is_refused(how: dict[str, Any], message: str) -> None:
    logits, prompt = jnp.zeros((1, 4)), jnp.zeros((1, 1), jnp.int32)
    with pytest.raises(ValueError, match=message):
        sample(lambda *_: (logits, ()), logits, (), prompt, jax.random.key(0),
               **{"length": 2, "end": 0, **how})

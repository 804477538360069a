"""Sampling in lax control flow, so that a whole generation is one jittable function.

The rules are those of transformers 5, ``generate(do_sample=True, temperature=t, top_k=k)``: each
next token is drawn from the softmax of the ``k`` largest logits over ``t``; a text that has ended
is filled up with the end token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from examples.models.beam_search import Step


class _State(NamedTuple):
    """``length`` tokens are written of each text; ``going``: bool[B], of those that go on."""

    length: jax.Array
    tokens: jax.Array
    going: jax.Array
    key: jax.Array
    cache: Any


def sample(step: Step, logits: jax.Array, cache: Any, prompt: jax.Array, key: jax.Array, *,
           length: int, end: int, temperature: float = 1.0, top_k: int | None = 50) -> jax.Array:
    """One continuation of each prompt, drawn at random.

    Args:
      logits: [B, V], of the token after the prompt.
      cache: of the prompt, a tree of arrays [B, length or more, ...] that ``step`` takes.
      prompt: i32[B, P], without padding.
      key: of `jax.random`; the same key draws the same texts.
      length: of the texts, the prompt included. end: the token that ends one.
      temperature: above 0. top_k: how many tokens a text chooses from; None: from all.

    Returns:
      i32[B, length], filled up with ``end``.

    Raises:
      ValueError: a length, temperature or top_k that makes no sense.
    """
    batch, start = prompt.shape
    if length <= start:
        raise ValueError(f"length={length} leaves no token to draw: the prompt has {start}")
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} has to be above 0; for the likeliest token "
                         "pass top_k=1")
    if top_k is not None and not 0 < top_k <= logits.shape[-1]:
        raise ValueError(f"top_k={top_k} of {logits.shape[-1]} tokens; pass 1 or more, or None for "
                         "all")
    tokens = jnp.full((batch, length), end, jnp.int32).at[:, :start].set(prompt)

    def drawn(state: _State, logits: jax.Array) -> _State:
        key, now = jax.random.split(state.key)
        token = jnp.where(state.going, draw(now, logits, temperature, top_k), end)
        tokens = jax.lax.dynamic_update_slice(state.tokens, token[:, None], (0, state.length))
        return _State(state.length + 1, tokens, state.going & (token != end), key, state.cache)

    def unfinished(state: _State) -> jax.Array:
        return (state.length < length) & jnp.any(state.going)

    def trip(state: _State) -> _State:
        last = jax.lax.dynamic_slice_in_dim(state.tokens, state.length - 1, 1, axis=1)[:, 0]
        logits, cache = step(last, state.length - 1, state.cache)
        return drawn(state._replace(cache=cache), logits)

    first = _State(jnp.int32(start), tokens, jnp.ones(batch, bool), key, cache)
    return jax.lax.while_loop(unfinished, trip, drawn(first, logits)).tokens


def draw(key: jax.Array, logits: jax.Array, temperature: float = 1.0,
         top_k: int | None = None) -> jax.Array:
    """A token of each row: i32[B] of [B, V]. The arguments are those of `sample`."""
    logits = logits.astype(jnp.float32) / temperature
    if top_k is None:
        return jax.random.categorical(key, logits).astype(jnp.int32)
    largest, places = jax.lax.top_k(logits, top_k)
    chosen = jax.random.categorical(key, largest)
    return jnp.take_along_axis(places, chosen[:, None], axis=1)[:, 0]

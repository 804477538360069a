"""Keys and values of the tokens that a decoder has seen, kept from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Pair: TypeAlias = tuple[jax.Array, jax.Array]
"""Keys and values of one layer, each [B, T, key heads, head size]."""

Cache: TypeAlias = list[Pair]
"""One pair per layer."""


def empty(*, layers: int, batch: int, length: int, heads: int, head_size: int,
          dtype: DTypeLike) -> Cache:
    """A cache of zeros for ``length`` positions."""
    shape = (batch, length, heads, head_size)
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(layers)]


def extend(past: Pair | None, key: jax.Array, value: jax.Array, position: jax.Array | int) -> Pair:
    """``past`` with the new tokens' key and value [B, Q, heads, head size] from ``position`` on.

    Without a past the new ones are all there is.
    """
    if past is None:
        return key, value
    start = (0, position, 0, 0)
    return (jax.lax.dynamic_update_slice(past[0], key, start),
            jax.lax.dynamic_update_slice(past[1], value, start))


def visible(position: jax.Array | int, queries: int, keys: int) -> jax.Array:
    """bool[1, 1, queries, keys]: the query at ``position + i`` sees the keys up to itself."""
    rows = position + jnp.arange(queries)[:, None]
    return (jnp.arange(keys)[None, :] <= rows)[None, None]


def grown(cache: Cache, length: int) -> Cache:
    """The cache with room for ``length`` positions; the new ones are zero."""
    def pad(a: jax.Array) -> jax.Array:
        return jnp.pad(a, ((0, 0), (0, length - a.shape[1]), (0, 0), (0, 0)))

    return [(pad(keys), pad(values)) for keys, values in cache]


def functional(model: nnx.Module) -> tuple[Callable[..., tuple[jax.Array, Cache]],
                                           nnx.State[Any, Any]]:
    """``decode_step(state, cache, token, position) -> (logits, cache)``, and the state, of a model
    whose call is a decoding step ``(token, position, cache)``.

    Donate ``cache`` (argument 1) to have it updated in place.
    """
    graphdef, state = nnx.split(model)

    def decode_step(state: nnx.State[Any, Any], cache: Cache, token: jax.Array,
                    position: jax.Array) -> tuple[jax.Array, Cache]:
        return nnx.merge(graphdef, state)(token, position, cache)

    return decode_step, state

"""Kernels in loops and branches that XLA runs, and the largest of lines, on a GPU beside XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono


def layers(x: jax.Array, w: jax.Array) -> jax.Array:
    for m in w:
        x = jnp.tanh(x @ m)
        x = x / (1 + jnp.mean(jnp.abs(x), axis=-1, keepdims=True))
    return x


def until(x: jax.Array, w: jax.Array, cache: jax.Array, trips: jax.Array,
          ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As a generation: a cache is written at the trip's place, and the data say when it ends."""
    def step(state: Any) -> Any:
        x, cache, i = state
        x = layers(x, w) + 0.02 * i.astype(x.dtype)
        cache = lax.dynamic_update_slice(cache, x[None], (i, 0, 0))
        return x + jnp.mean(cache, axis=0), cache, i + 1

    return lax.while_loop(lambda s: (s[2] < trips) & (jnp.mean(s[0]) < 9), step,
                          (x, cache, jnp.int32(0)))


def chosen(x: jax.Array, w: jax.Array, which: jax.Array) -> jax.Array:
    x = layers(x, w[:1])
    return lax.switch(which, [lambda x, i=i: layers(x * (i + 1), w[i:]) for i in range(3)], x) * 2


@pytest.mark.parametrize(("rows", "width"), [(1, 256), (5, 512), (64, 256)])
def test_loops_and_branches(rows: int, width: int) -> None:
    """The same number of trips, each as right as XLA's; again and again, from one compilation."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.standard_normal((6, width, width)) / width**0.5, jnp.bfloat16)
    cache = jnp.zeros((32, rows, width), jnp.bfloat16)
    for fn, more, kernels in ((until, (cache,), 1), (chosen, (), 4)):
        x = jnp.asarray(rng.standard_normal((rows, width)), jnp.bfloat16)
        compiled = jaxmono.jit(fn).lower(x, w, *more, jnp.int32(0)).compile()
        assert compiled.explain().kernels >= kernels
        for number in map(jnp.int32, (25, 0, 1, 2)):
            x = jnp.asarray(rng.standard_normal((rows, width)), jnp.bfloat16)
            wide = (v.astype(jnp.float32) for v in (x, w, *more))
            with jax.default_matmul_precision("highest"):
                exact = jax.jit(fn)(*wide, number)
            theirs = jax.jit(fn)(x, w, *more, number)
            for _ in range(3):
                ours = compiled(x, w, *more, number)
                for a, b, c in zip(*map(jax.tree.leaves, (ours, theirs, exact)), strict=True):
                    a, b, c = (np.asarray(v, np.float64) for v in (a, b, c))
                    error, allowed = np.linalg.norm(a - c), np.linalg.norm(b - c)
                    assert error <= 1.2 * allowed + 1e-3 * np.linalg.norm(c)


@pytest.mark.parametrize(("shape", "k", "dtype"), [
    ((1, 251285), 10, jnp.float32), ((16, 50257), 5, jnp.bfloat16), ((3, 5, 100), 16, jnp.float16),
    ((4096, 64), 6, jnp.bfloat16), ((700, 4096), 3, jnp.float32), ((2, 9000), 4, jnp.int32)])
def test_the_largest_of_lines(shape: tuple[int, ...], k: int, dtype: Any) -> None:
    """Of many equal values, and of what is NaN, -inf, or nothing but -inf."""
    rng = np.random.default_rng(0)
    compiled = None
    for _ in range(4):
        x = np.round(rng.standard_normal(shape) * 8) + 0.0  # no -0, which is behind 0
        if not jnp.issubdtype(dtype, jnp.integer):
            for value in (np.nan, np.inf, -np.inf):
                x[rng.random(shape) < 1e-3] = value
            x[1:2] = -np.inf
        x = jnp.asarray(x, dtype)
        compiled = compiled or jaxmono.jit(lambda x: lax.top_k(x, k)).lower(x).compile()
        assert compiled.explain().kernels == 1
        line = np.asarray(x, np.float64)
        nan = np.isnan(line)
        order = np.lexsort((-np.where(nan, 0, line), ~nan), axis=-1)[..., :k]
        for _ in range(2):
            values, places = compiled(x)
            np.testing.assert_array_equal(places, order)
            np.testing.assert_array_equal(np.asarray(values, np.float64),
                                          np.take_along_axis(line, order, -1))

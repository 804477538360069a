"""Warps of which some lanes wait for other blocks' words and others have nothing to wait for: rows
whose last warp has few columns, trips in which the first or the last column is another case."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

X = Any
LAUNCHES = 300


def same_every_time(fn: X, *args: X, tolerance: float) -> None:
    """One kernel with open borders, the same bits in many launches, near XLA's results in f32."""
    compiled = jaxmono.jit(fn).lower(*args).compile()
    assert compiled.explain().kernels == 1 and "open border" in compiled.as_text("cuda")
    first = jax.device_get(compiled(*args))
    for _ in range(LAUNCHES):
        now = compiled(*args)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(jax.device_get(now)), strict=True):
        np.testing.assert_array_equal(a, b)
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(fn)(*(jnp.asarray(a, jnp.float32) for a in args))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("width", [264, 520, 576, 840, 1048])
def test_layers_of_odd_widths(width: int, rows: int) -> None:
    """Normalised rows between products that stream weights; flags in place of barriers."""
    rng = np.random.default_rng(width)

    def array(*shape: int) -> X:
        return jnp.asarray(rng.standard_normal(shape) / shape[0] ** 0.5, jnp.bfloat16)

    def layers(x: X, w: X, v: X) -> X:
        for i in range(4):
            y = x - x.mean(-1, keepdims=True)
            y = y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)
            x = x + jax.nn.gelu(y @ w[i]) @ v[i]
        return x

    w, v = (jnp.stack([array(*s) for _ in range(4)]) for s in
            ((width, 2 * width), (2 * width, width)))
    same_every_time(layers, array(rows, width) * width ** 0.5, w, v, tolerance=3e-2)


@pytest.mark.parametrize("columns", [33, 41, 70])
@pytest.mark.parametrize("trips", [40, 149])
def test_trips_whose_borders_are_other_cases(trips: int, columns: int) -> None:
    """As in CTC's recursion: an element takes its own and those in front of it."""
    def fn(x: X) -> X:
        def step(h: X, now: X) -> tuple[X, X]:
            one = jnp.pad(h[:, :-1], ((0, 0), (1, 0)), constant_values=-1e5)
            two = jnp.pad(h[:, :-2], ((0, 0), (2, 0)), constant_values=-1e5)
            h = jnp.logaddexp(jnp.logaddexp(h, one), two) + now - now.max(-1, keepdims=True)
            return h, h.sum(-1)

        return lax.scan(step, x[0], x)

    x = np.random.default_rng(trips).standard_normal((trips, 8, columns)).astype(np.float32)
    same_every_time(fn, jnp.asarray(x), tolerance=1e-4)

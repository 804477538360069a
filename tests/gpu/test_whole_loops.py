"""Loops that are kernels of their own: as many trips as XLA, the same results, every time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono
from benchmarks.workloads import solvers

F32 = jnp.float32


def normal(seed: int, *shapes: tuple[int, ...], dtype: Any = F32) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [jax.random.normal(k, s, dtype) / (1 if i == 0 else s[0] ** 0.5)
            for i, (k, s) in enumerate(zip(keys, shapes, strict=True))]


CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...], int, float]] = {
    # function, shapes, kernels, tolerance
    "least_squares": (solvers.least_squares, ((1024,), (1024, 1024)), 1, 1e-4),
    "transport": (solvers.transport, ((512, 512),), 1, 1e-4),
    "roots": (solvers.roots, ((65536,),), 1, 1e-4),
    "integrated": (solvers.integrated, ((256, 64), (64, 64)), 1, 5e-3),
    "ranks": (solvers.ranks, ((2048, 2048),), 1, 1e-4),
    "values": (solvers.values, ((1024, 4), (4, 1024, 1024)), 1, 1e-3),
    # XLA waits for the host in each of some hundred trips, which take long where GPUs are shared.
    "components": (solvers.components, ((96, 128),), 1, 0),
    "diffused": (solvers.diffused, ((256, 256),), 1, 1e-4),
    "walked": (solvers.walked, ((128, 8),), 1, 1e-3),
    "trained": (solvers.trained, ((256, 32), (256, 8), (32, 8)), 1, 1e-2),
    "swung": (solvers.swung, ((2, 1024),), 3, 1e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_solvers(name: str) -> None:
    fun, shapes, kernels, tolerance = CASES[name]
    function, xla = jaxmono.jit(fun), jax.jit(fun)
    for seed in range(3):
        args = normal(seed, *shapes)
        for got, want in zip(jax.tree.leaves(function(*args)), jax.tree.leaves(xla(*args)),
                             strict=True):
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert function.lower(*args).explain().kernels == kernels


@pytest.mark.parametrize("n", [3, 500, 70_000])
def test_each_trip_is_counted(n: int) -> None:
    """In one block, in several; the kernel runs often, and a trip finds what the last one left."""
    def collatz(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return lax.while_loop(lambda s: jnp.max(s[0]) > 1, lambda s: (
            jnp.where(s[0] == 1, 1, jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1)),
            s[1] + (s[0] != 1), s[2] + 1), (x, jnp.zeros_like(x), 0))

    x = jnp.arange(1, n + 1, dtype=jnp.int32) % 1000 + 1
    function, want = jaxmono.jit(collatz), jax.jit(collatz)(x)
    for _ in range(50):
        got = function(x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_random_draws() -> None:
    def draw(seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.key(seed)
        return jax.random.poisson(key, 4.0, (5000,)), jax.random.gamma(key, 2.0, (5000,))

    function, xla = jaxmono.jit(draw), jax.jit(draw)
    for seed in range(3):
        for got, want in zip(function(jnp.int32(seed)), xla(jnp.int32(seed)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_nan_and_inf() -> None:
    def grows(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.while_loop(lambda s: (jnp.max(s[0]) < 1e3) & (s[1] < 40),
                              lambda s: (s[0] * 1.5, s[1] + 1), (x, 0))

    for bad in (0.0, np.nan, np.inf, -np.inf):
        x = normal(0, (300, 70))[0].at[7, 3].set(bad)
        for got, want in zip(jaxmono.jit(grows)(x), jax.jit(grows)(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)

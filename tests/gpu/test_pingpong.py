"""Optimisers' steps behind large gradients on a real GPU, whose warpgroups have tasks of their own
(dot_schedule_pingpong.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def momentum(x: Any, dy: Any, w: Any, m: Any) -> Any:
    m = 0.9 * m + (x.T @ dy).astype(F32)
    return w - 1e-3 * m, m


def adam(x: Any, dy: Any, w: Any, m: Any, v: Any) -> Any:
    g = (x.T @ dy).astype(F32)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def normal(seed: int, *shape: int, dtype: Any = F32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.parametrize(("step", "state"), [(momentum, 2), (adam, 3)])
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (4096, 4096, 512, BF16), (4000, 4200, 264, F16), (4096, 2304, 64, BF16)])
def test_a_step_behind_a_gradient(step: Any, state: int, m: int, n: int, k: int,
                                  dtype: Any) -> None:
    """As right as XLA's; the same bits each time, and in place of what is donated."""
    x, dy = normal(0, k, m, dtype=dtype), normal(1, k, n, dtype=dtype)
    kept = [jnp.abs(normal(2 + i, m, n)) for i in range(state)]
    ours = jaxmono.jit(step, on_unsupported="error")
    text = ours.lower(x, dy, *kept).compile().as_text("cuda")
    assert "G::takes(at, k_tiles)" in text
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(step)(x.astype(F32), dy.astype(F32), *kept)
    first = ours(x, dy, *kept)
    for got, want, other in zip(first, exact, jax.jit(step)(x, dy, *kept), strict=True):
        mine, others = (np.abs(np.asarray(v) - np.asarray(want)) for v in (got, other))
        assert mine.max() <= 1.5 * others.max() + 1e-6
        assert mine.mean() <= 1.05 * others.mean() + 1e-7
    for _ in range(20):
        for got, want in zip(ours(x, dy, *kept), first, strict=True):
            np.testing.assert_array_equal(got, want)
    inside = jaxmono.jit(step, donate_argnums=tuple(range(2, 2 + state)))
    for got, want in zip(inside(x, dy, *map(jnp.copy, kept)), first, strict=True):
        np.testing.assert_array_equal(got, want)


def test_nan_and_inf_stay_in_their_rows() -> None:
    x, dy = normal(0, 128, 4096, dtype=BF16), normal(1, 128, 2304, dtype=BF16)
    x = x.at[5, 77].set(jnp.nan).at[9, 4095].set(jnp.inf)
    w, m = normal(2, 4096, 2304), normal(3, 4096, 2304).at[1, 1].set(jnp.inf)
    for got, want in zip(jaxmono.jit(momentum)(x, dy, w, m), jax.jit(momentum)(x, dy, w, m),
                         strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))

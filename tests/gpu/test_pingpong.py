"""Optimisers' steps behind large gradients, and short products of large results, on a real GPU:
warpgroups have tasks of their own (dot_schedule_pingpong.py)."""

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


EPILOGUES = {"bare": lambda y, b: y, "bias": lambda y, b: y + b,
             "relu": lambda y, b: jax.nn.relu(y + b), "gelu": lambda y, b: jax.nn.gelu(y + b)}


@pytest.mark.parametrize("kind", EPILOGUES)
@pytest.mark.parametrize(("m", "n", "k", "dtype"), [
    (4096, 3072, 768, BF16), (4000, 3064, 264, F16), (2048, 4096, 64, BF16)])
def test_epilogues_beside_products(m: int, n: int, k: int, dtype: Any, kind: str) -> None:
    """Rows and columns that end within a tile; tasks of one k tile, in each layout of weights."""
    x, b = normal(0, m, k, dtype=dtype), normal(2, n, dtype=dtype)
    for turned in (False, True):
        w = normal(1, *((n, k) if turned else (k, n)), dtype=dtype)

        def fn(x: Any, w: Any, b: Any, turned: bool = turned) -> Any:
            return EPILOGUES[kind](x @ (w.T if turned else w), b)

        ours = jaxmono.jit(fn, on_unsupported="error")
        if k > 64:
            assert "G::takes(at, k_tiles)" in ours.lower(x, w, b).compile().as_text("cuda")
        with jax.default_matmul_precision("highest"):
            exact = np.asarray(jax.jit(fn)(*(v.astype(F32) for v in (x, w, b))))
        first = np.asarray(ours(x, w, b))
        mine, xla = (np.abs(np.asarray(v, np.float32) - exact) for v in (
            first, jax.jit(fn)(x, w, b)))
        assert mine.max() <= 1.5 * xla.max() + 1e-6
        assert mine.mean() <= 1.05 * xla.mean() + 1e-7
        for _ in range(20):
            np.testing.assert_array_equal(ours(x, w, b), first)


def test_nan_and_inf_stay_in_their_rows_and_columns() -> None:
    x, w = normal(0, 4096, 768, dtype=BF16), normal(1, 768, 3072, dtype=BF16)
    x, w = x.at[77, 5].set(jnp.nan).at[4095, 9].set(jnp.inf), w.at[3, 3071].set(jnp.nan)
    b = normal(2, 3072, dtype=BF16).at[11].set(jnp.inf)

    def fn(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.relu(x @ w + b)

    np.testing.assert_array_equal(np.isfinite(jaxmono.jit(fn)(x, w, b)),
                                  np.isfinite(jax.jit(fn)(x, w, b)))

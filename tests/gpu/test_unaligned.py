"""Products whose rows are no multiples of 16 bytes, on a GPU, beside f32 and XLA's own error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32

SIZES = [
    # (m, n, k): 8, 4, 2 aligned bytes of 16-bit elements; whole tiles and parts; few rows
    (1000, 196, 316), (1000, 198, 322), (1000, 197, 321), (4096, 770, 770), (2048, 1001, 1024),
    (2048, 1024, 479), (129, 129, 63), (64, 1001, 2049), (17, 4099, 769), (4, 2051, 771),
    (1, 5003, 770), (1, 1002, 1023), (300, 29, 1023), (2048, 512, 13),
    # heads: rows of x are whole pieces
    (128, 30522, 768), (16, 50257, 768), (130, 6521, 512), (520, 3002, 768), (1, 4099, 768),
    (3, 4102, 768), (64, 1001, 2048)]


def einsums(x: jax.Array, xt: jax.Array, w: jax.Array, wt: jax.Array, bias: jax.Array) -> Any:
    pairs = (("mk,kn->mn", x, w), ("mk,nk->mn", x, wt), ("km,kn->mn", xt, w),
             ("km,nk->mn", xt, wt))
    return tuple(jax.nn.relu(jnp.einsum(e, a, b) + bias) for e, a, b in pairs)


def operands(m: int, n: int, k: int, dtype: Any) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(m + n + k)
    x, w = rng.standard_normal((m, k)), rng.standard_normal((k, n)) / np.sqrt(k)
    return tuple(jnp.asarray(a, F32).astype(dtype) for a in (
        x, x.T, w, w.T, rng.standard_normal(n)))


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("sizes", SIZES)
def test_all_layouts(sizes: tuple[int, int, int], dtype: Any) -> None:
    args = operands(*sizes, dtype)
    compiled = jaxmono.jit(einsums).lower(*args).compile()
    assert compiled.explain().kernels == 1
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(einsums)(*(a.astype(F32) for a in args))
    for a, b, want in zip(compiled(*args), jax.jit(einsums)(*args), wanted, strict=True):
        norm = float(jnp.linalg.norm(want))
        ours, theirs = (float(jnp.linalg.norm(x.astype(F32) - want)) / norm for x in (a, b))
        assert ours <= 1.1 * theirs + 1e-6


def both(fn: Any, *args: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of one kernel, and of XLA."""
    compiled = jaxmono.jit(fn).lower(*args).compile()
    assert compiled.explain().kernels == 1
    return compiled(*args), jax.jit(fn)(*args)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_neighbours_do_not_count(dtype: Any) -> None:
    """Rows and columns of a buffer around an operand are infinite, or none."""
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return x[3:300, 7:328] @ w[7:328, 5:202]

    rng = np.random.default_rng(0)
    x = np.full((303, 335), np.nan, np.float32)
    w = np.full((335, 209), np.inf, np.float32)
    x[3:300, 7:328], w[7:328, 5:202] = rng.standard_normal((297, 321)), rng.standard_normal(
        (321, 197))
    out, want = both(fn, *(jnp.asarray(a).astype(dtype) for a in (x, w)))
    assert np.isfinite(np.asarray(out, np.float32)).all()
    np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(want, np.float32),
                               rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_joined_features(dtype: Any) -> None:
    def fn(x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.sin(x), y, x], 1) @ w

    rng = np.random.default_rng(1)
    out, want = both(fn, *(jnp.asarray(rng.standard_normal(s), F32).astype(dtype)
                           for s in ((1000, 60), (1000, 256), (376, 128))))
    np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(want, np.float32),
                               rtol=2e-2, atol=0.2)

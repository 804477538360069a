"""Turned arrays through tiles in shared memory, on a GPU, beside XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32, S8 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8


def normal(seed: int, dtype: Any, *shape: int) -> jax.Array:
    x = 8 * jax.random.normal(jax.random.key(seed), shape)
    return x.astype(dtype)


def same(fn: Any, *args: jax.Array) -> None:
    compiled = jaxmono.jit(fn).lower(*args).compile()
    assert compiled.explain().kernels == 1 and "tile0" in compiled.as_text("cuda")
    for a, b in zip(jax.tree.leaves(compiled(*args)), jax.tree.leaves(jax.jit(fn)(*args)),
                    strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize("dtype", [BF16, F16, F32, S8])
@pytest.mark.parametrize("shape", [(32, 256, 56, 56), (9, 130, 37, 35), (3, 2000, 13, 8)])
def test_channels_at_the_other_end(shape: tuple[int, ...], dtype: Any) -> None:
    x = normal(0, dtype, *shape)
    same(lambda x: x.transpose(0, 2, 3, 1) * 2, x)
    same(lambda x: jnp.maximum(x.transpose(0, 3, 1, 2), 1), x.transpose(0, 2, 3, 1))


def test_with_a_bias_and_a_residual() -> None:
    def fn(x: Any, b: Any, y: Any) -> Any:
        return jax.nn.relu(x.transpose(0, 2, 3, 1) + b + y)

    same(fn, normal(0, F32, 8, 96, 61, 24), normal(1, F32, 96), normal(2, F32, 8, 61, 24, 96))


def test_matrices_and_reversed_dimensions() -> None:
    same(lambda x: x.T * 2, normal(0, BF16, 4096, 4000))
    same(lambda x: x.T * 2, normal(0, F32, 1001, 3003))
    same(lambda x: x.transpose(2, 1, 0) * 2, normal(0, F32, 200, 30, 300))
    same(lambda x, y: (x.T + y.T, x.T * 2), normal(0, F32, 1000, 2000), normal(1, F32, 1000, 2000))


def norm(x: Any, g: Any, b: Any) -> Any:
    y = jnp.moveaxis(x, 1, -1).astype(F32)
    y = y - y.mean(-1, keepdims=True)
    return (y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * g + b


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("shape", [(32, 96, 56, 56), (5, 130, 37, 35), (3, 768, 29, 31),
                                   (20, 24, 999)])
def test_rows_that_lie_turned_and_leave_as_rows(shape: tuple[int, ...], dtype: Any) -> None:
    args = normal(0, dtype, *shape), normal(1, dtype, shape[1]), normal(2, dtype, shape[1])
    compiled = jaxmono.jit(norm).lower(*args).compile()
    assert compiled.explain().kernels == 1 and "RowTile<" in compiled.as_text("cuda")
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(norm)(*(a.astype(F32) for a in args))
    ours, theirs = (float(jnp.abs(f(*args).astype(F32) - wanted).max()) for f in (
        compiled, jax.jit(norm)))
    assert ours <= 1.1 * theirs + 1e-5 * float(jnp.abs(wanted).max()), (ours, theirs)
    nothing = args[0].at[0, 3, ...].set(jnp.nan)
    for a, b in zip(compiled(nothing, *args[1:]), jax.jit(norm)(nothing, *args[1:]), strict=True):
        assert bool((jnp.isnan(a) == jnp.isnan(b)).all())


def test_rolled_arrays() -> None:
    """Of which an element's place is chosen."""
    x = normal(0, F32, 3, 257, 255)
    for fn in (lambda x: x + jnp.roll(x, (1, -2), (1, 2)), lambda x: jnp.roll(x, 3, 2) - x,
               lambda x: jnp.stack([jnp.roll(y, i, 0) for i, y in enumerate(x)]).max(0)):
        for a, b in zip(jaxmono.jit(fn)(x), jax.jit(fn)(x), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

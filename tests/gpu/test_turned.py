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

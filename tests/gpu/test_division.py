"""Integers divided on a real GPU, whose reciprocals are approximate: every quotient is exact."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxmono

Array = np.ndarray[Any, Any]
PAIRS = 1 << 22


def pairs(dtype: Any) -> tuple[Array, Array]:
    """Of all magnitudes, many of which divide with little or nothing left; corner cases, all with
    all."""
    info, rng = np.iinfo(dtype), np.random.default_rng(11)
    bits = info.bits - (info.min < 0)

    def drawn(n: int) -> Array:
        x = rng.integers(0, 1 << bits, n, np.uint64) >> rng.integers(0, bits, n, np.uint64)
        return np.where(rng.integers(0, 2, n) & (info.min < 0), -x.astype(np.int64),
                        x.astype(np.int64))

    a, b = drawn(PAIRS), drawn(PAIRS)
    near = np.clip(b * drawn(PAIRS) + rng.integers(-1, 2, PAIRS), info.min, info.max)
    a = np.where(rng.integers(0, 2, PAIRS), a, near)
    corners = [0, 1, 2, 3, 7, info.max - 1, info.max, info.min, info.min + 1, info.max // 2 + 1]
    corners += [-1, -2, -3] if info.min < 0 else []
    x, y = (v.reshape(-1) for v in np.meshgrid(corners, corners))
    x, y = np.concatenate([a, x]).astype(dtype), np.concatenate([b, y]).astype(dtype)
    return x, y


def functions(a: Any, b: Any) -> tuple[Any, ...]:
    return jax.lax.div(a, b), jax.lax.rem(a, b), a // b, a % b


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int16, np.uint16, np.int8, np.uint8])
def test_quotients_and_rests_are_exact(dtype: Any) -> None:
    a, b = pairs(dtype)
    found = jaxmono.jit(functions, on_unsupported="error")(a, b)
    for mine, other in zip(found, jax.jit(functions)(a, b), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))  # by 0, too
    some = b != 0
    x, y = a[some].astype(np.int64), b[some].astype(np.int64)
    cut = (np.abs(x) // np.abs(y)) * np.sign(x) * np.sign(y)
    for mine, exact in zip(found, (cut, x - cut * y, x // y, x % y), strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[some], exact.astype(dtype))

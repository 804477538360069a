"""Integer arithmetic with XLA's corner cases: wrap-around, division by zero, wide shifts.

All functions take and return arrays of one integer dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _bits(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize * 8


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _safe_divisor(x: Array, y: Array) -> tuple[Array, Array]:
    """The divisor with 1 in place of 0, and of -1 below the least integer; and the overflows."""
    if x.dtype.kind == "u":
        overflow = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.bool_)
    else:
        overflow = (x == np.iinfo(x.dtype).min) & (y == -1)
    one = np.ones((), x.dtype)
    return np.where((y == 0) | overflow, one, y), overflow


def divide(x: Array, y: Array) -> Array:
    """Towards zero; x / 0 = -1 (all ones), MIN / -1 = MIN."""
    divisor, overflow = _safe_divisor(x, y)
    floor = x // divisor
    inexact = floor * divisor != x
    quotient = np.where(inexact & ((x < 0) != (divisor < 0)), floor + 1, floor)
    quotient = np.where(overflow, x, quotient)
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def remainder(x: Array, y: Array) -> Array:
    """Sign of the dividend; x % 0 = x, MIN % -1 = 0."""
    divisor, _ = _safe_divisor(x, y)
    return np.where(y == 0, x, np.fmod(x, divisor))


def power(x: Array, y: Array) -> Array:
    """Wrapping. A negative exponent gives the truncated 1 / x**-y, and 0 for x = 0."""
    negative = y < 0
    exponent = _unsigned(np.where(negative, np.zeros_like(y), y))
    result = np.ones(np.broadcast_shapes(x.shape, y.shape), x.dtype)
    base = np.broadcast_to(x, result.shape)
    while exponent.any():
        result = np.where(exponent & 1 != 0, result * base, result)
        base = base * base
        exponent = exponent >> 1
    if x.dtype.kind == "u":
        return result
    sign = np.where(y & 1 != 0, x, np.ones((), x.dtype))
    inverse = np.where(np.abs(x) == 1, sign, np.zeros((), x.dtype))
    return np.where(negative, inverse, result)


def shift_left(x: Array, y: Array) -> Array:
    """0 for shifts of at least the width (a negative amount is a huge unsigned one)."""
    amount = _unsigned(y)
    wide = amount >= _bits(x.dtype)
    return np.where(wide, np.zeros((), x.dtype), x << np.where(wide, 0, amount).astype(x.dtype))


def shift_right_logical(x: Array, y: Array) -> Array:
    amount = _unsigned(y)
    wide = amount >= _bits(x.dtype)
    raw = _unsigned(x)
    shifted = raw >> np.where(wide, 0, amount).astype(raw.dtype)
    return np.where(wide, np.zeros((), raw.dtype), shifted).astype(raw.dtype).view(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    """Copies of the sign bit for shifts of at least the width."""
    signed = x.view(f"i{x.dtype.itemsize}")
    amount = np.minimum(_unsigned(y), _bits(x.dtype) - 1).astype(signed.dtype)
    return np.asarray(signed >> amount).view(x.dtype)


def count_leading_zeros(x: Array) -> Array:
    raw = _unsigned(x)
    width = _bits(x.dtype)
    count = np.full(raw.shape, width, np.int64)
    for bit in range(width):
        count = np.where((raw >> np.asarray(bit, raw.dtype)) & 1 != 0, width - 1 - bit, count)
    return count.astype(x.dtype)


def popcnt(x: Array) -> Array:
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)

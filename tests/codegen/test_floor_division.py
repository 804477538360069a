"""Integers divided and rounded down: what is one function, what is not, and the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import check

SIGNED = (np.int8, np.int16, np.int32, np.int64)
NAMES = ("floor_divide(", "floor_remainder(")


def called(fn: Callable[..., Any], dtype: Any) -> list[str]:
    """Which of the functions a kernel calls whose results are the reference's, for all pairs of
    corner cases and random numbers."""
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    x = np.array([0, 1, 2, 7, 13, info.max - 1, info.max, info.min, info.min + 1,
                  *(rng.integers(info.min, info.max, 7, dtype, endpoint=True))], dtype)
    if info.min < 0:
        x[9:12] = [-1, -2, -13]
    a, b = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(x, x))
    with jax.enable_x64(True):
        shape = jax.ShapeDtypeStruct(a.shape, dtype)
        source = check(models.graph_of(fn, shape, shape), [a, b]).source
    return [f for f in NAMES if f in source[source.index("// loop"):]]


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize(("fn", "functions"), [
    (lambda a, b: a // b, ["floor_divide("]),
    (lambda a, b: a % b, ["floor_remainder("]),
    (jnp.divmod, list(NAMES)),
    (lambda a, b: (a // b) * 2 + jax.lax.rem(a, b), ["floor_divide("]),  # another user of the rest
    (jax.lax.div, []), (jax.lax.rem, [])])
def test_quotients_are_one_function(fn: Callable[..., Any], functions: list[str],
                                    dtype: Any) -> None:
    assert called(fn, dtype) == functions


@pytest.mark.parametrize("fn", [
    lambda a, b: a // 7, lambda a, b: a % 7,  # the compiler knows better
    lambda a, b: jnp.where((jnp.sign(a) != jnp.sign(b)) & (jax.lax.rem(a, b) != 1),
                           jax.lax.div(a, b) - 1, jax.lax.div(a, b)),
    lambda a, b: jnp.where((jnp.sign(a) != jnp.sign(b)) & (jax.lax.rem(b, a) != 0),
                           jax.lax.div(a, b) - 1, jax.lax.div(a, b)),
    lambda a, b: jnp.where((jnp.sign(a) != jnp.sign(b)) & (jax.lax.rem(a, b) != 0),
                           jax.lax.div(a, b) - 2, jax.lax.div(a, b)),
    lambda a, b: jnp.where((jnp.sign(a) == jnp.sign(b)) & (jax.lax.rem(a, b) != 0),
                           jax.lax.div(a, b) - 1, jax.lax.div(a, b)),
    lambda a, b: jnp.where(((jax.lax.rem(a, b) < 0) != (a < 0)) & (jax.lax.rem(a, b) != 0),
                           jax.lax.rem(a, b) + b, jax.lax.rem(a, b))])
def test_what_is_another_function_stays(fn: Callable[..., Any]) -> None:
    assert called(fn, np.int32) == []


def test_unsigned_numbers_have_no_signs() -> None:
    assert called(lambda a, b: a // b + a % b, np.uint32) == []
    assert called(lambda a, b: a // b + a % b, np.uint8) == []

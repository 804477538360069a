"""Cumulative ops along rows, which the threads of a block share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def made(fun: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    kernel = jaxmono.jit(fun, interpret=True, on_unsupported="error")
    return kernel(*args), kernel.lower(*args).as_text("plan")


LINES = [(300, 36), (7, 100), (5, 1024), (3, 1000), (3, 999), (2, 2500), (3, 4096), (2, 5000),
         (9001,), (33000, 16), (15000, 24)]
"""Several a block, in a warp each or not; of a vector for each thread, of several; in pieces."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("back", [False, True])
def test_sums_of_lines(shape: tuple[int, ...], back: bool) -> None:
    d = len(shape) - 1

    def fun(x: jax.Array) -> jax.Array:
        return lax.cumsum(x, d, reverse=back)

    x = normal(*shape)
    y, plan = made(fun, x)
    wide = np.flip(x, d) if back else x
    wide = np.cumsum(wide.astype(np.float64), d)
    wide = np.flip(wide, d) if back else wide
    np.testing.assert_allclose(y, wide, rtol=1e-5, atol=1e-6 * np.abs(wide).max())
    assert "prefix" in plan
    assert ("1 stages" in plan) == (shape[-1] <= 4096)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shape", [(300, 36), (3, 999), (2, 2500), (2, 5000)])
def test_largest_smallest_and_integers_are_exact(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    x[0, 5], x[0, 20:] = np.inf, np.nan
    for fun in (lambda x: lax.cummax(x, 1), lambda x: lax.cummin(x, 1, reverse=True),
                lambda x: lax.cumsum((x[1:] * 100).astype(jnp.int32), 1, reverse=True)):
        y, _ = made(fun, x)
        np.testing.assert_array_equal(y, jax.jit(fun)(x))
    y, _ = made(lambda x: jnp.cumprod(1 + x / 50, -1), x[1:])
    np.testing.assert_allclose(y, jnp.cumprod(1 + x[1:] / 50, -1), rtol=1e-5, atol=0)


def test_halves_are_summed_in_f32_and_rounded_once() -> None:
    x = normal(3, 2048).astype(jnp.bfloat16)
    y, plan = made(lambda x: jnp.cumsum(x, -1), x)
    wide = np.cumsum(np.asarray(x, np.float64), -1)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float64), wide, rtol=2.0 ** -8, atol=1e-5)
    assert "1 stages" in plan


def test_what_is_summed_is_computed_on_the_way_and_neighbours_do_not_mix() -> None:
    x = normal(6, 1000)
    x[2] = np.inf  # no number in its own line alone

    def fun(x: jax.Array) -> jax.Array:
        return jnp.cumsum(jnp.exp(x - 1) / 7, -1)

    y, plan = made(fun, x)
    np.testing.assert_allclose(y, jax.jit(fun)(x), rtol=1e-5, atol=1e-5)
    assert "1 stages" in plan and "exponential" in plan


def test_a_few_elements_stay_on_the_way_to_their_readers() -> None:
    _, plan = made(lambda x: jnp.cumsum(x, -1) * 2, normal(64, 8))
    assert "prefix" not in plan

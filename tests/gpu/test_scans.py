"""Scans on a GPU beside XLA: cumulative ops, associative scans, Mamba's layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

Function = Callable[..., Any]


def uniform(*shape: int, seed: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.3, 1.1, shape), dtype)


def one_kernel(fn: Function, *args: jax.Array) -> list[np.ndarray[Any, Any]]:
    function = jaxmono.jit(fn)
    told = function.lower(*args).compile().explain()
    assert told.kernels == 1 and not told.refused, str(told)
    out = jax.tree.leaves(function(*args))
    for again, first in zip(jax.tree.leaves(function(*args)), out, strict=True):
        np.testing.assert_array_equal(again, first)
    return [np.asarray(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x) for x in out]


def as_near_as_xla(fn: Function, exact: Any, *args: jax.Array) -> None:
    """To a f64 result, but for some noise."""
    want = [np.asarray(x, np.float64) for x in jax.tree.leaves(exact)]
    xla = jax.tree.leaves(jax.jit(fn)(*args))
    for got, other, w in zip(one_kernel(fn, *args), xla, want, strict=True):
        scale = np.linalg.norm(w)
        errors = [np.linalg.norm(np.asarray(x, np.float64) - w) / scale
                  for x in (got, other.astype(jnp.float32))]
        assert errors[0] <= 1.1 * errors[1] + 1e-6


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize(("shape", "axis"), [
    ((100_000,), 0), ((64, 3000), 1), ((9000, 36), 1), ((70000, 16), 1), ((7, 5000), 1),
    ((8, 1024, 8, 64), 1), ((2, 300, 5), 1), ((4, 129), 1),
    ((16, 16), 0)])
def test_cumulative_sums(shape: tuple[int, ...], axis: int, dtype: Any, reverse: bool) -> None:
    x = (uniform(*shape) * 8).astype(dtype)

    def fn(x: jax.Array) -> jax.Array:
        return lax.cumsum(x + x, axis=axis, reverse=reverse)

    doubled = np.asarray((x + x).astype(jnp.float32), np.float64)
    turned = np.flip(doubled, axis) if reverse else doubled
    exact = np.cumsum(turned, axis)
    as_near_as_xla(fn, np.flip(exact, axis) if reverse else exact, x)


@pytest.mark.parametrize("fn", [lax.cummax, lax.cummin, lax.cumprod, lax.cumlogsumexp])
@pytest.mark.parametrize("shape", [(1000, 8), (1000,), (3, 400)])
def test_other_cumulative_ops(fn: Any, shape: tuple[int, ...]) -> None:
    x = uniform(*shape) ** 0.05
    got = one_kernel(lambda x: fn(x * 1.5 - 0.5, axis=0), x)
    np.testing.assert_allclose(got[0], jax.jit(lambda x: fn(x * 1.5 - 0.5, axis=0))(x), 1e-4)


def test_what_is_not_finite_stays_behind_its_place() -> None:
    x = np.array(uniform(3000, 8))
    x[50, 1], x[100, 2], x[0, 3], x[2999, 4] = np.nan, np.inf, np.nan, -np.inf
    (got,) = one_kernel(lambda x: lax.cumsum(x, axis=0), jnp.asarray(x))
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64), 0), 1e-5)


def linear(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def in_turn(a: Any, b: Any, axis: int) -> np.ndarray[Any, Any]:
    a, b = (np.moveaxis(np.asarray(x.astype(jnp.float32), np.float64), axis, 0) for x in (a, b))
    h, out = np.zeros_like(b[0]), []
    for x, y in zip(a, b, strict=True):
        h = x * h + y
        out.append(h)
    return np.moveaxis(np.stack(out), 0, axis)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("shape", "axis"), [
    ((8, 4), 0), ((300, 8), 0), ((4, 256, 96, 16), 1), ((2, 1000, 33), 1), ((5000, 16), 0)])
def test_linear_recurrences(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    a, b = uniform(*shape, dtype=dtype), uniform(*shape, seed=1, dtype=dtype)
    as_near_as_xla(lambda a, b: lax.associative_scan(linear, (a, b), axis=axis)[1],
                   in_turn(a, b, axis), a, b)


def test_both_results_and_the_way_back() -> None:
    a, b = uniform(300, 16), uniform(300, 16, seed=1)
    exact = np.cumprod(np.asarray(a, np.float64), 0), in_turn(a, b, 0)
    as_near_as_xla(lambda a, b: lax.associative_scan(linear, (a, b)), exact, a, b)
    back = one_kernel(lambda a, b: lax.associative_scan(linear, (a, b), reverse=True)[1], a, b)
    np.testing.assert_allclose(np.flip(back[0], 0), in_turn(jnp.flip(a, 0), jnp.flip(b, 0), 0),
                               1e-4)


def test_gradients_of_scans() -> None:
    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return (lax.associative_scan(linear, (jnp.tanh(a), b))[1] ** 2).sum()

    a, b = uniform(64, 16), uniform(64, 16, seed=1)
    for got, want in zip(jaxmono.jit(jax.grad(loss, (0, 1)))(a, b),
                         jax.jit(jax.grad(loss, (0, 1)))(a, b), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-4)


def test_clusters() -> None:
    """Ones at each row's nearest centre are computed on the way to a product."""
    def clusters(x: jax.Array, centres: jax.Array) -> Any:
        apart = (x ** 2).sum(-1)[:, None] - 2 * x @ centres.T + (centres ** 2).sum(-1)
        own = jnp.argmin(apart, -1)
        ones = jax.nn.one_hot(own, len(centres))
        return ones.T @ x, ones.sum(0), own

    x, centres = (jnp.asarray(np.random.default_rng(n).normal(size=(n, 64)), jnp.float32)
                  for n in (65536, 256))
    sums, counts, own = one_kernel(clusters, x, centres)
    assert (own == np.asarray(jax.jit(clusters)(x, centres)[2])).mean() > 0.99  # in TF32
    exact = np.zeros((256, 64))
    np.add.at(exact, own, np.asarray(x, np.float64))
    np.testing.assert_array_equal(counts, np.bincount(own, minlength=256))
    assert np.linalg.norm(sums - exact) <= 2e-3 * np.linalg.norm(exact)

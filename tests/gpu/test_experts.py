"""Rows that go to experts, on a GPU beside XLA: ragged products, sorts, matrices looked up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def one_kernel(fn: Any, *args: Any) -> list[np.ndarray[Any, Any]]:
    function = jaxmono.jit(fn)
    told = function.lower(*args).compile().explain()
    assert told.kernels == 1 and not told.refused, str(told)
    return [np.asarray(x, np.float64) if x.dtype != jnp.int32 else np.asarray(x)
            for x in jax.tree.leaves(function(*args))]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize(("m", "k", "n", "sizes"), [
    (1024, 256, 384, [128] * 8), (1024, 256, 384, [0, 1, 511, 0, 130, 250, 100, 32]),
    (1000, 256, 384, [900, 0, 50]), (16, 512, 256, [3, 0, 9, 4]), (4, 512, 256, [1, 1, 0, 2, 0]),
    (300, 72, 40, [150, 150]), (256, 128, 128, [0, 0])])
def test_ragged_products(m: int, k: int, n: int, sizes: list[int], dtype: Any) -> None:
    x, w = normal(0, m, k, dtype=dtype), normal(1, len(sizes), k, n, dtype=dtype)
    groups = jnp.asarray(sizes, jnp.int32)
    (got,) = one_kernel(lax.ragged_dot, x, w, groups)
    exact, first = np.zeros((m, n)), 0
    for g, size in enumerate(sizes):
        rows = slice(first, first := first + size)
        exact[rows] = np.asarray(x, np.float64)[rows] @ np.asarray(w[g], np.float64)
    xla = np.asarray(jax.jit(lax.ragged_dot)(x, w, groups), np.float64)
    scale = np.linalg.norm(exact) + 1e-9
    errors = [np.linalg.norm(y - exact) / scale for y in (got, xla)]
    assert errors[0] <= 1.1 * errors[1] + (1e-3 if dtype == jnp.float32 else 1e-4)
    assert not got[sum(sizes):].any()


def test_experts_whose_logits_are_nearly_equal() -> None:
    """Of 16 bits they would be equal, and the first one would be taken."""
    def routed(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.top_k(jax.nn.softmax((x @ w).astype(jnp.float32)), 2)[1]

    for seed in range(8):
        x, w = normal(seed, 2048, 1024, dtype=jnp.bfloat16), normal(seed + 99, 1024, 64)
        w = (w * 0.03).astype(jnp.bfloat16)
        exact = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
        (got,) = one_kernel(routed, x, w)
        taken = np.sort(np.take_along_axis(exact, got.astype(int), 1), 1)
        assert np.abs(taken - np.sort(exact, 1)[:, -2:]).max() < 1e-5


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [8, 16, 128])
def test_matrices_that_an_earlier_stage_chooses(rows: int, transposed: bool) -> None:
    """Producers wait for the stage that finds the numbers."""
    def chosen(x: jax.Array, w: jax.Array, scores: jax.Array) -> jax.Array:
        place = jnp.argmax(jnp.tanh(scores) * 2, -1)
        return jnp.einsum("trk,tnk->trn" if transposed else "trk,tkn->trn", x, w[place])

    shape = (8, 256, 512) if transposed else (8, 512, 256)
    x, w = normal(0, 12, rows, 512, dtype=jnp.bfloat16), normal(1, *shape, dtype=jnp.bfloat16)
    function = jaxmono.jit(chosen)
    for seed in range(20):  # other numbers each time: those of the last call would be wrong
        scores = normal(seed, 12, 8)
        got, want = (np.asarray(f(x, w, scores), np.float64) for f in (function, jax.jit(chosen)))
        np.testing.assert_allclose(got, want, 2e-2, 0.3)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("rows", [4, 64, 256])
def test_rows_that_an_earlier_stage_chooses(rows: int, dtype: Any) -> None:
    def chosen(xs: jax.Array, w: jax.Array, scores: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(xs, jnp.argmax(jnp.tanh(scores)), keepdims=False) @ w

    xs, w = normal(0, 6, rows, 512, dtype=dtype), normal(1, 512, 256, dtype=dtype)
    function = jaxmono.jit(chosen)
    for seed in range(10):
        scores = normal(seed, 6)
        got, want = (np.asarray(f(xs, w, scores), np.float64) for f in (function, jax.jit(chosen)))
        np.testing.assert_allclose(got, want, 2e-2, 0.3)


@pytest.mark.parametrize("shape", [(1024,), (2000,), (8192,), (16, 1024), (64, 300), (3, 50)])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(shape: tuple[int, ...], descending: bool) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x.reshape(-1)[::7] = 0.0
    x.reshape(-1)[1:40:9] = [np.nan, np.inf, -np.inf, -0.0, np.nan]

    def fn(x: jax.Array) -> Any:
        y = x * 1.0
        return (jnp.argsort(y, descending=descending),
                lax.bitcast_convert_type(jnp.sort(y), jnp.int32))

    for got, want in zip(one_kernel(fn, x), jax.jit(fn)(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("tokens", [4, 64, 512])
def test_a_layer_of_experts(tokens: int) -> None:
    def layer(x: jax.Array, router: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        share, place = lax.top_k(jax.nn.softmax(x.astype(jnp.float32) @ router), 2)
        order = jnp.argsort(place.reshape(-1), stable=True)
        sizes = jnp.bincount(place.reshape(-1), length=8)
        h = jax.nn.silu(lax.ragged_dot(x[order // 2], up, sizes))
        back = lax.ragged_dot(h, down, sizes)[jnp.argsort(order)]
        return jnp.einsum("tkd,tk->td", back.reshape(*place.shape, -1), share.astype(x.dtype))

    args = (normal(0, tokens, 256, dtype=jnp.bfloat16), normal(1, 256, 8),
            normal(2, 8, 256, 512, dtype=jnp.bfloat16) / 16,
            normal(3, 8, 512, 256, dtype=jnp.bfloat16) / 22)
    (got,) = one_kernel(layer, *args)
    want = np.asarray(jax.jit(layer)(*args), np.float64)
    assert np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)

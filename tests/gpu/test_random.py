"""Programs that draw at random, on a GPU beside XLA: equal bits, equal tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

KEY = np.asarray([0x12345678, 0xFEDCBA98], np.uint32)


def kept(key: Any, x: Any) -> Any:
    """Of more elements than a mask of one block's; a mask, a seed and what it was made of."""
    mask = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(mask, x, 0), mask, jax.random.split(key, 3), jax.random.fold_in(key, 5)


def tokens(key: Any, x: Any) -> Any:
    key, now = jax.random.split(key)
    return jax.random.categorical(now, x), jnp.argmax(x, -1), jnp.argmin(x, -1), key


def of_the_likeliest(key: Any, x: Any) -> Any:
    largest, places = lax.top_k(x, 50)
    chosen = jax.random.categorical(key, largest / 0.7)
    return jnp.take_along_axis(places, chosen[:, None], axis=1), largest, places


@pytest.mark.parametrize("fn", [kept, tokens, of_the_likeliest])
@pytest.mark.parametrize("shape", [(1, 50257), (4, 128256), (16, 50257), (48, 50257),
                                   (300, 1000), (7, 64)])
def test_the_same_as_xla(fn: Any, shape: tuple[int, int]) -> None:
    function = jaxmono.jit(fn)
    assert function.lower(KEY, jnp.zeros(shape)).explain().kernels == 1
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        x[0, seed * 7] = (np.nan, np.inf, -np.inf)[seed]
        for got, want in zip(function(KEY + seed, x), jax.jit(fn)(KEY + seed, x), strict=True):
            np.testing.assert_array_equal(got, want)


def layers(key: Any, x: Any, w: Any, v: Any) -> Any:
    first, second = jax.random.split(key)
    y = jax.nn.gelu(x @ w)
    y = jnp.where(jax.random.bernoulli(first, 0.9, y.shape), y / 0.9, 0) @ v
    return jnp.where(jax.random.bernoulli(second, 0.9, y.shape), y / 0.9, 0)


def gradients(key: Any, x: Any, w: Any, v: Any) -> Any:
    return jax.vjp(lambda *args: layers(key, *args), x, w, v)[1](jnp.ones((len(x), v.shape[1]),
                                                                          x.dtype))


@pytest.mark.parametrize("fn", [layers, gradients])
@pytest.mark.parametrize("rows", [1, 16, 100, 2048])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dropout_between_products(fn: Any, rows: int, dtype: Any) -> None:
    """What is dropped is XLA's; the rest as near to f32 as XLA's."""
    rng = np.random.default_rng(rows)
    x, w, v = (jnp.asarray(rng.normal(size=s) / s[0]**0.5, dtype)
               for s in ((rows, 256), (256, 512), (512, 256)))
    got = jax.tree.leaves(jaxmono.jit(fn)(KEY, x, w, v))
    want = jax.tree.leaves(jax.jit(fn)(KEY, x, w, v))
    with jax.default_matmul_precision("highest"):
        exact = jax.tree.leaves(jax.jit(fn)(KEY, *(a.astype(jnp.float32) for a in (x, w, v))))
    for a, b, c in zip(got, want, exact, strict=True):
        if fn is layers:
            np.testing.assert_array_equal(a == 0, b == 0)
        a, b, c = (np.asarray(y, np.float64) for y in (a, b, c))
        assert np.linalg.norm(a - c) <= 1.2 * np.linalg.norm(b - c) + 1e-6 * np.linalg.norm(c)

"""Kernels with loops that were taken apart, in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import check
from jax import lax
from models import graph_of

X = Any
BF16, F32 = jnp.bfloat16, jnp.float32


def gru(x: X, w: X, *, reverse: bool = False) -> X:
    def step(h: X, now: X) -> tuple[X, X]:
        update_x, reset_x, new_x = jnp.split(now, 3, axis=-1)
        update_h, reset_h, new_h = jnp.split(h @ w, 3, axis=-1)
        update = jax.nn.sigmoid(update_x + update_h)
        new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
        h = (1 - update) * h + update * new
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], w.shape[0]), x.dtype), x, reverse=reverse)[1]


def two_ways(x: X, w: X) -> X:
    y = jnp.concatenate([gru(x, w), gru(x, w, reverse=True)], -1)
    return y - y.mean(-1, keepdims=True)


def lstm(x: X, w: X) -> X:
    """As Flax's cells have it: what comes in is multiplied in the loop, too."""
    hidden = w.shape[0] // 2

    def step(carry: tuple[X, X], now: X) -> tuple[tuple[X, X], X]:
        h, cell = carry
        gates = now @ w[:hidden] + h @ w[hidden:]
        enter, forget, new, leave = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(forget + 1) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        h = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (h, cell), h

    zeros = jnp.zeros((x.shape[1], hidden), x.dtype)
    return lax.scan(step, (zeros, zeros), x)[1]


def training(x: X, w: X) -> X:
    """The way back reads what the way there has left, last trip first."""
    def loss(w: X) -> X:
        return jnp.mean(gru(x, w).astype(F32) ** 2)

    return jax.value_and_grad(loss)(w)


def newton(x: X, w: X) -> X:
    """A solver of few steps."""
    return lax.fori_loop(0, 5, lambda _, y: 0.5 * (y + (x[0] @ w[:, :4]) / y), jnp.ones((4, 4)))


def layers_in_time(x: X, w: X) -> X:
    """A loop over layers in one over time, and a step that is taken or not."""
    def layer(h: X, m: X) -> tuple[X, X]:
        h = lax.cond(h.sum() > 30, lambda h: h / 2, lambda h: h, jnp.tanh(h @ m) + h)
        return h, h.mean()

    def step(h: X, now: X) -> tuple[X, X]:
        return lax.scan(layer, h + now, w.reshape(16, 3, 16).swapaxes(0, 1))

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x)


@pytest.mark.parametrize(("fn", "dtype"), [(gru, F32), (two_ways, BF16),
                                           pytest.param(lstm, BF16, marks=pytest.mark.slow),
                                           (training, F32), (newton, F32), (layers_in_time, F32)])
def test_as_the_reference_in_any_order_of_threads(fn: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(np.abs(rng.standard_normal((6, 4, 48))), dtype)
    w = jnp.asarray(np.abs(rng.standard_normal((16, 48))) / 8, dtype)
    if fn in (newton, layers_in_time):
        x = x[..., :16]
    if fn is lstm:
        x, w = x[..., :16], jnp.concatenate([w, w])[:, :32].repeat(2, 1)
    graph = graph_of(fn, x, w)
    # Contractions of f32 are rounded to tf32, and errors go from trip to trip.
    check(graph, [np.asarray(x), np.asarray(w)], seeds=(0, 1, 2),
          rtol=2e-2 if dtype == BF16 else 4e-3)

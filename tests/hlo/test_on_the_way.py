"""Which states of a loop the next trip's contractions compute themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax
from models import f32, graph_of
from test_trips import lstm, rnn

from jaxmono.hlo import ops
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.passes.on_the_way import on_the_way

X = Any


def normed(x: X, w: X) -> X:
    """The state needs whole rows of the product."""
    def step(h: X, now: X) -> tuple[X, X]:
        a, b = jnp.split(now + h @ w, 2, -1)
        h = jnp.tanh(a) * b
        return h / h.sum(-1, keepdims=True), h

    return lax.scan(step, x[0, :, :w.shape[0]], x)[1]


def gated(x: X, w: X) -> X:
    def step(h: X, now: X) -> tuple[X, X]:
        a, b = jnp.split(now + h @ w, 2, -1)
        return jnp.tanh(a) * b, h

    return lax.scan(step, x[0, :, :w.shape[0]], x)[1]


@pytest.mark.parametrize(("fn", "rows", "high", "wide", "count"), [
    (gated, 4, 8, 16, 1), (gated, 1, 2048, 4096, 1), (gated, 1, 2056, 4112, 0),
    (gated, 64, 128, 256, 1), (gated, 64, 136, 272, 0),
    (lstm, 4, 8, 32, 1),  # its cell is no operand of a product
    (rnn, 4, 8, 8, 0),   # the product's epilogue has all of the state
    (normed, 4, 8, 16, 0)])
def test_which_states(fn: Callable[..., X], rows: int, high: int, wide: int, count: int) -> None:
    graph = simplify(graph_of(fn, f32(5, rows, wide), f32(high, wide)))
    loop, = (o for o in graph.ops if isinstance(o, ops.While))
    assert len(on_the_way(loop.body)) == count

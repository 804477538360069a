"""Products that wait for the rows that their epilogues look up (fusion/awaited_lookups.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked import checked, kinds
from models import graph_of

from jaxmono.fusion.awaited_lookups import lookups
from jaxmono.hlo import ops

X = Any
F32 = jnp.float32
H, E = (jax.ShapeDtypeStruct((n, 64), F32) for n in (96, 256))
I = jax.ShapeDtypeStruct((256,), jnp.int32)  # noqa: E741
W = jax.ShapeDtypeStruct((64, 64), F32)


def edges(h: X, e: X, i: X, w: X, v: X) -> X:
    return jax.nn.relu(e @ w + (h @ v)[i])


def test_the_smaller_product_comes_first() -> None:
    p = checked(edges, H, E, I, W, W)
    assert kinds(p) == [["dot"], ["dot"]]
    assert p.stages[1].groups[0].sig.body.outputs[0].type.dims == (256, 64)


def test_of_several_rounds() -> None:
    """The rows of the second round are made of the first one's results."""
    def rounds(h: X, e: X, i: X, w: X, v: X) -> X:
        for _ in range(2):
            e = jnp.tanh(e @ w + (h @ v)[i])
            h = jnp.tanh(h + e[:96] @ v)
        return h, e

    p = checked(rounds, H, E, I, W, W)
    assert all(set(k) == {"dot"} for k in kinds(p))


@pytest.mark.parametrize("fn", [
    lambda h, e, i, w, v: jax.nn.relu(e @ w + h[i]),  # an input
    lambda h, e, i, w, v: jax.nn.relu(e @ w + (e @ v)[i]),  # as large
    lambda h, e, i, w, v: (y := e @ w, y + (y[:96] @ v)[i])])  # made of it
def test_others_do_not_wait(fn: Any) -> None:
    graph = graph_of(fn, H, E, I, W, W)
    assert any(isinstance(o, ops.Gather) for o in graph.ops)
    assert not lookups(graph)


def test_no_two_wait_for_each_other() -> None:
    def crossed(e: X, a: X, b: X, c: X, d: X, i: X) -> tuple[X, X]:
        p, q = e @ a, e @ b
        return jax.nn.relu(p + (q[:96] @ d)[i]), jax.nn.relu(q + (p[:96] @ c)[i])

    graph = graph_of(crossed, E, W, W, W, W, I)
    assert len(lookups(graph)) == 1
    checked(crossed, E, W, W, W, W, I)

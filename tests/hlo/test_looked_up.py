"""Products of rows that are looked up (hlo/passes/rules/looked_up.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import graph_of

from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.pipeline import simplify
from jaxmono.hlo.passes.rules import looked_up
from jaxmono.hlo.verify import verify

X = Any
NODES, EDGES, WIDTH = 20, 50, 8


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_up, "MIN_LOOKED_UP", 1)
    monkeypatch.setattr("jaxmono.hlo.passes.rules.scatter.DENSE", 0)


def products(graph: Graph) -> list[tuple[int, ...]]:
    """Rows, summed elements and columns of all, in order."""
    return sorted((o.lhs.type.dims[0], o.lhs.type.dims[1], o.result.type.dims[1])
                  for o in graph.ops if isinstance(o, ops.DotGeneral))


def made(fn: Callable[..., X], *args: Any) -> Graph:
    """The simplified graph, which means the same."""
    graph = graph_of(fn, *args)
    out = simplify(graph)
    verify(out)
    for got, want in zip(evaluate(out, args), evaluate(graph, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return out


RNG = np.random.default_rng(0)
I, J = (RNG.integers(-3, NODES + 5, EDGES).astype(np.int32) for _ in range(2))  # noqa: E741
H, E = (RNG.normal(size=(n, WIDTH)).astype(np.float32) for n in (NODES, EDGES))
W, V = (RNG.normal(size=(n, 6)).astype(np.float32) for n in (3 * WIDTH, WIDTH))


def test_rows_are_multiplied_before_they_are_looked_up() -> None:
    graph = made(lambda h, i, w: jnp.tanh(h[i] @ w), H, I, V)
    assert products(graph) == [(NODES, WIDTH, 6)]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_joined_rows_are_multiplied_apart(order: tuple[int, ...]) -> None:
    def fn(h: X, e: X, i: X, j: X, w: X) -> X:
        parts = (e, h[i], h[j])
        return jax.nn.relu(jnp.concatenate([parts[p] for p in order], -1) @ w)

    graph = made(fn, H, E, I, J, W)
    assert products(graph) == [(NODES, WIDTH, 6), (NODES, WIDTH, 6), (EDGES, WIDTH, 6)]
    assert not any(isinstance(o, ops.Concatenate) for o in graph.ops)


def test_weights_that_lie_the_other_way() -> None:
    def fn(h: X, e: X, i: X, w: X) -> X:
        return jax.lax.dot_general(jnp.concatenate([e, h[i]], -1), w, (((1,), (1,)), ((), ())))

    graph = made(fn, H, E, I, np.ascontiguousarray(W[:2 * WIDTH].T))
    assert products(graph) == [(NODES, WIDTH, 6), (EDGES, WIDTH, 6)]


def test_weights_that_are_not_finite_reach_no_line_without_updates() -> None:
    w = V.copy()
    w[0, 0] = np.inf
    graph = graph_of(lambda e, i, w: jax.ops.segment_sum(jnp.tanh(e) @ w, i, NODES), E, I % 5, w)
    (got,), (want,) = (evaluate(g, [E, I % 5, w]) for g in (simplify(graph), graph))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert not np.isnan(want[5:]).any()


@pytest.mark.parametrize(("fn", "args"), [
    (lambda h, i, w: h[i[:30]] @ w, (H, I, V)),  # not far more rows than there are
    (lambda h, i, w: h.T[i[:8] % 8].T @ w[:8], (H, I, V)),  # columns are looked up
    (lambda h, i, w: h[i].astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), (H, I, V)),
    (lambda e, i, w: jax.ops.segment_sum(e @ w, i, NODES), (E, I, V)),
])
def test_others_stay(fn: Callable[..., X], args: Any) -> None:
    graph = graph_of(fn, *args)
    was = products(graph)
    assert products(simplify(graph)) == was

"""Sums of rows of which one element is marked: known by the mark's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.verify import verify

AT = np.asarray([3, 0, 9, 10, -1], np.int32)


def simple(fn: Callable[..., Any], *args: Any) -> Graph:
    lowered = jax.jit(fn).lower(*args)
    graph = simplify(import_module(lowered.compiler_ir("stablehlo")).graph)
    verify(graph)
    return graph


def marked(at: Any, n: int = 10) -> Any:
    return jnp.arange(n) == at[:, None]


@pytest.mark.parametrize("fn", [
    lambda at: jnp.where(marked(at), 2.5, 0).sum(1),
    lambda at: (-jnp.where(marked(at), 2.5, 0)).sum(1),
    lambda at: jnp.where(marked(at), 7, 0).sum(1),
    lambda at: lax.reduce(lax.neg(jnp.where(marked(at), jnp.uint32(7), jnp.uint32(0))),
                          jnp.uint32(0), lax.add, (1,)),
    lambda at: jnp.where(jnp.arange(128, dtype=np.int8) == at.astype(np.int8)[:, None], 2.0,
                         0).sum(1)])
def test_no_row_is_summed(fn: Callable[..., Any]) -> None:
    """Of places inside and outside of the row."""
    graph = simple(fn, AT)
    assert not any(isinstance(o, ops.Reduce) for o in graph.ops)
    np.testing.assert_array_equal(evaluate(graph, [AT])[0], jax.jit(fn)(AT))


@pytest.mark.parametrize("fn", [
    lambda at: jnp.where(marked(at), 2.5, 1.0).sum(1),
    lambda at: jnp.where(marked(at), 2.5, 0).max(1),
    lambda at: jnp.where(marked(at), 2.5, 0).sum(0),
    lambda at: jnp.where(marked(at), jnp.arange(10.0), 0).sum(1),
    lambda at: jnp.where(2 * jnp.arange(10) == at[:, None], 2.5, 0).sum(1),
    # Fractions are no places; places of 8 bits wrap around; a single place that is repeated.
    lambda at: jnp.where(jnp.arange(10.0) == at[:, None] + 0.5, 2.5, 0).sum(1),
    lambda at: jnp.where(lax.iota(np.int8, 300) == at.astype(np.int8)[:, None], 2.5, 0).sum(1),
    lambda at: jnp.where(lax.broadcast_in_dim(lax.iota(np.int32, 1), (5, 10), (1,))
                         == at[:, None], 2.5, 0).sum(1),
    lambda at: jnp.where(lax.broadcasted_iota(np.int32, (5, 10), 1)
                         == lax.broadcast_in_dim(at[:1], (5, 10), (0,)), 2.5, 0).sum(1)])
def test_others_are(fn: Callable[..., Any]) -> None:
    graph = simple(fn, AT)
    assert any(isinstance(o, ops.Reduce) for o in graph.ops)
    np.testing.assert_array_equal(evaluate(graph, [AT])[0], jax.jit(fn)(AT))


def test_the_gradient_of_a_cross_entropy_sums_no_labels() -> None:
    """Two reduces of the softmax are left."""
    def loss(x: Any, at: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x), at[:, None], 1).mean()

    x, at = np.random.default_rng(0).normal(size=(5, 10)).astype(np.float32), AT % 10
    graph = simple(jax.grad(loss), x, at)
    assert sum(isinstance(o, ops.Reduce) for o in graph.ops) == 2
    np.testing.assert_allclose(evaluate(graph, [x, at])[0], jax.grad(loss)(x, at), atol=1e-6)

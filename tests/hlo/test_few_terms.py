"""Reductions of a few terms each (hlo/passes/rules/few_terms.py)."""

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
from jaxmono.hlo.passes.pipeline import simplify

X = Any


def distances(x: X, y: X) -> X:
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def along_the_first(x: X, y: X) -> X:
    return jnp.abs(x.T[:, :, None] - y.T[:, None]).max(0)


def gradients(x: X, y: X) -> X:
    return jax.grad(lambda x: jnp.sum(distances(x, y) ** -1.5))(x)


def in_bf16(x: X, y: X) -> X:
    return jnp.prod(x[:, None].astype(jnp.bfloat16) * y[None].astype(jnp.bfloat16), -1)


@pytest.mark.parametrize("fn", [distances, along_the_first, gradients, in_bf16])
def test_the_same_values(fn: Callable[..., X]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, 3)).astype(np.float32) + 2 * i
            for i, n in enumerate((300, 256)))
    graph = simplify(graph_of(fn, x, y))
    pairs = 300 * 256
    assert not any(isinstance(o, ops.Reduce) and o.args[0].type.size == 3 * pairs
                   and o.results[0].type.size == pairs for o in graph.ops)
    (found,) = evaluate(graph, [x, y])
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(fn(x, y), np.float32),
                               rtol=2e-2 if fn is in_bf16 else 2e-4, atol=1e-5)


def rolled(x: X, y: X) -> X:
    return jnp.stack([jnp.roll(x, 1, 0), x * y, jnp.tanh(y)], 1).sum(1)


def mean_of_layers(x: X, y: X) -> X:
    return jnp.stack([x, y, x + y]).astype(jnp.bfloat16).mean(0)


def largest(x: X, y: X) -> X:
    return jnp.stack([x, y, x * y], -1).max(-1), jnp.stack([x > 0, y > 0]).any(0)


@pytest.mark.parametrize("fn", [rolled, mean_of_layers, largest])
def test_what_was_stacked_is_added_term_by_term(fn: Callable[..., X]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, 7)).astype(np.float32) for _ in range(2))
    graph = simplify(graph_of(fn, x, y))
    assert not any(isinstance(o, ops.Reduce) for o in graph.ops)
    for found, want in zip(evaluate(graph, [x, y]), jax.tree.leaves(fn(x, y)), strict=True):
        np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(want, np.float32),
                                   rtol=2e-2 if fn is mean_of_layers else 2e-5, atol=1e-5)


@pytest.mark.parametrize("fn", [
    lambda x: jnp.stack([x] * 17).sum(0),  # many
    lambda x: jnp.concatenate([x, x]).sum(0),  # not one row each
    lambda x: jnp.stack([x, x * 2]).sum((0, 1)),
    lambda x: jax.lax.reduce(jnp.stack([x, x * 2]).astype(jnp.bfloat16), jnp.bfloat16(0),
                             jax.lax.add, (0,))])
def test_other_stacks_stay(fn: Callable[..., X]) -> None:
    graph = simplify(graph_of(fn, jax.ShapeDtypeStruct((5, 7), jnp.float32)))
    assert sum(isinstance(o, ops.Reduce) for o in graph.ops) == 1


@pytest.mark.parametrize(("fn", "shapes"), [
    (lambda x: x.sum(-1), [(1 << 17, 3)]),  # as it lies in memory
    (lambda x, y: distances(x, y), [(300, 5), (256, 5)]),  # more terms
    (lambda x, y: distances(x, y), [(30, 3), (25, 3)]),  # few results
    (lambda x, y: (x * y).sum(-1), [(1 << 17, 3)] * 2)])
def test_what_stays_a_reduction(fn: Callable[..., X], shapes: list[tuple[int, ...]]) -> None:
    graph = simplify(graph_of(fn, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)))
    assert sum(isinstance(o, ops.Reduce) for o in graph.ops) == 1


@pytest.mark.parametrize(("dtype", "terms"), [("float32", 3), ("float32", 2), ("bfloat16", 4),
                                              ("float16", 3)])
def test_features_of_points_are_no_contraction(dtype: str, terms: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((1024, terms), (terms, 64)))
    graph = simplify(graph_of(lambda x, w: jnp.sin(x @ w), x, w))
    assert not any(isinstance(o, ops.DotGeneral) for o in graph.ops)
    (found,) = evaluate(graph, [x, w])
    wanted = np.sin(x.astype(np.float64) @ w.astype(np.float64))
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted,
                               atol={"float32": 2e-6, "bfloat16": 6e-2, "float16": 4e-3}[dtype])


@pytest.mark.parametrize("shapes", [
    ((1024, 5), (5, 64)), ((64, 3), (3, 64)),  # more terms; few results
    ((1 << 15, 4), (4, 2)),  # little more than it is made of
    ((64, 1024, 3), (64, 3, 4))])  # of batches
def test_what_stays_a_contraction(shapes: tuple[tuple[int, ...], ...]) -> None:
    graph = simplify(graph_of(jnp.matmul, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)))
    assert sum(isinstance(o, ops.DotGeneral) for o in graph.ops) == 1


def test_integers_of_points_stay_a_contraction() -> None:
    graph = simplify(graph_of(jnp.matmul, *(jax.ShapeDtypeStruct(s, jnp.int32)
                                            for s in ((1024, 3), (3, 64)))))
    assert sum(isinstance(o, ops.DotGeneral) for o in graph.ops) == 1


def forces(x: X, y: X) -> X:
    d = x[:, None] - y[None]
    return (d * ((d ** 2).sum(-1) + 0.1)[..., None] ** -1.3).sum(1)


def largest(x: X, y: X) -> X:
    return jnp.where(y[None] > 0, x[:, None] * y[None], -1.0).max(0)


def of_columns(x: X, y: X) -> X:
    """What is broadcast along the last dimension, and what has places of its own there."""
    return (jnp.exp(-jnp.abs(x[:, None, :1] - y[None, :, 1:2])) * x[:, None] * 2.0).sum(1)


@pytest.mark.parametrize("fn", [forces, largest, of_columns])
def test_sums_of_vectors_are_one_for_each_element(fn: Callable[..., X]) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, 3)).astype(np.float32) for n in (400, 256))
    graph = simplify(graph_of(fn, x, y))
    sums = [o for o in graph.ops if isinstance(o, ops.Reduce)]
    assert len(sums) == 3 and all(o.args[0].type.size == 400 * 256 for o in sums)
    powers = [o for o in graph.ops if isinstance(o, ops.Elementwise)
              and o.kind in ("power", "exponential") and o.result.type.size > 1]
    assert len(powers) == (fn is not largest)  # they share it
    (found,) = evaluate(graph, [x, y])
    np.testing.assert_allclose(found, fn(x, y), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize(("fn", "shapes"), [
    (lambda x, y: forces(x, y), [(40, 3), (25, 3)]),  # few
    (lambda x: x.sum(0), [(1 << 17, 3)]),  # as it lies in memory
    (lambda x, y: (x[:, None] * y[None]).sum(1), [(400, 6), (256, 6)])])  # more columns
def test_others_are_one_sum(fn: Callable[..., X], shapes: list[tuple[int, ...]]) -> None:
    graph = simplify(graph_of(fn, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)))
    assert sum(isinstance(o, ops.Reduce) for o in graph.ops) <= 2

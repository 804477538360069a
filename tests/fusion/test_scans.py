"""Scans as plans: one loop makes all elements of its pieces, of what it computes itself."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from models import f32, graph_of, random_inputs
from test_trips import plan_of

from jaxmono.fusion import make_plan
from jaxmono.fusion.indexing import as_map, variables
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.fusion.regions import find_regions
from jaxmono.fusion.walk import MOST, Walk
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify

X = Any


def linear(left: Any, right: Any) -> Any:
    return left[0] * right[0], left[1] * right[0] + right[1]


def selective(delta: X, a: X, u: X, b: X, c: X) -> X:
    """Mamba's recurrence: delta, u: [t, w]; a: [w, s]; b, c: [t, s]."""
    decay = jnp.exp(-delta[..., None] * jnp.exp(a))
    enters = (delta * u)[..., None] * b[:, None]
    _, h = lax.associative_scan(linear, (decay, enters))
    return jnp.einsum("tws,ts->tw", h, c)


def sizes(t: int, w: int = 256, s: int = 16) -> tuple[jax.ShapeDtypeStruct, ...]:
    return f32(t, w), f32(w, s), f32(t, w), f32(t, s), f32(t, s)


def outputs(plan: Plan) -> list[list[int]]:
    """By stage: how many arrays each loop makes."""
    return [[len(g.results) for g in s.groups if g.sig.kind == "loop"] for s in plan.stages]


def test_a_loop_makes_a_piece_and_computes_what_it_scans() -> None:
    plan = make_plan(graph_of(selective, *sizes(256)), Device())
    # What pieces come to, a scan of these, the scan; then a row of 16 for each element.
    assert [max(n, default=0) for n in outputs(plan)] == [2, 16, 16, 0]
    whole = 256 * 256 * 16
    read = {b for s in plan.stages for g in s.groups for b in g.params}
    large = [b for b in plan.buffers if b.id in read and b.type.size >= whole]
    assert [b.type.dims for b in large] == [(16, 16, 256, 16)]  # of h alone


@pytest.mark.sampled(3)
@pytest.mark.parametrize("t", [8, 16, 40, 256, 300])
def test_plans_of_scans_mean_the_same(t: int) -> None:
    args = sizes(t, 4, 4)
    graph = graph_of(selective, *args)
    plan = plan_of(selective, *args)
    values = [np.abs(x) for x in random_inputs(graph)]
    for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.parametrize("t", [40, 300])
def test_both_results_of_a_scan(t: int) -> None:
    def both(a: X, b: X) -> X:
        return lax.associative_scan(linear, (jnp.tanh(a), b))

    args = f32(t, 8), f32(t, 8)
    graph, plan = graph_of(both, *args), plan_of(both, *args)
    values = random_inputs(graph)
    for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(300, 5), (300,), (4097,)])
def test_parts_that_lie_anywhere_are_stored_all_the_same(shape: tuple[int, ...]) -> None:
    """Of no multiple of 16 bytes; a reader would compute each in a branch of its own."""
    def fn(a: X, b: X) -> X:
        return lax.associative_scan(linear, (a, b))[1] * 2

    graph = graph_of(fn, *[f32(*shape)] * 2)
    plan = make_plan(graph, Device())
    assert max(len(g.sig.body.ops) for g in plan.groups) < 300
    if shape[0] < 1000:
        values = [np.abs(x) for x in random_inputs(graph)]
        for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-4)


def test_gradients_of_scans_are_no_single_loop() -> None:
    def loss(a: X, b: X) -> X:
        return jnp.sin(lax.associative_scan(linear, (jax.nn.sigmoid(a), b))[1]).sum()

    args = f32(48, 4), f32(48, 4)
    fn = jax.grad(loss, (0, 1))
    graph = graph_of(fn, *args)
    plan = make_plan(graph, Device())
    assert len(plan.stages) > 15
    values = random_inputs(graph)
    for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 1e-3)


def test_walks_end() -> None:
    """Each level of a scan doubles the places at which its operand is read; this one is not known
    as one, for it turns vectors round."""
    def turned(left: Any, right: Any) -> Any:
        return left[0] * right[0], jnp.flip(left[1], -1) * right[0] + right[1]

    def norm(a: X, b: X) -> X:
        return (lax.associative_scan(turned, (a, b))[1] ** 2).sum(-1)

    graph = graph_of(norm, f32(512, 32), f32(512, 32))
    assert not any(isinstance(o, ops.Stacked) for o in graph.ops)
    (reduce,) = [o for o in graph.ops if isinstance(o, ops.Reduce)]
    walk = Walk(graph, lambda _: True)
    walk.demand(reduce.args[0], as_map(variables("i", [512, 32])))
    assert walk.followed == MOST + 1 and walk.failed is not None
    start = time.perf_counter()
    plan_of(norm, f32(512, 32), f32(512, 32))
    assert time.perf_counter() - start < 60


# ---- constants ---------------------------------------------------------------------------------


def imported(fn: Any, *args: Any) -> Graph:
    return import_module(jax.jit(fn).lower(*args).compiler_ir("stablehlo")).graph


def test_what_no_argument_changes_is_a_literal() -> None:
    """jnp.tril_indices is two cumulative sums and a scatter of constants."""
    def lower(x: X) -> X:
        i, j = jnp.tril_indices(20)
        return jnp.tanh(x)[i, j] * 2

    graph = imported(lower, f32(20, 20))
    regions, refused = find_regions(graph)
    assert len(regions) == 1 and not refused
    made = simplify(graph)
    kinds = {type(o) for o in made.ops}
    assert kinds.isdisjoint({ops.Scan, ops.ReduceWindow, ops.Reduce})
    x = np.random.default_rng(0).normal(size=(20, 20)).astype(np.float32)
    np.testing.assert_allclose(evaluate(made, [x])[0], jax.jit(lower)(x), 1e-6)
    # No algorithms: made where they are read.
    plain = simplify(imported(lambda x: x + jnp.arange(400.0).reshape(20, 20) * 2, f32(20, 20)))
    assert ops.Iota in {type(o) for o in plain.ops}


def test_loops_of_constants_are_not_run() -> None:
    def summed(x: X) -> X:
        start = lax.fori_loop(0, 50_000, lambda i, v: jnp.sin(v) + i, jnp.float32(0))
        return x + jnp.cumsum(jnp.full(100, start))

    made = simplify(imported(summed, f32(100)))
    assert any(isinstance(o, ops.While) for o in made.ops)


def test_large_constants_are_left_to_xla() -> None:
    def shuffled(x: X) -> X:
        order = jnp.argsort(jnp.arange(60_000) * 7919 % 60_013)
        return jnp.tanh(x)[order % 400] * 2

    graph = imported(shuffled, f32(400))
    regions, refused = find_regions(graph)
    assert len(regions) == 1
    told = {why for _, why in refused}
    assert "depends on no argument, like the op beside it that stays with XLA" in told
    (sort,) = [why for o, why in refused if isinstance(o, ops.Sort)]
    assert "sorting 60000 elements" in sort
    made = {v for o, _ in refused for v in o.results}
    assert set(regions[0].inputs) - set(graph.inputs) <= made


# ---- places of rows ----------------------------------------------------------------------------


def clusters(x: X, centres: X) -> X:
    apart = (x ** 2).sum(-1)[:, None] - 2 * x @ centres.T + (centres ** 2).sum(-1)
    own = jax.nn.one_hot(jnp.argmin(apart, -1), len(centres))
    return own.T @ x, own.sum(0)


def test_zeros_and_ones_are_computed_where_they_are_read() -> None:
    plan = make_plan(graph_of(clusters, f32(65536, 64), f32(256, 64)), Device())
    assert not [b for b in plan.buffers if b.type.size >= 65536 * 256]


def test_clusters_mean_the_same() -> None:
    args = f32(4096, 16), f32(64, 16)
    graph, plan = graph_of(clusters, *args), plan_of(clusters, *args)
    values = random_inputs(graph)
    for got, want in zip(run_plan(plan, values), evaluate(graph, values), strict=True):
        np.testing.assert_allclose(got, want, 1e-3, 1e-3)

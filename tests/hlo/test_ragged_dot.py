"""`jax.lax.ragged_dot` by tiles of rows, each with its group's matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.verify import verify


def graph_of(fn: Any, *args: Any) -> Graph:
    """As on a GPU, where it is an op; elsewhere JAX masks."""
    lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=("cuda",))
    return import_module(lowered.compiler_ir("stablehlo")).graph


def drawn(m: int, k: int, n: int, sizes: list[int]) -> tuple[Any, ...]:
    rng = np.random.default_rng(m)
    return (rng.normal(size=(m, k)).astype(np.float32),
            rng.normal(size=(len(sizes), k, n)).astype(np.float32), np.asarray(sizes, np.int32))


@pytest.mark.parametrize(("m", "sizes"), [
    (64, [8] * 8), (100, [0, 50, 1, 0, 30, 19]), (100, [0, 50, 1, 0, 30, 9]), (300, [300]),
    (7, [3, 0, 0, 2, 0, 0, 0, 0, 0, 1]), (300, [0, 0]), (16, [16, 0, 0]), (16, [0, 0, 16]),
    pytest.param(1000, [333, 333, 334], marks=pytest.mark.slow), (130, [129, 1])])
def test_rows_meet_their_matrix(m: int, sizes: list[int]) -> None:
    args = drawn(m, 12, 8, sizes)
    graph = graph_of(lax.ragged_dot, *args)
    assert [type(o) for o in graph.ops] == [ops.RaggedDot]
    verify(graph)
    made = simplify(graph)
    verify(made)
    assert not any(isinstance(o, ops.RaggedDot) for o in made.ops)
    want = jax.jit(lax.ragged_dot)(*args)
    for g in (graph, made):
        np.testing.assert_allclose(evaluate(g, args)[0], want, 1e-5, 1e-5)
    plan = make_plan(made, Device())
    np.testing.assert_allclose(run_plan(plan, args)[0], want, 1e-5, 1e-5)


@pytest.mark.parametrize(("m", "k", "sizes"), [(4, 3, []), (4, 0, [2, 2]), (0, 3, [0, 0])])
def test_sums_of_nothing(m: int, k: int, sizes: list[int]) -> None:
    args = drawn(m, k, 5, sizes)
    graph = graph_of(lambda *a: jnp.tanh(lax.ragged_dot(*a) + 1), *args)
    made = simplify(graph)
    verify(made)
    assert not any(isinstance(o, ops.RaggedDot) for o in made.ops)
    np.testing.assert_array_equal(evaluate(made, args)[0], np.full((m, 5), np.tanh(1), np.float32))


@pytest.mark.parametrize(("m", "groups", "rows", "tiles"), [
    (1024, 8, 128, 15), (4096, 8, 128, 39), (16, 8, 8, 9), (4, 8, 8, 4), (512, 16, 32, 31)])
def test_tiles_are_few(m: int, groups: int, rows: int, tiles: int) -> None:
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (
        ((m, 64), jnp.bfloat16), ((groups, 64, 32), jnp.bfloat16), ((groups,), jnp.int32))]
    (dot,) = [o for o in simplify(graph_of(lax.ragged_dot, *shapes)).ops
              if isinstance(o, ops.DotGeneral)]
    assert dot.lhs.type.dims == (tiles, rows, 64)


def test_matrices_are_read_where_they_lie() -> None:
    shapes = [jax.ShapeDtypeStruct(s, d) for s, d in (
        ((1024, 64), jnp.bfloat16), ((8, 64, 256), jnp.bfloat16), ((8,), jnp.int32))]
    plan = make_plan(simplify(graph_of(lax.ragged_dot, *shapes)), Device())
    (dot,) = [g for g in plan.groups if g.sig.kind == "dot"]
    assert (8, 64, 256) in [v.type.dims for v in dot.sig.body.inputs]
    assert not [b for b in plan.buffers if b.type.dims == (15, 64, 256)]


def test_other_forms_are_left_to_xla() -> None:
    """The gradient of the matrices sums ragged rows."""
    def loss(x: Any, w: Any, sizes: Any) -> Any:
        return (lax.ragged_dot(x, w, sizes) ** 2).sum()

    graph = graph_of(jax.grad(loss, (0, 1)), *drawn(64, 12, 8, [20, 44]))
    verify(graph)
    refused = [refusal(o) for o in graph.ops if isinstance(o, ops.RaggedDot)]
    assert refused.count(None) == 2
    assert [why for why in refused if why] == [
        "a ragged product is generated of rows [m, k] and matrices [groups, k, n] alone"]
    many = drawn(600, 4, 4, [2] * 300)
    (op,) = graph_of(lax.ragged_dot, *many).ops
    assert refusal(op) == "a ragged product of more than 256 groups is not generated"

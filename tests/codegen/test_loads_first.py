"""Loads of all vectors before the first is computed, where ops have branches (loads_first.py)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from harness import DEVICE, check, compile_graph
from harness_graphs import data, graph, value

from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

SHAPE = 7, 88


def step(b: Builder, w: Value, g: Value, v: Value, norm: Value, scale: Value) -> Any:
    """AdamW's, more or less: a gradient of 16 bits, one element and a row for all of it."""
    dims = w.type.dims
    g = b.elementwise("divide", b.convert(g, DType.F32), b.broadcast_in_dim(norm, dims, ()))
    v = b.elementwise("add", v, b.elementwise("multiply", g, g))
    root = b.elementwise("sqrt", b.elementwise("abs", v))
    g = b.elementwise("multiply", b.elementwise("divide", g, root),
                      b.broadcast_in_dim(scale, dims, (1,)))
    return b.elementwise("subtract", w, g)


def program(*dims: int, make: Any = step) -> Graph:
    return graph([value(dims), value(dims, DType.BF16), value(dims), value(()),
                  value(dims[-1:])], make)


def text(g: Graph, lanes: int, unroll: int) -> str:
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: LoopSchedule(lanes, unroll) for s in plan.sigs})
    source = compile_graph(g, plan=plan, schedule=schedule).source
    return source[source.rindex("JM_DEVICE void f0_"):]


@pytest.mark.parametrize(("lanes", "unroll"), [(8, 4), (4, 3), (2, 2), (8, 1), (1, 4)])
def test_what_comes_first_is_what_comes_in_turn(lanes: int, unroll: int) -> None:
    """The last task ends inside a vector's round."""
    g = program(*SHAPE)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: LoopSchedule(lanes, unroll) for s in plan.sigs})
    check(g, [data(v, i) for i, v in enumerate(g.inputs)], plan=plan, schedule=schedule)


def test_all_loads_of_vectors_are_in_the_first_loop() -> None:
    first, second = text(program(*SHAPE), 8, 4).split("#pragma unroll")[1:]
    assert len(re.findall(r" in\d\[u\] = load_ro<\w+, 8>", first)) == 4
    assert len(re.findall("load_ro<float>", first)) == 1  # the norm, once
    assert "load" not in second and second.count("store<") == 1


def test_without_branches_loads_are_where_they_are_needed() -> None:
    def plain(b: Builder, w: Value, g: Value, v: Value, *_: Value) -> Value:
        return b.elementwise("add", w, b.elementwise("multiply", b.convert(g, DType.F32), v))

    assert " in0[" not in text(program(*SHAPE, make=plain), 8, 4)


@pytest.mark.parametrize("make", [
    lambda b, w, x: b.elementwise("sqrt", b.elementwise("add", w, b.transpose(x, (1, 0)))),
    lambda b, w, x: b.elementwise("sqrt", b.elementwise("add", w, b.pad(
        b.slice(x, (0, 0), (80, 88)), b.constant(0, DType.F32), (8, 0), (0, 0), (0, 0)))),
], ids=["no vector", "outside"])
def test_where_some_loads_cannot_come_first_none_do(make: Any) -> None:
    assert " in0[" not in text(graph([value((88, 88)), value((88, 88))], make), 8, 4)


@pytest.mark.parametrize(("count", "unroll"), [(4, 4), (8, 3), (30, 1)])
def test_a_thread_has_registers_for_what_it_loads(count: int, unroll: int) -> None:
    def means(b: Builder, *xs: Value) -> Value:
        total = xs[0]
        for x in xs[1:]:
            total = b.elementwise("add", total, x)
        return b.elementwise("sqrt", total)

    plan = make_plan(graph([value((4096, 4096)) for _ in range(count)], means), Device())
    (loop,) = default_schedule(plan, interpret_target(), Device()).sigs.values()
    assert loop == LoopSchedule(4, unroll)

"""Kernels whose outputs lie in donated inputs, with their threads in any order."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import DEVICE, compile_graph, run_program
from thinned import crossed

from jaxmono.codegen.program import Program
from jaxmono.codegen.written import Written
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Place
from jaxmono.hlo.interp import evaluate

F32, BF16 = jnp.float32, jnp.bfloat16
THREE = (0, 0), (1, 1), (2, 2)


def adamw(w: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.1 * (m / (jnp.sqrt(jnp.abs(v)) + 1e-1) + 0.01 * w), m, v


def dense(w: Any, m: Any, v: Any, x: Any, g: Any) -> Any:
    return adamw(w, m, v, (x.T @ g).astype(F32))


def columns(w: Any, m: Any, v: Any, g: Any) -> Any:
    return adamw(w, m, v, g.sum(0))


def rows(w: Any, m: Any, v: Any, x: Any, g: Any) -> Any:
    return adamw(w, m, v, (x * g).sum(1))


def normalised(w: Any, g: Any) -> Any:
    return w - 0.1 * g / jnp.sqrt((g * g).sum(-1, keepdims=True) + 1)


def columns_normalised(w: Any) -> Any:
    return (w - w.mean(0)) / jnp.sqrt(w.var(0) + 1)


def all_normalised(w: Any) -> Any:
    return w / jnp.sqrt((w * w).sum())


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


CASES: dict[str, tuple[Callable[..., Any], list[Any], tuple[tuple[int, int], ...]]] = {
    "loop": (adamw, [spec(96, 80)] * 4, THREE),
    "loop, odd": (adamw, [spec(1031, 257)] * 4, THREE),
    "loop, turned": (adamw, [spec(1024, 256)] * 4, ((0, 2), (1, 0), (2, 1))),
    "dot": (dense, [*[spec(64, 96)] * 3, spec(48, 64), spec(48, 96)], THREE),
    "dot, odd": (dense, [*[spec(61, 95)] * 3, spec(33, 61), spec(33, 95)], THREE),
    "dot, bf16": (dense, [*[spec(128, 192)] * 3, spec(256, 128, dtype=BF16),
                          spec(256, 192, dtype=BF16)], THREE),
    "columns": (columns, [*[spec(150)] * 3, spec(70, 150)], THREE),
    "rows": (rows, [*[spec(70)] * 3, *[spec(70, 150)] * 2], THREE),
    "normalised": (normalised, [spec(70, 150)] * 2, ((0, 0),)),
    **{f"softmax of {r} x {c}": (jax.nn.softmax, [spec(r, c)], ((0, 0),))
       for r, c in ((70, 150), (3, 7), (513, 33), (9, 5000), (1, 20000), (40, 4097))},
    **{f"columns of {r} x {c}": (columns_normalised, [spec(r, c)], ((0, 0),))
       for r, c in ((70, 150), (513, 33), (100, 64))},
    "all": (all_normalised, [spec(37, 41)], ((0, 0),)),
    "softmax, bf16": (jax.nn.softmax, [spec(37, 250, dtype=BF16)], ((0, 0),)),
}


def assert_close(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Products of f32 have the error of tf32, and bf16 is rounded where the kernel is not."""
    a, b = got.astype(np.float32), want.astype(np.float32)
    assert np.linalg.norm(a - b) <= 1e-2 * np.linalg.norm(b)


@crossed(("name", CASES), ("blocks", [1, 4]))
def test_right(name: str, blocks: int) -> None:
    fn, args, aliases = CASES[name]
    graph = models.graph_of(fn, *args)
    program = compile_graph(graph, plan=make_plan(graph, DEVICE, aliases=aliases))
    assert program.aliases == aliases
    inputs = models.random_inputs(graph)
    wanted = evaluate(graph, inputs)
    for seed in range(2):
        for got, want in zip(run_program(program, inputs, seed=seed, blocks=blocks), wanted,
                             strict=True):
            assert_close(got, want)


def params(program: Program) -> list[str]:
    """Those of each group's function."""
    return re.findall(r"JM_\w+ \w+ f\d+_(?:loop|row|dot)\w*\((.*)\) {", program.source)


def step(w: Any, g: Any) -> Any:
    return w - 0.1 * g


def test_who_writes_an_input_reads_it_as_what_may_change() -> None:
    graph = models.graph_of(step, spec(64, 64), spec(64, 64))
    for given in ((), ((0, 0),)):
        program = compile_graph(graph, plan=make_plan(graph, DEVICE, aliases=given))
        (found,) = params(program)
        assert ("__restrict__" in found) == (not given)
        loads = sorted(re.findall(r"(load\w*)<float, 4>\(p\d \+", program.source))
        assert loads == (["load", "load_ro"] if given else ["load_ro", "load_ro"])


@pytest.mark.parametrize("again", [False, True])
def test_who_read_it_before_does_so_too_if_new_values_are_read_again(again: bool) -> None:
    """A line of the old values could still be in a cache that nobody keeps coherent."""
    def fn(w: Any) -> Any:
        new = w - (w * w).sum()
        return (new, new @ new) if again else new

    graph = models.graph_of(fn, spec(256, 256))
    plan = make_plan(graph, DEVICE, aliases=((0, 0),))
    assert plan.outputs[0].alias == 0 and len(plan.stages) == 3 + again
    reads = re.findall(r"(load\w*)<float", compile_graph(graph, plan=plan).source)
    assert ("load_ro" in reads) == (not again)


def test_new_values_that_are_read_in_parts() -> None:
    def fn(w: Any) -> Any:
        new = w - (w * w).sum()
        return new, new @ new

    plan = make_plan(models.graph_of(fn, spec(256, 256)), DEVICE, aliases=((0, 0),))
    new = plan.outputs[0]
    part = dataclasses.replace(new, id=len(plan.buffers), place=Place.PART, index=new.id, offset=0,
                               alias=None)
    *others, last = plan.stages
    groups = [dataclasses.replace(g, params=tuple(part.id if b == new.id else b for b in g.params))
              for g in last.groups]
    apart = dataclasses.replace(plan, buffers=(*plan.buffers, part),
                                stages=(*others, dataclasses.replace(last, groups=tuple(groups))))
    assert any(part.id in g.params for g in apart.groups)
    assert Written(apart).inputs == Written(plan).inputs == {0}


@pytest.mark.parametrize("rows", [True, False])
def test_a_place_that_only_another_output_reads(rows: bool) -> None:
    """Both are computed before either is stored."""
    def fn(u: Any, g: Any) -> Any:
        s = g.sum(0) if rows else g * 3
        return s * 2, u + s

    graph = models.graph_of(fn, spec(150) if rows else spec(70, 150), spec(70, 150))
    plan = make_plan(graph, DEVICE, aliases=((0, 0),))
    assert [b.alias for b in plan.outputs] == [0, None] and len(plan.groups) == 1
    program, inputs = compile_graph(graph, plan=plan), models.random_inputs(graph)
    for got, want in zip(run_program(program, inputs), evaluate(graph, inputs), strict=True):
        assert_close(got, want)


def test_who_reads_it_before_that_reads_what_does_not_change() -> None:
    """Weights that a product reads, whose new values nobody reads again."""
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * (x.T @ (x @ w))

    graph = models.graph_of(step, spec(64, 64), spec(96, 64))
    plan = make_plan(graph, DEVICE, aliases=((0, 0),))
    assert len(plan.stages) == 2
    program = compile_graph(graph, plan=plan)
    first, second = params(program)
    assert "__restrict__ p0" in first and "__restrict__" not in second


def test_new_values_that_are_read_again_come_from_memory_that_changes() -> None:
    def step(w: Any, x: Any) -> Any:
        w = w - 0.1 * (x.T @ (x @ w))
        return w, x @ w

    graph = models.graph_of(step, spec(64, 64), spec(96, 64))
    plan = make_plan(graph, DEVICE, aliases=((0, 0),))
    assert [b.alias for b in plan.outputs] == [0, None]
    program = compile_graph(graph, plan=plan)
    wanted = evaluate(graph, models.random_inputs(graph))
    for got, want in zip(run_program(program, models.random_inputs(graph)), wanted, strict=True):
        assert_close(got, want)

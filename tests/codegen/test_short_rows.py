"""Rows of a few elements that begin anywhere, through shared memory (short_rows.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of
from harness import assert_close, run_program
from harness_graphs import data
from models import graph_of

from jaxmono.codegen import cuda_target, generate, interpret_target
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.row_schedule import RowSchedule
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
BF16, F16, F32, S8, S32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32
SHORT = RowSchedule("short", 1, 1)


def statistics(x: Any) -> Any:
    y = x.astype(F32)
    top = y.max(-1)
    return top, jnp.exp(y - top[..., None]).sum(-1)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x.astype(F32), -1).astype(x.dtype)


def directions(x: Any, g: Any) -> Any:
    """A norm, a factor of each column, and what lies as the rows do."""
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) * g + x


def two(x: Any, y: Any) -> Any:
    return (x * y).sum(-1), jnp.tanh(x - y.max(-1, keepdims=True))


def run(fn: Callable[..., Any], *args: Any) -> str:
    graph = graph_of(fn, *args)
    plan = make_plan(graph, Device(sm_count=1))
    target = interpret_target()
    chosen = default_schedule(plan, target, Device(sm_count=1))
    own = {k: SHORT if isinstance(s, RowSchedule) else s for k, s in chosen.sigs.items()}
    program = generate(plan, target, Device(sm_count=1), "f", type(chosen)(64, 1, own))
    inputs = [data(v, i) for i, v in enumerate(graph.inputs)]
    for seed, blocks in ((0, 1), (1, 3)):
        found = run_program(program, inputs, seed=seed, blocks=blocks)
        for i, (x, want) in enumerate(zip(found, evaluate(graph, inputs), strict=True)):
            assert_close(x, want, 2e-2, f"output {i}, seed {seed}")
    return program.source


@pytest.mark.parametrize(("shape", "dtype"), [
    ((96, 21), BF16), ((8, 20, 19), F16), ((160, 3), F32), ((64, 31), S8), ((96, 5), F32),
    ((128, 6), BF16)])
def test_statistics_of_rows(shape: tuple[int, ...], dtype: Any) -> None:
    """Of whole blocks, and of blocks whose last warps have none."""
    assert "copy_words<" in run(statistics, Spec(shape, dtype))


@pytest.mark.parametrize(("rows", "columns"), [(96, 21), (160, 7), (64, 3)])
def test_results_that_lie_as_rows_do(rows: int, columns: int) -> None:
    for dtype in (BF16, F32):
        assert run(softmax, Spec((rows, columns), dtype)).count("copy_words<") >= 2


def test_what_else_is_read() -> None:
    run(directions, Spec((96, 3), F32), Spec((3,), F32))
    run(two, Spec((96, 9), F32), Spec((96, 9), F32))
    run(two, Spec((96, 11), F32), Spec((96, 11), BF16))


def test_behind_another_stage() -> None:
    """What is read was written by other blocks of the launch."""
    run(lambda x: softmax(jnp.cumsum(x, 0)), Spec((96, 7), F32))


def chosen(fn: Callable[..., Any], *args: Any) -> set[str]:
    plan = plan_of(fn, *args, device=Device())
    found = default_schedule(plan, cuda_target("sm_90a"), Device()).sigs.values()
    return {s.tier for s in found if isinstance(s, RowSchedule)}


@pytest.mark.parametrize(("fn", "args"), [
    (statistics, [((524288, 21), BF16)]), (softmax, [((1 << 20, 7), F32)]),
    (directions, [((1 << 18, 3), F32), ((3,), F32)])])
def test_very_many_are(fn: Callable[..., Any], args: list[Any]) -> None:
    assert chosen(fn, *(Spec(*a) for a in args)) == {"short"}


@pytest.mark.parametrize(("shape", "dtype", "why"), [
    ((4096, 21), BF16, "few rows"), ((524288, 16), BF16, "vectors"), ((524288, 4), F32, "vectors"),
    ((524288, 35), BF16, "long"), ((524287, 21), BF16, "part of a warp")])
def test_others_are_not(shape: tuple[int, ...], dtype: Any, why: str) -> None:
    assert "short" not in chosen(softmax, Spec(shape, dtype)), why
    assert "short" not in chosen(lambda x: statistics(x[:, 1:]), Spec(shape, dtype)), why


@pytest.mark.parametrize("fn", [
    lambda x: softmax(jnp.pad(x, ((0, 1 << 20), (0, 0)))),
    lambda x: statistics(jnp.concatenate([x, jnp.tanh(x), x])),
    lambda x: statistics(jnp.pad(x, ((1 << 20, 0), (0, 0))))])
def test_rows_of_a_part_are_not(fn: Callable[..., Any]) -> None:
    """A warp would copy rows behind the end of a buffer."""
    assert "short" not in chosen(fn, Spec((1 << 18, 7), F32))


def test_first_rows_of_a_buffer_are() -> None:
    assert chosen(lambda x: statistics(x[:1 << 19]), Spec((1 << 20, 7), F32)) == {"short"}


def test_places_that_no_int_can_count() -> None:
    plan = plan_of(softmax, Spec((1 << 27, 21), BF16), device=Device())
    text = emit(plan, cuda_target("sm_90a"), Device(), "f").source
    assert "const long long first_row = " in text

"""Biases that are added to the fragments of a product (bias.py)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, in_order, plan_of, small_integers, wgmma
from lost_waits import Case, failure

from jaxmono.codegen import Program
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
SHAPES = (Spec((300, 520), BF16), Spec((520, 400), BF16), Spec((400,), BF16))
TILE = wgmma(128, 128, 3, (2, 1, 1))


def layer(x: Any, w: Any, bias: Any) -> Any:
    return jax.nn.relu(x @ w + bias)


def program(p: Plan, *schedules: DotSchedule) -> Program:
    return build(p, in_order(p, *schedules), threads=256)


def adds(made: Program) -> bool:
    return "sums, bias);" in made.source


@pytest.mark.sampled(5)
@pytest.mark.parametrize("schedule", [
    wgmma(128, 96, 3, (2, 1, 1)), wgmma(128, 160, 3, (2, 1, 1)), wgmma(128, 256, 2, (2, 1, 1)),
    wgmma(64, 256, 3, (1, 2, 1)), wgmma(64, 256, 2, (1, 1, 2))],
    ids=lambda s: f"{s.bm}x{s.bn} {s.warps}")
def test_every_tile(schedule: DotSchedule) -> None:
    """The last tiles are not whole; a block has several tasks."""
    p = plan_of(layer, *SHAPES)
    made = program(p, schedule)
    assert adds(made)
    assert "return NoReads{};" in made.source, "the epilogue reads the bias again"
    check_exact(p, made, seeds=(0, 1), blocks=(1, 3))


def test_the_other_order_and_type() -> None:
    """A row of a table."""
    p = plan_of(lambda x, w, table: table[1] + x @ w, Spec((300, 136), F16), Spec((136, 400), F16),
                Spec((3, 400), F16))
    made = program(p, TILE)
    assert adds(made)
    check_exact(p, made)


def test_what_computes_more_goes_by_pieces_in_shared_memory() -> None:
    p = plan_of(lambda x, w, bias: jax.nn.hard_swish(x @ w + bias), *SHAPES)
    made = program(p, TILE)
    assert adds(made)
    assert "return NoEarly{};" in made.source and "return NoReads{};" not in made.source


def test_of_a_batch() -> None:
    """Each matrix has a bias of its own."""
    def fn(x: Any, w: Any, bias: Any) -> Any:
        return jnp.einsum("bmk,bkn->bmn", x, w) + bias[:, None, :]

    p = plan_of(fn, *(Spec(s, BF16) for s in ((3, 150, 136), (3, 136, 200), (3, 200))))
    made = program(p, TILE)
    assert adds(made)
    check_exact(p, made, blocks=(1, 3))


def test_beside_a_source() -> None:
    """The residual comes through the ring; the bias does not stand in its way."""
    p = plan_of(lambda x, w, bias, r: r + (x @ w + bias), *SHAPES, Spec((300, 400), BF16))
    made = program(p, TILE)
    assert adds(made)
    assert "G::Source<bf16>::produce(" in made.source
    check_exact(p, made, blocks=(1, 3))


def test_behind_a_grid_barrier_the_epilogue_loads_it() -> None:
    def fn(x: Any, u: Any, w: Any, a: Any) -> Any:
        bias = jnp.clip(a.sum(0, dtype=F32), -2, 2).astype(BF16)
        return jnp.clip(x @ u, -1, 1) @ w + bias

    p = plan_of(fn, *(Spec(s, BF16) for s in ((300, 64), (64, 288), (288, 256), (40, 256))))
    made = program(p, wgmma(128, 64, 2, (2, 1, 1)), TILE)
    assert len(p.stages) == 2
    assert not adds(made)
    check_exact(p, made, seeds=(0, 1), blocks=(2, 3))


def shared(x: Any, w: Any, bias: Any) -> Any:
    y = x @ w
    return (y + bias) * y


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("why", "fn", "schedule"), [
    ("the product itself is needed, too", shared, TILE),
    ("it differs from row to row", lambda x, w, bias: x @ w + x[:, :1] * bias, TILE),
    ("it is computed", lambda x, w, bias: x @ w + -bias, TILE),
    ("it is converted", lambda x, w, bias: x @ w + bias.astype(F16).astype(BF16), TILE),
    ("its neighbours lie apart", lambda x, w, bias: x @ w + jnp.tile(bias[::2], 2), TILE),
    ("a small tile loads it with all else", layer, wgmma(64, 64, 3, (1, 1, 2))),
    ("blocks share k", layer, wgmma(128, 128, 3, (2, 1, 1), 2))])
def test_where_the_epilogue_loads_it(why: str, fn: Any, schedule: DotSchedule) -> None:
    p = plan_of(fn, *SHAPES)
    made = program(p, schedule)
    assert not adds(made), why
    check_exact(p, made, seeds=(0,), blocks=(3,), inputs=small_integers(p.graph, high=1))


@functools.cache
def case(schedule: DotSchedule) -> Case:
    p = plan_of(layer, Spec((128, 520), BF16), Spec((520, 256), BF16), Spec((256,), BF16))
    return Case(p, in_order(p, schedule), small_integers(p.graph), 0, threads=256, seeds=1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("schedule", "text", "other"), [
    (wgmma(64, 256, 2, (1, 1, 2)), "if (!adds) two[j] = {};", ""),
    (TILE, "bias(column + 8 * j)", "bias(column)"),
    (TILE, "acc.x[j][e] += x.x[e % 2]", "acc.x[j][e] += x.x[e / 2]")])
def test_each_sum_gets_its_own_and_once(
        schedule: DotSchedule, text: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(source: str) -> str:
        assert source.count(text) == 1
        return source.replace(text, other)

    assert failure(case(schedule), monkeypatch, lambda source: source) == ""
    assert failure(case(schedule), monkeypatch, change) != ""

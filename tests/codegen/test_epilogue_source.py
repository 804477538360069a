"""Source operands of epilogues, which come through the ring (epilogue_source.py)."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, in_order, plan_of, small_integers, wgmma
from lost_waits import Case, failure, own_text, removed

from jaxmono.codegen import Program
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()


def plan(m: int = 300, n: int = 400, k: int = 136, other: Any = BF16) -> Plan:
    def fn(x: Any, w: Any, bias: Any, r: Any) -> Any:
        y = jnp.matmul(x, w, preferred_element_type=F32) + bias.astype(F32) + r.astype(F32)
        return y.astype(BF16)
    return plan_of(fn, *(Spec(s, BF16) for s in ((m, k), (k, n), (n,))), Spec((m, n), other))


def program(p: Plan, *schedules: DotSchedule) -> Program:
    return build(p, in_order(p, *schedules), threads=256)


@pytest.mark.sampled(17)
@pytest.mark.parametrize("schedule", [
    wgmma(128, 128, 2, (2, 1, 1)), wgmma(128, 160, 3, (2, 1, 1)), wgmma(128, 256, 2, (2, 1, 1)),
    wgmma(128, 144, 2, (2, 1, 1)), wgmma(64, 256, 3, (1, 2, 1)), wgmma(64, 384, 2, (1, 2, 1)),
    wgmma(64, 256, 2, (1, 1, 2)),
    dataclasses.replace(wgmma(128, 128, 3, (2, 1, 1)), resident=True),
], ids=lambda s: f"{s.bm}x{s.bn} {s.warps} {s.stages}{' resident' * s.resident}")
def test_every_tile(schedule: DotSchedule) -> None:
    """The last tiles are not whole; a block has several tasks. The source has a type of its own."""
    p = plan(n=128 if schedule.resident else 400, other=F16 if schedule.bn == 160 else BF16)
    made = program(p, schedule)
    assert f"G::Source<{'f16' if schedule.bn == 160 else 'bf16'}>::produce(" in made.source
    check_exact(p, made, seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "schedule", "other"), [
    ("few sums a thread", wgmma(128, 96, 3, (2, 1, 1)), BF16),
    ("blocks share k", wgmma(128, 128, 3, (2, 1, 1), 2), BF16),
    ("32 bits", wgmma(128, 128, 3, (2, 1, 1)), F32)])
def test_where_it_is_loaded_by_the_epilogue(name: str, schedule: DotSchedule, other: Any) -> None:
    p = plan(k=600, other=other)
    made = program(p, schedule)
    assert "Source<" not in made.source[made.source.rindex("load_a"):], name
    check_exact(p, made, seeds=(0,), blocks=(3,))


def test_of_rows_in_another_order() -> None:
    """Rows and columns at constant distances will do; transposed, elements are no neighbours."""
    def fn(x: Any, w: Any, r: Any) -> Any:
        return jnp.matmul(x, w, preferred_element_type=F32).astype(BF16) + r

    shapes = (Spec((300, 136), BF16), Spec((136, 128), BF16))
    wide = plan_of(lambda x, w, r: fn(x, w, r[:, 64:192]), *shapes, Spec((300, 256), BF16))
    made = program(wide, wgmma(128, 128, 3, (2, 1, 1)))
    assert "const Strided<bf16, 256, true, false> load_c{p2 + 64, 300, 128};" in made.source
    check_exact(wide, made)
    turned = plan_of(lambda x, w, r: fn(x, w, r.T), *shapes, Spec((128, 300), BF16))
    made = program(turned, wgmma(128, 128, 3, (2, 1, 1)))
    assert "load_c" not in made.source
    check_exact(turned, made, seeds=(0,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", [wgmma(128, 128, 3, (2, 1, 1)), wgmma(64, 256, 2, (1, 2, 1))],
                         ids=["128x128", "64x256"])
def test_of_a_batch(schedule: DotSchedule) -> None:
    """Of each matrix its own; the last tiles of none of them are whole. Blocks have several."""
    def fn(x: Any, w: Any, r: Any) -> Any:
        return jnp.einsum("bmk,bkn->bmn", x, w) + r

    p = plan_of(fn, *(Spec(s, BF16) for s in ((3, 150, 136), (3, 136, 200), (3, 150, 200))))
    made = program(p, schedule)
    assert "load_c{p2 + 30000 * b, 150, 200};" in made.source
    assert "Source<bf16>::produce(" in made.source
    check_exact(p, made, seeds=(0, 1, 2), blocks=(1, 3))


def test_a_source_that_an_earlier_stage_makes() -> None:
    """It may be loaded behind the grid barrier only: other blocks make some of a tile's rows. The
    next product's k tiles lie behind it."""
    def fn(x: Any, w: Any, v: Any) -> Any:
        r = jnp.clip(x @ w, -2, 2)
        return r @ v + r

    p = plan_of(fn, *(Spec(s, BF16) for s in ((300, 128), (128, 128), (128, 128))))
    made = program(p, wgmma(64, 128, 2, (1, 1, 2)), wgmma(128, 128, 2, (2, 1, 1)))
    assert len(p.stages) == 2 and made.source.count("load_c{") == 1
    check_exact(p, made, seeds=range(6), blocks=(2, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [128, 160])
def test_columns_that_an_earlier_stage_makes(columns: int) -> None:
    """Loaded once for all rows where a thread stays in its columns: in chunks of 64, not of 80."""
    def fn(x: Any, u: Any, w: Any, a: Any, r: Any) -> Any:
        scale = jnp.clip(a.sum(0, dtype=F32), -2, 2).astype(BF16)
        y = jnp.matmul(jnp.clip(x @ u, -1, 1), w, preferred_element_type=F32)
        return (y * scale.astype(F32) + r.astype(F32)).astype(BF16)

    n = 2 * columns
    p = plan_of(fn, *(Spec(s, BF16) for s in ((300, 64), (64, 288), (288, n), (40, n), (300, n))))
    made = program(p, wgmma(128, 64, 2, (2, 1, 1)), wgmma(128, columns, 3, (2, 1, 1)))
    assert len(p.stages) == 2 and "using BY_COLUMN = void;" in made.source
    assert "Source<bf16>::produce(" in made.source
    check_exact(p, made, seeds=(0, 1), blocks=(1, 3))


STATEMENT = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_mbarrier_arrive"
                       r"|named_barrier)\([^;{}]*\);")
COUNT = 5


@functools.cache
def case() -> Case:
    p = plan(n=256)
    return Case(p, in_order(p, wgmma(128, 128, 2, (2, 1, 1))), small_integers(p.graph), 0,
                threads=256)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(COUNT))
def test_every_wait_matters(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = removed("source_tiles.cuh", STATEMENT, number)
    assert failure(case(), monkeypatch, changed) != ""


@pytest.mark.slow
def test_nothing_fails_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(STATEMENT.findall(own_text("source_tiles.cuh"))) == COUNT
    assert failure(case(), monkeypatch, lambda text: text) == ""

"""Warpgroups that have tasks of their own: one's epilogue runs beside the other's products
(dot_schedule_pingpong.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import (
    build,
    check_exact,
    every_layout,
    in_order,
    plan_of,
    small_integers,
    wgmma,
)
from contraction_harness import (
    run_wgmma as run,
)
from lost_waits import Case, failure, replaced

from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.dot_candidates import dot_candidates
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_shared import ALONE
from jaxmono.codegen.generate import default_schedule, emit, requests
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device(shared_bytes=cuda_target("sm_90a").shared_bytes, wgmma=True)


def momentum(x: Any, dy: Any, w: Any, m: Any) -> Any:
    m = 0.5 * m + (x.T @ dy).astype(F32)
    return w - 0.25 * m, m


def step(m: int, n: int, k: int, device: Device = H200) -> Plan:
    return plan_of(momentum, Spec((k, m), BF16), Spec((k, n), BF16), Spec((m, n), F32),
                   Spec((m, n), F32), device=device)


def chosen(plan: Plan) -> list[DotSchedule]:
    return [s for s in default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
            if isinstance(s, DotSchedule)]


@pytest.mark.parametrize("s", [
    wgmma(64, 48, 3, ALONE), wgmma(128, 64, 2, ALONE), wgmma(64, 96, 4, ALONE),
    wgmma(128, 32, 2, ALONE, lines=2)])
def test_all_layouts_of_both_operands(s: DotSchedule) -> None:
    run(every_layout(200), s)


@pytest.mark.parametrize("s", [wgmma(128, 64, 2, ALONE), wgmma(64, 48, 5, ALONE)])
def test_a_step_of_an_optimiser(s: DotSchedule) -> None:
    """What is read by row and column, several pieces at a time; rows that end within a tile."""
    run(step(330, 176, 136), s)


EPILOGUES = {
    "bare": lambda y, b: y, "bias": lambda y, b: y + b, "relu": lambda y, b: jax.nn.relu(y + b),
    "more": lambda y, b: jnp.where(y > 3, 2 * y, y - 1) * (y + b)}


@pytest.mark.parametrize("kind", EPILOGUES)
@pytest.mark.parametrize("s", [wgmma(128, 192, 2, ALONE), wgmma(64, 96, 3, ALONE),
                               wgmma(64, 48, 3, ALONE)])
def test_sums_that_leave_as_they_are(s: DotSchedule, kind: str) -> None:
    """Or, of 48 columns, through shared memory. Rows and columns end within a tile."""
    p = plan_of(lambda x, w, b: EPILOGUES[kind](x @ w, b), Spec((330, 136), BF16),
                Spec((136, 408), BF16), Spec((408,), BF16))
    run(p, s)


@pytest.mark.parametrize("s", [wgmma(128, 192, 2, ALONE), wgmma(64, 64, 3, ALONE)])
@pytest.mark.parametrize("kind", ["bare", "more"])
def test_rows_that_begin_anywhere(s: DotSchedule, kind: str) -> None:
    run(plan_of(lambda x, w: EPILOGUES[kind](x @ w.T, 1), Spec((330, 136), BF16),
                Spec((407, 136), BF16)), s)


def test_a_bias_behind_a_barrier() -> None:
    def fn(x: Any, u: Any, b: Any, v: Any, c: Any) -> Any:
        return jax.nn.relu(jax.nn.relu(x @ u + b) @ v + c)

    p = plan_of(fn, Spec((190, 64), BF16), Spec((64, 160), BF16), Spec((160,), BF16),
                Spec((160, 96), BF16), Spec((96,), BF16))
    run(p, wgmma(64, 64, 2, ALONE), wgmma(64, 32, 2, ALONE))


def test_tasks_of_a_single_tile() -> None:
    run(plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=F32) * 3, Spec((700, 64), F16),
                Spec((64, 96), F16)), wgmma(64, 48, 2, ALONE))


def test_others_in_front_and_behind() -> None:
    """Rings of other lengths, tiles that both warpgroups share, an odd number of tasks."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return jax.nn.relu(jax.nn.relu(x @ u) @ v) @ w

    p = plan_of(fn, Spec((190, 64), BF16), Spec((64, 160), BF16), Spec((160, 64), BF16),
                Spec((64, 48), BF16))
    sigs = in_order(p, wgmma(64, 64, 2, ALONE), wgmma(128, 64, 3, (2, 1, 1)),
                    wgmma(64, 16, 2, ALONE))
    check_exact(p, build(p, sigs, threads=256), seeds=(0, 1, 2, 3), blocks=(1, 2, 3),
                inputs=small_integers(p.graph, high=1))


def test_products_side_by_side() -> None:
    def fn(x: Any, u: Any, v: Any) -> Any:
        return (jnp.dot(x, u, preferred_element_type=F32),
                jnp.dot(x, v, preferred_element_type=F32))

    p = plan_of(fn, Spec((200, 136), BF16), Spec((136, 96), BF16), Spec((136, 200), BF16))
    assert len(p.stages) == 1
    run(p, wgmma(64, 48, 3, ALONE), wgmma(64, 64, 2, (1, 1, 2)), seeds=(0, 1, 2, 3))
    run(p, wgmma(64, 48, 3, ALONE), wgmma(64, 64, 3, ALONE), seeds=(0, 1, 2, 3))
    # Of the same ring the warpgroup that has no task would look for the next one's tiles too early.
    for s in (wgmma(64, 48, 3, (1, 1, 2)), wgmma(64, 48, 3, ALONE)):
        run(p, wgmma(64, 48, 3, ALONE), s, seeds=tuple(range(8)))
        run(p, s, wgmma(64, 48, 3, ALONE), seeds=tuple(range(8)))


@pytest.mark.parametrize(("there", "instead"), [
    # A warpgroup takes a slot's phase of two tasks before for its own.
    ("mbarrier_wait(&roles->passed[wg], at.parity(PASSED) ^ (wg == 0));", ""),
    # It waits for ever.
    ("if (PINGPONG && lane_id() == 0) mbarrier_arrive(&roles->passed[1 - wg]);", ""),
    # Producers wait for the warpgroup that does not read the slot.
    ("i < (PINGPONG ? 2 : 1)", "i < 1"),
    # The next task's tiles are looked for where those of this one were.
    ("for (int t = 0; t < tiles; ++t) at.template next<SLOTS>();", ""),
], ids=["wait", "arrival", "slots", "tiles"])
def test_what_they_need(there: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=F32), Spec((500, 184), BF16),
                Spec((184, 64), BF16))
    case = Case(p, in_order(p, wgmma(64, 32, 2, ALONE)), small_integers(p.graph), 0.0, threads=256,
                seeds=24)

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, replaced(there, instead)) != ""


def test_they_are_for_heavy_epilogues_of_many_tasks() -> None:
    assert [s.warps for s in chosen(step(4096, 4096, 2048))] == [ALONE]
    assert [s.warps for s in chosen(step(1024, 1024, 2048))] != [ALONE]  # 64 tasks

    def light(x: Any, dy: Any, w: Any) -> Any:
        return (w + x.T @ dy).astype(BF16)

    shapes = [Spec((2048, 4096), BF16)] * 2
    for dtype in (BF16, F32):  # 4 and 6 bytes for each sum
        plan = plan_of(light, *shapes, Spec((4096, 4096), dtype), device=H200)
        assert [s.warps for s in chosen(plan)] != [ALONE]


def with_epilogue(kind: str, m: int, n: int, k: int) -> Plan:
    def fn(x: Any, w: Any, b: Any, other: Any) -> Any:
        y = x @ w + b
        half = jnp.concatenate([other[:, :64] + 1, other[:, 64:]], 1)
        return {"bare": x @ w, "bias": y, "relu": jax.nn.relu(y), "gelu": jax.nn.gelu(y),
                "residual": y + other, "joined": y + half, "two": (y, jax.nn.gelu(y)),
                "more": jnp.log1p(jnp.exp(y)) * jnp.sin(y)}[kind]

    return plan_of(fn, Spec((m, k), BF16), Spec((k, n), BF16), Spec((n,), BF16), Spec((m, n), BF16),
                   device=H200)


@pytest.mark.parametrize("kind", ["bare", "bias", "relu", "gelu"])
def test_epilogues_of_short_products_are_hidden(kind: str) -> None:
    (s,) = chosen(with_epilogue(kind, 4096, 3072, 768))
    assert (s.warps, s.bm, s.bn, s.stages) == (ALONE, 128, 192, 5)


@pytest.mark.parametrize(("kind", "m", "n", "k"), [
    ("residual", 4096, 3072, 768),  # reads as much as is written
    ("joined", 4096, 3072, 768),  # the same, behind a join
    ("more", 4096, 3072, 768), ("two", 4096, 3072, 768),  # too few registers
    ("bare", 2048, 768, 3072),  # a task for each multiprocessor, or less
    ("bare", 128, 50304, 768),  # the weights come from memory
    ("bare", 4096, 4096, 4096),  # more tasks by a sixth in these tiles
])
def test_others_share_their_tiles(kind: str, m: int, n: int, k: int) -> None:
    assert all(s.warps != ALONE for s in chosen(with_epilogue(kind, m, n, k)))


@pytest.mark.parametrize(("m", "n"), [(70016, 32), (70016, 64), (35008, 144), (50304, 192)])
def test_tiles_are_filled(m: int, n: int) -> None:
    assert [s.warps for s in chosen(step(m, n, 2048))] != [ALONE]


def test_nothing_else_is_in_their_stages() -> None:
    """Beside tasks that use shared memory differently warpgroups meet in front of each."""
    def fn(x: Any, dy: Any, w: Any, m: Any, v: Any) -> Any:
        return (*momentum(x, dy, w, m), dy @ v.T)

    plan = plan_of(fn, *[Spec((2048, 4096), BF16)] * 2, *[Spec((4096, 4096), F32)] * 2,
                   Spec((4096, 4096), BF16), device=H200)
    assert len(plan.stages) == 1
    assert ALONE not in [s.warps for s in chosen(plan)]
    for sig in plan.sigs:
        request = requests(plan, cuda_target("sm_90a"), H200)[sig.key]
        assert ALONE not in [s.warps for s in dot_candidates(sig, request, chosen(plan)[0])]


def test_the_profiler_measures_both() -> None:
    plan = plan_of(lambda x, w: x @ w, Spec((2048, 768), BF16), Spec((768, 3072), BF16),
                   device=H200)
    (sig,) = plan.sigs
    request = requests(plan, cuda_target("sm_90a"), H200)[sig.key]
    found = dot_candidates(sig, request, chosen(plan)[0])
    assert sorted(s.bn for s in found if s.warps == ALONE) == [128, 192]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [
    step(4096, 4096, 2048), with_epilogue("bare", 4096, 3072, 768),
    with_epilogue("gelu", 4096, 3072, 768)], ids=["sgd", "bare", "gelu"])
def test_registers_hold_the_sums(plan: Plan) -> None:
    found = nvrtc.compile_cuda(headers.bundle(emit(
        plan, cuda_target("sm_90a"), H200, "kernel").source), "sm_90a")
    assert not found.spill_stores and not found.spill_loads
    assert not found.serialized

"""Warpgroups of a wgmma tile that take turns with its last k tiles (`LEAD` of gemm_wgmma.cuh)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, in_order, plan_of, small_integers, wgmma
from lost_waits import Case, failure, replaced

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32


def plan(k_tiles: int, residual: bool = False) -> Plan:
    """Several tasks for each of two blocks."""
    def fn(x: Any, w: Any, r: Any) -> Any:
        y = jnp.matmul(x, w, preferred_element_type=F32)
        return (y + r.astype(F32) if residual else y).astype(BF16)
    k = k_tiles * 64 - 8
    return plan_of(fn, Spec((400, k), BF16), Spec((k, 256), BF16), Spec((400, 256), BF16))


@pytest.mark.sampled(23)
@pytest.mark.parametrize(("schedule", "k_tiles"), [
    (wgmma(128, 96, 2, (2, 1, 1)), 3), (wgmma(128, 96, 3, (2, 1, 1)), 3),
    (wgmma(128, 96, 3, (2, 1, 1)), 4), (wgmma(64, 128, 4, (1, 2, 1)), 5),
    (wgmma(64, 128, 4, (1, 2, 1)), 11),
    (wgmma(128, 128, 4, (2, 1, 1)), 7)], ids=lambda x: str(getattr(x, "stages", x)))
@pytest.mark.parametrize("residual", [False, True])
def test_few_tiles_more_than_slots(schedule: DotSchedule, k_tiles: int, residual: bool) -> None:
    """Or as many, or many more; with a residual that takes slots of its own behind them."""
    p = plan(k_tiles, residual)
    check_exact(p, build(p, in_order(p, schedule), threads=256), seeds=(0, 1, 2), blocks=(2,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("there", "instead", "k_tiles"), [
    # The second warpgroup waits for ever.
    ("speaks) mbarrier_arrive(&roles->turn)", "speaks) (void)0", 3),
    # The first one arrives for two tasks before the second has come to one: it hears of neither.
    ("tiles > SLOTS ? tiles - LEAD<HELD>", "tiles > 0 ? 0", 1),
], ids=["arrival", "more tiles than slots"])
def test_a_turn_needs(there: str, instead: str, k_tiles: int,
                      monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(k_tiles)
    sigs = in_order(p, wgmma(128, 32, 2, (2, 1, 1)))
    case = Case(p, sigs, small_integers(p.graph), 0.0, threads=256, seeds=24)

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, replaced(there, instead)) != ""

"""Products on warpgroups whose right operand stays in shared memory; slots that have all of k."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, dot_sigs, in_order, plan_of, wgmma
from contraction_harness import run_wgmma as run
from jax import lax
from thinned import crossed, thinned

from jaxmono.codegen import kernel, producers
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import choose_wgmma
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
H200 = Device()


def resident(bm: int, bn: int, slots: int, warps: tuple[int, int, int], bk: int = 64,
             ) -> DotSchedule:
    return dataclasses.replace(wgmma(bm, bn, slots, warps), bk=bk, resident=True)


@pytest.mark.sampled(5)
@crossed(("schedule", [resident(128, 48, 2, (2, 1, 1)), resident(64, 128, 3, (1, 2, 1)),
                       resident(64, 48, 2, (1, 1, 2))]),
         ("layout", ["kn", "nk"]))
def test_weights_stay(schedule: DotSchedule, layout: str) -> None:
    n = 40 if schedule.bn == 48 else 128
    w = (200, n) if layout == "kn" else (n, 200)
    plan = plan_of(lambda a, b, c: jnp.einsum(f"mk,{layout}->mn", a, b,
                                              preferred_element_type=F32) + c,
                   Spec((700, 200), BF16), Spec(w, BF16), Spec((n,), F32))
    run(plan, schedule)


def layers(x: Any, *ws: Any) -> Any:
    for w in ws:
        x = jnp.clip(lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), 0, 1)
    return x


def test_each_stage_has_weights_of_its_own() -> None:
    """Of one Sig, in a loop; its neighbours have rings of another shape."""
    convolutions = [Spec((3, 3, 16, 16), BF16)] * 4
    plan = plan_of(lambda x, *ws: layers(x, *ws) @ jnp.ones((16, 24), BF16),
                   Spec((3, 12, 12, 16), BF16), *convolutions)
    assert plan.loops
    run(plan, resident(128, 16, 3, (2, 1, 1)), wgmma(64, 32, 2, (1, 1, 2)))


def test_weights_that_the_kernel_makes() -> None:
    """They may be loaded behind the grid barrier only."""
    plan = plan_of(lambda x, a, b: x @ (a @ b), Spec((700, 128), BF16), Spec((128, 64), BF16),
                   Spec((64, 48), BF16))
    assert len(plan.stages) == 2
    run(plan, wgmma(64, 48, 2, (1, 1, 2)), resident(128, 48, 2, (2, 1, 1)), seeds=tuple(range(4)))


def siblings() -> Plan:
    """Two products of one Sig in a stage, with other weights."""
    x, w = Spec((500, 128), BF16), Spec((128, 48), BF16)
    plan = plan_of(lambda x, y, a, b: (x @ a, y @ b), x, x, w, w)
    assert len(plan.stages) == 1 and len(plan.sigs) == 1 and len(plan.groups) == 2
    return plan


def test_siblings_load_theirs_for_every_task() -> None:
    run(siblings(), resident(128, 48, 2, (2, 1, 1)))


def test_beside_another_product() -> None:
    plan = plan_of(lambda x, a, b: (x @ a, jnp.tanh(x @ b)), Spec((500, 128), BF16),
                   Spec((128, 48), BF16), Spec((128, 32), BF16))
    assert len(plan.stages) == 1 and len(dot_sigs(plan)) == 2
    schedules = in_order(plan, resident(128, 48, 2, (2, 1, 1)), resident(128, 32, 2, (2, 1, 1)))
    program = build(plan, schedules, threads=256)
    assert "at.fresh = true;  // rings of other lengths" in program.source
    check_exact(plan, program, blocks=(1, 3))


def test_siblings_that_run_ahead_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the order is there for."""
    for module in (producers, kernel):
        monkeypatch.setattr(module, "is_mixed", lambda calls: False)
    with pytest.raises(AssertionError, match="not equal"):
        run(siblings(), resident(128, 48, 2, (2, 1, 1)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", thinned([24, 8, 40, 72, 104], 3))
@pytest.mark.parametrize("layout", thinned(["mk,kn", "mk,nk", "km,kn"], 3))
def test_a_slot_has_all_of_k(k: int, layout: str) -> None:
    bk = -(-k // 16) * 16
    shapes = [(200, k) if x == "mk" else (k, 200) if x == "km" else (k, 48) if x == "kn"
              else (48, k) for x in layout.split(",")]
    plan = plan_of(lambda a, b: jnp.einsum(
        f"{layout}->mn", a, b, preferred_element_type=F32), *(Spec(s, BF16) for s in shapes))
    whole = dataclasses.replace(wgmma(128, 48, 2, (2, 1, 1)), bk=bk)
    run(plan, whole, seeds=(0, 1))
    run(plan, dataclasses.replace(whole, resident=True), seeds=(0,))
    if bk % 32 == 0:
        run(plan, dataclasses.replace(wgmma(64, 48, 2, (1, 1, 2)), bk=bk), seeds=(0,))


def test_a_gathered_slot_has_all_of_k() -> None:
    plan = plan_of(layers, Spec((2, 11, 12, 8), BF16), Spec((3, 3, 8, 32), BF16))
    run(plan, resident(128, 32, 2, (2, 1, 1), bk=80))


def test_where_it_is_chosen() -> None:
    def chosen(m: int, n: int, k: int, **kw: Any) -> DotSchedule:
        found = choose_wgmma(1, m, n, k, device=H200, shared_bytes=H200.shared_bytes,
                             row_prologue=False, k_major=(True, False), gathered=True, **kw)
        assert found is not None
        return found[1]

    first, second = chosen(1605632, 64, 72), chosen(1605632, 64, 576)  # VGG-16 b32
    assert (first.bk, first.resident) == (80, True) and (second.bk, second.resident) == (64, True)
    assert not chosen(401408, 128, 576).resident, "little would be left for the ring"
    assert not chosen(12544, 64, 576).resident, "a task or two for each block"
    assert not chosen(1605632, 64, 576, beside=True).resident
    assert chosen(1605632, 256, 64).bk == 64

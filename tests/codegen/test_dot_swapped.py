"""wgmma with the weights on the left: few rows, in the emulator and through NVRTC."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, check_near, dot_sigs, plan_of, smooth

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def swapped(bm: int, bn: int, slots: int, split: int = 1) -> DotSchedule:
    return DotSchedule("swapped", bm, bn, 64, slots, (1, 2, 1) if bn == 128 else (1, 1, 2), split)


def run(plan: Plan, *schedules: DotSchedule, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    sigs = {s.key: schedules[min(i, len(schedules) - 1)] for i, s in enumerate(dot_sigs(plan))}
    program = build(plan, sigs, threads=256)
    assert "GemmSwapped<" in program.source and program.threads == 384
    check_exact(plan, program, seeds=seeds, blocks=(1, 3))


def product(x: Any, w: Any, spec: str = "mk,kn->mn") -> Any:
    return jnp.einsum(spec, x, w, preferred_element_type=F32)


@pytest.mark.parametrize("s", [swapped(16, 64, 3), swapped(32, 128, 2), swapped(48, 64, 2, 2),
                               swapped(16, 128, 3, 2)])
def test_all_layouts_of_both_operands(s: DotSchedule) -> None:
    """[m,k] or [k,m] times [k,n] or [n,k], sizes that no tile divides, a bias and a residual."""
    def fn(a: Any, at: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
        pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt), ("km,kn->mn", at, b),
                 ("km,nk->mn", at, bt)]
        return tuple(product(x, y, e) + bias + c for e, x, y in pairs)

    m, k, n = 24, 328, 168
    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, m), BF16), Spec((k, n), BF16),
                   Spec((n, k), BF16), Spec((n,), F32), Spec((m, n), F32))
    run(plan, s)


@pytest.mark.parametrize("s", [swapped(32, 64, 3), swapped(32, 128, 2, 2), swapped(32, 64, 2, 4)])
def test_computed_rows(s: DotSchedule) -> None:
    """silu(gate) * up of earlier stages: the consumers make a panel of it; the last split of k has
    fewer tiles than the others."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        gate, up = jnp.maximum(x @ u, 0), x @ v
        return product(gate * up, w)

    m, k = 20, 584
    plan = plan_of(fn, Spec((m, 64), BF16), Spec((64, k), BF16), Spec((64, k), BF16),
                   Spec((k, 136), BF16))
    assert len(plan.stages) == 2
    sigs = {x.key: s for x in dot_sigs(plan)}
    program = build(plan, sigs, threads=256)
    assert "G::fill(" in program.source
    check_near(plan, program, smooth(plan.graph, scale=0.3), 2e-2, seeds=(0, 1, 2), blocks=(2, 4))

"""Products of f32 whose weights are wgmma's left operand, rows by the tensor memory accelerator."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, in_order, plan_of, small_integers, smooth
from contraction_harness import run_wgmma as run
from harness import run_program

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Plan
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
F32 = jnp.float32


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1) -> DotSchedule:
    return DotSchedule("tf32", bm, bn, 32, slots, warps, split)


TILES = [tile(128, 128, 3, (1, 2, 1)), tile(64, 64, 4, (2, 1, 1)), tile(32, 128, 2, (1, 2, 1)),
         tile(256, 128, 2, (1, 2, 1)), tile(96, 64, 5, (2, 1, 1))]


def layouts(a: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
    pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt)]
    return tuple(jnp.einsum(e, x, y) + bias + c for e, x, y in pairs)


def both_plan() -> Plan:
    return plan_of(layouts, Spec((140, 204), F32), Spec((204, 116), F32), Spec((116, 204), F32),
                   Spec((116,), F32), Spec((140, 116), F32))


@pytest.mark.parametrize("s", TILES)
def test_both_layouts_of_weights(s: DotSchedule) -> None:
    """Sizes that no tile divides."""
    run(both_plan(), s)


@pytest.mark.parametrize("s", TILES[:2])
def test_both_operands_are_rounded(s: DotSchedule) -> None:
    """Operands of one sign: what wgmma would cut off them does not average out."""
    plan = both_plan()
    program = build(plan, in_order(plan, s), threads=256)
    a, b, bt, _, _ = (np.abs(x) for x in smooth(plan.graph))
    given = [a, b, bt, np.zeros(116, np.float32), np.zeros((140, 116), np.float32)]
    for found, wanted in zip(run_program(program, given, seed=1),
                             evaluate(plan.graph, given, accumulate="f64"), strict=True):
        error = (found.astype(np.float64) - wanted) / wanted
        assert abs(error.mean()) < 5e-6 < 1e-5 < np.abs(error).mean() < 1e-4  # cut: -3.5e-4


def test_k_shared_by_blocks() -> None:
    plan = plan_of(lambda a, b: jax.nn.relu(a @ b), Spec((70, 648), F32), Spec((648, 40), F32))
    run(plan, tile(64, 64, 3, (2, 1, 1), split=4))
    run(plan, tile(128, 128, 2, (1, 2, 1), split=2))

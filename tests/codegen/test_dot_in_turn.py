"""Warpgroups that take turns, a tile each (device/gemm_wgmma.cuh), in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    every_layout,
    in_order,
    plan_of,
    run_wgmma,
    small_integers,
    wgmma,
)

from jaxmono.codegen.dot_schedule import DotSchedule

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32


@pytest.mark.parametrize("s", [
    wgmma(128, 48, 3, (1, 1, 1)), wgmma(192, 64, 2, (1, 1, 1)), wgmma(64, 112, 4, (1, 1, 1))])
def test_warpgroups_in_turn(s: DotSchedule) -> None:
    """All layouts, sizes that no tile divides, several turns of each warpgroup."""
    run_wgmma(every_layout(264), s, seeds=tuple(range(6)))


def test_turns_of_a_single_tile() -> None:
    """A warp that is long in its epilogue still finds its turn: nothing else holds the others."""
    def fn(x: Any, w: Any, r: Any) -> Any:
        return jnp.dot(x, w, preferred_element_type=F32) + r

    plan = plan_of(fn, Spec((1500, 64), BF16), Spec((64, 40), BF16), Spec((1500, 40), F32))
    for slots in (2, 3):
        run_wgmma(plan, wgmma(64, 48, slots, (1, 1, 1)), seeds=tuple(range(12)))


@pytest.mark.parametrize("turns", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_stages_in_turn_behind_others(turns: tuple[int, ...]) -> None:
    """Either warpgroup may begin the next stage, and tiles of both kinds share slots and phases."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return jax.nn.relu(jax.nn.relu(x @ u) @ v) @ w

    plan = plan_of(fn, Spec((70, 64), BF16), Spec((64, 160), BF16), Spec((160, 72), BF16),
                   Spec((72, 48), BF16))
    assert len(plan.stages) == 3
    both = [wgmma(64, 96, 2, (1, 1, 2)), wgmma(128, 48, 4, (2, 1, 1)), wgmma(64, 16, 2, (1, 1, 2))]
    own = [wgmma(64, 96, 2, (1, 1, 1)), wgmma(64, 48, 4, (1, 1, 1)), wgmma(64, 16, 2, (1, 1, 1))]
    schedules = [own[i] if i in turns else both[i] for i in range(3)]
    x, u, _, w = small_integers(plan.graph, high=1)
    v = np.eye(160, dtype=x.dtype)[np.random.default_rng(1).permutation(160)[:72]].T
    check_exact(plan, build(plan, in_order(plan, *schedules), threads=256), seeds=tuple(range(6)),
                blocks=(1, 3), inputs=[x, u, v, w])

"""Exact products of f32 by six products of bf16 parts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of
from contraction_harness import run_wgmma as run

from jaxmono.codegen.dot_schedule import DotSchedule

Spec = jax.ShapeDtypeStruct
F32 = jnp.float32


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1) -> DotSchedule:
    return DotSchedule("bf16x6", bm, bn, 32, slots, warps, split)


TILES = [tile(128, 128, 3, (1, 2, 1)), tile(64, 64, 4, (2, 1, 1)), tile(32, 128, 3, (1, 2, 1)),
         tile(256, 64, 3, (2, 1, 1)), tile(96, 128, 4, (1, 2, 1))]


def layouts(a: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
    pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt)]
    return tuple(jnp.einsum(e, x, y, precision="highest") + bias + c for e, x, y in pairs)


def both_plan() -> Any:
    return plan_of(layouts, Spec((140, 204), F32), Spec((204, 116), F32), Spec((116, 204), F32),
                   Spec((116,), F32), Spec((140, 116), F32))


@pytest.mark.parametrize("s", TILES)
def test_both_layouts_of_weights(s: DotSchedule) -> None:
    """Sizes that no tile divides."""
    run(both_plan(), s)

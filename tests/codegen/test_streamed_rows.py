"""Up to how many rows weights are streamed, which gives values flags in place of a barrier."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from models import graph_of

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device


@pytest.mark.parametrize(("rows", "families"), [
    (4, ["gemv", "gemv"]), (5, ["mma", "gemv"]), (6, ["mma", "mma"])])
def test_a_row_more_behind_a_border(rows: int, families: list[str]) -> None:
    def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ up) @ down)

    shapes = ((rows, 768), (768, 3072), (3072, 768))
    plan = make_plan(graph_of(mlp, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes)),
                     Device())
    schedules = default_schedule(plan, cuda_target("sm_90a"), Device()).sigs
    found = [schedules[stage.groups[0].sig.key] for stage in plan.stages]
    assert all(isinstance(s, DotSchedule) for s in found)
    assert [s.family for s in found] == families

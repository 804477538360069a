"""Kernels with long loops of small stages go without producer warps, if little work needs them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from models import graph_of

from jaxmono.codegen.generate import default_schedule, requests
from jaxmono.codegen.open_borders import has_producers, open_borders
from jaxmono.codegen.sig_code import code_for
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.passes import simplify

X = Any


def gru(x: X, enter: X, state: X) -> X:
    """What comes in is one product of all trips, on warpgroups by itself."""
    def step(h: X, now: X) -> tuple[X, X]:
        a, b = jnp.split(now @ enter + h @ state, 2, axis=-1)
        h = jax.nn.sigmoid(a) * jnp.tanh(b)
        return h, h

    return lax.scan(step, jnp.zeros((1, state.shape[0]), x.dtype), x)[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("wide", "without"), [(4096, True), (32768, False)])
def test_producers(wide: int, without: bool) -> None:
    shapes = (96, 1, wide), (wide, 1024), (512, 1024)
    graph = simplify(graph_of(gru, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes)))
    device, target = Device(), cuda_target("sm_90a")
    plan = make_plan(graph, device)
    asked = requests(plan, target, device)
    alone = {s.key: code_for(s).choose(s, asked[s.key]) for s in plan.sigs}
    assert any(has_producers(s, alone) for s in plan.sigs)
    schedule = default_schedule(plan, target, device)
    assert any(has_producers(s, schedule.sigs) for s in plan.sigs) is not without
    assert (len(open_borders(plan, schedule).open) > 48) is without

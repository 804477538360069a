"""Equal contractions of stages that run several of them, and of those that run one (twins.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np

from jaxmono.codegen.generate import default_schedule, requests
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.interp import evaluate

SIZE = 256
X = Any


def layer(x: X, *w: X) -> X:
    """Three products of one value, then one of theirs."""
    q, k, v = (jax.nn.softmax(x @ w[i]) for i in range(3))
    return jax.nn.softmax(jax.nn.softmax(q * k + v) @ w[3])


def planned(layers: int) -> Plan:
    def fn(x: X, *w: X) -> X:
        for i in range(layers):
            x = layer(x, *w[i * 4:])
        return x

    graph = models.graph_of(fn, *(jax.ShapeDtypeStruct((n, SIZE), jnp.float32)
                                  for n in (300, *[SIZE] * 4 * layers)))
    made = make_plan(graph, Device())
    rng = np.random.default_rng(0)
    given = [rng.normal(size=v.type.dims).astype(np.float32) * 0.1 for v in graph.inputs]
    for got, want in zip(run_plan(made, given, seed=1), evaluate(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    return made


def test_each_has_a_schedule_of_its_own() -> None:
    plan = planned(3)
    dots = {s.key: s for s in plan.sigs if isinstance(s.form, DotForm)}
    asked = requests(plan, cuda_target("sm_90a"), Device())
    (one,) = (key for key in dots if asked[key].siblings == 1)
    three = one.removesuffix("-1")
    assert asked[three].siblings == 3 and dots[one].body is dots[three].body
    schedule = default_schedule(plan, cuda_target("sm_90a"), Device())
    assert schedule.sigs[one] != schedule.sigs[three]
    for stage in plan.stages:  # of equal layers equally
        keys = [g.sig.key for g in stage.groups if g.sig.key in dots]
        assert one not in keys or keys == [one]


def test_what_is_always_as_many_has_none() -> None:
    def fn(x: X, *w: X) -> X:
        for i in range(0, 6, 3):
            q, k, v = (jax.nn.softmax(x @ w[i + n]) for n in range(3))
            x = q * k + v
        return x

    graph = models.graph_of(fn, *(jax.ShapeDtypeStruct((n, SIZE), jnp.float32)
                                  for n in (300, *[SIZE] * 6)))
    assert not [s.key for s in make_plan(graph, Device()).sigs if "-" in s.key]

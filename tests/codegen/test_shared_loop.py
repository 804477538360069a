"""Loops whose neighbours share most of what they read (shared_loop.py)."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE, check, last_loop
from harness_graphs import data
from models import graph_of

from jaxmono.codegen.generate import emit
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan

X = Any


def normed(x: X, mean: X, var: X, w: X, s: X) -> X:
    """What a GroupNorm and a SiLU do to x[b, i, j, c] once they know mean and variance."""
    y = x.reshape(*x.shape[:3], mean.shape[1], -1).astype(jnp.float32)
    y = (y - mean[:, None, None, :, None]) * jax.lax.rsqrt(var[:, None, None, :, None] + 1e-5)
    return jax.nn.silu((y.reshape(x.shape) * w + s).astype(x.dtype))


def planned(fn: Any = normed, shape: tuple[int, ...] = (2, 5, 8, 30), groups: int = 3) -> Plan:
    b, *_, c = shape
    of = [(shape, jnp.bfloat16), *[((b, groups), jnp.float32)] * 2, *[((c,), jnp.bfloat16)] * 2]
    return make_plan(graph_of(fn, *(jax.ShapeDtypeStruct(*x) for x in of)), DEVICE)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("places", [(1, 1, 2, 1), (1, 1, 8, 1), (1, 5, 1, 1), (2, 1, 1, 1)])
def test_as_right_as_one_by_one(places: tuple[int, ...]) -> None:
    """What lies behind the buffers is NaN: a place that is read outside of them shows."""
    plan = planned()
    given = [data(v, i) for i, v in enumerate(plan.graph.inputs)]
    given[2] = abs(given[2])
    (sig,) = plan.sigs
    for lanes in (1, 2):
        schedule = KernelSchedule(64, 1, {sig.key: LoopSchedule(lanes, places=places)})
        check(plan.graph, given, plan=plan, schedule=schedule)


def test_places_are_chosen_where_there_are_elements_enough() -> None:
    large = planned(shape=(2, 64, 64, 320), groups=32)
    assert last_loop(large) == LoopSchedule(2, places=(1, 1, 8, 1))
    assert last_loop(planned(shape=(2, 8, 8, 320), groups=32)) == LoopSchedule(2)


def test_what_places_share_is_read_once_and_a_sigmoid_stays_one_function() -> None:
    plan = planned(shape=(2, 64, 64, 320), groups=32)
    text = emit(plan, cuda_target("sm_90a"), Device(), "normed").source
    body = text[text.rindex("// loop "):]
    assert [len(re.findall(rf"load(?:_ro)?<float{lanes}>\(p{i} ", body))
            for i, lanes in enumerate((", 2", ""))] == [8, 1]  # of x and of the mean
    assert body.count("v_bf16_logistic") == 8 and "exponential(" not in body


def test_vectors_that_lie_along_two_variables_stay_whole() -> None:
    """Three channels: a vector of 8 has those of some places."""
    def shifted(x: X, a: X, m: X, s: X) -> X:
        return jnp.tanh((x - a[:, None, None, None]) * m[:, None, None, None]
                        + s[:, None, None, None])

    for shape in ((301, 301, 8, 3), (64, 224, 224, 3)):
        args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (shape, *[shape[:1]] * 3)]
        plan = make_plan(graph_of(shifted, *args), Device())
        text = emit(plan, cuda_target("sm_90a"), Device(), "shifted").source
        assert "for (int l = 0" not in text[text.rindex("// loop "):]
        along = [i for i, n in enumerate(last_loop(plan).places) if n > 1]
        assert all(math.prod(shape[i + 1:]) % 8 == 0 for i in along)


def test_others_have_no_places() -> None:
    def joined(x: X, mean: X, var: X, w: X, s: X) -> X:  # two loads of four are shared
        return x * w + jnp.flip(x, 1) + s

    assert last_loop(planned(joined, (2, 64, 64, 320), 32)).places == ()

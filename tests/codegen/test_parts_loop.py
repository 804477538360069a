"""Loops whose threads have a vector of each of a line's joined parts (parts_loop.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def turned(x: X, c: X, s: X) -> X:
    """Halves that are turned by angles of which each head has the same."""
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * c - b * s, a * s + b * c], -1).astype(x.dtype)


def rolled(x: X, c: X, s: X) -> X:
    """The same as transformers' models have it, with angles of whole lines."""
    a, b = jnp.split(x, 2, -1)
    c, s = (jnp.concatenate([v, v], -1).astype(x.dtype) for v in (c, s))
    return x * c + jnp.concatenate([-b, a], -1) * s


def thirds(x: X, c: X, s: X) -> X:
    a, b = x[..., :c.shape[-1]] * c, x[..., -c.shape[-1]:] * s
    return jnp.concatenate([a - b, a + b, a * b], -1)


def halves(x: X, c: X, s: X) -> X:
    """Nothing that one half reads is of the other."""
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * c, b * s], -1)


def planned(fn: Callable[..., Any], heads: int = 4, n: int = 8, d: int = 16, table: int = 0,
            dtype: Any = jnp.bfloat16) -> Plan:
    of = [((heads, n, d), dtype), *[((n, table or d // 2), jnp.float32)] * 2]
    return make_plan(graph_of(fn, *(jax.ShapeDtypeStruct(*x) for x in of)), DEVICE)


def text(plan: Plan) -> str:
    source = emit(plan, cuda_target("sm_90a"), Device(), "kernel").source
    return source[source.index("JM_DEVICE void f"):]


@pytest.mark.parametrize(("fn", "parts", "lanes"), [
    (turned, 2, 4), (turned, 2, 1), (rolled, 2, 4), (thirds, 3, 2)])
@pytest.mark.parametrize("places", [(1, 1, 1), (4, 1, 1), (2, 1, 1), (1, 2, 1)])
def test_as_right_as_one_by_one(fn: Callable[..., Any], parts: int, lanes: int,
                                places: tuple[int, ...]) -> None:
    """What lies behind the buffers is NaN: a place that is read outside of them shows."""
    plan = planned(fn, d=24 if parts == 3 else 16, table=8)
    given = [data(v, i) for i, v in enumerate(plan.graph.inputs)]
    (sig,) = plan.sigs
    schedule = KernelSchedule(64, 1, {sig.key: LoopSchedule(lanes, places=places, parts=parts)})
    check(plan.graph, given, plan=plan, schedule=schedule)


def test_heads_share_their_angles() -> None:
    """4 heads at a time, where blocks are as many without; both halves without a branch."""
    plan = planned(turned, 32, 2048, 128)
    assert last_loop(plan) == LoopSchedule(4, places=(4, 1, 1), parts=2)
    found = text(plan)
    assert found.count("load_ro<float, 4>(p0") == 8
    assert found.count("load_ro<float, 4>(p1") == found.count("load_ro<float, 4>(p2") == 1
    assert found.count("store<bf16, 4>(") == 8
    assert "} else {" not in found
    assert last_loop(planned(turned, 8, 2048, 128)).places == (1, 1, 1)  # too few blocks
    assert last_loop(planned(turned, 1, 8192, 128)).parts == 2


@pytest.mark.parametrize("fn", [rolled, thirds])
def test_parts_that_read_the_same(fn: Callable[..., Any]) -> None:
    assert last_loop(planned(fn, 32, 2048, 192, table=64 if fn is thirds else 96)).parts > 1


def test_parts_that_read_nothing_in_common_are_apart() -> None:
    assert last_loop(planned(halves, 32, 2048, 128)).parts == 1


def test_vectors_lie_in_one_part() -> None:
    """Halves of 6 have no vectors of 4."""
    found = last_loop(planned(turned, 64, 4096, 12, dtype=jnp.float32))
    assert 6 % found.lanes == 0


def test_what_is_joined_along_another_variable_stays() -> None:
    """Of a line's places nobody knows which part they are of; its threads go along the source."""
    def fn(x: X, c: X) -> X:
        return jnp.concatenate([x * c, x + c], -1).T + 1

    shape = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
    found = last_loop(make_plan(graph_of(fn, shape, shape), DEVICE))
    assert found.parts == 1
    assert found.order


def test_results_have_registers() -> None:
    """Four parts of a head are 64 words; of several heads more than a thread has."""
    def fn(x: X, c: X) -> X:
        a, b, d, e = jnp.split(x, 4, -1)
        return jnp.concatenate([a * c - b, a + b * c, d * c + a, e - a], -1)

    shapes = (32, 8, 1024, 64), (1024, 16)
    found = last_loop(make_plan(graph_of(fn, *(jax.ShapeDtypeStruct(s, jnp.bfloat16)
                                            for s in shapes)), DEVICE))
    assert math.prod(found.places or (1,)) * found.parts * found.lanes <= 64

"""Rows that read the same as their neighbours (stencil_rows.alike_rows)."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE, check
from harness_graphs import data
from models import graph_of

from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.row_schedule import RowSchedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan

X = Any


def near(x: X, y: X, w: X) -> X:
    """How much is near each of y's places: y of each row, too."""
    return (jnp.maximum(1 - jnp.abs(x[:, None, :] - y[:, :, None]), 0) * w[:, None, :]).sum(-1)


def planned(n: int, m: int, k: int) -> Plan:
    return make_plan(graph_of(near, *(jax.ShapeDtypeStruct(s, jnp.float32)
                                      for s in ((n, k), (n, m), (n, k)))), DEVICE)


def chosen(plan: Plan) -> RowSchedule:
    (sig,) = plan.sigs
    found = default_schedule(plan, cuda_target("sm_90a"), Device()).sigs[sig.key]
    assert isinstance(found, RowSchedule)
    return found


@pytest.mark.parametrize(("group", "places"), [(4, 3), (8, 3), (16, 1), (32, 3), (4, 1)])
@pytest.mark.parametrize(("m", "k"), [(9, 7), (3, 35)])
def test_as_right_as_one_by_one(group: int, places: int, m: int, k: int) -> None:
    plan = planned(5, m, k)
    given = [data(v, i) for i, v in enumerate(plan.graph.inputs)]
    (sig,) = plan.sigs
    row = RowSchedule("warp", group, 1, places=places)
    check(plan.graph, given, plan=plan, schedule=KernelSchedule(64, 1, {sig.key: row}))


def test_a_few_lanes_take_some_rows_of_a_few_columns() -> None:
    """17 times 3 rows of 51 columns: what they have in common is loaded once for three."""
    plan = planned(1024, 51, 51)
    found = chosen(plan)
    assert found.places == 3
    assert found.group < 32
    text = emit(plan, cuda_target("sm_90a"), Device(), "kernel").source
    body = re.search(r"#pragma unroll[^#]*?\n  \}", text[text.index("JM_DEVICE void f"):])
    assert body is not None
    assert body[0].count("accumulate<") == 3
    assert body[0].count("load_ro<float>(p0") == body[0].count("load_ro<float>(p2") == 1


@pytest.mark.parametrize(("m", "k", "places"), [
    (53, 53, 1),  # no number of rows divides a prime
    (1000, 1000, 4)])
def test_places_divide_the_rows_that_are_alike(m: int, k: int, places: int) -> None:
    assert chosen(planned(64, m, k)).places == places


@pytest.mark.parametrize("n", [48, 64, 100])
def test_all_of_what_few_make_is_one_row(n: int) -> None:
    """No rows are alike where there is one."""
    graph = graph_of(lambda x: jnp.abs(x[:, None] - x[None]).sum(),
                     jax.ShapeDtypeStruct((n,), jnp.float32))
    plan = make_plan(graph, DEVICE)
    check(graph, [data(v, i) for i, v in enumerate(graph.inputs)], plan=plan)
    default_schedule(plan, cuda_target("sm_90a"), Device())

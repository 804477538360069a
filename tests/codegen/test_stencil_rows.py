"""Rows that read windows: a depthwise convolution and a norm, several places at a time."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DEVICE, check
from harness_graphs import data
from jax import lax
from models import graph_of

from jaxmono.codegen import stencil_rows
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.row_schedule import RowSchedule
from jaxmono.codegen.target import cuda_target, interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan

F32, BF16 = jnp.float32, jnp.bfloat16
X = Any


def block(x: X, w: X, b: X, *, pool: bool = False, **kw: Any) -> X:
    """ConvNeXt's: what is stored once a row, too."""
    y = lax.conv_general_dilated(
        x, w, **{"window_strides": (1, 1), "padding": "SAME", **kw},
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1]) + b
    mean = y.mean(-1, keepdims=True)
    z = (y - mean) * lax.rsqrt(jnp.square(y - mean).mean(-1, keepdims=True) + 1e-5)
    return (z, mean[..., 0]) if pool else z


def planned(shape: tuple[int, ...], taps: tuple[int, int], dtype: Any, **kw: Any) -> Plan:
    c = shape[-1]
    args = [jax.ShapeDtypeStruct(s, dtype) for s in (shape, (*taps, 1, c), (c,))]
    return make_plan(graph_of(lambda *a: block(*a, **kw), *args), DEVICE)


def chosen(plan: Plan, device: Device = DEVICE, target: Any = None) -> RowSchedule:
    found = default_schedule(plan, target or interpret_target(), device).sigs.values()
    (rows,) = [s for s in found if isinstance(s, RowSchedule)]
    return rows


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("shape", "taps", "dtype", "kw"), [
    ((1, 40, 44, 32), (7, 7), F32, {}), ((1, 40, 44, 32), (7, 7), BF16, {}),
    ((2, 33, 20, 24), (5, 5), F32, {"pool": True}),
    ((1, 41, 38, 40), (3, 3), BF16, {"pool": True}),  # two places
    ((3, 21, 21, 136), (3, 5), F32, {"rhs_dilation": (2, 3)}),  # odd rows
    ((1, 63, 64, 12), (7, 7), F32, {"window_strides": (2, 2)}),
    ((1, 7, 7, 768), (3, 3), BF16, {})])
def test_as_right_as_one_by_one(shape: tuple[int, ...], taps: tuple[int, int], dtype: Any,
                                kw: dict[str, Any]) -> None:
    plan = planned(shape, taps, dtype, **kw)
    check(plan.graph, [data(v, i) for i, v in enumerate(plan.graph.inputs)], plan=plan)


def test_where_there_are_enough_places_a_team_takes_some() -> None:
    few = Device(sm_count=4)
    assert chosen(planned((1, 40, 44, 32), (7, 7), BF16), few).places == 4
    assert chosen(planned((1, 41, 38, 32), (7, 7), BF16), few).places == 2
    assert chosen(planned((1, 41, 39, 32), (7, 7), BF16), few).places == 1
    rows = chosen(planned((1, 7, 7, 768), (7, 7), F32), Device(), cuda_target("sm_90a"))
    assert (rows.tier, rows.group, rows.places) == ("block", 256, 1)


def test_without_windows_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned((1, 40, 44, 32), (1, 3), F32)
    assert chosen(plan).places == 1
    wide = planned((1, 40, 44, 32), (7, 7), F32)
    monkeypatch.setattr(stencil_rows, "STENCIL_LOADS", 1000)
    assert chosen(wide).places == 1 and chosen(wide).tier == "warp"


def test_rows_without_a_source() -> None:
    """Of numbers that an index is."""
    plan = make_plan(graph_of(lambda: jnp.sin(lax.iota(F32, 640).reshape(10, 64)).sum(1)), DEVICE)
    assert not plan.groups[0].sig.body.inputs and chosen(plan).places == 1


def test_neighbours_share_their_loads() -> None:
    """Four places in a line read 7 x 10 elements and 49 weights, in the order of the taps."""
    plan = planned((1, 56, 56, 96), (7, 7), BF16)
    source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
    body = source[source.index("_row_pad_slice"):]
    assert "places=4" in source
    loads = re.findall(r"= load(?:_ro)?<float, 4>\((p\d)", body)
    assert sorted(np.unique(loads, return_counts=True)[1]) == [1, 49, 70]
    first = [m.start() for m in re.finditer(r"v_multiply\(", body)][:8]
    assert body[:first[7]].count("= load<float, 4>(p0") <= 6  # not all of a place's before


def test_few_loads_are_on_their_way_at_once() -> None:
    """Behind a row of taps there is a branch, in front of which no others are asked for."""
    def parts(shape: tuple[int, ...], taps: int = 7) -> tuple[list[str], list[int]]:
        plan = planned(shape, (taps, taps), BF16)
        source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
        body = source[source.index("_row_pad_slice"):]
        loads = [len(re.findall(r"= load(?:_ro)?<float(?:, \d)?>\(p[01]", part))
                 for part in re.split(r"if \(never<\d+>\(\)\) break;", body)]
        return re.findall(r"never<(\d+)>", body), loads

    tests, loads = parts((1, 56, 56, 96))
    assert tests == list("0123456")  # a test that is known could be taken out
    assert loads == [17] * 7 + [0]  # then the bias
    tests, loads = parts((1, 7, 7, 768))  # one place at a time
    assert tests == list("012345") and loads == [16] * 6 + [2]
    assert parts((1, 7, 7, 768), 2) == ([], [8])

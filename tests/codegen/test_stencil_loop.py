"""Loops that read windows, several places at a time, and which elements are stored by them."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE, check
from harness_graphs import data
from jax import lax
from models import graph_of

from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.loop_schedule import LoopSchedule, choose_loop
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target, interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, LoopForm, Plan

F32, BF16 = jnp.float32, jnp.bfloat16
X = Any


def depthwise(x: X, w: X, b: X, *, twice: bool = False, **kw: Any) -> X:
    y = lax.conv_general_dilated(
        x, w, **{"window_strides": (1, 1), "padding": "SAME", **kw},
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1])
    y = jnp.clip(y + b, 0, 6)
    return (y, y * 2 + 1) if twice else y


def planned(shape: tuple[int, ...], taps: tuple[int, int], dtype: Any, **kw: Any) -> Plan:
    c = shape[-1]
    args = [jax.ShapeDtypeStruct(s, dtype) for s in (shape, (*taps, 1, c), (c,))]
    return make_plan(graph_of(lambda *a: depthwise(*a, **kw), *args), DEVICE)


def chosen(plan: Plan, device: Device, interpret: bool = False) -> LoopSchedule:
    target = interpret_target() if interpret else cuda_target("sm_90a")
    found = default_schedule(plan, target, device).sigs.values()
    (loop,) = [s for s in found if isinstance(s, LoopSchedule)]
    return loop


CASES = [
    ((1, 12, 8, 16), (3, 3), BF16, {}, (1, 4, 1)),
    ((2, 6, 8, 24), (3, 3), BF16, {}, (1, 2, 2, 1)),
    ((2, 8, 6, 8), (5, 5), F32, {}, (2, 2, 1, 1)),
    ((1, 7, 14, 8), (3, 3), F32, {"twice": True}, (7, 1, 1)),
    ((1, 17, 16, 8), (3, 3), BF16, {"window_strides": (2, 2)}, (1, 8, 1)),
    ((3, 9, 10, 8), (3, 2), F32, {"rhs_dilation": (2, 3)}, (1, 1, 2, 1)),
    ((1, 8, 11, 16), (3, 3), BF16, {"padding": "VALID"}, (2, 1, 1)),
]


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("shape", "taps", "dtype", "kw", "places"), CASES)
def test_as_right_as_one_by_one(shape: tuple[int, ...], taps: tuple[int, int], dtype: Any,
                                kw: dict[str, Any], places: tuple[int, ...]) -> None:
    """What lies behind the buffers is NaN: a window that is read outside of them shows."""
    plan = planned(shape, taps, dtype, **kw)
    given = [data(v, i) for i, v in enumerate(plan.graph.inputs)]
    (sig,) = plan.sigs
    assert isinstance(sig.form, LoopForm) and len(sig.form.vars) == len(places)
    for lanes in (2, 8):
        schedule = KernelSchedule(64, 1, {sig.key: LoopSchedule(lanes, places=places)})
        check(plan.graph, given, plan=plan, schedule=schedule)


@pytest.mark.parametrize(("taps", "unroll"), [(2, 4), (3, 2)])
def test_what_a_thread_loads_fits_its_registers(taps: int, unroll: int) -> None:
    """Beside contractions a pool takes places one by one: each is 4 or 9 loads of four words."""
    def pool(x: X) -> X:
        return lax.reduce_window(x, jnp.asarray(-jnp.inf, x.dtype), lax.max, (1, taps, taps, 1),
                                 (1, 1, 1, 1), "SAME")

    (sig,) = make_plan(graph_of(pool, jax.ShapeDtypeStruct((32, 64, 64, 256), BF16)), DEVICE).sigs
    assert choose_loop(sig, Device(), 256, beside=True) == LoopSchedule(8, unroll)


@pytest.mark.slow
def test_chosen_ones_compute_the_same() -> None:
    plan = planned((2, 32, 32, 32), (3, 3), BF16)
    assert math.prod(chosen(plan, DEVICE, interpret=True).places) > 1
    check(plan.graph, [data(v, i) for i, v in enumerate(plan.graph.inputs)], plan=plan)


def test_places_where_every_thread_has_enough() -> None:
    h100 = Device()
    many = chosen(planned((32, 28, 28, 192), (3, 3), BF16), h100)
    assert (many.lanes, many.unroll, many.places) == (2, 1, (1, 4, 4, 1))
    few = chosen(planned((1, 14, 14, 96), (3, 3), BF16), h100)
    assert (few.lanes, few.unroll, math.prod(few.places)) == (2, 1, 1)
    odd = chosen(planned((31, 11, 13, 192), (3, 3), BF16), h100)
    assert math.prod(odd.places) == 1
    wide = chosen(planned((32, 56, 56, 96), (7, 7), BF16), h100)
    assert wide.lanes * math.prod(wide.places) == 16  # more takes ptxas half a minute


def test_few_loads_stay_as_they_are() -> None:
    plain = chosen(planned((32, 28, 28, 192), (1, 3), BF16), Device())
    assert plain.places == () and plain.unroll == 4


def test_elements_of_many_arrays_are_no_windows() -> None:
    """A dozen loads each, and none that a neighbour has, too."""
    def total(*xs: X) -> X:
        return sum(x[:, ::2] * x[:, 1::2] for x in xs)

    args = [jax.ShapeDtypeStruct((512, 2, 4096), BF16)] * 8
    loop = chosen(make_plan(graph_of(total, *args), Device()), Device())
    assert loop.places == () and loop.unroll > 1


def test_neighbours_share_their_loads_which_are_asked_for_ahead() -> None:
    """4 x 4 places read 6 x 6 elements and 9 weights, and 20 of them before the first product."""
    plan = planned((32, 28, 28, 192), (3, 3), BF16)
    source = emit(plan, cuda_target("sm_90a"), Device(), "k").source
    body = source[source.index("_loop_pad_slice"):]
    loads = [m.start() for m in re.finditer(r"= load(?:_ro)?<float, 2>\(p[01]", body)]
    assert len(loads) == 45
    product = body.index("v_multiply(")
    assert sum(at < product for at in loads) >= 20
    assert len(re.findall(r"store<bf16, 2>", body)) == 16


def mobile(x: X, w: X, b: X, up: X) -> X:
    """A depthwise convolution and a 1 x 1 behind it."""
    y = depthwise(x, w, b)
    return jnp.einsum("nhwc,cd->nhwd", y, up)


def test_products_wait_for_a_loop() -> None:
    """On the way to a product each tile of columns would compute it again, vector by vector."""
    args = [jax.ShapeDtypeStruct(s, BF16) for s in (
        (1, 14, 14, 96), (3, 3, 1, 96), (96,), (96, 576))]
    plan = make_plan(graph_of(mobile, *args), Device())
    assert [type(g.sig.form).__name__ for s in plan.stages for g in s.groups] == [
        "LoopForm", "DotForm"]


def test_products_of_joined_arrays_do_not() -> None:
    """An element is one of a part's, however many there are."""
    def joined(up: X, *xs: X) -> X:
        return jnp.concatenate([x[:, 1:] * 2 for x in xs], axis=1) @ up

    args = [jax.ShapeDtypeStruct(s, F32) for s in ((16 * 8, 24), *[(5, 9)] * 16)]
    plan = make_plan(graph_of(joined, *args), Device())
    assert [type(g.sig.form).__name__ for s in plan.stages for g in s.groups] == ["DotForm"]


def test_products_of_pooled_images_do_not() -> None:
    def pooled(x: X, up: X) -> X:
        y = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
        return jnp.einsum("nhwc,cd->nhwd", y, up)

    args = [jax.ShapeDtypeStruct(s, F32) for s in ((1, 5, 5, 96), (96, 24))]
    plan = make_plan(graph_of(pooled, *args), Device())
    assert [type(g.sig.form).__name__ for s in plan.stages for g in s.groups] == ["DotForm"]

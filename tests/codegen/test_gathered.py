"""Left operands in parts of rows and of k (gathered.py): convolutions on warpgroups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_exact, dot_sigs, in_order, plan_of, wgmma
from jax import lax

from jaxmono.codegen import compile as compiling
from jaxmono.codegen import headers
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.gathered import Parts, parts_of
from jaxmono.fusion.plan import DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16 = jnp.bfloat16
NHWC = ("NHWC", "HWIO", "NHWC")
SCHEDULE = wgmma(128, 32, 3, (2, 1, 1))
X = Any


def conv(shape: tuple[int, ...], kernel: tuple[int, ...], **kw: Any) -> Plan:
    """Images [N, spatial..., C] with kernels [spatial..., C, features]."""
    spatial = "DHW"[-(len(shape) - 2):]
    kw = {"window_strides": (1,) * len(spatial), "padding": "SAME", **kw}
    layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    return plan_of(lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=layout, **kw),
                   Spec(shape, BF16), Spec(kernel, BF16))


def parts(plan: Plan) -> Parts | None:
    (sig,) = dot_sigs(plan)
    return parts_of(DotCode.of(sig, SCHEDULE).lhs)


CONVOLUTIONS = {
    "3 x 3": lambda: conv((2, 9, 11, 16), (3, 3, 16, 24)),
    "k that fills no tile": lambda: conv((1, 12, 12, 24), (3, 3, 24, 32)),
    "strides": lambda: conv((2, 17, 19, 16), (3, 3, 16, 32), window_strides=(2, 2)),
    "holes": lambda: conv((1, 14, 13, 16), (3, 3, 16, 32), rhs_dilation=(4, 3)),
    "5 x 5, uneven padding": lambda: conv((1, 11, 12, 16), (5, 5, 16, 32),
                                          padding=((0, 4), (3, 1))),
    "no padding": lambda: conv((1, 14, 14, 16), (3, 3, 16, 32), padding="VALID"),
    "1 x 1, strides": lambda: conv((2, 18, 18, 64), (1, 1, 64, 32), window_strides=(2, 2)),
    "one dimension": lambda: conv((3, 50, 16), (7, 16, 32)),
    "three dimensions": lambda: conv((1, 5, 6, 5, 8), (3, 3, 3, 8, 32)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    plan = CONVOLUTIONS[name]()
    assert parts(plan) is not None
    program = build(plan, in_order(plan, SCHEDULE), threads=256)
    assert "= gathered<bf16>(" in program.source
    form = dot_sigs(plan)[0].form
    assert isinstance(form, DotForm)
    past = f"if (o >= {form.m.size}) return GatheredRow{{0, ~0u}};"  # else what lies behind is read
    assert (past in program.source) == (form.m.size % SCHEDULE.bm != 0)
    check_exact(plan, program, blocks=(1, 3))


@pytest.mark.parametrize("fn", [
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NHWC),
    lambda x, w: lax.conv_general_dilated(x, w, (1, 1), ((18, 18), (18, 18)), rhs_dilation=(18, 18),
                                          dimension_numbers=NHWC),
], ids=["holes in the image", "taps too far apart for the bits"])
def test_what_cannot_be_taken_apart_is_computed_piece_by_piece(fn: Callable[..., Any]) -> None:
    plan = plan_of(fn, Spec((1, 9, 10, 16), BF16), Spec((3, 3, 16, 32), BF16))
    assert parts(plan) is None
    program = build(plan, in_order(plan, SCHEDULE), threads=256)
    assert "= gathered<bf16>(" not in program.source
    check_exact(plan, program)


def test_parts_add_up() -> None:
    """At every element, and its padding is what the bits say."""
    plan = CONVOLUTIONS["5 x 5, uneven padding"]()
    (sig,) = dot_sigs(plan)
    x = DotCode.of(sig, SCHEDULE).lhs
    found = parts_of(x)
    assert found is not None and x.offset is not None
    assert found.row + found.column == x.offset
    for bound, (index, low, high) in zip(found.bounds, x.guard.bounds, strict=True):
        assert bound.row + bound.column == index and (bound.low, bound.high) == (low, high)
    assert [b.distances for b in found.bounds] == [5, 5]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("text", "instead"), [
    ("(rows.of[i].outside & column.needs) == 0", "true"),
    ("of[i] = load.rows(row0 +", "of[i] = load.rows(")])
def test_a_loader_without_a_part_is_wrong(text: str, instead: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: str) -> str:
        whole = headers.bundle(source)
        assert whole.count(text) == 1
        return whole.replace(text, instead)

    monkeypatch.setattr(compiling, "bundle", broken)
    plan = CONVOLUTIONS["3 x 3"]()
    program = build(plan, in_order(plan, SCHEDULE), threads=256)
    with pytest.raises(AssertionError, match="not equal"):
        check_exact(plan, program, inputs=[np.ones(v.type.dims, BF16) for v in plan.graph.inputs])

"""Convolutions of f32 whose rows lie rounded in memory: gathered beside weights on wgmma's left."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_exact, check_rounded, dot_sigs, plan_of, smooth
from jax import lax
from lost_waits import Case, failure, removed

from jaxmono.codegen import cuda_target
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_takes import takes_tf32
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.passes.rules import alignment

Spec = jax.ShapeDtypeStruct
F32 = jnp.float32
H200 = Device()
X = Any


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1) -> DotSchedule:
    return DotSchedule("tf32", bm, bn, 32, slots, warps, split)


TILES = [tile(128, 128, 3, (1, 2, 1)), tile(64, 64, 4, (2, 1, 1)), tile(96, 128, 2, (1, 2, 1)),
         tile(256, 64, 2, (2, 1, 1))]


def conv(shape: tuple[int, ...], kernel: tuple[int, ...], pool: tuple[int, ...] = (), **kw: Any,
         ) -> Plan:
    """A product first, so that what the convolution reads is made, and rounded, in the kernel."""
    spatial = "HW"[:len(shape) - 2]
    layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    kw = {"window_strides": (1,) * len(spatial), "padding": "SAME", **kw}
    window = (1, *(pool or (1,) * len(spatial)), 1)

    def fn(x: X, u: X, w: X, b: X) -> X:
        y = jnp.clip(x @ u, -2, 2)
        y = jax.nn.relu(lax.conv_general_dilated(y, w, dimension_numbers=layout, **kw) + b)
        return lax.reduce_window(y, -jnp.inf, lax.max, window, window, "VALID")

    return plan_of(fn, Spec((*shape[:-1], 8), F32), Spec((8, shape[-1]), F32), Spec(kernel, F32),
                   Spec(kernel[-1:], F32))


def schedules(plan: Plan, s: DotSchedule) -> dict[str, DotSchedule]:
    sigs = {g.key: s for g in dot_sigs(plan) if isinstance(g.form, DotForm) and g.form.rounded}
    assert sigs
    return sigs


CONVOLUTIONS = {
    "3 x 3": lambda: conv((1, 15, 14, 24), (3, 3, 24, 72)),
    "strides": lambda: conv((2, 17, 19, 16), (3, 3, 16, 64), window_strides=(2, 2)),
    "holes, no padding": lambda: conv((1, 17, 19, 16), (3, 3, 16, 64), rhs_dilation=(4, 3),
                                      padding="VALID"),
    "one dimension": lambda: conv((2, 101, 20), (3, 20, 64), window_strides=(2,), padding="VALID"),
    "pooled": lambda: conv((1, 14, 20, 12), (3, 3, 12, 80), pool=(2, 2)),
    "pooled, 8": lambda: conv((1, 14, 20, 12), (3, 3, 12, 44), pool=(2, 4)),
}


@pytest.mark.sampled(37)
@pytest.mark.parametrize("s", TILES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, s: DotSchedule) -> None:
    plan = CONVOLUTIONS[name]()
    program = build(plan, schedules(plan, s), threads=256)
    assert "= gathered<float>(" in program.source and "GemmTf32<" in program.source
    check_exact(plan, program, blocks=(1, 3))


@pytest.mark.slow
def test_k_shared_by_blocks() -> None:
    for name in ("3 x 3", "pooled"):
        plan = CONVOLUTIONS[name]()
        program = build(plan, schedules(plan, tile(64, 64, 3, (2, 1, 1), split=2)), threads=256)
        check_exact(plan, program, blocks=(3, 8))


def test_both_operands_are_rounded() -> None:
    """Of one sign: what wgmma would cut off them does not average out."""
    plan = conv((1, 15, 14, 24), (3, 3, 24, 72))
    check_rounded(plan, schedules(plan, TILES[0]), [np.abs(x) / 8 for x in smooth(plan.graph)],
                  bias=3e-5)  # of few sums, over those of a product before


def layers(x: X, *weights: X) -> X:
    for w in weights:
        x = jax.nn.relu(lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x


def test_rows_that_are_not_rounded_are_refused() -> None:
    plan = plan_of(layers, Spec((1, 16, 16, 64), F32), Spec((3, 3, 64, 64), F32))
    (sig,) = dot_sigs(plan)
    assert isinstance(sig.form, DotForm) and not sig.form.rounded
    code = DotCode.of(sig, TILES[1])
    assert takes_tf32(sig.form, code, code.element) == "gathered rows are not rounded in memory"
    program = build(plan, {sig.key: DotSchedule("wgmma", 64, 64, 32, 3, (1, 1, 2))}, threads=256)
    assert "= gathered<float>(" in program.source  # the consumers round what they read of it
    check_exact(plan, program)


def test_a_padded_copy_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three channels, by vectors as it is copied."""
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 0)
    plan = plan_of(layers, Spec((2, 19, 18, 3), F32), Spec((3, 3, 3, 48), F32))
    sigs = schedules(plan, tile(128, 64, 3, (2, 1, 1)))
    program = build(plan, sigs, threads=256)
    assert ".round(8, 10);" in program.source and "= gathered<float>(" in program.source
    check_exact(plan, program, blocks=(1, 3))
    check_rounded(plan, sigs, [np.abs(x) for x in smooth(plan.graph)], bias=3e-5)


def test_a_network_takes_them() -> None:
    """VGG-16's last layers b32; its 13 convolutions were 2.2 times slower than XLA's."""
    plan = plan_of(layers, Spec((32, 14, 14, 512), F32), *[Spec((3, 3, 512, 512), F32)] * 3,
                   device=H200)
    schedule = default_schedule(plan, cuda_target("sm_90a"), H200)
    families = [schedule.sigs[g.sig.key].family for g in plan.groups]
    assert families == ["wgmma", "tf32", "tf32"]


WAITS = re.compile(r"TileX::template gather<[^;]*;|ready\(\);")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(2))
def test_rows_are_waited_for(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = conv((1, 16, 16, 32), (3, 3, 32, 64))
    given = Case(plan, schedules(plan, tile(64, 64, 2, (2, 1, 1))), [
        np.asarray(np.random.default_rng(i).integers(-1, 2, v.type.dims), np.float32)
        for i, v in enumerate(plan.graph.inputs)], 0.0, threads=256)
    assert failure(given, monkeypatch, lambda text: text) == ""
    assert failure(given, monkeypatch, removed("gemm_tf32.cuh", WAITS, number)) != ""

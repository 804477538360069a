"""No register is read before it is set: in loops it would be kept through all of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from contraction_harness import plan_of, wgmma
from jax import ShapeDtypeStruct, lax
from ptx_liveness import unset
from test_attention import qkv
from test_attention_wgmma import attend
from test_guarded_loads import ptx

from jaxmono.codegen import cuda_target, headers
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, Plan

Spec = ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def gradients() -> Plan:
    """A layer's gradients by inputs and bias, of rows that do not fill the tiles."""
    def fn(x: X, w: X, z: X) -> X:
        y = jnp.where(z > 0, jnp.matmul(x, w, preferred_element_type=F32), 0)
        return y, y.sum(0)

    return plan_of(fn, Spec((1000, 256), BF16), Spec((256, 1024), BF16), Spec((1000, 1024), BF16))


def attention() -> Plan:
    """Of so few keys that there are scores for two warps only."""
    return plan_of(attend, *qkv(16, 16, 64, BF16))


def tf32() -> Plan:
    """If four blocks share k, the last of them has none of its three steps of 32."""
    return plan_of(lax.dot, Spec((64, 96), F32), Spec((96, 64), F32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("plan", "schedule", "has"), [
    (gradients, wgmma(128, 128, 3, (2, 1, 1)), "take_some("),
    (attention, AttentionSchedule(16, 16, 1, 8, "few"), "FewRows<"),
    (tf32, DotSchedule("mma", 32, 32, 32, 2, (2, 2, 1), 4), "SplitK<")],
    ids=["sums over rows", "attention of few rows", "shares of k"])
def test_nothing_is_read_that_nobody_has_set(plan: Callable[[], Plan], schedule: Any, has: str,
                                             ) -> None:
    source = text(plan(), schedule)
    assert has in source
    assert unset(ptx(source)) == []


def text(plan: Plan, schedule: Any) -> str:
    target, device = cuda_target("sm_90a"), Device()
    (sig,) = [s for s in plan.sigs if s.kind in ("dot", "attention")]
    chosen = default_schedule(plan, target, device)
    chosen = replace(chosen, sigs={**chosen.sigs, sig.key: schedule})
    return headers.bundle(emit(plan, target, device, "k", chosen).source)


def test_what_is_not_set_on_one_way() -> None:
    def body(*lines: str) -> str:
        return "\n".join([".visible .entry k()", "{", "\t.reg .f32 %f<9>;", *lines, "\tret;", "}"])

    loop = ("$L_1:", "@%p1 bra $L_2;", "\tadd.f32 %f1, %f2, %f3; // %f9", "$L_2:",
            "\tst.global.f32 [%rd1], %f1;", "@%p2 bra $L_1;")
    ready = ("mov.f32 %f2, 0f0; mov.f32 %f3, %f2;", "setp.eq.f32 %p1, %f2, 0f0;",
             "{ .reg .pred q; setp.eq.f32 q, %f2, 0f0; @q mov.f32 %f3, 0f1; }",
             "setp.ne.f32 %p2|%p3, %f2, 0f0;", "ld.param.u64 %rd1, [at];")
    assert unset(body(*ready, *loop)) == ["st.global.f32 [%rd1], %f1"]
    assert unset(body(*ready, "mov.f32 %f1, %f2;", *loop)) == []
    assert unset(body(*ready, "@%p1 mov.f32 %f1, %f2;", *loop)) == ["st.global.f32 [%rd1], %f1"]
    sums = "wgmma.mma_async.sync {%f1, %f2}, %rd1, %rd1, 0, 1, 1;"
    assert unset(body(*ready, sums)) == [sums[:-1]]

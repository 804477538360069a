"""Stages that take turns with the halves of shared memory (doubled.py), and what they hold."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import (
    build,
    check_exact,
    check_near,
    dot_sigs,
    plan_of,
    small_integers,
    smooth,
)
from lost_waits import Case, failure

from jaxmono.codegen import Program
from jaxmono.codegen.dot_gemv_shape import GRANULE
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
LATER = "of the stage behind the next one"


def dot(x: Any, w: Any) -> Any:
    return jnp.einsum("mk,kn->mn", x, w, preferred_element_type=F32, precision="highest")


def layers(count: int = 4, rows: int = 1, norm: bool = False) -> Plan:
    """Two products each, the second of which shares k, and a residual, between products that are
    different: the groups of a Sig have flags all or none."""
    def step(x: Any, u: Any, last: Any, *weights: Any) -> Any:
        x = jnp.clip(dot(x, u), -2, 2).astype(BF16)
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            y = x
            if norm:
                y = x.astype(F32)
                y = (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)).astype(BF16)
            h = jnp.clip(dot(y, w), -2, 2).astype(BF16)
            x = jnp.clip(x + dot(h, v), -3, 3).astype(BF16)
        return dot(x, last)

    shapes = [Spec((64, 160), BF16), Spec((160, 64), BF16)]
    return plan_of(step, Spec((rows, 32), BF16), Spec((32, 64), BF16), Spec((64, 48), BF16),
                   *shapes * count)


def schedules(plan: Plan, slots: int = 3, bn: int = 16, split: int = 2) -> dict[str, DotSchedule]:
    return {s.key: DotSchedule("gemv", s.form.m.size, bn, GRANULE, slots, (1, 4, 1),
                               split if s.form.k.size > 64 else 1) for s in dot_sigs(plan)}


def halves(program: Program) -> set[str]:
    """The last argument of the calls."""
    return set(re.findall(r"^ *f\d+_\w*\(.*, ([^,]+)\);$", program.source, flags=re.M))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("count", "rows", "norm"),
                         [(4, 1, False), (3, 2, False), (4, 1, True)])
def test_layers_take_turns(count: int, rows: int, norm: bool) -> None:
    plan = layers(count, rows, norm)
    program = build(plan, schedules(plan))
    assert LATER in program.source and len(halves(program)) >= 2
    assert "G::run(smem, held);" in program.source
    if norm:
        assert "wait_for_all(asked" in program.source
        given = [a if a.shape[0] == 1 else (a * 0.125).astype(a.dtype) for a in smooth(plan.graph)]
        check_near(plan, program, given, 3e-2, seeds=(0, 1, 2), blocks=(1, 3, 7))
        return
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=tuple(range(5)),
                blocks=(1, 2, 3, 7))


@pytest.mark.parametrize("stages", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_an_odd_number_of_stages_a_layer(stages: int) -> None:
    """The halves change places from one trip to the next."""
    def step(x: Any, u: Any, last: Any, *weights: Any) -> Any:
        x = jnp.clip(dot(x, u), -2, 2).astype(BF16)
        for i in range(0, len(weights), stages):
            h = x
            for w in weights[i:i + stages]:
                h = jnp.clip(dot(h, w), -2, 2).astype(BF16)
            x = jnp.clip(x + h, -3, 3).astype(BF16)
        return dot(x, last)

    plan = plan_of(step, Spec((1, 32), BF16), Spec((32, 64), BF16), Spec((64, 48), BF16),
                   *[Spec((64, 64), BF16)] * (4 * stages))
    program = build(plan, schedules(plan, bn=16, split=1))
    assert any("trip) % 2 *" in x for x in halves(program))
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=(0, 1, 2),
                blocks=(1, 3))


def test_what_a_ring_does_not_hold_is_requested_at_its_own_border() -> None:
    plan = layers()
    program = build(plan, schedules(plan, slots=1, bn=64, split=1))
    assert LATER not in program.source and "Held" not in program.source[
        program.source.index("struct Params"):]
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=(0, 1),
                blocks=(1, 3))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("there", "instead"), [
    (r"if \(fetched\) cp_async_wait<1>\(\);\n *else cp_async_wait<0>\(\);", ""),
    (r"if \(fetched\) cp_async_wait<1>\(\);", "if (fetched) cp_async_wait<2>();"),
    (r"dynamic_shared\(\) \+ half", "dynamic_shared()"),
], ids=["wait", "one group of another stage", "half"])
def test_every_part_matters(there: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = layers(3)
    case = Case(plan, schedules(plan), small_integers(plan.graph, high=1), 0.0, seeds=8,
                blocks=(3, 2))

    def change(text: str) -> str:
        found = re.sub(there, instead, text)
        assert found != text
        return found

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, change) != ""


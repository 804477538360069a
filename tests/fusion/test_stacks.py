"""What the trips of a loop write to places of their own lies together, and nothing copies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from models import f32, random_inputs
from test_trips import plan_of, rnn

from jaxmono.fusion import PlanError
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Buffer, Place, Plan
from jaxmono.fusion.verify import verify
from jaxmono.hlo.interp import evaluate

X = Any
TRIPS = 300
"""More than pieces that code could choose among."""


def summed(x: X, w: X) -> X:
    """Read whole by what is behind the loop."""
    return rnn(x, w).sum(0)


def before_and_after(x: X, w: X) -> X:
    return lax.scan(lambda c, now: (d := jnp.tanh(c @ w + now), (c, d)), x[0], x)


def training(x: X, w: X) -> X:
    """The way back reads what the way there has left, last trip first."""
    return jax.grad(lambda w: jnp.sum(rnn(x, w) ** 2))(w)


def check(plan: Plan) -> None:
    inputs = random_inputs(plan.graph)
    for a, b in zip(run_plan(plan, inputs, seed=1), evaluate(plan.graph, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def parts(plan: Plan) -> list[Buffer]:
    """What groups write into another buffer."""
    written = {b for g in plan.groups for b in g.results}
    return [b for b in plan.buffers if b.place is Place.PART and b.id in written]


def views(plan: Plan) -> list[Buffer]:
    """What they read of one."""
    return [b for b in plan.buffers if b.place is Place.PART and b not in parts(plan)]


def test_the_last_stage_is_the_last_trip() -> None:
    plan = plan_of(rnn, f32(TRIPS, 4, 32), f32(32, 32))
    assert [g.sig.kind for g in plan.stages[-1].groups] == ["dot"]
    assert len(parts(plan)) == TRIPS
    assert {plan.buffers[b.index].place for b in parts(plan)} == {Place.OUTPUT}


def test_what_only_the_kernel_reads_lies_in_scratch() -> None:
    plan = plan_of(summed, f32(8, 4, 32), f32(32, 32))
    assert [plan.buffers[b.index].place for b in parts(plan)] == [Place.SCRATCH] * 8
    check(plan)


def test_pieces_of_an_input_are_read_where_they_lie() -> None:
    plan = plan_of(summed, f32(8, 4, 32), f32(32, 32))
    assert [(plan.buffers[b.index].place, b.offset) for b in views(plan)] \
        == [(Place.INPUT, 512 * i) for i in range(8)]


def turned(x: X, w: X) -> X:
    """The pieces of the second loop are those that the first has left; of the third, of a sum."""
    y = rnn(jnp.flip(rnn(x, w), 0), w)
    return lax.scan(lambda c, now: (jnp.tanh(c @ w + now), None), y[0], x + y, reverse=True)[0]


def in_pairs(x: X, w: X) -> X:
    """Reads two of the pieces that the trips before have left at a time."""
    y = rnn(x, w).reshape(3, 8, 32)
    return lax.scan(lambda c, now: (jnp.tanh(c @ w + now), None), y[0], y)[0]


@pytest.mark.parametrize("fn", [rnn, before_and_after, training, turned, in_pairs])
def test_as_the_reference(fn: Callable[..., X]) -> None:
    check(plan_of(fn, f32(6, 4, 32), f32(32, 32)))


def test_a_training_step_is_one_loop_there_and_one_back() -> None:
    plan = plan_of(training, f32(40, 4, 32), f32(32, 32))
    assert len([x for x in plan.loops if x.period * x.trips > 30]) == 2


def changed(p: Plan, old: Buffer, **changes: Any) -> Plan:
    return replace(p, buffers=tuple(replace(b, **changes) if b is old else b for b in p.buffers))


def move_a_part(p: Plan) -> Plan:
    return changed(p, parts(p)[2], offset=0)


def forget_a_part(p: Plan) -> Plan:
    return changed(p, parts(p)[2], place=Place.SCRATCH, offset=p.scratch_bytes)


def end_a_part_early(p: Plan) -> Plan:
    b = parts(p)[2]
    return changed(p, b, last=b.first)


def leave_the_whole(p: Plan) -> Plan:
    b = views(p)[2]
    return changed(p, b, offset=p.buffers[b.index].type.nbytes)


def need_it_longer(p: Plan) -> Plan:
    return changed(p, views(p)[2], last=len(p.stages) + 1)


def forget_an_edge_to_the_whole(p: Plan) -> Plan:
    of = {b.index for b in parts(p)}
    e = next(e for e in p.edges if e.buffer in of and e.hazard == "raw")
    return replace(p, edges=tuple(x for x in p.edges if x is not e))


@pytest.mark.parametrize(("break_it", "says"), [
    (move_a_part, "begins at byte 0"), (forget_a_part, "scratch bytes"),
    (end_a_part_early, "needed longer"), (leave_the_whole, "is no part of"),
    (need_it_longer, "needed longer"), (forget_an_edge_to_the_whole, "without a sync edge")])
def test_the_verifier_refuses(break_it: Callable[[Plan], Plan], says: str) -> None:
    plan = plan_of(summed, f32(8, 4, 32), f32(32, 32))
    verify(plan)
    with pytest.raises(PlanError, match=says):
        verify(break_it(plan))

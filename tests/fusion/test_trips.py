"""Loops that were taken apart: the planner finds them again, and each trip takes few stages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DEVICE
from jax import lax
from models import f32, graph_of, random_inputs

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Plan
from jaxmono.fusion.regions import find_regions
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate

X = Any
TRIPS = 40


def rnn(x: X, w: X) -> X:
    def step(h: X, now: X) -> tuple[X, X]:
        h = jnp.tanh(now + h @ w)
        return h, h

    return lax.scan(step, jnp.zeros_like(x[0]), x)[1]


def lstm(x: X, w: X, *, reverse: bool = False) -> X:
    def step(carry: tuple[X, X], now: X) -> tuple[tuple[X, X], X]:
        h, cell = carry
        enter, forget, new, leave = jnp.split(now + h @ w, 4, axis=-1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        h = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (h, cell), h

    zeros = jnp.zeros((x.shape[1], w.shape[0]), x.dtype)
    return lax.scan(step, (zeros, zeros), x, reverse=reverse)[1]


def both(x: X, w: X) -> X:
    return jnp.concatenate([lstm(x, w), lstm(x, w * 2, reverse=True)], -1)


def plan_of(fn: Any, *shapes: Any) -> Plan:
    graph = graph_of(fn, *shapes)
    regions, refused = find_regions(graph)
    assert len(regions) == 1
    assert not refused
    return make_plan(regions[0].subgraph(graph), DEVICE)


def gru(x: X, w: X) -> X:
    """Reads its state twice: as a product's operand, and by itself."""
    def step(h: X, now: X) -> tuple[X, X]:
        gates, reset, new = jnp.split(h @ w, 3, axis=-1)
        a, b, c = jnp.split(now, 3, axis=-1)
        update = jax.nn.sigmoid(a + gates)
        h = (1 - update) * h + update * jnp.tanh(c + jax.nn.sigmoid(b + reset) * new)
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[1], w.shape[0]), x.dtype), x)[1]


@pytest.mark.parametrize(("fn", "rows", "columns", "stages"), [
    (rnn, 4, 64, 1), (lstm, 4, 256, 1), (both, 4, 256, 1), (gru, 4, 192, 1), (gru, 256, 192, 2)])
def test_a_loop_is_a_loop_of_stages(fn: Any, rows: int, columns: int, stages: int) -> None:
    """A product computes gates on its way, unless warpgroups are to multiply them."""
    plan = plan_of(fn, f32(TRIPS, rows, columns), f32(64, columns))
    loops = [x for x in plan.loops if x.period == stages]
    # The first trips begin beside what else there is to do, the last is the last.
    assert sum(x.trips for x in loops) >= TRIPS - 4
    assert len(plan.stages) <= TRIPS * stages + 6


def test_what_every_trip_needs_does_not_cut_trips() -> None:
    """It is stored by the first stage, and a trip has the stages that it has without it: CTC's loop
    asks which labels repeat."""
    def aligned(x: X, marks: X) -> X:
        labels = (jnp.abs(marks) * 1000).astype(jnp.int32) % 31
        again = jnp.pad(labels[:, 1:] == labels[:, :-1], ((0, 0), (0, 1))).astype(x.dtype)

        def step(carry: tuple[X, X], now: X) -> tuple[tuple[X, X], X]:
            blank, label = carry
            entered = jnp.logaddexp(blank, label - 1e5 * again)
            label = now + jnp.logaddexp(jnp.pad(entered[:, :-1], ((0, 0), (1, 0))), label)
            return (entered + now[:, :1], label), label

        return lax.scan(step, (x[0], x[1]), x)[1]

    plan = plan_of(aligned, f32(TRIPS, 8, 40), f32(8, 40))
    readers = [i for i, s in enumerate(plan.stages) for g in s.groups
               if any(isinstance(o, ops.Elementwise) and o.kind == "remainder"
                      for o in g.sig.body.ops)]
    assert readers == [0]
    assert len(plan.stages) <= TRIPS + 2


def test_code_does_not_grow_with_the_trips() -> None:
    few, many = (plan_of(lstm, f32(n, 4, 256), f32(64, 256)) for n in (20, TRIPS))
    keys = [{g.sig.key for g in plan.groups} for plan in (few, many)]
    assert len(keys[0]) == len(keys[1])


def test_what_a_contraction_makes_is_stored_by_it() -> None:
    """No copy of it for the next trip."""
    for rows in (4, 1):  # one row is reshaped on the way
        plan = plan_of(rnn, f32(TRIPS, rows, 64), f32(64, 64))
        dots = [g for g in plan.groups if g.sig.kind == "dot"]
        assert len(dots) == TRIPS
        assert sum(g.sig.kind == "loop" for s in plan.stages[5:-5] for g in s.groups) <= TRIPS


def test_a_few_steps_of_each_element_are_one_chain() -> None:
    def root(x: X) -> X:
        return lax.fori_loop(0, 6, lambda _, y: 0.5 * (y + x / y), jnp.ones_like(x))

    plan = plan_of(root, f32(64, 256))
    assert [len(s.groups) for s in plan.stages] == [1]


BODIES: dict[str, Any] = {
    "softmax": lambda c, x, w: jax.nn.softmax(c @ w + x, -1),
    "norm": lambda c, x, w: (c - c.mean(-1, keepdims=True)) * lax.rsqrt(c.var(-1, keepdims=True)
                                                                       + 1e-5) @ w + x,
    "unit": lambda c, x, w: (y := c @ w) * lax.rsqrt(jnp.sum(y * y, -1, keepdims=True)),
    "all": lambda c, x, w: c / (1 + jnp.abs(c).sum()) + x,
    "attention": lambda c, x, w: jax.nn.softmax((c @ w) @ (x @ w).T, -1) @ x,
    "two": lambda c, x, w: jnp.tanh(jnp.tanh(c @ w) @ w + x),
    "shifted": lambda c, x, w: jnp.roll(c, 1, -1) * 0.5 + x.max(-1, keepdims=True),
    "choice": lambda c, x, w: jnp.where(c > x, c - x, c + x) @ w.T}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", BODIES)
def test_all_kinds_of_bodies_are_planned(name: str, rows: int) -> None:
    def loop(x: X, w: X) -> X:
        return lax.scan(lambda c, now: (c := BODIES[name](c, now, w), c), x[0] * 0.5, x)

    graph = graph_of(loop, f32(5, rows, 32), f32(32, 32))
    regions, refused = find_regions(graph)
    assert not refused
    part = regions[0].subgraph(graph)
    inputs = random_inputs(part)
    for a, b in zip(run_plan(make_plan(part, DEVICE), inputs, seed=1), evaluate(part, inputs),
                    strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)

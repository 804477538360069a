"""Loops that run a known number of times, and what their trips write to places of their own.

    i, ys = 0, empty                         Counted(index=0, trips=3)
    while i < 3:                             Collected(of ys, order=(0, 1, 2))
      ys[i] = g(i)
      i = i + 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import subgraph


@dataclass(frozen=True)
class Counted:
    """A loop whose counter, the ``index``-th value that it carries, goes up by one each trip.

    Attributes:
      starts: of all carried values that do so, what they begin with.
    """

    index: int
    trips: int
    starts: Mapping[int, int]


@dataclass(frozen=True)
class Collected:
    """A carried array of which each trip writes one place of dimension 0, each another one.

    Attributes:
      update: of the body.
      order: the trip that writes a place, for each place.
    """

    update: ops.DynamicUpdateSlice
    order: tuple[int, ...]


def counted(loop: ops.While, producer: Mapping[Value, Op]) -> Counted | str:
    """How often a loop runs, else why nobody knows.

    Args:
      producer: of the graph that the loop is in.
    """
    index, end = limit(loop, producer) or (-1, 0)
    starts = _counters(loop, producer)
    if index not in starts or end <= starts[index]:
        return "how often the loop runs is only known when it does"
    return Counted(index, end - starts[index], starts)


def limit(loop: ops.While, producer: Mapping[Value, Op]) -> tuple[int, int] | None:
    """Which carried value a loop compares, and with what constant, if that is all it asks.

        cond: %n = constant 12; return compare LT, %i, %n
    """
    last = loop.cond.producer.get(loop.cond.outputs[0])
    if not isinstance(last, ops.Compare) or last.direction != "LT" \
            or last.lhs not in loop.cond.inputs:
        return None
    end = _number(last.rhs, {**producer, **loop.cond.producer})
    return None if end is None else (loop.cond.inputs.index(last.lhs), end)


def trip_count(loop: ops.While) -> int:
    """Trips of a loop as `jax.lax.scan` and ``fori_loop`` from 0 lower them; 1 if unknown."""
    found = limit(loop, loop.cond.producer)
    return max(found[1], 0) if found else 1


def _counters(loop: ops.While, producer: Mapping[Value, Op]) -> dict[int, int]:
    """The loop's own, and that of `jax.lax.fori_loop`'s body: their places and first numbers."""
    inside, found = {**producer, **loop.body.producer}, dict[int, int]()
    for i, v in enumerate(loop.body.inputs):
        step, start = loop.body.producer.get(loop.body.outputs[i]), _number(loop.args[i], producer)
        if start is None or not isinstance(step, ops.Elementwise) or step.kind != "add":
            continue
        if any(a is v and _number(b, inside) == 1 for a, b in (step.args, step.args[::-1])):
            found[i] = start
    return found


def steps(body: Graph) -> list[Op]:
    """What counts trips in a loop's body: a carried number and a constant make the next number."""
    return [step for i, v in zip(body.inputs, body.outputs, strict=True)
            if i.type.rank == 0 and isinstance(step := body.producer.get(v), ops.Elementwise)
            and step.kind == "add" and any(a is i and _number(b, body.producer) is not None
                                           for a, b in (step.args, step.args[::-1]))]


def collected(loop: ops.While, found: Counted, i: int) -> Collected | None:
    """Whether a carried array is only written, each place of dimension 0 once."""
    body = loop.body
    carried, update = body.inputs[i], body.producer.get(body.outputs[i])
    if not isinstance(update, ops.DynamicUpdateSlice) or update.operand is not carried \
            or body.users[carried] != (update,) or update.result in body.users \
            or body.outputs.count(update.result) > 1 or carried in body.outputs:
        return None
    shape, part = carried.type.dims, update.update.type.dims
    if part != (1, *shape[1:]) or shape[0] != found.trips:
        return None
    places = _places(body, found, update.start_indices[0])
    if any(_number(v, body.producer) != 0 for v in update.start_indices[1:]) \
            or sorted(places) != list(range(found.trips)):
        return None
    return Collected(update, tuple(places.index(p) for p in range(found.trips)))


def all_collected(loop: ops.While, found: Counted) -> dict[int, Collected]:
    """Those of a loop, by their places."""
    return {i: c for i in range(len(loop.args)) if (c := collected(loop, found, i)) is not None}


def sliced(loop: ops.While, found: Counted, op: ops.DynamicSlice) -> list[int]:
    """Which place of dimension 0 each trip reads; empty if that is not known, or not all it
    reads."""
    shape = op.operand.type.dims
    if not shape or op.slice_sizes != (1, *shape[1:]):
        return []
    return [min(max(p, 0), shape[0] - 1) for p in _places(loop.body, found, op.start_indices[0])]


def _places(body: Graph, found: Counted, start: Value) -> list[int]:
    """What an index is in each trip; empty where not counters alone say so."""
    starts = {body.inputs[i]: n for i, n in found.starts.items()}
    wanted, needed = {start}, list[Op]()
    for o in reversed(body.ops):
        if any(r in wanted for r in o.results):
            needed.append(o)
            wanted.update(o.uses)
    if start in starts:
        return [int(counted_to(start, starts[start] + t)) for t in range(found.trips)]
    if start not in body.producer or any(v.type.rank for v in wanted):
        return []
    part, inputs = subgraph(body, needed, [start])
    if any(v not in starts for v in inputs):
        return []
    return [int(evaluate(part, [counted_to(v, starts[v] + t) for v in inputs])[0])
            for t in range(found.trips)]


def counted_to(counter: Value, n: int) -> np.ndarray[Any, Any]:
    """``n`` as a counter has it: of 8 or 16 bits it may begin anew."""
    return np.full(counter.type.dims, n).astype(counter.type.dtype.numpy)


def _number(v: Value, producer: Mapping[Value, Op]) -> int | None:
    op = producer.get(v)
    return int(op.value.reshape(())) if isinstance(op, ops.Constant) and op.value.size == 1 \
        and op.value.dtype.kind in "iu" else None

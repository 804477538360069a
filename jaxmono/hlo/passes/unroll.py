"""Loops of a constant trip count, trip by trip.

    i, h, ys = 0, h0, empty
    while i < 3:                            i1 = stored(i0 + 1)     h1 = stored(f(h0, x[i0]))
      h = f(h, x[i])               ──►      i2 = stored(i1 + 1)     h2 = stored(f(h1, x[i1]))
      ys[i] = g(h)                                                  h3 = stored(f(h2, x[i2]))
      i = i + 1                             ys = stored(concatenate(g(h1), g(h2), g(h3)))

What one trip hands to the next lies in memory, its number as well: so the trips stay alike, and
the planner finds a loop of stages in them again (fusion/roll.py). What they write to places of
their own is put together behind the last one. A loop of a few steps on each element by itself (a
solver, say) is one chain of ops instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder, copy_ops, subgraph

MAX_OPS = 8192
"""Of all trips of a loop. The user waits for the planner: 3 seconds for DIEN's two loops of 100
trips, 31 and 35 ops each."""
MAX_PIECES = 256
"""Of what trips write to places of their own: code chooses among them, for each element. Those of a
training step's loops forward (what the way back needs, ten arrays) had not gone through ptxas after
three minutes on two cores."""
MAX_WEIGHTS = 1 << 16
"""Bytes of a part of an array that a product may take in each trip: it is computed on the way
there, which suits what a recurrent network reads, and not a layer's weights."""
MAX_CHAIN = 128
"""Element-wise ops of all trips that are one chain."""
_POINTWISE = (ops.Elementwise, ops.Compare, ops.Convert, ops.Constant, ops.BroadcastInDim)
_MOVES = (ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Convert)


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


def refusal(loop: ops.While, producer: Mapping[Value, Op]) -> str | None:
    """Why a loop is not unrolled; None if it is. (Its ops may have reasons of their own.)"""
    found = counted(loop, producer)
    if isinstance(found, str):
        return found
    if any(isinstance(o, ops.While | ops.Case) for o in loop.body.ops):
        return "a loop in which there is another loop, or a branch, is not generated yet"
    count = found.trips * sum(not isinstance(o, ops.Constant) for o in loop.body.ops)
    if count > MAX_OPS:
        return f"its {found.trips} trips are {count} ops; a kernel takes loops of up to {MAX_OPS}"
    pieces = found.trips * sum(_collected(loop, found, i) is not None
                               for i in range(len(loop.args)))
    if pieces > MAX_PIECES:
        return f"its {found.trips} trips write {pieces} pieces of arrays; a kernel takes up to " \
            f"{MAX_PIECES}"
    if any(_other_weights(loop.body, o) for o in loop.body.ops):
        return "a product in it takes other weights in each trip, which is not generated yet"
    return None


def _other_weights(body: Graph, op: Op) -> bool:
    """Whether a contraction reads much that lies elsewhere in each trip: layers in a loop, say."""
    if not isinstance(op, ops.DotGeneral | ops.Convolution):
        return False
    for v in op.inputs:
        made = body.producer.get(v)
        while isinstance(made, _MOVES):
            made = body.producer.get(made.inputs[0])
        if isinstance(made, ops.DynamicSlice) and v.type.nbytes > MAX_WEIGHTS:
            return True
    return False


def unroll(graph: Graph) -> Graph:
    """Takes all `counted` loops apart; those with a `refusal` are in no kernel's graph."""
    if not any(isinstance(o, ops.While) for o in graph.ops):
        return graph
    walk, mapping = Builder(), dict[Value, Value]()
    for o in graph.ops:
        loop = o.clone(mapping)
        found = counted(loop, graph.producer) if isinstance(loop, ops.While) else ""
        if isinstance(loop, ops.While) and isinstance(found, Counted):
            walk.loc = o.loc
            mapping.update(zip(o.results, _trips(walk, loop, found), strict=True))
        else:
            walk.append(loop)
    return Graph(graph.inputs, tuple(walk.ops), tuple(mapping.get(v, v) for v in graph.outputs),
                 graph.name)


def _trips(walk: Builder, loop: ops.While, found: Counted) -> list[Value]:
    """Emits all trips; returns what the loop does."""
    body = loop.body
    collected = {i: c for i in range(len(loop.args)) if (c := _collected(loop, found, i))}
    pieces: dict[int, list[Value]] = {i: [] for i in collected}
    made = {r for o in walk.ops for r in o.results}
    keep: Callable[[Value], Value] = (lambda v: v) if _is_chain(body, found.trips) \
        else (lambda v: walk.emit1(ops.Stored, v.type, operand=v))
    state = [keep(v) if v in made and body.outputs[i] is not body.inputs[i]
             and i not in collected else v for i, v in enumerate(loop.args)]
    left_out = {c.update for c in collected.values()}
    same = [i for i, n in found.starts.items() if n == found.starts[found.index]
            and body.inputs[i].type == body.inputs[found.index].type]
    for _ in range(found.trips):
        state = [state[found.index] if i in same else v for i, v in enumerate(state)]
        mapping = dict(zip(body.inputs, state, strict=True))
        for o in copy_ops([o for o in body.ops if o not in left_out], mapping):
            walk.append(o)
        after = list(state)
        known: dict[Value, Value] = {}  # what several carried values have in common lies there once
        for i, v in enumerate(body.outputs):
            made_here = collected[i].update.update if i in collected else v
            if made_here is body.inputs[i]:
                continue
            whole = _without_reshapes(body, made_here)
            kept = mapping.get(whole, whole)
            if whole in body.producer:
                kept = _once(known, kept, keep)
            kept = walk.reshape(kept, made_here.type.shape)
            if i in collected:
                pieces[i].append(kept)
            else:
                after[i] = kept
        state = after
    for i, c in collected.items():
        state[i] = keep(walk.concatenate([pieces[i][t] for t in c.order], 0))
    return state


def _collected(loop: ops.While, found: Counted, i: int) -> Collected | None:
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


def _places(body: Graph, found: Counted, start: Value) -> list[int]:
    """What an index is in each trip; empty where not counters alone say so."""
    starts = {body.inputs[i]: n for i, n in found.starts.items()}
    wanted, needed = {start}, list[Op]()
    for o in reversed(body.ops):
        if any(r in wanted for r in o.results):
            needed.append(o)
            wanted.update(o.uses)
    if start in starts:
        return [starts[start] + t for t in range(found.trips)]
    if start not in body.producer or any(v.type.rank for v in wanted):
        return []
    part, inputs = subgraph(body, needed, [start])
    if any(v not in starts for v in inputs):
        return []
    return [int(evaluate(part, [np.asarray(starts[v] + t, v.type.dtype.numpy) for v in inputs])[0])
            for t in range(found.trips)]


def _without_reshapes(body: Graph, v: Value) -> Value:
    while isinstance(op := body.producer.get(v), ops.Reshape):
        v = op.operand
    return v


def _is_chain(body: Graph, trips: int) -> bool:
    """Whether a loop does a few steps on each element, or number, by itself."""
    return all(isinstance(o, _POINTWISE) for o in body.ops) and trips * sum(
        not isinstance(o, ops.Constant) for o in body.ops) <= MAX_CHAIN


def _once(known: dict[Value, Value], v: Value, keep: Callable[[Value], Value]) -> Value:
    if v not in known:
        known[v] = keep(v)
    return known[v]


def _number(v: Value, producer: Mapping[Value, Op]) -> int | None:
    op = producer.get(v)
    return int(op.value.reshape(())) if isinstance(op, ops.Constant) and op.value.size == 1 \
        and op.value.dtype.kind in "iu" else None

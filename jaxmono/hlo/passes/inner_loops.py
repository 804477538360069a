"""Loops of a constant trip count inside of such loops, trip by trip.

    scan:  c = c0                              scan:  c = c0
      for i in range(3):                         c = f(c, x, 0)
        c = f(c, x, i)                ──►        c = f(c, x, 1)
      ys = c                                     c = f(c, x, 2);  ys = c

Steps of a solver between two frames, layers of a network in a loop over time. What one inner trip
hands to the next is a value like any other, and its number is a constant; the trips of the outer
loop stay alike (unroll.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.counted import Counted, all_collected, counted, counted_to
from jaxmono.hlo.passes.in_turn import Turn, turn
from jaxmono.hlo.rewrite import Builder, copy_ops


def inner_loops(body: Graph, producer: Mapping[Value, Op], *, whole: bool = False) -> Graph:
    """A loop's body without those of its loops that are counted.

    Args:
      producer: of the graph that the loop is in, and of those around it: constants are there.
      whole: whether the body is a kernel's; then those whose trips threads take in turn stay.
    """
    if not any(isinstance(o, ops.While) for o in body.ops):
        return body
    walk, mapping, known = Builder(), dict[Value, Value](), {**producer, **body.producer}
    for o in body.ops:
        walk.loc = o.loc
        found = counted(o, known) if isinstance(o, ops.While) else ""
        if isinstance(o, ops.While) and isinstance(found, Counted) and not (
                whole and isinstance(turn(o, found, all_collected(o, found)), Turn)):
            begin = [mapping.get(v, v) for v in o.args]
            inside = o.body.remap(mapping)
            mapping.update(zip(o.results, _trips(walk, inside, begin, found), strict=True))
        else:
            walk.append(o.clone(mapping))
    outputs = tuple(mapping.get(v, v) for v in body.outputs)
    return Graph(body.inputs, tuple(walk.ops), outputs, body.name)


def _trips(walk: Builder, body: Graph, state: list[Value], found: Counted) -> list[Value]:
    for number in range(found.trips):
        given = dict(zip(body.inputs, state, strict=True))
        for i, start in found.starts.items():
            counter = body.inputs[i]
            given[counter] = walk.constant(counted_to(counter, start + number))
        for o in copy_ops(body.ops, given):
            walk.append(o)
        state = [given.get(v, v) for v in body.outputs]
    return state

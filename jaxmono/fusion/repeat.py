"""A kernel that is one loop: its stages again and again, while the loop goes on.

    graph      s1, g1 = while (s, g) { s = f(s);  g = p(s) }
    stages     f | p          written once, with a grid barrier behind them
    buffers    s1 is s, g1 is g: a trip writes over what it began with

Each output takes the place of the input that it is the next value of (donated.py). Where whoever
makes it cannot, because it or others still read the input, it is made elsewhere and copied in a
stage behind them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.plan import Plan, Repeat
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.rewrite import Builder, copy_ops


def one_trip(graph: Graph) -> Graph | None:
    """The trip of a graph that is one loop and carries whether it goes on; None for others.

    Its outputs are the next values of its first inputs, the last of which tells.
    """
    loop = graph.ops[0] if len(graph.ops) == 1 else None
    if not isinstance(loop, ops.While) or loop.cond.ops or graph.outputs != loop.results \
            or loop.cond.outputs != loop.cond.inputs[-1:] \
            or loop.args != graph.inputs[:len(loop.args)]:
        return None
    mapping = dict(zip(loop.body.inputs, loop.args, strict=True))
    made = copy_ops(loop.body.ops, mapping)
    return Graph(graph.inputs, made, tuple(mapping.get(v, v) for v in loop.body.outputs),
                 graph.name)


def repeated(trip: Graph, plan: Callable[[Graph], Plan]) -> Plan:
    """The plan of a loop.

    Args:
      plan: makes one of a trip, whose outputs take the places of its first inputs where they can.

    Raises:
      PlanError: a value cannot be written where the next trip reads it.
    """
    made = plan(trip)
    if (left := _elsewhere(made)):
        made = plan(_copied(trip, left))
    if (left := _elsewhere(made)):
        raise PlanError(f"the loop's value {left[0]} is made where no trip finds it again")
    return dataclasses.replace(made, repeat=Repeat(len(trip.outputs) - 1))


def _elsewhere(plan: Plan) -> list[int]:
    return [b.index for b in plan.outputs if b.alias != b.index]


def _copied(trip: Graph, which: list[int]) -> Graph:
    """Outputs that are made in memory, and copied from there."""
    walk, outputs = Builder(), list(trip.outputs)
    walk.ops += trip.ops
    for i in which:
        v = outputs[i]
        if v not in trip.inputs:
            v = walk.emit1(ops.Stored, v.type, operand=v)
        outputs[i] = walk.emit1(ops.Stored, v.type, operand=v)
    return Graph(trip.inputs, tuple(walk.ops), tuple(outputs), trip.name)

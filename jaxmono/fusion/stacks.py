"""Arrays that lie in others: what they are written by, and where they are.

    ys = stacked(h1, h2, h3)       the groups that make h1, h2, h3 write thirds of ys; none copies
    x1 = piece(xs, 1)              who reads x1 reads a part of xs, at no place that memory tells
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value


def stacks(graph: Graph) -> dict[Value, tuple[Value, ...]]:
    """What each stacked array consists of, in order."""
    return {o.result: o.args for o in graph.ops if isinstance(o, ops.Stacked)}


def in_turn(graph: Graph) -> dict[Op, Op]:
    """What is stored by a group that makes several in turn: for each, the array that they are
    parts of, or the first of the same number."""
    out: dict[Op, Op] = {made: o for o in graph.ops if isinstance(o, ops.Stacked) for v in o.args
                         if isinstance(made := graph.producer[v], ops.Stored) and made.in_turn}
    first: dict[int, Op] = {}
    for o in graph.ops:
        if isinstance(o, ops.Stored) and o.group:
            out[o] = first.setdefault(o.group, o)
    return out


def pieces(graph: Graph) -> dict[Value, ops.Piece]:
    return {o.result: o for o in graph.ops if isinstance(o, ops.Piece)}


def written_by(graph: Graph) -> dict[Value, tuple[Value, ...]]:
    """Of values that no group writes as they are, those that hold their bytes."""
    stacked = stacks(graph)
    return {**stacked, **{v: stacked.get(o.operand, (o.operand,))
                          for v, o in pieces(graph).items()}}

"""Arrays that lie in others: what they are written by, and where they are.

    ys = stacked(h1, h2, h3)       the groups that make h1, h2, h3 write thirds of ys; none copies
    x1 = piece(xs, 1)              who reads x1 reads a part of xs, at no place that memory tells
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

_WHERE_THEY_ARE = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert,
                   ops.ReducePrecision, ops.Reshape)


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


def trips_in_turn(graph: Graph) -> set[Op]:
    """What groups of trips do to each element: ops behind what they store, as far as elements stay
    where they are. In the epilogue of a product that a trip reads they would be done again."""
    todo = [o.operand for o in graph.ops if isinstance(o, ops.Stored) and o.group]
    out = set[Op]()
    while todo:
        made = graph.producer.get(todo.pop())
        if isinstance(made, _WHERE_THEY_ARE) and made not in out:
            out.add(made)
            todo += made.uses
    return out


def pieces(graph: Graph) -> dict[Value, ops.Piece]:
    return {o.result: o for o in graph.ops if isinstance(o, ops.Piece)}


def written_by(graph: Graph) -> dict[Value, tuple[Value, ...]]:
    """Of values that no group writes as they are, those that hold their bytes."""
    stacked = stacks(graph)
    return {**stacked, **{v: stacked.get(o.operand, (o.operand,))
                          for v, o in pieces(graph).items()}}

"""Results that are joined of arrays which are all computed of the same: one loop makes them.

    u, v = f(a, b, c)                  one loop over the elements of a part: it reads a, b and c
    stack([u + a, v + b, u * v])  ──►  once, computes u and v once, and writes each part of the
                                       result where it lies

As a join of its own each element of the result would be computed of all of a, b and c, or of u and
v as they were stored. A step of a lattice Boltzmann method (512 x 512, nine directions, each of
which needs all nine) was four stages of 29 us on an H200 that stored fifteen arrays, and is one of
6.4 us.

Only of what is computed of the graph's inputs, element by element and through views: parts that
wait for other groups would wait for each other's, too. And where nothing else reads the result: its
parts would be in memory, each to be found by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from jaxmono.fusion.chains import SAME_ELEMENT
from jaxmono.fusion.demand import is_view
from jaxmono.hlo import ops
from jaxmono.hlo.in_memory import PIECE_BYTES
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder, replace_values

MOST_PARTS = MOST_READ = 16
"""Parts, and values that they are computed of: a thread has one of each in registers."""
_OFTEN = 2
"""How often, on average, each of those would be read for one element of each part, at least."""
_ELEMENTS = 1 << 16
"""Of a part, at least: fewer leave most of a GPU idle, which the result's own elements would fill.
"""


def joined_parts(graph: Graph, placed: Collection[int] = ()) -> Graph:
    """Such results of the graph are `ops.Stacked`, their parts `ops.Stored` in turn.

    Args:
      placed: numbers of the outputs that take the places of inputs, which parts cannot.
    """
    returned = {v for i, v in enumerate(graph.outputs)
                if i not in placed and graph.outputs.count(v) == 1}
    found = {o.result for o in graph.ops if isinstance(o, ops.Concatenate)
             and o.result in returned and _is_joined(graph, o)}
    if not found:
        return graph
    b, new = Builder(), dict[Value, Value]()
    for op in graph.ops:
        b.loc = op.loc
        if isinstance(op, ops.Concatenate) and op.result in found:
            parts = tuple(b.emit1(ops.Stored, v.type, operand=v, in_turn=True) for v in op.args)
            new[op.result] = b.emit1(ops.Stacked, op.result.type, args=parts)
        else:
            b.append(op)
    made = Graph(graph.inputs, tuple(b.ops), graph.outputs, graph.name)
    return replace_values(made, new)


def _is_joined(graph: Graph, op: ops.Concatenate) -> bool:
    t = op.args[0].type
    if not 2 <= len(op.args) <= MOST_PARTS or len(set(op.args)) < len(op.args) \
            or graph.users.get(op.result) or any(v.type != t for v in op.args) \
            or t.size < _ELEMENTS or t.nbytes % PIECE_BYTES \
            or math.prod(op.result.type.dims[:op.dimension]) > 1:
        return False
    reads = [r for v in op.args if (r := _read(graph.producer, v)) is not None]
    every = set[Value]().union(*reads)
    return len(reads) == len(op.args) and 0 < len(every) <= MOST_READ \
        and sum(map(len, reads)) >= _OFTEN * len(every) \
        and _are_of_inputs(graph.producer, op.args)


def _read(producer: Mapping[Value, Op], part: Value) -> set[Value] | None:
    """The values of its size that a part is computed of, element by element; None if something else
    makes it. An input as it came is copied beside the others."""
    while isinstance(made := producer.get(part), ops.Reshape):
        part = made.operand
    if made is not None and not isinstance(made, SAME_ELEMENT):
        return None
    todo, seen, out = [part], {part}, set[Value]()
    while todo:
        v = todo.pop()
        made = producer.get(v)
        if isinstance(made, (*SAME_ELEMENT, ops.Reshape)):
            new = set(made.uses) - seen
            seen |= new
            todo += new
        elif v.type.size == part.type.size and not isinstance(
                made, (ops.Constant, ops.Iota, ops.BroadcastInDim)):
            out.add(v)
    return out


def _are_of_inputs(producer: Mapping[Value, Op], values: Collection[Value]) -> bool:
    """Whether no group has to come before one that computes these."""
    todo, seen = list(values), set(values)
    while todo:
        made = producer.get(todo.pop())
        if made is None or isinstance(made, (ops.Constant, ops.Iota)):
            continue
        if not (isinstance(made, (*SAME_ELEMENT, ops.Concatenate)) or is_view(made)):
            return False
        new = set(made.uses) - seen
        seen |= new
        todo += new
    return True

"""Memory that an op adds to (`ops.Accumulate`): the buffer of its operand is that of its result.

    stage 1   a = stored(0)                       b7 = 0
    stage 2   r = accumulate(a, lines, update)    b7[lines[t]] += update[t], in any order
    stage 3   f(r)                                reads b7

Nobody else reads a: it is stored for that op alone (`ops.Stored.own`).
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder


def written_over(graph: Graph) -> dict[Value, Value]:
    """By operand: what takes its place."""
    return {o.operand: o.result for o in graph.ops if isinstance(o, ops.Accumulate)}


def accumulation(body: Graph, result: Value) -> ops.Accumulate | None:
    """The op that a result of a body is of, if it is memory that is added to."""
    op = body.producer.get(result)
    return op if isinstance(op, ops.Accumulate) else None


def returned_once(graph: Graph) -> Graph:
    """The graph in which such a result is at most one of the outputs, the others are copies."""
    sums = set(written_over(graph).values())
    b, seen = Builder(), set[Value]()
    outputs: list[Value] = []
    for v in graph.outputs:
        again = v in sums and v in seen
        outputs.append(b.emit1(ops.Stored, v.type, operand=v) if again else v)
        seen.add(v)
    if not b.ops:
        return graph
    return Graph(graph.inputs, (*graph.ops, *b.ops), tuple(outputs), graph.name)

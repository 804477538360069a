"""Results that are another shape of what is made of whole lines: the kernel gives that itself.

    s = prefix(x)                         s = prefix(x)
    return reshape(s)              ──►    return s

The bytes are the same, and who calls the kernel knows the shape. Else a stage would copy them.
"""

from __future__ import annotations

from collections.abc import Collection

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.dead_code import dead_code


def flat_outputs(graph: Graph, kept: Collection[int] = ()) -> Graph:
    """The graph with outputs of other shapes.

    Args:
      kept: outputs, by number, that stay as they are (those that lie in arguments).
    """
    outputs = list(graph.outputs)
    for i, v in enumerate(outputs):
        op = graph.producer.get(v)
        if i not in kept and isinstance(op, ops.Reshape) and op.operand not in outputs \
                and isinstance(graph.producer.get(op.operand), ops.OF_LINES):
            outputs[i] = op.operand
    if tuple(outputs) == graph.outputs:
        return graph
    return dead_code(Graph(graph.inputs, graph.ops, tuple(outputs), graph.name))

"""Dead code elimination."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.ops import has_side_effect
from jaxmono.hlo.passes.peephole import rewrite_regions


def dead_code(graph: Graph) -> Graph:
    """Drops the ops that no output and no effect depends on, in regions too.

        a = f(x)          a = f(x)
        b = g(a)    =>    return a
        return a

    An op with several results stays whole while one of them is used.
    """
    live: set[Value] = set(graph.outputs)
    kept: list[Op] = []
    changed = False
    for op in reversed(graph.ops):
        if not has_side_effect(op) and live.isdisjoint(op.results):
            changed = True
            continue
        new = rewrite_regions(op, dead_code)
        changed |= new is not op
        live.update(new.uses)
        kept.append(new)
    if not changed:
        return graph
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs, graph.name)

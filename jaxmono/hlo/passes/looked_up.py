"""Products of fewer rows, and of fewer columns."""

from __future__ import annotations

import dataclasses

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import looked_up as rules
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import TensorType


def looked_up(graph: Graph) -> Graph:
    """Rows are multiplied before they are looked up, and behind where they are added up
    (`rules.looked_up`); of what is left of a product columns that nobody reads are not made.
    """
    made = apply_rules(graph, rules.RULES)
    return graph if made is graph else _read_columns(dead_code(made))


def _read_columns(graph: Graph) -> Graph:
    """
        y = dot(u, w [k, 384]);  f(y[:, :128])   ──►   f(dot(u, w[:, :128]))      if that is all
    """
    b, seen = Builder(), dict[Value, Value]()
    for o in graph.ops:
        o = o.clone(seen) if any(v in seen for v in o.uses) else o
        dot = graph.producer.get(o.operand) if isinstance(o, ops.Slice) else None
        if isinstance(o, ops.Slice) and isinstance(dot, ops.DotGeneral) \
                and (users := _slices(graph, dot)) \
                and sum(u.result.type.size for u in users) < dot.result.type.size:
            b.loc = o.loc
            seen[o.result] = _narrower(dot, o, seen, b)
            continue
        b.append(o)
    made = Graph(graph.inputs, tuple(b.ops), tuple(seen.get(v, v) for v in graph.outputs),
                 graph.name)
    return dead_code(made)


def _slices(graph: Graph, dot: ops.DotGeneral) -> list[ops.Slice]:
    """Who reads a product of two matrices, if each takes some neighbouring columns of it."""
    users = graph.users.get(dot.result, ())
    rows = dot.result.type.dims[0]
    if dot.result in graph.outputs or dot.lhs_batch or dot.lhs.type.rank != 2 \
            or dot.rhs.type.rank != 2 or not all(_is_columns(u, rows) for u in users):
        return []
    return [u for u in users if isinstance(u, ops.Slice)]


def _is_columns(o: Op, rows: int) -> bool:
    return isinstance(o, ops.Slice) and set(o.strides) == {1} \
        and (o.start_indices[0], o.limit_indices[0]) == (0, rows)


def _narrower(dot: ops.DotGeneral, o: ops.Slice, seen: dict[Value, Value], b: Builder) -> Value:
    n = 1 - dot.rhs_contract[0]  # the dimension of the columns
    rhs = seen.get(dot.rhs, dot.rhs)
    start, limit = [0, 0], list(rhs.type.dims)
    start[n], limit[n] = o.start_indices[1], o.limit_indices[1]
    (out,) = b.append(dataclasses.replace(
        dot, results=(Value(TensorType(o.result.type.dims, dot.result.type.dtype)),),
        lhs=seen.get(dot.lhs, dot.lhs), rhs=b.slice(rhs, start, limit)))
    return out

"""Branches that are little work: all are computed, and the results of one selected.

    y = case(i, {sin(x)}, {x * 2})    ──►    y = select(i == 0, sin(x), x * 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Scope, apply_rules
from jaxmono.hlo.passes.rules.control import copied
from jaxmono.hlo.types import DType

MOST_OPS, MOST_ELEMENTS = 64, 1 << 16
"""Of all branches, and of each of their values: together 0.3 us of an H200's lanes. XLA, which
waits for the index, has a launch at least for each branch."""
_HEAVY = (ops.DotGeneral, ops.RaggedDot, ops.Convolution, ops.Sort, ops.TopK, ops.Scatter, ops.Scan,
          ops.SelectAndScatter, ops.ReduceWindow, ops.While)


def refusal(op: ops.Case) -> str:
    """Why XLA chooses the branch; empty if all are computed."""
    return "XLA chooses the branch; kernels may be in it" if _is_much(op, MOST_OPS) else ""


def _is_much(op: ops.Case, most: int) -> bool:
    found = list(_inside(op))
    values = [v for o in found for v in (*o.inputs, *o.results)]
    return len(found) > most or any(isinstance(o, _HEAVY) for o in found) or not all(
        v.type.is_static and v.type.size <= MOST_ELEMENTS for v in (*values, *op.results))


def _inside(op: ops.Case) -> Iterator[Op]:
    """The ops of all branches, but for constants."""
    for o in (o for g in op.branches for o in g.ops):
        if isinstance(o, ops.Case):
            yield from _inside(o)
        elif not isinstance(o, ops.Constant):
            yield o


def _selected(op: ops.Case, scope: Scope) -> Sequence[Value] | None:
    # case(i, {a}, {b}, {c})  =>  select(i == 0, a, select(i == 1, b, c))     where they are little
    if _is_much(op, 4 * MOST_OPS):  # what is selected inside of branches adds some
        return None
    *others, out = [copied(branch, scope) for branch in op.branches]
    index = op.index
    for number, values in reversed(list(enumerate(others))):
        if index.type.dtype is DType.PRED:
            hit = scope.elementwise("not", index)
        else:
            hit = scope.compare("EQ", index, scope.constant(number, index.type.dtype))
        out = [a if a is b else scope.elementwise("select", hit, a, b, type=a.type)
               for a, b in zip(values, out, strict=True)]
    return out


def branches(graph: Graph) -> Graph:
    """Selects among the branches of every `Case` that has no `refusal`, those in loops as well, or
    that has one only since what is inside of its own branches has been selected."""
    return apply_rules(graph, {ops.Case: (_selected,)})

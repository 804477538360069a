"""Rules for optimization_barrier and case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType


def barrier(op: ops.OptimizationBarrier, scope: Scope) -> Sequence[Value] | None:
    # a, b = optimization_barrier(x, y)  =>  a, b = x, y
    return op.args


def case_known(op: ops.Case, scope: Scope) -> Sequence[Value] | None:
    # case(1, {a}, {b})  =>  b      and with a single branch whatever the index is
    element = scope.element(op.index)
    if element is None and len(op.branches) > 1:
        return None
    index = int(element) if element is not None else 0
    # An index out of range means the last branch.
    return _copied(op.branches[index if 0 <= index < len(op.branches) else -1], scope)


MOST_OPS, MOST_ELEMENTS = 64, 1 << 16
"""Of all branches, and of each of their values: together 0.3 us of an H200's lanes. XLA, which
waits for the index, has a launch at least for each branch."""
_HEAVY = (ops.DotGeneral, ops.RaggedDot, ops.Convolution, ops.Sort, ops.TopK, ops.Scatter, ops.Scan,
          ops.SelectAndScatter, ops.ReduceWindow, ops.While)


def refusal(op: ops.Case) -> str:
    """Why XLA chooses the branch; empty if `case_selected` computes all of them."""
    found = list(_inside(op))
    values = [v for o in found for v in (*o.inputs, *o.results)]
    if len(found) > MOST_OPS or any(isinstance(o, _HEAVY) for o in found) \
            or not all(v.type.is_static and v.type.size <= MOST_ELEMENTS
                       for v in (*values, *op.results)):
        return "XLA chooses the branch; kernels may be in it"
    return ""


def _inside(op: ops.Case) -> Iterator[Op]:
    """The ops of all branches, but for constants."""
    for o in (o for g in op.branches for o in g.ops):
        if isinstance(o, ops.Case):
            yield from _inside(o)
        elif not isinstance(o, ops.Constant):
            yield o


def case_selected(op: ops.Case, scope: Scope) -> Sequence[Value] | None:
    # case(i, {a}, {b}, {c})  =>  select(i == 0, a, select(i == 1, b, c))     where they are little
    if refusal(op):
        return None
    *others, out = [_copied(branch, scope) for branch in op.branches]
    index = op.index
    for number, values in reversed(list(enumerate(others))):
        if index.type.dtype is DType.PRED:
            hit = scope.elementwise("not", index)
        else:
            hit = scope.compare("EQ", index, scope.constant(number, index.type.dtype))
        out = [a if a is b else scope.elementwise("select", hit, a, b, type=a.type)
               for a, b in zip(values, out, strict=True)]
    return out


def _copied(branch: Graph, scope: Scope) -> list[Value]:
    mapping: dict[Value, Value] = {}
    for o in branch.ops:
        copy = o.clone(mapping, fresh_results=True)
        mapping.update(zip(o.results, scope.append(copy), strict=True))
    return [mapping.get(v, v) for v in branch.outputs]


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.OptimizationBarrier: (barrier,),
    ops.Case: (case_known, case_selected),
}

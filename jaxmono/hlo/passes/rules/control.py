"""Rules for optimization_barrier and case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope


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
    return copied(op.branches[index if 0 <= index < len(op.branches) else -1], scope)


def copied(branch: Graph, scope: Scope) -> list[Value]:
    """A branch's ops in front of what is rewritten; returns its results."""
    mapping: dict[Value, Value] = {}
    for o in branch.ops:
        copy = o.clone(mapping, fresh_results=True)
        mapping.update(zip(o.results, scope.append(copy), strict=True))
    return [mapping.get(v, v) for v in branch.outputs]


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.OptimizationBarrier: (barrier,),
    ops.Case: (case_known,),
}

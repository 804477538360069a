"""Short sorts, by what place each element has.

    before[i, j] = x[j] < x[i], or neither is less and j < i      each with each
    rank[i] = sum_j before[i, j]
    source[p] = the i whose rank is p;   y[p] = x[source[p]]

The order is a stable sort's, whatever the comparator is. Beside XLA's sort the kernels before and
behind it are launches of their own, too; 1024 keys take some 8 us of an H100, in two stages
(benchmarks/results/2026-11-28-stock-h100/stages.txt: 3 and 4 of a layer of experts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.reduce_window import is_element_wise, lifted
from jaxmono.hlo.passes.rules.sorted_sums import rows_of
from jaxmono.hlo.types import DType, TensorType

MOST = 1 << 28
"""Lane operations of all comparisons: 10 us of an H200 by the cost model; not timed."""


def refusal(op: ops.Sort) -> str:
    """Why a sort stays with XLA; empty if it is expanded."""
    if op.comparator.captures or not is_element_wise(op.comparator):
        return "a sort whose comparator is more than arithmetic on scalars is not generated"
    n = op.args[0].type.dims[op.dimension] if op.args[0].type.rank else 1
    if 2 * n * op.args[0].type.size * len(op.comparator.ops) > MOST:
        return f"sorting {n} elements is not generated: they are compared each with each"
    return ""


def sort(op: ops.Sort, scope: Scope) -> Sequence[Value] | None:
    if refusal(op) or not op.args[0].type.size:
        return None
    if not op.args[0].type.rank:
        return op.args
    dims, d = op.args[0].type.dims, op.dimension
    rest = [i for i in range(len(dims)) if i != d]
    n, lines = dims[d], math.prod(dims[i] for i in rest)
    xs = [scope.reshape(scope.transpose(v, (*rest, d)), (lines, n)) for v in op.args]
    each = (lines, n, n)
    mine, others = ([scope.broadcast_in_dim(x, each, at) for x in xs] for at in ((0, 1), (0, 2)))

    def less(a: Sequence[Value], b: Sequence[Value]) -> Value:
        pairs = [v for pair in zip(a, b, strict=True) for v in pair]
        return lifted(scope, op.comparator, pairs, each)[0]

    earlier = scope.compare("LT", scope.iota(each, DType.S32, 2), scope.iota(each, DType.S32, 1))
    before = scope.elementwise("select", earlier, scope.elementwise("not", less(mine, others)),
                               less(others, mine))
    zero = scope.constant(0, DType.S32)
    rank = scope.reduce(scope.convert(before, DType.S32), zero, "add", (2,))
    # [line, place, element]
    there = scope.compare("EQ", scope.broadcast_in_dim(rank, each, (0, 2)),
                          scope.iota(each, DType.S32, 1))
    places = scope.elementwise("select", there, scope.iota(each, DType.S32, 2),
                               scope.splat(0, TensorType(each, DType.S32)))
    source = scope.reduce(places, zero, "maximum", (2,))
    back = sorted(range(len(dims)), key=(*rest, d).__getitem__)
    out: list[Value] = []
    for x in xs:
        y = rows_of(scope.reshape(x, (lines, n, 1)), source, scope)
        out.append(scope.transpose(scope.reshape(y, (*(dims[i] for i in rest), n)), back))
    return out


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.Sort: (sort,)}

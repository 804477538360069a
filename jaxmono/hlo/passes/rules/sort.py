"""Short sorts, by what place each element has.

    before[i, j] = x[j] < x[i], or neither is less and j < i      each with each
    rank[i] = sum_j before[i, j]
    source[rank[i]] = i;   y[p] = x[source[p]]

The order is a stable sort's, whatever the comparator is. Beside XLA's sort the kernels before and
behind it are launches of their own, too; 1024 keys take some 8 us of an H100, in two stages
(benchmarks/results/2026-11-28-stock-h100/stages.txt: 3 and 4 of a layer of experts).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.keys import FLOATS, ordered
from jaxmono.hlo.passes.rules.reduce_window import is_element_wise, lifted
from jaxmono.hlo.passes.rules.sorted_sums import rows_of
from jaxmono.hlo.types import DType, TensorType

STORED = 1 << 18
"""Pairs of elements from which on what is made of one of each is stored."""
_BOTH = 2
MOST = 1 << 28
"""Lane operations of all comparisons: 10 us of an H200 by the cost model; not timed."""


def refusal(op: ops.Sort) -> str:
    """Why a sort stays with XLA; empty if it is expanded."""
    if op.comparator.captures or not is_element_wise(op.comparator):
        return "a sort whose comparator is more than arithmetic on scalars is not generated"
    n = op.args[0].type.dims[op.dimension] if op.args[0].type.rank else 1
    if 2 * n * op.args[0].type.size * _of_pairs(op.comparator) > MOST:
        return f"sorting {n} elements is not generated: they are compared each with each"
    return ""


def _of_pairs(comparator: Graph) -> int:
    """How many of its ops are made of both elements."""
    sides = {v: {i % 2} for i, v in enumerate(comparator.inputs)}
    for o in comparator.ops:
        sides.update((r, set().union(*(sides[v] for v in o.inputs))) for r in o.results)
    return sum(len(sides[r]) == 2 for o in comparator.ops for r in o.results)


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
    compared = _Compared(scope, op.comparator, xs)
    earlier = scope.compare("LT", scope.iota(each, DType.S32, 2), scope.iota(each, DType.S32, 1))
    before = scope.elementwise("select", earlier, scope.elementwise("not", compared.less(0, 1)),
                               compared.less(1, 0))
    zero = scope.constant(0, DType.S32)
    rank = scope.reduce(scope.convert(before, DType.S32), zero, "add", (2,))
    source = _inverse(rank, scope)
    back = sorted(range(len(dims)), key=(*rest, d).__getitem__)
    out: list[Value] = []
    for x in xs:
        y = rows_of(scope.reshape(x, (lines, n, 1)), source, scope)
        out.append(scope.transpose(scope.reshape(y, (*(dims[i] for i in rest), n)), back))
    return out


def _inverse(rank: Value, scope: Scope) -> Value:
    """s32[lines, n]: which element of a line has each place; ranks are all different."""
    lines, n = rank.type.dims
    if lines * n ** 2 < STORED:
        each = (lines, n, n)  # [line, place, element]
        there = scope.compare("EQ", scope.broadcast_in_dim(rank, each, (0, 2)),
                              scope.iota(each, DType.S32, 1))
        places = scope.elementwise("select", there, scope.iota(each, DType.S32, 2),
                                   scope.splat(0, TensorType(each, DType.S32)))
        return scope.reduce(places, scope.constant(0, DType.S32), "maximum", (2,))
    first = scope.elementwise("multiply", scope.iota((lines, n), DType.S32, 0),
                              scope.splat(n, rank.type))
    flat = TensorType((lines * n,), DType.S32)
    found = scope.emit1(
        ops.Accumulate, flat, kind="maximum",
        operand=scope.emit1(ops.Stored, flat, operand=scope.splat(0, flat), own=True),
        lines=scope.reshape(scope.elementwise("add", first, rank), flat.dims),
        update=scope.reshape(scope.iota((lines, n), DType.S32, 1), flat.dims))
    return scope.reshape(found, (lines, n))


class _Compared:
    """A comparator of each element with each: what is made of one of the two alone is so once for
    each element, and is stored where that is worth a stage.

        nan(x) < nan(y)   ──►   k = ordered(nan(x)) [n];   k[i] < k[j]

    A float's total order is that of integers. 4 x 1000 floats took a stage of 24 us of an H200 with
    JAX's comparator, which puts all NaN last and has one zero, made for each pair.
    """

    def __init__(self, scope: Scope, comparator: Graph, xs: Sequence[Value]) -> None:
        self.scope, self.comparator, self.xs = scope, comparator, xs
        self.lines, self.n = xs[0].type.dims

    def less(self, first: int, second: int) -> Value:
        """pred[lines, n, n]: the comparator of elements along dimensions 1 + ``first`` and 1 +
        ``second``."""
        # By value of the comparator: what it is, and along which dimension; None: it is a constant.
        env: dict[Value, tuple[Value, int | None]] = {}
        for i, v in enumerate(self.comparator.inputs):
            env[v] = self.xs[i // 2], (first, second)[i % 2]
        for o in self.comparator.ops:
            for r, x in zip(o.results, self._of(o, env), strict=True):
                env[r] = x
        return self._each(*env[self.comparator.outputs[0]])

    def _of(self, o: Op, env: Mapping[Value, tuple[Value, int | None]],
            ) -> list[tuple[Value, int | None]]:
        own = [env[v] for v in o.inputs]
        along = {d for _, d in own if d is not None}
        args = [x for x, _ in own]
        both = _BOTH in along or len(along) == 2
        if both:
            if isinstance(o, ops.Compare) and o.compare_type == "TOTALORDER" \
                    and o.lhs.type.dtype in FLOATS:
                args = [ordered(self.scope, x) for x in args]
                o = dataclasses.replace(o, compare_type="UNSIGNED")
            args = [self._each(x, d) for x, (_, d) in zip(args, own, strict=True)]
            shape = (self.lines, self.n, self.n)
        else:
            shape = (self.lines, self.n)
        made = lifted(self.scope, Graph(o.inputs, (o,), o.results), args, shape)
        return [(x, _BOTH if both else min(along, default=None)) for x in made]

    def _each(self, x: Value, along: int | None) -> Value:
        """[lines, n, n] of what is along one of the dimensions, or both."""
        if along == _BOTH:
            return x
        if self.lines * self.n ** 2 >= STORED and x not in self.xs and along is not None:
            x = self.scope.emit1(ops.Stored, x.type, operand=x)
        return self.scope.broadcast_in_dim(x, (self.lines, self.n, self.n), (0, 1 + (along or 0)))


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.Sort: (sort,)}

"""Short sorts, by what place each element has.

    before[i, j] = x[j] < x[i], or neither is less and j < i      each with each
    rank[i] = sum_j before[i, j]
    source[rank[i]] = i;   y[p] = x[source[p]]

The order is a stable sort's, whatever the comparator is. Beside XLA's sort the kernels before and
behind it are launches of their own, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.common_subexpressions import expression_key
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.keys import FLOATS, INTEGERS, ordered, ordered_integer
from jaxmono.hlo.passes.rules.reduce_window import is_element_wise, lifted
from jaxmono.hlo.passes.rules.sorted_sums import rows_of
from jaxmono.hlo.types import DType, TensorType

STORED = 1 << 18
"""Pairs of elements from which on what is made of one of each is stored."""
_BOTH = 2
MOST = 1 << 24
"""Pairs of elements of many lines; of long ones ``n << 14``. XLA sorts as many lines as there are
multiprocessors at a time: 512 elements in 9 us of an H200, 1024 in 12, 4096 in 37, 8192 in 47; here
16 lines of 1024 took 9, 128 of 512 16 (these stay with XLA), one of 4096 8, of 8192 18."""


def refusal(op: ops.Sort) -> str:
    """Why a sort stays with XLA; empty if it is expanded."""
    if op.comparator.captures or not is_element_wise(op.comparator):
        return "a sort whose comparator is more than arithmetic on scalars is not generated"
    n = op.args[0].type.dims[op.dimension] if op.args[0].type.rank else 1
    if n * op.args[0].type.size > max(MOST, n << 14):
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
    before = _Compared(scope, op.comparator, xs).before()
    zero = scope.constant(0, DType.S32)
    rank = scope.reduce(scope.convert(before, DType.S32), zero, "add", (2,))
    source = _inverse(rank, scope)
    back = sorted(range(len(dims)), key=(*rest, d).__getitem__)
    out: list[Value] = []
    for x in xs:
        y = rows_of(scope.reshape(x, (lines, n, 1)), source, scope)
        out.append(scope.transpose(scope.reshape(y, (*(dims[i] for i in rest), n)), back))
    return out


def alone(comparator: Graph, v: Value) -> int | None:
    """Whether a value is made of first elements (0) or of second ones (1) alone; else None."""
    sides = {x: {i % 2} for i, x in enumerate(comparator.inputs)}
    for o in comparator.ops:
        sides.update((r, set().union(*(sides[x] for x in o.inputs))) for r in o.results)
    return next(iter(sides[v])) if len(sides[v]) == 1 else None


def alike(a: Value, b: Value, scope: Scope) -> bool:
    """Whether two values are made in the same way of the same."""
    if a is b:
        return True
    o, p = scope.producers.get(a), scope.producers.get(b)
    if o is None or p is None or expression_key(o, _nothing) != expression_key(p, _nothing):
        return False
    return all(alike(x, y, scope) for x, y in zip(o.inputs, p.inputs, strict=True))


def _nothing(_: Value) -> None:
    return None


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

        nan(x) < nan(y)   ──►   k = ordered(nan(x)) << 32 | place [n];   k[j] < k[i]

    A float's total order is that of integers. If nothing else is compared, the place is a part of
    them: 16 x 1024 floats took a stage of 11 us of an H200 with two comparisons and a choice for
    each pair; 4 x 1000 took 24 with JAX's comparator, which puts all NaN last and has one zero,
    made for each.
    """

    def __init__(self, scope: Scope, comparator: Graph, xs: Sequence[Value]) -> None:
        self.scope, self.comparator, self.xs = scope, comparator, xs
        self.lines, self.n = xs[0].type.dims

    def before(self) -> Value:
        """pred[lines, n, n]: whether, of [line, i, j], j comes before i."""
        scope, each = self.scope, (self.lines, self.n, self.n)
        if (key := self._key()) is not None:
            return scope.compare("LT", self._each(key, 1), self._each(key, 0))
        earlier = scope.compare("LT", scope.iota(each, DType.S32, 2),
                                scope.iota(each, DType.S32, 1))
        return scope.elementwise("select", earlier, scope.elementwise("not", self.less(0, 1)),
                                 self.less(1, 0))

    def _key(self) -> Value | None:
        """u64[lines, n], all different, in the order that is asked for; None if that is of more
        than one number for each element."""
        o = self.comparator.producer.get(self.comparator.outputs[0])
        if not isinstance(o, ops.Compare) or o.direction not in ("LT", "GT"):
            return None
        sides = [alone(self.comparator, v) for v in (o.lhs, o.rhs)]
        if None in sides or sides[0] == sides[1]:
            return None
        made = [lifted(self.scope, Graph(self.comparator.inputs, self.comparator.ops, (v,)),
                       [x for x in self.xs for _ in range(2)], (self.lines, self.n))[0]
                for v in (o.lhs, o.rhs)]
        t = made[0].type.dtype
        if not alike(made[0], made[1], self.scope):
            return None
        if t in FLOATS and o.compare_type == "TOTALORDER":
            high = ordered(self.scope, made[0])
        elif t in INTEGERS or t is DType.U32:
            high = ordered_integer(self.scope, made[0])
        else:
            return None
        if (o.direction == "LT") != (sides[0] == 0):  # the greatest first
            high = self.scope.elementwise("not", high)
        high = self.scope.convert(high, DType.U64)
        high = self.scope.elementwise("shift_left", high, self.scope.splat(32, high.type))
        return self.scope.elementwise("or", high, self.scope.iota(high.type.dims, DType.U64, 1))

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

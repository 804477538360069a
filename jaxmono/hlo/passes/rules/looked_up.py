"""Products of rows that are looked up, of far fewer.

    dot(gather(x [v, k], i [t]), w)      ──►   gather(dot(x, w), i)
    dot(concat(e, gather(x, i)), w)      ──►   dot(e, w0) + gather(dot(x, w1), i)

The edges of a graph know their nodes (Gilmer et al., 2017), a token its word. What is looked up is
then read where the product of the others is stored, and the joined rows are in no memory.

Not so sums by line of products, though they are products of sums: a line without any would be 0
times a weight that may not be finite, and sums may be too large where products are not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType, TensorType

FEWER = 2
"""Times as many rows are looked up as there are."""
MIN_LOOKED_UP = 1 << 20
"""Elements of all rows that are looked up: in f32 they are written and read again in 2 us."""


def product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    """Both of the above, of f32 results: others would round what is added."""
    lhs, rhs = op.lhs, op.rhs
    if op.lhs_batch or lhs.type.rank != 2 or rhs.type.rank != 2 or op.lhs_contract != (1,) \
            or op.result.type.dtype is not DType.F32:
        return None
    joined = scope.made_by(lhs, ops.Concatenate)
    parts = joined.args if joined is not None and joined.dimension == 1 else (lhs,)
    found = [_lookup(v, scope) for v in parts]
    if sum(v.type.size for v, g in zip(parts, found, strict=True) if g) < MIN_LOOKED_UP:
        return None
    total: Value | None = None
    begin = 0
    for v, g in zip(parts, found, strict=True):
        k = v.type.dims[1]
        columns = (slice(begin, begin + k), slice(None))[:: 1 if op.rhs_contract == (0,) else -1]
        made = _dot(op, g.operand if g else v, _part(rhs, columns, scope), scope)
        total = _added(total, _look_up(g, made, scope) if g else made, scope)
        begin += k
    assert total is not None
    return [total]


def _lookup(v: Value, scope: Scope) -> ops.Gather | None:
    """The op that makes ``v``, if it looks up whole rows of far fewer."""
    g = scope.made_by(v, ops.Gather)
    if g is None or g.operand.type.rank != 2 or g.offset_dims != (1,) \
            or g.collapsed_slice_dims != (0,) or g.start_index_map != (0,) \
            or g.operand_batching_dims or g.slice_sizes != (1, g.operand.type.dims[1]) \
            or v.type.dims[0] < FEWER * g.operand.type.dims[0]:
        return None
    return g


def _look_up(g: ops.Gather, x: Value, scope: Scope) -> Value:
    """The same rows of ``x``."""
    t = TensorType((g.result.type.dims[0], x.type.dims[1]), x.type.dtype)
    (out,) = scope.append(dataclasses.replace(
        g, results=(Value(t),), operand=x, slice_sizes=(1, x.type.dims[1])))
    return out


def _dot(op: ops.DotGeneral, lhs: Value, rhs: Value, scope: Scope) -> Value:
    """The same product of other rows and columns."""
    columns = rhs.type.size // rhs.type.dims[op.rhs_contract[0]]
    t = TensorType((lhs.type.dims[0], columns), op.result.type.dtype)
    (out,) = scope.append(dataclasses.replace(op, results=(Value(t),), lhs=lhs, rhs=rhs))
    return out


def _part(x: Value, which: Sequence[slice], scope: Scope) -> Value:
    start = [s.start or 0 for s in which]
    limit = [n if s.stop is None else s.stop for s, n in zip(which, x.type.dims, strict=True)]
    whole = math.prod(b - a for a, b in zip(start, limit, strict=True)) == x.type.size
    return x if whole else scope.slice(x, start, limit)


def _added(total: Value | None, x: Value, scope: Scope) -> Value:
    return x if total is None else scope.elementwise("add", total, x)


RULES: dict[type[Op], Sequence[Rule]] = {ops.DotGeneral: (product,)}

"""The sum of a row in which one element is marked: known by its place.

    reduce_add(select(at[b] == iota(v), c, 0); 0)   ──►   select(0 <= at[b] < v, c, 0)

What the gradient of a cross-entropy sums of each row of labels (the gradient of a softmax is that
of its logits less their sum). Without it the row waits for a reduce that reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.passes.rules.indices import counts_along, inside
from jaxmono.hlo.rewrite import binary_kind


def one_hot_sum(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    """Of one dimension, of literals c and 0, by integers."""
    if len(op.args) != 1 or len(op.dimensions) != 1 or binary_kind(op.body) != "add" \
            or scope.element(op.inits[0]) != 0:
        return None
    (d,), v, times = op.dimensions, op.args[0], 1
    while (turned := scope.made_by(v, ops.Elementwise)) is not None and turned.kind == "negate":
        v, times = turned.args[0], -times
    marked = scope.made_by(v, ops.Elementwise)
    if marked is None or marked.kind != "select":
        return None
    where, *values = marked.args
    c, rest = (scope.element(x) for x in values)
    hit = scope.made_by(where, ops.Compare)
    if c is None or rest is None or rest != 0 or hit is None or hit.direction != "EQ":
        return None
    for at, places in ((hit.lhs, hit.rhs), (hit.rhs, hit.lhs)):
        index = _same_along(at, d, scope)
        if index is not None and index.type.dtype.is_integer and counts_along(places, d, scope):
            break
    else:
        return None
    t, last = op.results[0].type, v.type.dims[d] - 1
    if not 0 <= last <= np.iinfo(index.type.dtype.numpy).max:  # where places wrap around
        return None
    value = scope.splat(c, t)
    value = scope.elementwise("negate", value) if times < 0 else value
    return [scope.elementwise("select", inside(index, last, scope), value, scope.splat(0, t))]


def _same_along(v: Value, dimension: int, scope: Scope) -> Value | None:
    """What is repeated along a dimension, and nowhere else, to make ``v``."""
    spread = scope.made_by(v, ops.BroadcastInDim)
    if spread is None:
        return None
    kept = [i for i in range(v.type.rank) if i != dimension]
    if list(spread.dimensions) != kept \
            or spread.operand.type.dims != tuple(v.type.dims[i] for i in kept):
        return None
    return spread.operand


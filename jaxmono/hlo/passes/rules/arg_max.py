"""The place of the largest of a long line as a maximum of keys (keys.py).

    reduce(x[b, n], iota; body(a, i, b, j): a > b or a is NaN, or a == b and i < j)
      ──►   ~u32(reduce_maximum(keys(x)))

As `jnp.argmax` and `jnp.argmin` write it: the first NaN, or of equal values the one in front, 0
and -0 among them. A vocabulary's logits are such a line. As keys it is split over the
multiprocessors. Of many lines each part has a key:

    m = reduce_maximum(x[b, parts, n / parts])
    i = reduce_minimum(select(x == m or x is NaN, iota, ~0))      ──►     ~u32(reduce_maximum(keys))

These are fewer instructions for an element than a key is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.passes.rules.indices import counts_along
from jaxmono.hlo.passes.rules.keys import FLOATS, INTEGERS, keys_at, keys_of, places
from jaxmono.hlo.searches import begins, search_kind
from jaxmono.hlo.types import DType, lowest

MIN_LINE, FEW_LINES, MAX_LINES = 1 << 15, 32, 64
"""Elements of a line, and lines, whose reduce the planner splits (fusion/split_reduce.py); more
lines than these, up to which each is split in `PARTS` here. The planner does so with no other
reduce of as many: a softmax of 64 lines of 50257 would take 83 us of an H100 in place of 30. (The
largest of 64 lines of 50257: 8.8 us as keys; by parts 8.2 in 4, 7.4 in 8, 8.3 in 16. Of 16 lines
4.8 and 5.1, for a block meets twice.)"""
PARTS = 8


def arg_max(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    """Of one long dimension; the value beside the place is a reduce of its own."""
    if len(op.args) != 2 or len(op.dimensions) != 1:
        return None
    (x, at), (d,) = op.args, op.dimensions
    t = x.type
    kind = search_kind(op.body)
    if t.dims[d] < MIN_LINE or t.size > MAX_LINES * t.dims[d] \
            or t.dtype not in (*FLOATS, *INTEGERS) or kind is None \
            or not counts_along(at, d, scope) or not begins(op, kind, scope.element):
        return None
    value = scope.reduce(x, op.inits[0], kind, (d,))
    if kind == "minimum":
        x = scope.elementwise("negate" if t.dtype in FLOATS else "not", x)
    if t.size > FEW_LINES * t.dims[d] and d == t.rank - 1:
        keys = _of_parts(scope, x)
    else:
        keys = keys_of(scope, _ordered(scope, x), d)
    best = scope.reduce(keys, scope.constant(0, DType.U64), "maximum", (d,))
    return [value, places(scope, best, op.results[1].type.dtype)]


def _ordered(scope: Scope, x: Value) -> Value:
    """Floats whose total order is that of the search: 0 in place of -0, and one NaN."""
    if x.type.dtype not in FLOATS:
        return x
    zero = scope.splat(0, x.type)  # in front of -0 in the total order
    x = scope.elementwise("select", scope.compare("EQ", x, zero), zero, x)
    return scope.elementwise("select", scope.compare("NE", x, x), scope.splat(np.nan, x.type), x)


def _of_parts(scope: Scope, x: Value) -> Value:
    """The keys of the largest of each part of a line, the first of equal ones."""
    *outer, n = x.type.dims
    length = -(-n // PARTS // 8) * 8
    none, d = [0] * len(outer), len(outer)
    x = scope.pad(x, scope.constant(lowest(x.type.dtype), x.type.dtype), [*none, 0],
                  [*none, PARTS * length - n], [*none, 0])
    at = scope.iota(x.type.dims, DType.U32, d)
    x, at = (scope.reshape(v, (*outer, PARTS, length)) for v in (x, at))
    best = scope.reduce(x, scope.constant(lowest(x.type.dtype), x.type.dtype), "maximum", (d + 1,))
    chosen = scope.compare("EQ", x, scope.broadcast_in_dim(best, x.type.dims, range(d + 1)))
    if x.type.dtype in FLOATS:  # if there are any, the largest is one
        chosen = scope.elementwise("or", chosen, scope.compare("NE", x, x))
    last = scope.splat(2**32 - 1, at.type)
    first = scope.reduce(scope.elementwise("select", chosen, at, last),
                         scope.constant(2**32 - 1, DType.U32), "minimum", (d + 1,))
    return keys_at(scope, _ordered(scope, best), first)

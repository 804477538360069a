"""Reductions of a few terms each, of many: squared distances of points in space.

    reduce_add(d[n, n, 3]; 0) over dimension 2   ──►   0 + d[:, :, 0] + d[:, :, 1] + d[:, :, 2]

where d is computed element by element of far smaller arrays. Then it is a loop like any other,
whose threads have vectors of neighbours, or is computed where it is read; as rows of three columns
it would be a group of its own. A call with 40 forces between 1024 bodies took 4241 us on an H200
where warps shared each row, and 506 to 520 so. So are products of a few factors, whatever they are
computed of: they weigh what is looked up between places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.rewrite import binary_kind, fresh
from jaxmono.hlo.types import DType, TensorType

TERMS = 4
MIN_TERMS = 1 << 18
"""Of all sums of a few columns together."""
MIN_RESULTS = 1 << 16
SPREAD = 4
"""How much smaller what it is computed of has to be: else rows read it as they are, in one go."""
MOST_STACKED = 16
"""Arrays on top of each other, up to which their sum is written term by term."""
_MOST_OPS = 64
_OF_ONE_ELEMENT = (ops.Elementwise, ops.Compare, ops.Convert, ops.BroadcastInDim, ops.Reshape,
                   ops.Transpose, ops.Slice)


def few_terms(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    kind = binary_kind(op.body)
    if kind is None or len(op.args) != 1 or len(op.dimensions) != 1:
        return None
    (x,), (d,), t = op.args, op.dimensions, op.results[0].type
    n = x.type.dims[d]
    if not 1 < n <= TERMS or t.size < MIN_RESULTS \
            or not (kind == "multiply" or _is_spread(x, scope)):
        return None
    total = scope.broadcast_in_dim(op.inits[0], t.shape, ())
    for j in range(n):
        start = [j if i == d else 0 for i in range(x.type.rank)]
        limit = [j + 1 if i == d else m for i, m in enumerate(x.type.dims)]
        term = scope.reshape(scope.slice(x, start, limit), t.shape)
        total = scope.elementwise(kind, total, term)
    return [total]


def stacked_terms(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    """Sums of several arrays that were stacked first.

        reduce_add(concatenate(a[1, n], b[1, n], ..; 0); 0) over dimension 0  ──►  0 + a + b + ..

    Each of them is read, or computed, along its own neighbours then, with no choice of one for each
    element: the density of nine directions of 512 x 512 places took 18.8 us of an H200, as much as
    the rest of a step, and as rows of nine columns it was a stage in front of it.
    """
    kind = binary_kind(op.body)
    if kind is None or len(op.args) != 1 or len(op.dimensions) != 1:
        return None
    (x,), (d,), t = op.args, op.dimensions, op.results[0].type
    if t.dtype.is_float and t.dtype.bits < 32:
        return None  # each term would be rounded
    made, types = scope.producers.get(x), list[DType]()
    while isinstance(made, ops.Convert):
        types.append(made.result.type.dtype)
        made = scope.producers.get(made.operand)
    if not isinstance(made, ops.Concatenate) or made.dimension != d \
            or not 1 < len(made.args) <= MOST_STACKED \
            or any(v.type.dims[d] != 1 for v in made.args):
        return None
    total = scope.broadcast_in_dim(op.inits[0], t.shape, ())
    for v in made.args:
        term = scope.reshape(v, t.shape)
        for wider in reversed(types):
            term = scope.convert(term, wider)
        total = scope.elementwise(kind, total, term)
    return [total]


def few_columns(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    """Sums of vectors of a few elements, a vector of each pair of points, as a sum of each element.

        reduce_add(w[n, n, 1] * d[n, n, 3]) over dimension 1   ──►   three of [n, n], side by side

    What the elements of a vector share is then computed once, in place of three times, and rows
    read neighbours.
    """
    if len(op.args) != 1 or len(op.dimensions) != 1 or binary_kind(op.body) is None:
        return None
    (x,), (d,), t = op.args, op.dimensions, op.results[0].type
    last = x.type.rank - 1
    n = x.type.dims[last] if x.type.rank > 1 else 0
    if d == last or not 1 < n <= TERMS or x.type.size < MIN_TERMS \
            or x.type.dims[d] <= TERMS or not _is_spread(x, scope):
        return None
    one = TensorType(t.dims[:-1], t.dtype)
    sums = [scope.emit1(ops.Reduce, one, args=(_column(x, j, scope, {}),), inits=op.inits,
                        dimensions=(d,), body=fresh(op.body)) for j in range(n)]
    return [scope.concatenate([scope.reshape(s, (*one.dims, 1)) for s in sums], t.rank - 1)]


def _column(x: Value, j: int, scope: Scope, known: dict[Value, Value]) -> Value:
    """x[..., j], made of small parts: what does not depend on j is the same for all."""
    if x in known:
        return known[x]
    shape, made = x.type.dims[:-1], scope.producers.get(x)
    if isinstance(made, ops.Elementwise | ops.Compare | ops.Convert) \
            and all(v.type.dims == x.type.dims for v in made.inputs):
        args = {v: _column(v, j, scope, known) for v in made.inputs}
        known[x] = scope.append(dataclasses.replace(
            made.clone(args), results=(Value(TensorType(shape, x.type.dtype)),)))[0]
    elif isinstance(made, ops.BroadcastInDim):
        v, last = made.operand, len(shape)
        if last in made.dimensions:
            v = _taken(v, made.dimensions.index(last), j, scope)
        known[x] = scope.broadcast_in_dim(v, shape, [d for d in made.dimensions if d != last])
    else:
        known[x] = _taken(x, x.type.rank - 1, j, scope)
    return known[x]


def _taken(x: Value, d: int, j: int, scope: Scope) -> Value:
    """Place ``j`` of dimension ``d``, which goes; what has one place there has it for all."""
    dims = x.type.dims
    if dims[d] > 1:
        start = [j if i == d else 0 for i in range(x.type.rank)]
        x = scope.slice(x, start, [j + 1 if i == d else n for i, n in enumerate(dims)])
    return scope.reshape(x, (*dims[:d], *dims[d + 1:]))


def _is_spread(x: Value, scope: Scope) -> bool:
    """Whether a value is computed element by element of little."""
    seen, todo, leaves = {x}, [x], 0
    while todo:
        v = todo.pop()
        made = scope.producers.get(v)
        if isinstance(made, ops.Constant | ops.Iota):
            continue
        if not isinstance(made, _OF_ONE_ELEMENT):
            leaves += v.type.size
            continue
        todo += [u for u in made.inputs if u not in seen]
        seen.update(made.inputs)
        if len(seen) > _MOST_OPS:
            return False
    return SPREAD * leaves <= x.type.size

"""Contractions over one element, which are multiplications, and over few: sums of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.contraction import free_dims
from jaxmono.hlo.passes.rules.few_terms import MIN_RESULTS, SPREAD, TERMS
from jaxmono.hlo.types import DType


def outer_product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(x: [4,1], y: [1,5], contract=1x0)  =>  broadcast[4,5](x) * broadcast[4,5](y)
    # A sum of one product is no contraction. A named algorithm is left alone: it may ask for
    # other roundings than the result type's.
    if math.prod(op.lhs.type.dims[d] for d in op.lhs_contract) != 1 or op.algorithm:
        return None
    return [_outer(op, op.lhs, op.rhs, scope, op.result.type.dtype)]


def few_outer_products(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    """Points in space as features, of which there are far more.

        dot(x: [m, 3], w: [3, n])   ──►   x[:, 0] w[0] + x[:, 1] w[1] + x[:, 2] w[2]

    A stage of a product would fill its tiles with zeros, and what is made of its result (a sine and
    a cosine, side by side) would be stored to be read again. 65536 x 3 by 3 x 128, a sine and a
    cosine of it: 84 us on an H200, 25 so and 35 in XLA.
    """
    out = op.result.type
    if len(op.lhs_contract) != 1 or op.lhs_batch or op.algorithm or not out.dtype.is_float:
        return None
    (left,), (right,) = op.lhs_contract, op.rhs_contract
    terms = op.lhs.type.dims[left]
    if not 1 < terms <= TERMS or out.size < MIN_RESULTS \
            or out.size < SPREAD * max(op.lhs.type.size, op.rhs.type.size):
        return None
    exact = DType.F64 if out.dtype is DType.F64 else DType.F32
    total: Value | None = None
    for i in range(terms):
        x, y = (scope.slice(v, [i if d == at else 0 for d in range(v.type.rank)],
                            [i + 1 if d == at else n for d, n in enumerate(v.type.dims)])
                for v, at in ((op.lhs, left), (op.rhs, right)))
        product = _outer(op, x, y, scope, exact)
        total = product if total is None else scope.elementwise("add", total, product)
    assert total is not None
    return [scope.convert(total, out.dtype)]


def _outer(op: ops.DotGeneral, left: Value, right: Value, scope: Scope, dtype: DType) -> Value:
    """The product of operands that have one element of what ``op`` contracts, in ``dtype``."""
    out, batch = op.result.type, len(op.lhs_batch)
    lhs_free = free_dims(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    rhs_free = free_dims(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)
    middle = batch + len(lhs_free)

    def spread(v: Value, dims: Sequence[int], places: Sequence[int]) -> Value:
        place = dict(zip(dims, places, strict=True))
        flat = scope.reshape(v, [v.type.shape[d] for d in sorted(place)])
        wide = scope.broadcast_in_dim(flat, out.shape, [place[d] for d in sorted(place)])
        return scope.convert(wide, dtype)

    lhs = spread(left, [*op.lhs_batch, *lhs_free], range(middle))
    rhs = spread(right, [*op.rhs_batch, *rhs_free],
                 [*range(batch), *range(middle, out.rank)])
    return scope.elementwise("multiply", lhs, rhs)


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.DotGeneral: (outer_product, few_outer_products)}

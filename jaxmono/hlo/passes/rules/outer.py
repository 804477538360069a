"""Contractions over one element, which are multiplications."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.contraction import free_dims


def outer_product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(x: [4,1], y: [1,5], contract=1x0)  =>  broadcast[4,5](x) * broadcast[4,5](y)
    # A sum of one product is no contraction. A named algorithm is left alone: it may ask for
    # other roundings than the result type's.
    if math.prod(op.lhs.type.dims[d] for d in op.lhs_contract) != 1 or op.algorithm:
        return None
    out, batch = op.result.type, len(op.lhs_batch)
    lhs_free = free_dims(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    rhs_free = free_dims(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)
    middle = batch + len(lhs_free)

    def spread(v: Value, dims: Sequence[int], places: Sequence[int]) -> Value:
        place = dict(zip(dims, places, strict=True))
        flat = scope.reshape(v, [v.type.shape[d] for d in sorted(place)])
        wide = scope.broadcast_in_dim(flat, out.shape, [place[d] for d in sorted(place)])
        return scope.convert(wide, out.dtype)

    lhs = spread(op.lhs, [*op.lhs_batch, *lhs_free], range(middle))
    rhs = spread(op.rhs, [*op.rhs_batch, *rhs_free],
                 [*range(batch), *range(middle, out.rank)])
    return [scope.elementwise("multiply", lhs, rhs)]


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.DotGeneral: (outer_product,)}

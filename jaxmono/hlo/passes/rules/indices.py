"""What rules ask of indices: whether a value is its own place, and whether a place is there."""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.searches import reaches


def counts_along(v: Value, dimension: int, scope: Scope) -> bool:
    """Whether a value is its place along ``dimension``."""
    if spread := scope.made_by(v, ops.BroadcastInDim):
        iota = scope.made_by(spread.operand, ops.Iota)
        return iota is not None and spread.dimensions[iota.dimension] == dimension \
            and iota.result.type.dims[iota.dimension] == v.type.dims[dimension] and reaches(iota)
    iota = scope.made_by(v, ops.Iota)
    return iota is not None and iota.dimension == dimension and reaches(iota)


def inside(v: Value, last: int, scope: Scope) -> Value:
    """Whether an index is at least 0 and at most ``last``, which its type has to hold."""
    ok = scope.compare("LE", v, scope.splat(last, v.type))
    if v.type.dtype.is_signed:
        ok = scope.elementwise("and", ok, scope.compare("GE", v, scope.splat(0, v.type)))
    return ok

"""What rules ask of indices: whether a value is its own place, and whether a place is there."""

from __future__ import annotations

from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.searches import counts


def counts_along(v: Value, dimension: int, scope: Scope) -> bool:
    """Whether a value is its place along ``dimension``."""
    return counts(v, scope.producers) == (dimension,)


def inside(v: Value, last: int, scope: Scope) -> Value:
    """Whether an index is at least 0 and at most ``last``, which its type has to hold."""
    ok = scope.compare("LE", v, scope.splat(last, v.type))
    if v.type.dtype.is_signed:
        ok = scope.elementwise("and", ok, scope.compare("GE", v, scope.splat(0, v.type)))
    return ok

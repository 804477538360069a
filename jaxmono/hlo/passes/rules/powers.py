"""Powers with exponents that roots and products make: physics is full of them.

    x ^ 2  ──►  x * x           x ^ -1.5  ──►  |r * r * r|, r = rsqrt(x)       (-inf: 0)
    x ^ -2 ──►  1 / (x * x)     x ^ 1.5   ──►  |x * sqrt(x)|                   (-inf: inf)

The absolute value is for -0, of which powers are positive; numbers below 0 have none. CUDA's powf
is some 50 instructions and branches. Of f32 and f64: in 16 bits each product would be rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.types import DType

_MOST = 3.0


def power(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    if op.kind != "power" or op.result.type.dtype not in (DType.F32, DType.F64):
        return None
    x, exponent = op.args[0], scope.element(op.args[1])
    if exponent is None:
        return None
    k = float(exponent)
    if not 0 < abs(k) <= _MOST or 2 * k != math.floor(2 * k) or x.type != op.result.type:
        return None
    return [_whole(x, int(k), scope) if k == math.floor(k) else _with_root(x, k, scope)]


def _whole(x: Value, k: int, scope: Scope) -> Value:
    out = _product([x] * abs(k), scope)
    return out if k > 0 else scope.elementwise("divide", scope.splat(1.0, x.type), out)


def _with_root(x: Value, k: float, scope: Scope) -> Value:
    if k > 0:
        factors = [x] * int(k) + [scope.elementwise("sqrt", x)]
    else:
        factors = [scope.elementwise("rsqrt", x)] * int(-2 * k)
    out = scope.elementwise("abs", _product(factors, scope))
    least = scope.compare("EQ", x, scope.splat(-math.inf, x.type))
    return scope.elementwise("select", least,
                             scope.splat(math.inf if k > 0 else 0.0, x.type), out)


def _product(factors: Sequence[Value], scope: Scope) -> Value:
    out = factors[0]
    for x in factors[1:]:
        out = scope.elementwise("multiply", out, x)
    return out

"""gelu by erfc as one function of its argument, in f16 and bf16.

As ops one by one it takes 15 instructions (sm_90a), as one function 9 (f16: 11). The other form,
by tanh, has a logistic function inside (sigmoid.py).
"""

from __future__ import annotations

from jaxmono.codegen.finder import Finder, Whole, orders
from jaxmono.hlo import ops

_SCALE = 2.0 ** 16
"""Scales from 1 / this to this have powers that, times a coefficient, are normal f32."""


def by_erfc(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``x / 2 * erfc(-c x)``."""
    for half, other in orders(op):
        erfc, product = find.made(other, "erfc"), find.made(half, "multiply")
        x = product and find.without(product, 0.5)
        if erfc is None or x is None:
            continue
        value, scale = find.unscaled(erfc.args[0], until=x)
        if value is x and 1 / _SCALE <= -scale <= _SCALE:
            return Whole.narrow(x, "gelu", -scale)
    return None

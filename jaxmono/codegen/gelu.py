"""gelu as one function of its argument: both forms of `jax.nn.gelu`, in f16 and bf16.

As ops one by one, 1 + tanh loses the digits that it is there to give, in 19 instructions (sm_90a)
instead of 9; the erfc form takes 15 instead of 13 (f16: 14).
"""

from __future__ import annotations

from jaxmono.codegen.finder import Finder, Whole, orders
from jaxmono.codegen.names import literal
from jaxmono.hlo import ops
from jaxmono.hlo.types import DType

_SCALE = 2.0 ** 8
"""Scales from 1 / this to this have powers that fit in f32: the coefficients of bf16 hold them."""


def by_erfc(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``x / 2 * erfc(-c x)``."""
    for half, other in orders(op):
        erfc, product = find.made(other, "erfc"), find.made(half, "multiply")
        x = product and find.without(product, 0.5)
        if erfc is None or x is None:
            continue
        value, scale = erfc.args[0], 1.0
        while value is not x and (inside := find.scaled(value)):
            value, scale = inside[0], scale * inside[1]
        if value is x and scale < 0:
            few = x.type.dtype is DType.BF16 and 1 / _SCALE <= -scale <= _SCALE
            bits = "bf16" if few else "narrow"
            return Whole(x, f"{bits}_gelu", (literal(-scale, DType.F32),))
    return None


def by_tanh(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``(1 + tanh(u)) / 2``."""
    sum = find.without(op, 0.5)
    add = sum and find.made(sum, "add")
    value = add and find.without(add, 1.0)
    tanh = value and find.made(value, "tanh")
    return Whole(tanh.args[0], "narrow_tanh_gate") if tanh else None

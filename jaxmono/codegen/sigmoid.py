"""The logistic function and its integral, softplus, as JAX lowers them, in f16 and bf16.

As ops one by one, 1 / (1 + exp(-x)) takes 8 instructions (sm_90a), as one function 4: where its
quotient is subnormal it may be 0. softplus takes 19 with two special functions, and 9 with one:
exp(-|x|) is in [0, 1], where log(1 + t) is t times a polynomial.
"""

from __future__ import annotations

from jaxmono.codegen.finder import Finder, Whole, orders
from jaxmono.hlo import ops


def logistic(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``1 / (1 + exp(-x))``: of `jax.nn.sigmoid` and `jax.nn.silu`."""
    one, divisor = op.args
    add = find.made(divisor, "add") if find.number(one) == 1.0 else None
    value = add and find.without(add, 1.0)
    x = value and find.operand(value, "exponential", "negate")
    return Whole(x, "narrow_logistic") if x else None


def softplus(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``max(x, 0) + log(1 + exp(-|x|))``: of `jax.nn.softplus`."""
    for positive, rest in orders(op):
        x = find.operand(rest, "log_plus_one", "exponential", "negate", "abs")
        maximum = x and find.made(positive, "maximum")
        if x and maximum and any(a is x and find.number(b) == 0.0 for a, b in orders(maximum)):
            return Whole(x, "narrow_softplus")
    return None

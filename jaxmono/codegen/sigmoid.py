"""The logistic function and its integral, softplus, as JAX lowers them, in f16 and bf16.

    1 / (1 + exp(-c x)),  logistic(c x),  (1 + tanh(c x / 2)) / 2     ──►   logistic(x, c)

As ops one by one they take two special functions, each as long as eight products; as one function
one. Its coefficients make 1 / (1 + t) of t = exp(-|c x|), and log(1 + t) / t.
"""

from __future__ import annotations

from jaxmono.codegen.finder import Finder, Whole, orders
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

_SCALE = 2.0 ** 64
"""Scales from 1 / this to this are normal f32 where they are multiplied by log2(e)."""


def logistic(find: Finder, op: ops.Elementwise) -> Whole | None:
    """The op itself."""
    return None if op.accuracy else _logistic(find, op.args[0], 1.0)


def by_exp(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``1 / (1 + exp(-x))``: of `jax.nn.sigmoid` and `jax.nn.silu`."""
    one, divisor = op.args
    add = find.made(divisor, "add") if find.number(one) == 1.0 else None
    value = add and find.without(add, 1.0)
    exponential = value and find.made(value, "exponential")
    return _logistic(find, exponential.args[0], -1.0) if exponential else None


def by_tanh(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``(1 + tanh(x)) / 2``: of `jax.nn.gelu`."""
    sum = find.without(op, 0.5)
    add = sum and find.made(sum, "add")
    value = add and find.without(add, 1.0)
    tanh = value and find.made(value, "tanh")
    return _logistic(find, tanh.args[0], 2.0) if tanh else None


def softplus(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``max(x, 0) + log(1 + exp(-|x|))``: of `jax.nn.softplus`."""
    for positive, rest in orders(op):
        x = find.operand(rest, "log_plus_one", "exponential", "negate", "abs")
        maximum = x and find.made(positive, "maximum")
        if x and maximum and any(a is x and find.number(b) == 0.0 for a, b in orders(maximum)):
            return Whole.narrow(x, "softplus")
    return None


def _logistic(find: Finder, value: Value, scale: float) -> Whole | None:
    """Of ``scale`` times a value: products with numbers are the function's."""
    x, factor = find.unscaled(value)
    scale *= factor
    return Whole.narrow(x, "logistic", scale) if 1 / _SCALE <= abs(scale) <= _SCALE else None

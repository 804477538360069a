"""What functions of complex numbers are in their parts.

`FUNCTIONS` has each op of `ops.Elementwise` that is more than the same op on both parts: it takes
the pairs of its operands and gives a pair, or a float where the op does. No step of quotients,
roots, exponentials (but those less one), logarithms and absolute values overflows where the result
does not. Products are not made once more where both of their parts are NaN (XLA's are not either).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jaxmono.hlo.ir import Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

Pair: TypeAlias = tuple[Value, Value]
"""Real and imaginary parts, of one type."""

_FAR = {DType.F32: 80.0, DType.F64: 700.0}
"""Exponents from which on the exponential is made in two factors."""


class Parts(Builder):
    """Arithmetic on parts, with literals where one operand is a number.

    ``nothing`` has parts that are zero: imaginary ones of what was real, real ones of multiples of
    i. No operation is done with them, so that an infinity beside one stays what it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nothing: set[Value] = set()

    def zero(self, like: TensorType) -> Value:
        out = self.splat(0.0, like)
        self.nothing.add(out)
        return out

    def op(self, kind: str, *args: Value | float) -> Value:
        shape = next(a.type for a in args if isinstance(a, Value))
        return self.elementwise(kind, *(
            a if isinstance(a, Value) else self.splat(a, shape) for a in args))

    def negate(self, a: Value) -> Value:
        return a if a in self.nothing else self.op("negate", a)

    def add(self, a: Value | float, b: Value | float) -> Value:
        if isinstance(a, Value) and b in self.nothing:
            return a
        return b if isinstance(b, Value) and a in self.nothing else self.op("add", a, b)

    def sub(self, a: Value | float, b: Value | float) -> Value:
        if isinstance(a, Value) and b in self.nothing:
            return a
        return self.negate(b) if isinstance(b, Value) and a in self.nothing else \
            self.op("subtract", a, b)

    def mul(self, a: Value | float, b: Value | float) -> Value:
        none = next((x for x in (a, b) if x in self.nothing), None)
        return none if isinstance(none, Value) else self.op("multiply", a, b)

    def div(self, a: Value | float, b: Value | float) -> Value:
        return a if isinstance(a, Value) and a in self.nothing else self.op("divide", a, b)

    def where(self, pred: Value, a: Value | float, b: Value | float) -> Value:
        one = next(v for v in (a, b) if isinstance(v, Value))
        a, b = (v if isinstance(v, Value) else self.splat(v, one.type) for v in (a, b))
        return self.elementwise("select", pred, a, b)

    def is_(self, a: Value, direction: str, b: Value | float) -> Value:
        return self.compare(direction, a, b if isinstance(b, Value) else self.splat(b, a.type))


def multiply(p: Parts, z: Pair, w: Pair) -> Pair:
    return (p.sub(p.mul(z[0], w[0]), p.mul(z[1], w[1])),
            p.add(p.mul(z[0], w[1]), p.mul(z[1], w[0])))


def divide(p: Parts, z: Pair, w: Pair) -> Pair:
    """R. L. Smith, "Algorithm 116: Complex division" (CACM 1962): by the larger part of w."""
    if w[1] in p.nothing:
        return p.div(z[0], w[0]), p.div(z[1], w[0])
    wide = p.is_(p.op("abs", w[0]), "GE", p.op("abs", w[1]))
    large, small = p.where(wide, *w), p.where(wide, w[1], w[0])
    a, b = p.where(wide, *z), p.where(wide, z[1], z[0])
    ratio = p.div(small, large)
    # Halves, since the sum of two parts may be too large.
    a, b, large, small = (p.mul(x, 0.5) for x in (a, b, large, small))
    # Of two infinities their signs'.
    ratio = p.where(p.is_(small, "EQ", large), 1.0, ratio)
    ratio = p.where(p.is_(small, "EQ", p.negate(large)), -1.0, ratio)
    none = p.elementwise("and", p.is_(large, "EQ", 0.0), p.is_(small, "EQ", 0.0))
    ratio = p.where(none, 0.0, ratio)
    # No infinity is multiplied by nothing, and a zero keeps its sign.
    plain = p.is_(ratio, "EQ", 0.0)
    more, less = (p.where(plain, 0.0, p.mul(x, ratio)) for x in (b, a))
    by = p.where(plain, large, p.add(large, p.mul(small, ratio)))
    im = p.div(p.sub(b, less), by)
    return p.div(p.add(a, more), by), p.where(wide, im, p.negate(im))


def square(p: Parts, z: Pair) -> Pair:
    """(a + b) (a - b) and 2 a b: parts of one size do not overflow, nor cancel."""
    return (p.mul(p.add(*z), p.sub(*z)), p.mul(p.mul(z[0], 2.0), z[1]))


def _sizes(p: Parts, z: Pair) -> tuple[Value, Value]:
    """The larger part's size, and the smaller one's as a share of it: at most 1."""
    sizes = [p.op("abs", x) for x in z]
    large, small = p.op("maximum", *sizes), p.op("minimum", *sizes)
    plain = p.elementwise("and", p.is_(large, "NE", 0.0), p.is_(large, "NE", math.inf))
    return large, p.where(plain, p.div(small, large), 0.0)


def absolute(p: Parts, z: Pair) -> Value:
    large, share = _sizes(p, z)
    return p.mul(large, p.op("sqrt", p.add(1.0, p.mul(share, share))))


def sign(p: Parts, z: Pair) -> Pair:
    size = absolute(p, z)
    some = p.is_(size, "NE", 0.0)
    return p.where(some, p.div(z[0], size), 0.0), p.where(some, p.div(z[1], size), 0.0)


def exponential(p: Parts, z: Pair) -> Pair:
    """exp(re) may be too large where the result is not; and infinity times sin(0) is 0."""
    turn = p.op("cosine", z[1]), p.op("sine", z[1])
    if z[0] in p.nothing:
        return turn
    far = _FAR[z[0].type.dtype]
    above = p.is_(z[0], "GT", far)
    size = p.op("exponential", p.where(above, p.op("subtract", z[0], far), z[0]))
    more = p.where(above, p.splat(math.exp(far), z[0].type), 1.0)
    re, im = (p.mul(p.mul(size, x), more) for x in turn)
    return re, p.where(p.is_(z[1], "EQ", 0.0), z[1], im)


def exponential_minus_one(p: Parts, z: Pair) -> Pair:
    """exp(re) cos(im) - 1 = expm1(re) cos(im) - 2 sin(im / 2)^2."""
    half = p.op("sine", p.mul(z[1], 0.5))
    re = p.sub(p.mul(p.op("exponential_minus_one", z[0]), p.op("cosine", z[1])),
               p.mul(p.mul(half, half), 2.0))
    im = p.mul(p.op("exponential", z[0]), p.op("sine", z[1]))
    return re, p.where(p.is_(z[1], "EQ", 0.0), z[1], im)


def log(p: Parts, z: Pair) -> Pair:
    large, share = _sizes(p, z)
    size = p.add(p.op("log", large), p.mul(p.op("log_plus_one", p.mul(share, share)), 0.5))
    return size, p.op("atan2", z[1], z[0])


def log_plus_one(p: Parts, z: Pair) -> Pair:
    """Of small z |1 + z|^2 - 1 = re (re + 2) + im^2."""
    more = p.add(z[0], 1.0)
    near = p.mul(p.op("log_plus_one", p.add(p.mul(z[0], p.add(z[0], 2.0)),
                                            p.mul(z[1], z[1]))), 0.5)
    far, angle = log(p, (more, z[1]))
    small = p.elementwise("and", p.is_(p.op("abs", z[0]), "LT", 0.5),
                          p.is_(p.op("abs", z[1]), "LT", 0.5))
    return p.where(small, near, far), angle


def sqrt(p: Parts, z: Pair) -> Pair:
    """sqrt((|z| + |re|) / 2), which does not cancel, and im / 2 by it."""
    large, share = _sizes(p, z)
    root = p.op("sqrt", p.add(1.0, p.mul(share, share)))
    re = p.where(p.is_(p.op("abs", z[0]), "EQ", large), 1.0, share)
    one = p.mul(p.op("sqrt", large), p.op("sqrt", p.mul(p.add(root, re), 0.5)))
    other = p.where(p.is_(one, "EQ", 0.0), z[1], p.div(p.mul(z[1], 0.5), one))
    # An infinite im makes both parts infinite.
    other = p.where(p.is_(p.op("abs", z[1]), "EQ", math.inf), z[1], other)
    right = p.is_(z[0], "GE", 0.0)
    # The cut is approached from below where the zero has a sign.
    below = p.compare("LT", z[1], p.splat(0.0, z[1].type), "TOTALORDER")
    return (p.where(right, one, p.op("abs", other)),
            p.where(right, other, p.where(below, p.negate(one), one)))


def reciprocal(p: Parts, z: Pair) -> Pair:
    return divide(p, (p.splat(1.0, z[0].type), p.zero(z[0].type)), z)


def rsqrt(p: Parts, z: Pair) -> Pair:
    return reciprocal(p, sqrt(p, z))


def logistic(p: Parts, z: Pair) -> Pair:
    re, im = exponential(p, (p.negate(z[0]), p.negate(z[1])))
    return reciprocal(p, (p.add(re, 1.0), im))


def sine(p: Parts, z: Pair) -> Pair:
    return (p.mul(p.op("sine", z[0]), p.op("cosh", z[1])),
            p.mul(p.op("cosine", z[0]), p.op("sinh", z[1])))


def cosine(p: Parts, z: Pair) -> Pair:
    return (p.mul(p.op("cosine", z[0]), p.op("cosh", z[1])),
            p.negate(p.mul(p.op("sine", z[0]), p.op("sinh", z[1]))))


def sinh(p: Parts, z: Pair) -> Pair:
    im = p.mul(p.op("cosh", z[0]), p.op("sine", z[1]))
    return (p.mul(p.op("sinh", z[0]), p.op("cosine", z[1])),
            p.where(p.is_(z[1], "EQ", 0.0), z[1], im))


def cosh(p: Parts, z: Pair) -> Pair:
    im = p.mul(p.op("sinh", z[0]), p.op("sine", z[1]))
    return (p.mul(p.op("cosh", z[0]), p.op("cosine", z[1])),
            p.where(p.is_(z[1], "EQ", 0.0), z[1], im))


def tanh(p: Parts, z: Pair) -> Pair:
    """(t + i u) / (1 + i t u) of t = tanh(re) and u = tan(im)."""
    t, u = p.op("tanh", z[0]), p.op("tan", z[1])
    squares = p.mul(t, t), p.mul(u, u)
    by = p.add(1.0, p.mul(*squares))
    far = p.is_(p.op("abs", z[0]), "EQ", math.inf)
    re = p.where(far, t, p.div(p.mul(t, p.add(1.0, squares[1])), by))
    im = p.where(far, 0.0, p.div(p.mul(u, p.sub(1.0, squares[0])), by))
    return re, p.where(p.is_(z[1], "EQ", 0.0), z[1], im)


def tan(p: Parts, z: Pair) -> Pair:
    """-i tanh(i z)."""
    re, im = tanh(p, (p.negate(z[1]), z[0]))
    return im, p.negate(re)


def power(p: Parts, z: Pair, w: Pair) -> Pair:
    """exp(w log(z)); of 0 it is 1 where w is 0, and 0 where its real part is positive."""
    size, angle = log(p, z)
    of_real = p.is_(w[1], "EQ", 0.0)  # so that no infinity is multiplied by nothing
    re, im = multiply(p, w, (size, angle))
    re, im = exponential(p, (p.where(of_real, p.mul(w[0], size), re),
                             p.where(of_real, p.mul(w[0], angle), im)))
    none = p.elementwise("and", p.is_(z[0], "EQ", 0.0), p.is_(z[1], "EQ", 0.0))
    unity = p.elementwise("and", p.is_(w[0], "EQ", 0.0), p.is_(w[1], "EQ", 0.0))
    nothing = p.elementwise("and", none, p.is_(w[0], "GT", 0.0))
    re = p.where(nothing, 0.0, p.where(unity, 1.0, re))
    return re, p.where(p.elementwise("or", nothing, unity), 0.0, im)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": absolute,
    "conj": lambda p, z: (z[0], p.negate(z[1])),
    "cosh": cosh,
    "cosine": cosine,
    "divide": divide,
    "exponential": exponential,
    "exponential_minus_one": exponential_minus_one,
    "imag": lambda p, z: z[1],
    "log": log,
    "log_plus_one": log_plus_one,
    "logistic": logistic,
    "multiply": multiply,
    "power": power,
    "real": lambda p, z: z[0],
    "rsqrt": rsqrt,
    "sign": sign,
    "sine": sine,
    "sinh": sinh,
    "sqrt": sqrt,
    "square": square,
    "tan": tan,
    "tanh": tanh,
}

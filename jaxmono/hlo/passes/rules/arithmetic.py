"""Rules for element-wise ops. Each is exact for every input, NaN, infinities and -0 included."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType, highest, lowest

Element = np.ndarray[Any, Any]


def is_value(element: Element | None, value: float) -> bool:
    """Whether a literal is ``value``, the sign of a zero included."""
    if element is None or element.dtype.kind == "c":
        return False
    x = float(element)
    return x == value and math.copysign(1, x) == math.copysign(1, value)


def neutral(kind: str, dtype: DType) -> float | int | None:
    """``e`` such that kind(x, e) is x exactly, for every x; None if there is none."""
    match kind:
        case "add":
            # x + 0.0 turns -0 into 0; x + -0.0 keeps both.
            return -0.0 if dtype.is_float else 0 if not dtype.is_complex else None
        case "subtract":
            return 0.0 if dtype.is_float else 0 if dtype.is_integer else None
        case "multiply" | "divide" | "power":
            # A complex product with 1 + 0j turns infinities into NaN.
            if kind != "multiply" and dtype is DType.PRED:
                return None
            return 1 if not dtype.is_complex else None
        case "maximum":
            return lowest(dtype)
        case "minimum":
            return highest(dtype)
        case "and":
            return 1 if dtype is DType.PRED else -1 if dtype.is_signed else highest(dtype)
        case "or" | "xor" | "shift_left" | "shift_right_logical" | "shift_right_arithmetic":
            return 0
        case _:
            return None


def absorbing(kind: str, dtype: DType) -> float | int | None:
    """``z`` such that kind(x, z) is z for every x. Floats have none: NaN goes through."""
    if dtype.is_float or dtype.is_complex:
        return None
    match kind:
        case "multiply":
            return 0
        case "and":
            return 0
        case "or":
            return 1 if dtype is DType.PRED else -1 if dtype.is_signed else highest(dtype)
        case "maximum":
            return highest(dtype)
        case "minimum":
            return lowest(dtype)
        case _:
            return None


COMMUTATIVE = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})
IDEMPOTENT = frozenset({"and", "maximum", "minimum", "or"})
INVOLUTIONS = frozenset({"negate", "not", "conj"})
PROJECTIONS = frozenset({"abs", "ceil", "floor", "round_nearest_afz", "round_nearest_even",
                         "sign"})

NAN_COMES_THROUGH = frozenset({
    "abs", "add", "divide", "erf", "erfc", "exponential", "exponential_minus_one", "log",
    "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "sqrt", "subtract",
    "tanh"})
"""Kinds whose result is NaN if an operand is."""


def binary_literal(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # x * 1  =>  x         max(x, -inf)  =>  x       and(x, true)  =>  x
    # x * 0  =>  0         and(x, false)  =>  false  (integers and predicates)
    if len(op.args) != 2:
        return None
    pairs = [(op.args[0], op.args[1])]
    if op.kind in COMMUTATIVE:
        pairs.append((op.args[1], op.args[0]))
    for x, literal in pairs:
        element, dtype = scope.element(literal), x.type.dtype
        e, z = neutral(op.kind, dtype), absorbing(op.kind, dtype)
        if e is not None and is_value(element, e):
            return [x]
        if z is not None and is_value(element, z):
            return [literal]
    return None


def binary_same(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # max(x, x)  =>  x      x - x  =>  0 (integers)
    if len(op.args) != 2 or op.args[0] is not op.args[1]:
        return None
    x = op.args[0]
    if op.kind in IDEMPOTENT:
        return [x]
    if op.kind == "xor" or (op.kind == "subtract" and x.type.dtype.is_integer):
        return [scope.splat(0, x.type)]
    return None


def divide_literal(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # x / 8.0  =>  x * 0.125      when the reciprocal is exact and not subnormal
    if op.kind != "divide" or not op.result.type.dtype.is_float:
        return None
    element = scope.element(op.args[1])
    if element is None or not np.isfinite(element) or element == 0:
        return None
    mantissa, exponent = math.frexp(float(element))
    # bf16 and f32 share the exponent range; f16's is [-14, 15], f64's [-1022, 1023].
    limit = {2: 14, 4: 126, 8: 1022}.get(element.dtype.itemsize, 0)
    if op.result.type.dtype is DType.BF16:
        limit = 126
    if abs(mantissa) != 0.5 or abs(exponent - 1) > limit:
        return None
    return [scope.elementwise("multiply", op.args[0],
                              scope.splat(1 / float(element), op.args[1].type))]


def unary_twice(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # negate(negate(x))  =>  x      abs(abs(x))  =>  abs(x)      real(complex(a, b))  =>  a
    if len(op.args) != 1:
        return None
    inner = scope.made_by(op.args[0], ops.Elementwise)
    if inner is None:
        return None
    if inner.kind == op.kind and op.kind in INVOLUTIONS:
        return [inner.args[0]]
    if inner.kind == op.kind and op.kind in PROJECTIONS:
        return [op.args[0]]
    if inner.kind == "complex" and op.kind in ("real", "imag"):
        return [inner.args[0 if op.kind == "real" else 1]]
    return None


def select_known(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # select(true, a, b)    =>  a
    # select(p, a, a)       =>  a
    # select(not p, a, b)   =>  select(p, b, a)
    # select(p, true, false)  =>  p
    if op.kind != "select":
        return None
    pred, on_true, on_false = op.args
    if on_true is on_false:
        return [on_true]
    element = scope.element(pred)
    if element is not None:
        return [on_true if element else on_false]
    inner = scope.made_by(pred, ops.Elementwise)
    if inner is not None and inner.kind == "not":
        return [scope.elementwise("select", inner.args[0], on_false, on_true)]
    if pred.type == op.result.type:
        yes, no = scope.element(on_true), scope.element(on_false)
        if yes is not None and no is not None and yes and not no:
            return [pred]
    return None


def select_nan(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # select(d != d, a, b)  =>  b      where both are NaN if d is: softplus' 0 + x, max(x, 0) + ...
    # select(d == d, a, b)  =>  a
    if op.kind != "select":
        return None
    pred, on_true, on_false = op.args
    compare = scope.made_by(pred, ops.Compare)
    if compare is None or compare.lhs is not compare.rhs or compare.direction not in ("EQ", "NE") \
            or compare.compare_type == "TOTALORDER" or not compare.lhs.type.dtype.is_float \
            or not op.result.type.dtype.is_float:
        return None
    if not all(_nan_comes_through(v, compare.lhs, scope) for v in (on_true, on_false)):
        return None
    return [on_false if compare.direction == "NE" else on_true]


def _nan_comes_through(value: Value, source: Value, scope: Scope, depth: int = 8) -> bool:
    """Whether ``value`` is NaN wherever ``source`` is; False where that is not easily seen."""
    if value is source:
        return True
    op = scope.made_by(value, ops.Elementwise)
    return op is not None and depth > 0 and op.kind in NAN_COMES_THROUGH and any(
        _nan_comes_through(a, source, scope, depth - 1) for a in op.args)


def clamp_unbounded(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    # clamp(-inf, x, inf)  =>  x
    if op.kind != "clamp":
        return None
    low, x, high = op.args
    bottom, top = lowest(x.type.dtype), highest(x.type.dtype)
    if bottom is None or top is None:
        return None
    if is_value(scope.element(low), bottom) and is_value(scope.element(high), top):
        return [x]
    return None


def compare_pred(op: ops.Compare, scope: Scope) -> Sequence[Value] | None:
    # compare NE (p, false)  =>  p      compare EQ (p, false)  =>  not p
    if op.lhs.type.dtype is not DType.PRED or op.direction not in ("EQ", "NE"):
        return None
    for x, literal in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        element = scope.element(literal)
        if element is not None:
            same = bool(element) == (op.direction == "EQ")
            return [x if same else scope.elementwise("not", x)]
    return None


def compare_same(op: ops.Compare, scope: Scope) -> Sequence[Value] | None:
    # compare LE (i, i)  =>  true      integers only: a float may be NaN
    dtype = op.lhs.type.dtype
    if op.lhs is not op.rhs or dtype.is_float or dtype.is_complex:
        return None
    return [scope.splat(op.direction in ("EQ", "LE", "GE"), op.result.type)]


ELEMENTWISE: tuple[Callable[[ops.Elementwise, Scope], Sequence[Value] | None], ...] = (
    binary_literal, binary_same, divide_literal, unary_twice, select_known, select_nan,
    clamp_unbounded)
RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Elementwise: ELEMENTWISE,
    ops.Compare: (compare_pred, compare_same),
}

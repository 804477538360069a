"""Constants, element-wise kinds, comparison and conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import integers, special
from jaxmono.hlo.interp.core import Array, Context, Unsupported, implements
from jaxmono.hlo.interp.rng import threefry2x32
from jaxmono.hlo.types import FOUR_BITS, DType

Function = Callable[..., Any]


def _sign(x: Array) -> Any:
    if x.dtype.kind == "c":
        return np.where(x == 0, x, x / np.abs(x))
    if x.dtype.kind == "f":
        return np.where((x == 0) | np.isnan(x), x, np.sign(x))  # keeps -0 and NaN
    return np.sign(x)


def _round_away(x: Array) -> Any:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1, x), whole)


def _logistic(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _clamp(low: Array, x: Array, high: Array) -> Any:
    return np.minimum(np.maximum(low, x), high)


# Kinds with one meaning for all element types that they accept.
ANY: dict[str, Function] = {
    "abs": np.abs, "add": np.add, "clamp": _clamp, "maximum": np.maximum,
    "minimum": np.minimum, "multiply": np.multiply, "negate": np.negative,
    "select": np.where, "sign": _sign, "square": np.square, "subtract": np.subtract,
}
INTEGER: dict[str, Function] = {
    "and": np.bitwise_and, "count_leading_zeros": integers.count_leading_zeros,
    "divide": integers.divide, "not": np.invert, "or": np.bitwise_or,
    "popcnt": integers.popcnt, "power": integers.power, "remainder": integers.remainder,
    "shift_left": integers.shift_left,
    "shift_right_arithmetic": integers.shift_right_arithmetic,
    "shift_right_logical": integers.shift_right_logical, "xor": np.bitwise_xor,
    "threefry2x32_0": lambda *words: threefry2x32(*words)[0],
    "threefry2x32_1": lambda *words: threefry2x32(*words)[1],
    "threefry2x32_xor": lambda *words: np.bitwise_xor(*threefry2x32(*words)),
}
# Sums and products of predicates are or and and, as in XLA.
PRED: dict[str, Function] = {
    "add": np.logical_or, "and": np.logical_and, "maximum": np.logical_or,
    "minimum": np.logical_and, "multiply": np.logical_and, "not": np.logical_not,
    "or": np.logical_or, "select": np.where, "subtract": np.logical_xor,
    "xor": np.logical_xor,
}
# Real and complex.
INEXACT: dict[str, Function] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "conj": np.conj, "cosh": np.cosh,
    "cosine": np.cos, "divide": np.divide, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "imag": np.imag, "is_finite": np.isfinite,
    "log": np.log, "log_plus_one": np.log1p, "logistic": _logistic, "power": np.power,
    "real": np.real, "rsqrt": lambda x: 1 / np.sqrt(x), "sine": np.sin, "sinh": np.sinh,
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
}
FLOAT: dict[str, Function] = {
    "atan2": np.arctan2, "cbrt": np.cbrt, "ceil": np.ceil,
    "floor": np.floor, "is_inf": np.isinf,
    "is_neg_inf": np.isneginf, "is_pos_inf": np.isposinf, "remainder": np.fmod,
    "round_nearest_afz": _round_away, "round_nearest_even": np.rint,
}
# Computed in f64 whatever the mode.
SPECIAL: dict[str, Function] = {
    "bessel_i1e": special.bessel_i1e, "digamma": special.digamma, "erf": special.erf,
    "erf_inv": special.erf_inv, "erfc": special.erfc, "lgamma": special.lgamma,
    "polygamma": special.polygamma, "zeta": special.zeta,
}


def function(kind: str, dtype: DType) -> Function | None:
    """The NumPy meaning of an element-wise kind on operands of ``dtype``; None if it has none."""
    if dtype is DType.PRED:
        return PRED.get(kind)
    tables = [ANY]
    if dtype.is_integer:
        tables.append(INTEGER)
    if dtype.is_float:
        tables += [INEXACT, FLOAT]
    if dtype.is_complex:
        tables.append(INEXACT)
    return next((t[kind] for t in tables if kind in t), None)


def _join(re: Array, im: Array) -> Array:
    # re + 1j * im would turn an infinite part into NaN.
    out = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re, np.complex64))
    out.real, out.imag = re, im
    return out


@implements(ops.Constant)
def constant(op: ops.Constant, ctx: Context) -> Sequence[Any]:
    return [np.asarray(op.value)]


@implements(ops.Elementwise)
def elementwise(op: ops.Elementwise, ctx: Context) -> Sequence[Any]:
    # The element type that counts is that of the last operand: select's first is pred.
    dtype = op.args[-1].type.dtype
    if op.kind == "next_after":
        # Neighbours belong to the format, so this is done in the format itself in f64 mode too.
        a, b = (ctx.get(v).astype(dtype.numpy) for v in op.args)
        return [np.nextafter(a, b)]
    if op.kind == "complex":
        return [_join(*(ctx.wider(v) for v in op.args))]
    if op.kind in SPECIAL and dtype.is_float:
        return [SPECIAL[op.kind](*(ctx.get(v).astype(np.float64) for v in op.args))]
    f = function(op.kind, dtype)
    if f is None:
        raise Unsupported(f"the reference interpreter has no {op.kind} on {dtype.value} "
                          f"({op.loc})")
    return [f(*(ctx.wider(v) for v in op.args))]


def total_order_key(x: Array) -> Array:
    """Integers that order as the floats do, -NaN < -inf < ... < -0 < 0 < ... < NaN."""
    bits = x.view(f"i{x.dtype.itemsize}")
    return np.where(bits < 0, np.bitwise_xor(bits, np.iinfo(bits.dtype).max), bits)


COMPARE: dict[str, Function] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "GT": np.greater, "GE": np.greater_equal,
}


@implements(ops.Compare)
def compare(op: ops.Compare, ctx: Context) -> Sequence[Any]:
    lhs, rhs = ctx.get(op.lhs), ctx.get(op.rhs)
    if op.compare_type == "TOTALORDER" and op.lhs.type.dtype.is_float:
        lhs, rhs = total_order_key(lhs), total_order_key(rhs)
    elif op.lhs.type.dtype.is_float:
        lhs, rhs = ctx.wider(op.lhs), ctx.wider(op.rhs)
    return [COMPARE[op.direction](lhs, rhs)]


@implements(ops.Convert)
def convert(op: ops.Convert, ctx: Context) -> Sequence[Any]:
    source, target = op.operand.type.dtype, op.result.type.dtype
    x = ctx.get(op.operand)
    if source.is_complex and not target.is_complex:
        x = x.real
    if target is DType.PRED:
        return [x != 0]
    if target.is_integer and x.dtype.kind not in "iub":
        return [_float_to_integer(x.astype(np.float64), target)]
    return [x.astype(ctx.stored(target))]


def _float_to_integer(x: Array, target: DType) -> Array:
    """Truncates; clamps what is out of range; NaN gives 0."""
    info = np.iinfo(target.numpy)
    # NaN fails both comparisons. 2**63 - 1 is no float64: compare with the power of two, and
    # never cast what is beyond it.
    low, high = float(info.min), float(info.max) if info.max < 2**53 else float(info.max) + 1
    inside = np.where((x > low) & (x < high), x, 0.0).astype(target.numpy)
    out = np.where(x >= high, info.max, inside).astype(target.numpy)
    return np.where(x <= low, info.min, out).astype(target.numpy)


@implements(ops.BitcastConvert)
def bitcast_convert(op: ops.BitcastConvert, ctx: Context) -> Sequence[Any]:
    if {op.operand.type.dtype, op.result.type.dtype} & set(FOUR_BITS):
        raise Unsupported(f"the reference interpreter has no bitcast of 4 bits ({op.loc})")
    source, target = op.operand.type.dtype.numpy, op.result.type.dtype.numpy
    # Bits belong to the declared format, so f64 mode rounds to it first.
    x = np.array(ctx.get(op.operand), source, order="C")
    if target.itemsize == source.itemsize:
        return [x.view(target)]
    if target.itemsize < source.itemsize:
        return [x[..., None].view(target)]
    return [x.view(target)[..., 0]]


@implements(ops.ReducePrecision)
def reduce_precision(op: ops.ReducePrecision, ctx: Context) -> Sequence[Any]:
    x, own = ctx.get(op.operand).astype(np.float64), ml_dtypes.finfo(op.operand.type.dtype.numpy)
    # Round the significand to even at mantissa_bits; of fewer exponents, then flush and overflow.
    _, exponent = np.frexp(x)
    last = np.ldexp(1.0, np.maximum(exponent - 1, own.minexp) - op.mantissa_bits)
    out = np.rint(x / last) * last
    bias = 2 ** (min(op.exponent_bits, own.nexp) - 1) - 1
    largest = (2 - 2.0 ** -op.mantissa_bits) * 2.0 ** bias
    out = np.where(np.abs(out) > largest, np.copysign(np.inf, x), out)
    if op.exponent_bits < own.nexp:
        out = np.where(np.abs(out) < 2.0 ** (1 - bias), np.copysign(0.0, x), out)
    return [np.where(np.isfinite(x), out, x)]


@implements(ops.Stored)
def stored(op: ops.Stored, ctx: Context) -> Sequence[Any]:
    return [ctx.get(op.operand)]


@implements(ops.OptimizationBarrier)
def optimization_barrier(op: ops.OptimizationBarrier, ctx: Context) -> Sequence[Any]:
    return [ctx.get(v) for v in op.args]

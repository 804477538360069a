"""The C++ expression of one op on values in registers.

f16 and bf16 values are held as float and not rounded between the ops of one body: that is closer to
the true result than rounding every step, and no slower. They are rounded where they are stored,
where a convert in the program asks for it, and before ops at which a rounding error would jump
(comparisons, rounding to integers, bit casts). `Emitted.exact` says that a float already is a value
of its f16 or bf16 type.

8-bit floats are rounded by every op, as XLA does: they have so few digits, and overflow so early
(f8e4m3fn to NaN, above 448), that the result would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxmono.codegen.errors import CodegenError, refuse
from jaxmono.codegen.names import (
    compute,
    is_count,
    is_f8,
    is_generated,
    is_narrow,
    literal,
    literal_value,
    storage,
)
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class Emitted:
    """A value in C: a name or an expression without side effects.

    Attributes:
      vector: it is a Vec over the lanes; otherwise all lanes share this scalar.
      exact: no rounding to its dtype is pending (always so for types wider than 16 bits).
    """

    name: str
    vector: bool = False
    exact: bool = True

    def __str__(self) -> str:
        return self.name


# Results of these are f16/bf16 values whenever their operands are.
_KEEP = frozenset({"select", "maximum", "minimum", "clamp", "negate", "abs", "sign", "floor",
                   "ceil", "round_nearest_afz", "round_nearest_even", "next_after"})
# Have a cheaper form that is exact to well below an f16 or bf16 rounding (device/narrow.cuh).
_NARROW = frozenset({"divide", "erf", "erfc", "exponential", "log", "log_plus_one", "logistic",
                     "tanh"})
# What f32 values have instead that are rounded later (codegen/narrowed.py): right to 2^-17 of
# normal results, and subnormal ones are not lost.
_NARROWED = {"divide": "narrow_divide", "exponential": "narrowed_exponential"}
_FAR = 100
"""A literal between 2 to this and its reciprocal has a reciprocal that is neither subnormal nor
infinite."""
_NOT_GENERATED = frozenset({"complex", "real", "imag", "conj"})


def unsupported(op: Op) -> str:
    """Why there is no code for an elementwise-like op; empty if there is."""
    for v in (*op.inputs, *op.results):
        if not is_generated(v.type.dtype):
            return f"element type {v.type.dtype.value}"
    if isinstance(op, ops.Elementwise) and op.kind in _NOT_GENERATED:
        return "complex numbers"
    return ""


def expression(op: Op, args: Sequence[Emitted], rounded: Callable[[Emitted, DType], Emitted],
               narrowed: Callable[[Value], bool] = lambda v: False) -> Emitted:
    """The op applied to ``args``, as an unnamed expression.

    Args:
      rounded: names the value of an f16 or bf16 operand rounded to its type (itself if exact).
      narrowed: whether an f32 value is only seen rounded to 16 bits.

    Raises:
      CodegenError: for an op that is not computed element by element, or a type without code.
    """
    if reason := unsupported(op):
        raise refuse(op, reason)
    args = [rounded(a, v.type.dtype) if is_f8(v.type.dtype) else a
            for a, v in zip(args, op.inputs, strict=True)]
    vector = any(a.vector for a in args)
    p = "v_" if vector else "op_"
    if isinstance(op, ops.Elementwise):
        return _elementwise(op, args, rounded, narrowed, p, vector)
    if isinstance(op, ops.Compare):
        dtype = op.lhs.type.dtype
        a, b = (rounded(x, dtype) for x in args)
        direction = op.direction.lower()
        if op.compare_type == "TOTALORDER" and dtype.is_float:
            keys = [f"{'v_' if x.vector else 'op_'}total_order({_as_stored(x, dtype)})"
                    for x in (a, b)]
            return Emitted(f"{p}compare_{direction}({', '.join(keys)})", vector)
        return Emitted(f"{p}compare_{direction}({a}, {b})", vector)
    if isinstance(op, ops.Convert):
        return _convert(args[0], op.operand.type.dtype, op.result.type.dtype, rounded, vector)
    if isinstance(op, ops.BitcastConvert):
        return _bitcast(op, rounded(args[0], op.operand.type.dtype), vector)
    if isinstance(op, ops.ReducePrecision):
        dtype = op.result.type.dtype
        x = f"{p}reduce_precision({_as_stored(args[0], dtype)}, {op.exponent_bits}, " \
            f"{op.mantissa_bits})"
        return Emitted(f"convert<float>({x})" if is_narrow(dtype) else x, vector)
    raise refuse(op, "the op is not computed element by element")


def call(function: str, args: Sequence[Emitted], *constants: str) -> Emitted:
    """A function of several ops (whole.py), as an unnamed expression."""
    text = ", ".join((*(x.name for x in args), *constants))
    vector = any(x.vector for x in args)
    return Emitted(f"{'v_' if vector else 'op_'}{function}({text})", vector, exact=False)


def _elementwise(op: ops.Elementwise, args: Sequence[Emitted],
                 rounded: Callable[[Emitted, DType], Emitted], narrowed: Callable[[Value], bool],
                 p: str, vector: bool) -> Emitted:
    dtype = op.args[-1].type.dtype
    if op.kind in ops.DISCONTINUOUS or op.kind == "next_after":
        args = [rounded(a, dtype) for a in args]
    if op.kind == "next_after" and is_narrow(dtype):
        narrow = ", ".join(_as_stored(a, dtype) for a in args)
        return Emitted(f"convert<float>({p}next_after({narrow}))", vector)
    exact = not is_narrow(op.result.type.dtype) or (
        op.kind in _KEEP and all(a.exact for a in args))
    kind = op.kind
    if kind in _NARROW and is_narrow(op.result.type.dtype) and not op.accuracy:
        bf16 = kind == "log" and op.result.type.dtype is DType.BF16
        kind = f"bf16_{kind}" if bf16 else f"narrow_{kind}"
    elif kind in _NARROWED and not op.accuracy and narrowed(op.result):
        kind = _NARROWED[kind]
    if kind == "narrow_divide" and args[0].name == "1.0f":
        kind, args = "narrow_reciprocal", args[1:]
    elif op.kind == "divide" and (reciprocal := _reciprocal(op, args[1])):
        kind, args = "multiply", [args[0], Emitted(reciprocal)]
    elif op.kind in ("divide", "remainder") and is_count(args[1].name):
        kind = f"{kind}_by"
    if is_f8(op.result.type.dtype) and not exact:
        text = f"rounded<{storage(dtype)}>({p}{kind}({', '.join(a.name for a in args)}))"
        return Emitted(text, vector)
    return Emitted(f"{p}{kind}({', '.join(a.name for a in args)})", vector, exact)


def _reciprocal(op: ops.Elementwise, divisor: Emitted) -> str | None:
    """What a product has in place of a quotient by a literal: XLA's algebraic simplifier does so,
    too. A division proper takes 8 instructions and a branch (sm_90a)."""
    if op.accuracy or op.result.type.dtype not in (DType.F32, DType.F16, DType.BF16):
        return None
    c = literal_value(divisor.name)
    if c is None or not 2.0 ** -_FAR < abs(c) < 2.0 ** _FAR:
        return None
    return literal(np.float32(1) / np.float32(c), DType.F32)


def _convert(x: Emitted, source: DType, target: DType,
             rounded: Callable[[Emitted, DType], Emitted], vector: bool) -> Emitted:
    if source is target:
        return x
    if is_narrow(target):
        if (target is DType.F16 and source is DType.BF16) or is_f8(target):
            x = rounded(x, source)
        return Emitted(f"rounded<{storage(target)}>({x})", vector)
    if is_narrow(source):
        if target.is_float:
            return x if target is DType.F32 else Emitted(f"convert<double>({x})", vector)
        x = rounded(x, source)
    return Emitted(f"convert<{compute(target)}>({x})", vector)


def _bitcast(op: ops.BitcastConvert, x: Emitted, vector: bool) -> Emitted:
    source, target = op.operand.type.dtype, op.result.type.dtype
    if source.itemsize != target.itemsize:
        raise CodegenError(f"bitcast_convert ({op.loc}) changes the number of elements")
    text = f"bitcast<{storage(target)}>({_as_stored(x, source)})"
    return Emitted(f"convert<float>({text})" if is_narrow(target) else text, vector)


def _as_stored(x: Emitted, dtype: DType) -> str:
    """``x`` in the C type that memory has."""
    return f"convert<{storage(dtype)}>({x})" if is_narrow(dtype) else x.name

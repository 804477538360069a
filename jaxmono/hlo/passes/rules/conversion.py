"""Rules for convert, bitcast_convert and reduce_precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType

# Bits of exponent and of significand after the leading one.
FORMATS: dict[DType, tuple[int, int]] = {
    DType.F64: (11, 52), DType.F32: (8, 23), DType.F16: (5, 10), DType.BF16: (8, 7),
    DType.F8E4M3FN: (4, 3), DType.F8E5M2: (5, 2),
}


def lossless(a: DType, b: DType) -> bool:
    """Whether every value of ``a``, -0, infinities and NaN included, is one of ``b``."""
    if a is b:
        return True
    if a is DType.PRED:
        return b.is_integer or b.is_float
    if a.is_integer and b.is_integer:
        if a.is_unsigned:
            return b.bits > a.bits
        return b.is_signed and b.bits > a.bits
    if a.is_integer and b in FORMATS:
        digits = a.bits - a.is_signed
        return digits <= FORMATS[b][1] + 1 and digits <= 2 ** (FORMATS[b][0] - 1)
    if a in FORMATS and b in FORMATS:
        return FORMATS[a][0] <= FORMATS[b][0] and FORMATS[a][1] <= FORMATS[b][1]
    return False


def convert_same(op: ops.Convert, scope: Scope) -> Sequence[Value] | None:
    # convert[f32](x: f32)  =>  x
    return [op.operand] if op.operand.type == op.result.type else None


def convert_convert(op: ops.Convert, scope: Scope) -> Sequence[Value] | None:
    # convert[bf16](convert[f32](x: bf16))  =>  x
    # convert[f64](convert[f32](x: bf16))   =>  convert[f64](x)
    # only if the first conversion keeps every value, and the second means the same from x
    inner = scope.made_by(op.operand, ops.Convert)
    if inner is None:
        return None
    a, b, c = (v.type.dtype for v in (inner.operand, inner.result, op.result))
    if not lossless(a, b):
        return None
    if c is not a and not _same_meaning(a, b, c):
        return None
    return [scope.convert(inner.operand, c)]


def _same_meaning(a: DType, b: DType, c: DType) -> bool:
    """Whether a -> c is what a -> b -> c is, given that a -> b keeps the value."""
    if a is DType.PRED or c is DType.PRED:
        return True
    if a.is_integer and b.is_float:
        # Integers wrap into a narrower integer, floats are clamped.
        return c.is_float or lossless(a, c)
    return a.is_integer == b.is_integer


def bitcast_same(op: ops.BitcastConvert, scope: Scope) -> Sequence[Value] | None:
    # bitcast[u32](x: u32)                =>  x
    # bitcast[f32](bitcast[u32](x: f32))  =>  x
    x = op.operand
    inner = scope.made_by(x, ops.BitcastConvert)
    if inner is not None:
        x = inner.operand
        if x.type == op.result.type:
            return [x]
        sizes = {x.type.dtype.itemsize, op.operand.type.dtype.itemsize,
                 op.result.type.dtype.itemsize}
        if len(sizes) == 1:
            return [scope.emit1(ops.BitcastConvert, op.result.type, operand=x)]
    return [op.operand] if op.operand.type == op.result.type else None


def reduce_precision_none(op: ops.ReducePrecision, scope: Scope) -> Sequence[Value] | None:
    # reduce_precision[8, 23](x: f32)  =>  x
    exponent, mantissa = FORMATS.get(op.operand.type.dtype, (99, 99))
    keeps = op.exponent_bits >= exponent and op.mantissa_bits >= mantissa
    return [op.operand] if keeps else None


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Convert: (convert_same, convert_convert),
    ops.BitcastConvert: (bitcast_same,),
    ops.ReducePrecision: (reduce_precision_none,),
}

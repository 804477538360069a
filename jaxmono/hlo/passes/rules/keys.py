"""Keys in whose order, one after another, lie the elements of a line: by value, then by place.

    key = u64(ordered(value)) << 32 | ~place          no two are equal, none is 0

As many bits as two results of a reduce have, and its body is a single op: one that is split over
the multiprocessors (fusion/split_reduce.py), and needs one exchange a step between lanes.
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.types import DType, TensorType

FLOATS = (DType.F32, DType.BF16, DType.F16)
INTEGERS = (DType.S32, DType.S16, DType.S8, DType.U16, DType.U8)
_SIGN = 2**31


def keys_of(scope: Scope, x: Value, dimension: int) -> Value:
    """The keys of all elements of ``x``, with places along a dimension. Floats lie in their total
    order."""
    return keys_at(scope, x, scope.iota(x.type.dims, DType.U32, dimension))


def keys_at(scope: Scope, x: Value, place: Value) -> Value:
    """The keys of elements at these places, u32."""
    high = ordered(scope, x) if x.type.dtype in FLOATS else ordered_integer(scope, x)
    low = scope.elementwise("not", place)
    high = scope.convert(high, DType.U64)
    high = scope.elementwise("shift_left", high, scope.splat(32, high.type))
    return scope.elementwise("or", high, scope.convert(low, DType.U64))


def places(scope: Scope, keys: Value, dtype: DType) -> Value:
    """Of the elements that have these keys."""
    return scope.convert(scope.elementwise("not", scope.convert(keys, DType.U32)), dtype)


def values(scope: Scope, keys: Value, dtype: DType) -> Value:
    """The elements that have these keys."""
    high = scope.elementwise("shift_right_logical", keys, scope.splat(32, keys.type))
    high = scope.convert(high, DType.U32)
    if dtype in FLOATS:
        return float_of(scope, high, dtype)
    return scope.convert(_bits(scope, _signed(scope, high), DType.S32), dtype)


def ordered(scope: Scope, x: Value) -> Value:
    """u32 that lie as floats do in their total order."""
    bits = _float_bits(scope, x)
    negative = scope.compare("GE", bits, scope.splat(_SIGN, bits.type))
    return scope.elementwise("select", negative, scope.elementwise("not", bits),
                             _signed(scope, bits))


def ordered_integer(scope: Scope, x: Value) -> Value:
    """u32 that lie as integers do."""
    if x.type.dtype is DType.U32:
        return x
    return _signed(scope, _bits(scope, scope.convert(x, DType.S32)))


def float_of(scope: Scope, key: Value, dtype: DType) -> Value:
    """The floats that `ordered` has these for."""
    positive = scope.compare("GE", key, scope.splat(_SIGN, key.type))
    bits = scope.elementwise("select", positive, _signed(scope, key),
                             scope.elementwise("not", key))
    if dtype is DType.F32:
        return _bits(scope, bits, dtype)
    bits = scope.elementwise("shift_right_logical", bits, scope.splat(16, bits.type))
    return _bits(scope, scope.convert(bits, DType.U16), dtype)


def _float_bits(scope: Scope, x: Value) -> Value:
    """Those of 16 bits in the upper half, as they are: a conversion may turn a NaN's sign over."""
    if x.type.dtype is DType.F32:
        return _bits(scope, x)
    bits = scope.convert(_bits(scope, x, DType.U16), DType.U32)
    return scope.elementwise("shift_left", bits, scope.splat(16, bits.type))


def _bits(scope: Scope, v: Value, dtype: DType = DType.U32) -> Value:
    return scope.emit1(ops.BitcastConvert, TensorType(v.type.dims, dtype), operand=v)


def _signed(scope: Scope, v: Value) -> Value:
    """The sign turned over."""
    return scope.elementwise("xor", v, scope.splat(_SIGN, v.type))

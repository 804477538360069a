"""The k largest of a line as k rounds of a maximum, each of what is behind the one before.

    key = u64(ordered(value)) << 32 | ~place          no two are equal, none is 0
    m1 = max(key);  m2 = max(select(key < m1, key, 0));  m3 = max(select(key < m2, key, 0)) ...

The rounds of a line share its row, whose keys stay in registers. A long line is first one of many,
of which each finds its k largest:

    [b, 250000]  ->  [b, 245, 1024]  ->  k of each: [b, 245 k]  ->  k: [b, k]

As `jax.lax.top_k`, in the total order of floats: NaN, inf, ..., 0, -0, ..., -inf, -NaN; of equal
values the one in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType, TensorType

MOST = 16
"""Rounds. XLA's own kernel for large lines has as many."""

LINE, WHOLE = 1024, 4096
"""Elements of a part of a line; lines up to which are not taken apart."""

_FLOATS = (DType.F32, DType.BF16, DType.F16)
_INTEGERS = (DType.S32, DType.S16, DType.S8, DType.U16, DType.U8)
_SIGN = 2**31


def refusal(op: ops.TopK) -> str:
    """Why ``op`` stays as it is; empty if it is expanded."""
    t = op.operand.type
    if op.k > MOST:
        return f"only up to {MOST} largest are generated; {op.k} are found by sorting"
    if op.k == 0 or t.dtype not in (*_FLOATS, *_INTEGERS):
        return f"the {op.k} largest of {t} are not generated"
    return ""


def expanded(op: ops.TopK) -> int:
    """How many ops ``op`` becomes, about; 1 if it has a `refusal`, for parts that find as many as
    they have would never end."""
    if refusal(op):
        return 1
    levels, n = 1, op.operand.type.dims[-1]
    while n > WHOLE:
        levels, n = levels + 1, math.ceil(n / LINE) * op.k
    return levels * (5 * op.k + 4) + 24


def top_k(op: ops.TopK, scope: Scope) -> Sequence[Value] | None:
    """Any that has no `refusal`."""
    if refusal(op):
        return None
    *outer, n = op.operand.type.dims
    lines = math.prod(outer)
    keys = scope.reshape(_keys(scope, op.operand), (lines, n))
    while n > WHOLE:
        parts = math.ceil(n / LINE)
        none = scope.constant(0, DType.U64)
        keys = scope.pad(keys, none, (0, 0), (0, parts * LINE - n), (0, 0))
        keys = _rounds(scope, scope.reshape(keys, (lines, parts, LINE)), op.k)
        n = parts * op.k
        keys = scope.reshape(keys, (lines, n))
    keys = scope.reshape(_rounds(scope, keys, op.k), (*outer, op.k))
    return [_values(scope, keys, op.operand.type.dtype), _places(scope, keys)]


def _rounds(scope: Scope, keys: Value, k: int) -> Value:
    """The k largest along the last dimension, the largest first."""
    shape = keys.type.dims
    last = len(shape) - 1
    none = scope.constant(0, DType.U64)
    nothing = scope.splat(0, keys.type)
    found: list[Value] = []
    left = keys
    for _ in range(k):
        found.append(scope.reduce(left, none, "maximum", (last,)))
        behind = scope.compare("LT", keys, scope.broadcast_in_dim(found[-1], shape, range(last)))
        left = scope.elementwise("select", behind, keys, nothing)
    return scope.concatenate([scope.reshape(m, (*shape[:-1], 1)) for m in found], last)


def _keys(scope: Scope, x: Value) -> Value:
    """The keys of all elements of ``x``, of places along the last dimension."""
    shape = x.type.dims
    if x.type.dtype in _FLOATS:
        bits = _float_bits(scope, x)
        sign = scope.splat(_SIGN, bits.type)
        high = scope.elementwise("select", scope.compare("GE", bits, sign),
                                 scope.elementwise("not", bits), _signed(scope, bits))
    else:
        high = _signed(scope, _bits(scope, scope.convert(x, DType.S32)))
    low = scope.elementwise("not", scope.iota(shape, DType.U32, len(shape) - 1))
    high = scope.convert(high, DType.U64)
    high = scope.elementwise("shift_left", high, scope.splat(32, high.type))
    return scope.elementwise("or", high, scope.convert(low, DType.U64))


def _places(scope: Scope, keys: Value) -> Value:
    return scope.convert(scope.elementwise("not", scope.convert(keys, DType.U32)), DType.S32)


def _values(scope: Scope, keys: Value, dtype: DType) -> Value:
    high = scope.elementwise("shift_right_logical", keys, scope.splat(32, keys.type))
    high = scope.convert(high, DType.U32)
    if dtype not in _FLOATS:
        return scope.convert(_bits(scope, _signed(scope, high), DType.S32), dtype)
    positive = scope.compare("GE", high, scope.splat(_SIGN, high.type))
    bits = scope.elementwise("select", positive, _signed(scope, high),
                             scope.elementwise("not", high))
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


RULES: dict[type[Op], Sequence[Rule]] = {ops.TopK: (top_k,)}

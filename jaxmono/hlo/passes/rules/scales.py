"""Products of dequantised operands: scales go behind the product, bytes stay bytes.

    dot(x: bf16[m,k], convert(q: s8[k,n]) * broadcast(scale[n]))
      =>  convert(dot(x, convert(q)): f32 * broadcast(scale))

    dot(convert(p: s8[m,k]) * a, convert(q: s8[k,n]) * b)    of integers, or of 8-bit floats if
      =>  convert(dot(p, q): s32) * a * b                    the result has 16 bits

A product's own operand is then nothing but bytes, which it converts on the way: nobody writes and
reads the weights once more, in a wider type. Results differ from those of the operations as written
by roundings that are left out: of the scaled weights, and of sums of integers. They overflow where
those would not if sums of unscaled products do: of rows beyond 1e30. (XLA's GemmRewriter does the
same for 8-bit floats.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.contraction import free_dims
from jaxmono.hlo.types import FOUR_BITS, DType

INTEGERS = (DType.S8, DType.U8)
FLOATS = (DType.F8E4M3FN, DType.F8E5M2)
_WIDE = (DType.BF16, DType.F16, DType.F32)
_LARGEST = {DType.S8: 128, DType.U8: 255}


@dataclass(frozen=True)
class _Scale:
    """kind: "multiply" or "divide". dims: of the operand, that those of ``value`` are."""

    kind: str
    value: Value
    dims: tuple[int, ...]


def scaled_product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    """The product of bytes, or of converted bytes, with the scales behind it."""
    t = op.lhs.type.dtype
    if t is not op.rhs.type.dtype or t not in _WIDE or op.result.type.dtype not in _WIDE \
            or op.algorithm or not op.result.type.size:
        return None
    left = _bytes(op.lhs, op.lhs_contract, scope)
    right = _bytes(op.rhs, op.rhs_contract, scope)
    both = left is not None and right is not None and _multiplied(op, left[0], right[0])
    if not both and not (left and left[1]) and not (right and right[1]):
        return None
    x, y = ((v if found is None else found[0] if both else scope.convert(found[0], t))
            for v, found in ((op.lhs, left), (op.rhs, right)))
    wide = DType.S32 if both and x.type.dtype in INTEGERS else DType.F32
    out = scope.convert(scope.dot_general(
        x, y, batch=(op.lhs_batch, op.rhs_batch), contract=(op.lhs_contract, op.rhs_contract),
        dtype=wide, precision=op.precision), DType.F32)
    free = free_dims(op.lhs.type.rank, op.lhs_batch, op.lhs_contract)
    places = [*op.lhs_batch, *free], [
        *op.rhs_batch, *[-1] * len(free),
        *free_dims(op.rhs.type.rank, op.rhs_batch, op.rhs_contract)]
    for found, at in zip((left, right), places, strict=True):
        for s in found[1] if found else ():
            spread = scope.broadcast_in_dim(scope.convert(s.value, DType.F32), out.type.shape,
                                            [at.index(d) for d in s.dims])
            out = scope.elementwise(s.kind, out, spread)
    return [scope.convert(out, op.result.type.dtype)]


def _multiplied(op: ops.DotGeneral, left: Value, right: Value) -> bool:
    """Whether two operands of bytes are multiplied as such."""
    types = {left.type.dtype, right.type.dtype}
    if types <= set(FLOATS):  # sums of some 14 bits, of converted ones 24: enough for a bf16
        return op.precision == ("DEFAULT", "DEFAULT") and op.result.type.dtype.itemsize == 2
    k = 1
    for d in op.lhs_contract:
        k *= op.lhs.type.dims[d]
    largest = [_LARGEST.get(v.type.dtype, 0) for v in (left, right)]
    return types <= set(INTEGERS) and k * largest[0] * largest[1] < 1 << 31


def _bytes(v: Value, contracted: Sequence[int], scope: Scope,
           ) -> tuple[Value, tuple[_Scale, ...]] | None:
    """The bytes that ``v`` has been made of by conversions and scales; None if it has not."""
    scales: list[_Scale] = []
    while v.type.dtype in _WIDE:
        if (made := scope.made_by(v, ops.Convert)) is not None:
            v = made.operand
            continue
        scaled = scope.made_by(v, ops.Elementwise)
        found = None if scaled is None else _scale(scaled, contracted, scope)
        if found is None:
            return None
        v, scale = found
        scales.append(scale)
    return (v, tuple(scales)) if v.type.dtype in (*INTEGERS, *FOUR_BITS, *FLOATS) else None


def _scale(op: ops.Elementwise, contracted: Sequence[int], scope: Scope,
           ) -> tuple[Value, _Scale] | None:
    """What is scaled, and by what, which is the same for all summed elements."""
    if op.kind not in ("multiply", "divide"):
        return None
    sides = (op.args, op.args[::-1]) if op.kind == "multiply" else (op.args,)
    for v, by in sides:
        if (element := scope.element(by)) is not None:
            return v, _Scale(op.kind, scope.constant(element, by.type.dtype), ())
        spread = scope.made_by(by, ops.BroadcastInDim)
        if spread is None:
            continue
        one = [n == 1 for n in spread.operand.type.dims]
        dims = tuple(d for d, single in zip(spread.dimensions, one, strict=True) if not single)
        if set(dims) & set(contracted):
            continue
        kept = [n for n in spread.operand.type.dims if n != 1]
        return v, _Scale(op.kind, scope.reshape(spread.operand, kept), dims)
    return None


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.DotGeneral: (scaled_product,)}

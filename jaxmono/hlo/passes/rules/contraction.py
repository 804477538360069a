"""Rules for dot_general and reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.precision import algorithm_of
from jaxmono.hlo.types import DType


def free_dims(rank: int, batch: Sequence[int], contract: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if d not in batch and d not in contract]


def dot_transposed_operand(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(transpose[1,0](x), y, contract=1x0)  =>  dot(x, y, contract=0x0)
    # Batch and contracting dimensions are lists, so any order can be said; free dimensions
    # appear in operand order, so theirs must stay.
    lhs = _untransposed(op.lhs, op.lhs_batch, op.lhs_contract, scope)
    rhs = _untransposed(op.rhs, op.rhs_batch, op.rhs_contract, scope)
    if lhs is None and rhs is None:
        return None
    new_lhs, lhs_batch, lhs_contract = lhs or (op.lhs, op.lhs_batch, op.lhs_contract)
    new_rhs, rhs_batch, rhs_contract = rhs or (op.rhs, op.rhs_batch, op.rhs_contract)
    return [scope.dot_general(
        new_lhs, new_rhs, batch=(lhs_batch, rhs_batch), contract=(lhs_contract, rhs_contract),
        dtype=op.result.type.dtype, precision=op.precision, algorithm=op.algorithm)]


def _untransposed(v: Value, batch: Sequence[int], contract: Sequence[int],
                  scope: Scope) -> tuple[Value, Sequence[int], Sequence[int]] | None:
    inner = scope.made_by(v, ops.Transpose)
    if inner is None:
        return None
    p = inner.permutation
    free = [p[d] for d in free_dims(len(p), batch, contract)]
    if free != sorted(free):
        return None
    return inner.operand, [p[d] for d in batch], [p[d] for d in contract]


def transpose_dot(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[1,0](dot(x, y))  =>  dot(y, x)
    # when the result order is batch dimensions in any order, then each side's free dimensions
    inner = scope.made_by(op.operand, ops.DotGeneral)
    if inner is None:
        return None
    batch = len(inner.lhs_batch)
    middle = batch + len(free_dims(inner.lhs.type.rank, inner.lhs_batch, inner.lhs_contract))
    left, right = list(range(batch, middle)), list(range(middle, len(op.permutation)))
    order, rest = op.permutation[:batch], list(op.permutation[batch:])
    if sorted(order) != list(range(batch)):
        return None
    lhs_batch = [inner.lhs_batch[i] for i in order]
    rhs_batch = [inner.rhs_batch[i] for i in order]
    if rest == left + right:
        return [scope.dot_general(
            inner.lhs, inner.rhs, batch=(lhs_batch, rhs_batch),
            contract=(inner.lhs_contract, inner.rhs_contract), dtype=op.result.type.dtype,
            precision=inner.precision, algorithm=inner.algorithm)]
    # A named algorithm may treat the sides differently (precision is per operand and swaps). Pixels
    # of a convolution stay rows: only those are gathered.
    if rest == right + left and not inner.algorithm \
            and scope.made_by(inner.lhs, ops.Window) is None:
        return [scope.dot_general(
            inner.rhs, inner.lhs, batch=(rhs_batch, lhs_batch),
            contract=(inner.rhs_contract, inner.lhs_contract), dtype=op.result.type.dtype,
            precision=(inner.precision[1], inner.precision[0]))]
    return None


def dot_by_algorithm(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(x: f32, y: f32, algorithm BF16_BF16_F32)  =>  dot(bf16(x), bf16(y)) in f32
    # as XLA does (DotAlgorithmRewriter)
    asked = algorithm_of(op.algorithm)
    if not op.lhs.type.dtype is op.rhs.type.dtype is op.result.type.dtype is DType.F32 \
            or asked is None or not asked.rounds_to("bf16", "bf16"):
        return None
    left, right = (scope.convert(v, DType.BF16) for v in (op.lhs, op.rhs))
    return [scope.dot_general(
        left, right, batch=(op.lhs_batch, op.rhs_batch),
        contract=(op.lhs_contract, op.rhs_contract), dtype=op.result.type.dtype)]


def dot_scaled(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(2 x, y)  =>  2 dot(x, y)
    # of an input x, which is copied as it lies then. A power of two leaves the digits; of a factor
    # below one the sum might be infinite, which is finite so. f16 has few exponents. Other operands
    # are scaled where they are made.
    for side, v in (("lhs", op.lhs), ("rhs", op.rhs)):
        inner = scope.made_by(v, ops.Elementwise)
        dtype = v.type.dtype
        if inner is None or inner.kind != "multiply" or dtype not in (DType.F32, DType.BF16) \
                or dtype is not op.result.type.dtype:
            continue
        for x, c in (inner.args, inner.args[::-1]):
            element = scope.element(c)
            if element is None or x in scope.producers or not _is_upward(float(element)):
                continue
            operands = {"lhs": op.lhs, "rhs": op.rhs, side: x}
            made = scope.dot_general(
                operands["lhs"], operands["rhs"], batch=(op.lhs_batch, op.rhs_batch),
                contract=(op.lhs_contract, op.rhs_contract), dtype=op.result.type.dtype,
                precision=op.precision, algorithm=op.algorithm)
            return [scope.elementwise("multiply", made, scope.splat(element, made.type))]
    return None


def _is_upward(x: float) -> bool:
    """Whether a factor is a power of two above one."""
    return math.isfinite(x) and abs(math.frexp(x)[0]) == 0.5 and 1 < abs(x) <= 256


def dot_of_nothing(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(x: [4,0], y: [0,8])  =>  0
    if all(op.lhs.type.shape[d] != 0 for d in op.lhs_contract):
        return None
    return [scope.splat(0, op.result.type)]


def reduce_of_nothing(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    # reduce[1](x: [4,0], init)  =>  broadcast[4](init)
    if all(op.args[0].type.shape[d] != 0 for d in op.dimensions):
        return None
    return [scope.broadcast_in_dim(i, v.type.shape, ())
            for i, v in zip(op.inits, op.results, strict=True)]


def reduce_transposed(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    # reduce[1](transpose[1,0](x))  =>  reduce[0](x)
    # when the kept dimensions stay in order
    if len(op.args) != 1:
        return None
    inner = scope.made_by(op.args[0], ops.Transpose)
    if inner is None:
        return None
    p = inner.permutation
    kept = [p[d] for d in free_dims(len(p), (), op.dimensions)]
    if kept != sorted(kept):
        return None
    return scope.emit(ops.Reduce, op.result.type, args=(inner.operand,), inits=op.inits,
                      body=op.body, dimensions=tuple(sorted(p[d] for d in op.dimensions)))


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.DotGeneral: (dot_of_nothing, dot_by_algorithm, dot_transposed_operand, dot_scaled),
    ops.Transpose: (transpose_dot,),
    ops.Reduce: (reduce_of_nothing, reduce_transposed),
}

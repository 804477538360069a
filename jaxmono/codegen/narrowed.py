"""f32 values that are only seen rounded to 16 bits: their functions need few digits, and quotients
take them as they are.

    e = exponential(x)   f32 ──┬── s = reduce add(e)
                               └── divide(e, s) ── convert ── bf16     e, s and the quotient

What lies between keeps relative errors, or adds up a few: products of different values, quotients
and sums of what is never negative. A 49152 x 128 softmax of bf16 values is bound by its
instructions, 25 an element without this (sm_90a).

    s = reduce add(e)   f32 ── convert ── bf16 ── divide(e, s)   bf16     s is not rounded here

Ops of 16 bits compute in f32 and are rounded where they are stored (op_code.py). A conversion of
what many results share moves them all to one side: where a row has few different values, a bf16
softmax's error was 1.5 times XLA's on a GPU, whose results are those of a sum that is not rounded.
Only in front of quotients it is known to leave the conversion out; an f32 of what was converted has
the rounding.
"""

from __future__ import annotations

from jaxmono.codegen.names import is_narrow
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import binary_kind, is_splat, splat_value
from jaxmono.hlo.types import DType

_KEEPS_ERROR = frozenset({"multiply", "divide", "negate", "abs", "select"})
_POSITIVE = frozenset({"exponential", "logistic"})
_KEEPS_SIGN = frozenset({"add", "multiply", "divide"})
_VIEWS = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Slice)
_DEPTH = 8
"""Of ops between a value and its roundings: where they multiply it with itself again, every second
one may double the error, of 2^-18, to no more than 2^-14."""


def needs_no_rounding(body: Graph, op: ops.Convert, depth: int = _DEPTH) -> bool:
    """Whether an f32 value that ``op`` rounds is a reduce's, or was spread before, and is in
    quotients of 16 bits only."""
    t, made = op.result.type.dtype, body.producer.get(op.operand)
    spread = isinstance(made, ops.BroadcastInDim) and made.result.type.size > made.operand.type.size
    while isinstance(made, _VIEWS):
        made = body.producer.get(made.operand)
    return (spread or isinstance(made, ops.Reduce)) and t in (DType.BF16, DType.F16) \
        and op.operand.type.dtype is DType.F32 and bool(body.users.get(op.result)) \
        and _divides(body, op.result, depth)


def _divides(body: Graph, value: Value, depth: int) -> bool:
    if not depth:
        return False
    for user in body.users.get(value, ()):
        if isinstance(user, _VIEWS):
            if not _divides(body, user.results[0], depth - 1):
                return False
        elif not isinstance(user, ops.Elementwise) or user.kind != "divide":
            return False
    return True


def is_narrowed(body: Graph, value: Value, depth: int = _DEPTH) -> bool:
    """Whether all that leaves ``body`` of an f32 value is rounded to f16, bf16 or less."""
    users = body.users.get(value, ())
    if not users or not depth or value.type.dtype is not DType.F32 or value in body.outputs:
        return False
    return all(_narrows(body, value, u, depth) for u in users)


def _narrows(body: Graph, value: Value, user: Op, depth: int) -> bool:
    if isinstance(user, ops.Convert):
        return is_narrow(user.result.type.dtype)
    if isinstance(user, ops.Elementwise):
        keeps = user.args.count(value) == 1 and (user.kind in _KEEPS_ERROR or (
            user.kind == "add" and all(_is_positive(body, v, depth) for v in user.args)))
    elif isinstance(user, ops.Reduce):
        keeps = user.args == (value,) and binary_kind(user.body) == "add" \
            and all(_is_positive(body, v, depth) for v in (value, *user.inits))
    else:
        keeps = isinstance(user, _VIEWS)
    return keeps and is_narrowed(body, user.results[0], depth - 1)


def _is_positive(body: Graph, value: Value, depth: int) -> bool:
    """Whether a value is never negative; False where that is not easily seen."""
    op = body.producer.get(value)
    if isinstance(op, ops.Constant):
        return is_splat(op.value) and bool(splat_value(op.value) >= 0)
    if op is None or not depth:
        return False
    if isinstance(op, ops.Elementwise):
        return op.kind in _POSITIVE or (op.kind in _KEEPS_SIGN and all(
            _is_positive(body, v, depth - 1) for v in op.args))
    return isinstance(op, _VIEWS) and _is_positive(body, op.operand, depth - 1)

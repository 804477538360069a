"""Integers whose range answers a comparison, or leaves of a division a shift.

    i = iota(32) % 2;   i < 0        =>  false
    where(i < 0, i + 2, i)           =>  i

`jnp.remainder` asks whether a number is negative; of one that is computed of places and lengths the
answer is known. A compiler does not see it: the kernel's places are as signed as any other number,
and a remainder of eight takes it six instructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import DType

Range = tuple[int, int]

_DEPTH = 12
_TYPES = (DType.S8, DType.S16, DType.S32, DType.S64, DType.U8, DType.U16, DType.U32, DType.U64)
_UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)
_BOUNDED = frozenset({"and", "clamp", "divide", "maximum", "minimum", "remainder",
                      "shift_right_logical"})
"""Comparisons of places as they are stay: without those in front of a row of positions, whose rows
then were slices, BERT-base b1 took 1.01, 1.02 and 1.03 of its time on an H200, in three runs, for
no reason that its text shows (one of 85 stages does less)."""
_MOVES = (ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Slice, ops.Reverse)
_ANSWERS: Mapping[str, Callable[[Range, Range], bool | None]] = {
    "LT": lambda a, b: True if a[1] < b[0] else False if a[0] >= b[1] else None,
    "LE": lambda a, b: True if a[1] <= b[0] else False if a[0] > b[1] else None,
    "GT": lambda a, b: True if a[0] > b[1] else False if a[1] <= b[0] else None,
    "GE": lambda a, b: True if a[0] >= b[1] else False if a[1] < b[0] else None,
    "EQ": lambda a, b: False if a[1] < b[0] or a[0] > b[1] else None,
    "NE": lambda a, b: True if a[1] < b[0] or a[0] > b[1] else None,
}


def compare_ranges(op: ops.Compare, scope: Scope) -> Sequence[Value] | None:
    """``true`` or ``false`` where no element can compare otherwise, of what `_BOUNDED` made."""
    made = scope.made_by(op.lhs, ops.Elementwise)
    if op.lhs.type.dtype not in _TYPES or not (
            op.lhs.type.dtype in _UNSIGNED or (made is not None and made.kind in _BOUNDED)):
        return None
    known: dict[Value, Range] = {}
    a, b = (_bounds(v, scope, _DEPTH, known) for v in (op.lhs, op.rhs))
    answer = _ANSWERS[op.direction](a, b)
    return None if answer is None else [scope.splat(answer, op.result.type)]


def divide_small(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    """remainder(x, 8) => x & 7,   divide(x, 8) => x >> 3     where x is not negative; of fewer than
    8, remainder(x, 8) => x"""
    if op.kind not in ("remainder", "divide") or op.result.type.dtype not in _TYPES:
        return None
    x, by = op.args
    element = scope.element(by)
    n = 0 if element is None else int(element)
    least, most = _bounds(x, scope, _DEPTH, {})
    if n <= 0 or least < 0:
        return None
    if most < n:
        return [x if op.kind == "remainder" else scope.splat(0, x.type)]
    if n & (n - 1):
        return None
    if op.kind == "remainder":
        return [scope.elementwise("and", x, scope.splat(n - 1, x.type))]
    return [scope.elementwise("shift_right_logical", x, scope.splat(n.bit_length() - 1, x.type))]


def _bounds(v: Value, scope: Scope, depth: int, known: dict[Value, Range]) -> Range:
    """Least and largest integer that an element of ``v`` can be, of one of `_TYPES`.

    Args:
      depth: ops that are looked through. known: of values that have been looked at.
    """
    if v not in known:
        info = np.iinfo(v.type.dtype.numpy)
        least, most = int(info.min), int(info.max)
        made = scope.producers.get(v)
        found = None if made is None or not depth or not v.type.size else _computed(
            made, lambda u: _bounds(u, scope, depth - 1, known))
        # What leaves the type wraps around, or is another number.
        known[v] = found if found is not None and least <= found[0] and found[1] <= most \
            else (least, most)
    return known[v]


def _computed(made: Op, of: Callable[[Value], Range]) -> Range | None:
    """The range of an op's result, of those of its operands."""
    if isinstance(made, ops.Constant):
        return int(made.value.min()), int(made.value.max())
    if isinstance(made, ops.Iota):
        return 0, made.result.type.dims[made.dimension] - 1
    if isinstance(made, _MOVES):
        return of(made.operand)
    if isinstance(made, ops.Concatenate):
        return _either(*map(of, made.args))
    if isinstance(made, ops.Convert):
        return of(made.operand) if made.operand.type.dtype in _TYPES else None
    if isinstance(made, ops.Elementwise) and made.kind in _KINDS:
        return _KINDS[made.kind](*map(of, made.args[made.kind == "select":]))
    return None


def _either(*ranges: Range) -> Range:
    return min(a for a, _ in ranges), max(b for _, b in ranges)


def _products(a: Range, b: Range) -> Range:
    found = [x * y for x, y in itertools.product(a, b)]
    return min(found), max(found)


def _remainder(a: Range, b: Range) -> Range | None:
    """Has the sign of the dividend."""
    if b[0] <= 0:
        return None
    return (0 if a[0] >= 0 else max(a[0], 1 - b[1])), (0 if a[1] <= 0 else min(a[1], b[1] - 1))


def _quotient(a: Range, b: Range) -> Range | None:
    """Of what is not negative, by what is positive."""
    return (a[0] // b[1], a[1] // b[0]) if a[0] >= 0 and b[0] > 0 else None


def _and(a: Range, b: Range) -> Range | None:
    known = [x for x in (a, b) if x[0] >= 0]
    return (0, min(x[1] for x in known)) if known else None


def _shifted(a: Range, b: Range) -> Range | None:
    return (0, a[1]) if a[0] >= 0 and b[0] >= 0 else None


_KINDS: Mapping[str, Callable[..., Range | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "subtract": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "multiply": _products,
    "remainder": _remainder,
    "divide": _quotient,
    "and": _and,
    "shift_right_logical": _shifted,
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "clamp": lambda lo, x, hi: (min(max(lo[0], x[0]), hi[0]), min(max(lo[1], x[1]), hi[1])),
    "select": _either,
}

RULES: Mapping[type[Op], Sequence[Rule]] = {ops.Compare: (compare_ranges,),
                                            ops.Elementwise: (divide_small,)}

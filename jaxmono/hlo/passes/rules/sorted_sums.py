"""Sums of updates [b, t, w] by the line of each, of lines that are many and mostly without any.

    key = line + 1 << s | place                  one number for each update, all different
    rank[i] = sum_j (key[j] < key[i])            each with each; sorted[p] = the key of rank p
    sum[k, i] = sum_j>=i select(line[k, j] == line[k, i], update[k, j], 0)   in pieces k of 16
    first[k], last[k] = lines at the ends of k;  behind = the same of first[k] and sum[k, 0]
    sum[k, i] += behind[k + 1], where i's line is last[k] and first[k + 1]

Updates of a line lie behind each other once they are sorted: the sum from its first one on is that
of all. A line finds its first one by the pieces' first lines and the lines of one piece. All of it
in the same order on every run; what is not finite stays in its line.

A product of the matrix "same line" [t, t] by the updates takes t^2 multiplications a column in
place of 16 t additions, and as many twice for counts of what is not finite: with one 2048 updates
of 768 elements for 30522 lines took 133 us of an H100, this 87, and 128 updates 50 and 48.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.types import DType, TensorType

PIECE = 16
"""Updates that are summed together, by a thread for each of their elements."""
MOST_COMPARED, MOST_LOOKED_UP = 1 << 26, 1 << 25
"""Updates with each other; lines with updates, where that is more than a line's elements, which
are written in any case: some 0.1 ms of an H100 each. (4096 updates of 32000 lines of 2048 elements:
1 << 24 in 20 us, 1 << 23 in 20. The additions are 16 for each element that is read.)"""


@dataclass(frozen=True)
class _Sizes:
    """b, v, t: batches, lines, updates. ``pieces`` of `PIECE` updates are ``places``, t or more;
    ``shift``: bits of a place."""

    b: int
    v: int
    t: int

    @property
    def pieces(self) -> int:
        return math.ceil(self.t / PIECE)

    @property
    def places(self) -> int:
        return PIECE * self.pieces

    @property
    def shift(self) -> int:
        return (self.places - 1).bit_length()


def too_many(b: int, v: int, t: int, w: int) -> str:
    """Why the sums of so many are not made so; empty if they are."""
    n = _Sizes(b, v, t)
    if (v + 2) << n.shift > 1 << 31:
        return f"{t} updates of {v} lines have no keys of 32 bits"
    looked_up = n.pieces + PIECE
    if b * n.places ** 2 > MOST_COMPARED or (b * v * looked_up > MOST_LOOKED_UP
                                             and looked_up > w):
        return f"{t} updates of {v} lines of {w} elements are too many to be sorted and added up"
    return ""


def sums_by_line(line: Value, update: Value, v: int, scope: Scope) -> tuple[Value, Value]:
    """Of s32[b, t], -1 for none, and [b, t, w]: which of ``v`` lines have updates, pred[b, v], and
    the sums of those, f32[b, v, w]; of the others anything."""
    b, t, _ = update.type.dims
    n = _Sizes(b, v, t)
    lines, source = _sorted(n, line, scope)
    rows = rows_of(update, source, scope)
    total = _suffixes(scope.reshape(lines, (b, n.places)), scope.convert(rows, DType.F32), scope)
    at = _first_of(n, lines, scope)
    found = rows_of(scope.reshape(lines, (b, n.places, 1)), at, scope)
    has = scope.compare("EQ", scope.reshape(found, (b, v)), scope.iota((b, v), DType.S32, 1))
    return has, rows_of(total, at, scope)


def rows_of(x: Value, source: Value, scope: Scope) -> Value:
    """[b, n, w] of [b, t, w]: the rows that s32[b, n] tells."""
    (b, n), w = source.type.dims, x.type.dims[2]
    return scope.emit1(
        ops.Gather, TensorType((b, n, w), x.type.dtype), operand=x,
        start_indices=scope.reshape(source, (b, n, 1)), offset_dims=(2,),
        collapsed_slice_dims=(1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,),
        start_index_map=(1,), index_vector_dim=2, slice_sizes=(1, 1, w))


def _sorted(n: _Sizes, line: Value, scope: Scope) -> tuple[Value, Value]:
    """The lines in their order, s32[b, pieces, piece], and the place of the update of each,
    s32[b, places]. In front those of no line, -1; behind, what fills the last piece, v."""
    shape, each = (n.b, n.places), (n.b, n.places, n.places)
    line = scope.pad(line, scope.constant(n.v, DType.S32), (0, 0), (0, n.places - n.t), (0, 0))
    key = scope.elementwise("add", line, scope.splat(1, line.type))
    key = scope.elementwise("shift_left", key, scope.splat(n.shift, key.type))
    key = scope.elementwise("or", key, scope.iota(shape, DType.S32, 1))
    less = scope.compare("LT", scope.broadcast_in_dim(key, each, (0, 2)),
                         scope.broadcast_in_dim(key, each, (0, 1)))
    zero = scope.constant(0, DType.S32)
    rank = scope.reduce(scope.convert(less, DType.S32), zero, "add", (2,))
    mine = scope.compare("EQ", scope.broadcast_in_dim(rank, each, (0, 2)),
                         scope.iota(each, DType.S32, 1))
    keys = scope.elementwise("select", mine, scope.broadcast_in_dim(key, each, (0, 2)),
                             scope.splat(0, TensorType(each, DType.S32)))
    key = scope.reduce(keys, zero, "maximum", (2,))
    lines = scope.elementwise("shift_right_logical", key, scope.splat(n.shift, key.type))
    lines = scope.elementwise("subtract", lines, scope.splat(1, key.type))
    source = scope.elementwise("and", key, scope.splat((1 << n.shift) - 1, key.type))
    source = scope.elementwise("minimum", source, scope.splat(n.t - 1, key.type))
    return scope.reshape(lines, (n.b, n.pieces, PIECE)), source


def _suffixes(lines: Value, rows: Value, scope: Scope) -> Value:
    """f32[b, n, w]: of each of the sorted ``lines``, s32[b, n], the sum of the rows from there on
    that are of the same line; for its first one that of all. rows: f32[b, n, w]."""
    b, n, w = rows.type.dims
    pieces = math.ceil(n / PIECE)
    if n % PIECE and pieces > 1:
        more = (0, pieces * PIECE - n)
        lines = scope.pad(lines, scope.constant(-2, DType.S32), (0, 0), more, (0, 0))
        rows = scope.pad(rows, scope.constant(0, DType.F32), (0, 0, 0), (*more, 0), (0, 0, 0))
    piece = PIECE if pieces > 1 else n
    lines, rows = (scope.reshape(x, (b, pieces, piece, *x.type.dims[2:])) for x in (lines, rows))
    sums = _within(lines, rows, scope)
    if pieces > 1:
        first, last = (_at(lines, i, scope) for i in (0, piece - 1))
        behind = _suffixes(first, _at(sums, 0, scope), scope)
        goes_on = scope.compare("EQ", _next(first, scope), last)
        rest = scope.elementwise(
            "select", scope.broadcast_in_dim(goes_on, behind.type.dims, (0, 1)),
            _next(behind, scope), scope.splat(0, behind.type))
        is_last = scope.compare("EQ", lines, scope.broadcast_in_dim(last, lines.type.dims, (0, 1)))
        rest = scope.elementwise(
            "select", scope.broadcast_in_dim(is_last, sums.type.dims, (0, 1, 2)),
            scope.broadcast_in_dim(rest, sums.type.dims, (0, 1, 3)), scope.splat(0, sums.type))
        sums = scope.elementwise("add", sums, rest)
    sums = scope.reshape(sums, (b, pieces * piece, w))
    return scope.slice(sums, (0, 0, 0), (b, n, w))


def _within(lines: Value, rows: Value, scope: Scope) -> Value:
    """f32[b, k, i, w]: `_suffixes` within each piece, s32[b, k, i] and f32[b, k, i, w]; an op for
    each, whose loads do not wait for each other."""
    shape = rows.type.dims
    places = scope.iota(lines.type.dims, DType.S32, 2)
    total: Value | None = None
    for i in range(shape[2]):
        mine = scope.broadcast_in_dim(_at(lines, i, scope), lines.type.dims, (0, 1))
        hit = scope.elementwise(
            "and", scope.compare("EQ", lines, mine),
            scope.compare("LE", places, scope.splat(i, places.type)))
        x = scope.elementwise("select", scope.broadcast_in_dim(hit, shape, (0, 1, 2)),
                              scope.broadcast_in_dim(_at(rows, i, scope), shape, (0, 1, 3)),
                              scope.splat(0, rows.type))
        total = x if total is None else scope.elementwise("add", total, x)
    assert total is not None
    return total


def _at(x: Value, i: int, scope: Scope) -> Value:
    """x[:, :, i]"""
    b, k, _, *rest = x.type.dims
    none = [0] * len(rest)
    part = scope.slice(x, (0, 0, i, *none), (b, k, i + 1, *rest))
    return scope.reshape(part, (b, k, *rest))


def _next(x: Value, scope: Scope) -> Value:
    """x[:, k + 1] at k; behind the last piece a line that is none, or 0."""
    b, k, *rest = x.type.dims
    part = scope.slice(x, (0, 1, *([0] * len(rest))), (b, k, *rest))
    fill = scope.constant(0 if x.type.dtype.is_float else -2, x.type.dtype)
    none = [0] * x.type.rank
    return scope.pad(part, fill, none, [0, 1, *([0] * len(rest))], none)


def _first_of(n: _Sizes, lines: Value, scope: Scope) -> Value:
    """s32[b, v]: how many of the sorted updates are for lines in front; the last place at most."""
    zero = scope.constant(0, DType.S32)

    def in_front(x: Value) -> Value:
        """s32[b, v] of s32[b, v, some]: how many are less than the line."""
        mine = scope.iota(x.type.dims, DType.S32, 1)
        return scope.reduce(scope.convert(scope.compare("LT", x, mine), DType.S32), zero, "add",
                            (2,))

    before = in_front(scope.broadcast_in_dim(_at(lines, 0, scope), (n.b, n.v, n.pieces), (0, 2)))
    none = scope.compare("EQ", before, scope.splat(0, before.type))
    piece = scope.elementwise("subtract", before, scope.splat(1, before.type))
    piece = scope.elementwise("maximum", piece, scope.splat(0, piece.type))
    within = in_front(rows_of(lines, piece, scope))
    at = scope.elementwise("multiply", piece, scope.splat(PIECE, piece.type))
    at = scope.elementwise("add", at, within)
    at = scope.elementwise("select", none, scope.splat(0, at.type), at)
    return scope.elementwise("minimum", at, scope.splat(n.places - 1, at.type))

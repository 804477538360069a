"""`jax.lax.ragged_dot`: rows that lie group by group, times their group's matrix.

    sizes [g], x [m, k], w [g, k, n]           tiles of 128 rows that belong to one group
    tile t: group of t, first row of t          m / 128 + g of them at most
    y[t] = x[first[t] : first[t] + 128] @ w[group[t]]        a batched product: w is looked up by
    result[r] = y[tile of r, r - its first]                  each tile, where it lies

Rows of a tile behind its group's last one are multiplied, and not read. XLA multiplies all rows by
all matrices and masks: g times the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.sorted_sums import rows_of
from jaxmono.hlo.types import DType, TensorType

MOST_GROUPS = 256
"""Tiles and rows are compared with the ends of all."""

FEWEST, MOST = 8, 128
"""Rows of a tile."""


def refusal(op: ops.RaggedDot) -> str:
    """Why it stays with XLA; empty if it is expanded."""
    if not op.of_rows:
        return "a ragged product is generated of rows [m, k] and matrices [groups, k, n] alone"
    if op.rhs.type.dims[0] > MOST_GROUPS:
        return f"a ragged product of more than {MOST_GROUPS} groups is not generated"
    return ""


def ragged_dot(op: ops.RaggedDot, scope: Scope) -> Sequence[Value] | None:
    if refusal(op):
        return None
    if not op.lhs.type.size or not op.rhs.type.size:
        return [scope.splat(0, op.result.type)]
    m, k = op.lhs.type.dims
    g = op.rhs.type.dims[0]
    rows = max(FEWEST, min(MOST, 1 << max(m // g - 1, 0).bit_length()))
    filled = min(g, m)
    tiles = (m - filled) // rows + filled
    sizes = scope.convert(op.group_sizes, DType.S32)
    ends = _sums(sizes, scope)
    starts = scope.elementwise("subtract", ends, sizes)
    full = scope.elementwise("divide", scope.elementwise(
        "add", sizes, scope.splat(rows - 1, sizes.type)), scope.splat(rows, sizes.type))
    last = _sums(full, scope)
    first = scope.elementwise("subtract", last, full)

    group = _group(last, tiles, scope)
    at = scope.elementwise("subtract", scope.iota((tiles,), DType.S32, 0),
                           _looked_up(first, group, scope))
    at = scope.elementwise("multiply", at, scope.splat(rows, at.type))
    at = scope.elementwise("add", at, _looked_up(starts, group, scope))
    each = scope.elementwise("add", scope.broadcast_in_dim(at, (tiles, rows), (0,)),
                             scope.iota((tiles, rows), DType.S32, 1))
    each = scope.reshape(each, (1, tiles * rows))
    x = scope.reshape(rows_of(scope.reshape(op.lhs, (1, m, k)), each, scope), (tiles, rows, k))
    shape = op.rhs.type.dims
    w = scope.emit1(
        ops.Gather, TensorType((tiles, *shape[1:]), op.rhs.type.dtype), operand=op.rhs,
        start_indices=scope.reshape(group, (tiles, 1)), offset_dims=(1, 2),
        collapsed_slice_dims=(0,), operand_batching_dims=(), start_indices_batching_dims=(),
        start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, *shape[1:]))
    y = scope.dot_general(x, w, batch=((0,), (0,)), contract=((2,), op.rhs_contract),
                          dtype=op.result.type.dtype, precision=op.precision)
    n = y.type.dims[2]

    owner = _group(ends, m, scope)
    place = scope.elementwise("subtract", scope.iota((m,), DType.S32, 0),
                              _looked_up(starts, owner, scope))
    tile = scope.elementwise("multiply", _looked_up(first, owner, scope),
                             scope.splat(rows, place.type))
    # A tile's rows follow each other, and so do a group's tiles.
    place = scope.elementwise("add", place, tile)
    out = scope.reshape(rows_of(scope.reshape(y, (1, tiles * rows, n)),
                                scope.reshape(place, (1, m)), scope), (m, n))
    total = scope.reshape(scope.slice(ends, (g - 1,), (g,), (1,)), ())
    there = scope.compare("LT", scope.iota((m, n), DType.S32, 0),
                          scope.broadcast_in_dim(total, (m, n), ()))
    return [scope.elementwise("select", there, out, scope.splat(0, out.type))]


def _sums(x: Value, scope: Scope) -> Value:
    """Of each element and those before it, as one reduce: they are few."""
    (g,) = x.type.dims
    upto = scope.compare("LE", scope.iota((g, g), DType.S32, 1), scope.iota((g, g), DType.S32, 0))
    each = scope.broadcast_in_dim(x, (g, g), (1,))
    return scope.reduce(scope.elementwise("select", upto, each, scope.splat(0, each.type)),
                        scope.constant(0, DType.S32), "add", (1,))


def _group(ends: Value, count: int, scope: Scope) -> Value:
    """s32[count]: whose each place is; the last one's behind all."""
    (g,) = ends.type.dims
    each = (count, g)
    behind = scope.compare("LE", scope.broadcast_in_dim(ends, each, (1,)),
                           scope.iota(each, DType.S32, 0))
    number = scope.reduce(scope.convert(behind, DType.S32), scope.constant(0, DType.S32), "add",
                          (1,))
    return scope.elementwise("minimum", number, scope.splat(g - 1, number.type))


def _looked_up(x: Value, at: Value, scope: Scope) -> Value:
    """x[at], of s32[g] and s32[count]."""
    (g,), (count,) = x.type.dims, at.type.dims
    found = rows_of(scope.reshape(x, (1, g, 1)), scope.reshape(at, (1, count)), scope)
    return scope.reshape(found, (count,))


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.RaggedDot: (ragged_dot,)}

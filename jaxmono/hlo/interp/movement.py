"""Ops that only move elements, with static indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Array, Context, implements


@implements(ops.Iota)
def iota(op: ops.Iota, ctx: Context) -> Sequence[Any]:
    shape, dtype = op.result.type.dims, ctx.stored(op.result.type.dtype)
    line_shape = [1] * len(shape)
    line_shape[op.dimension] = shape[op.dimension]
    # Through int64: ml_dtypes has no arange, and small integer types wrap as XLA's do.
    line = np.arange(shape[op.dimension], dtype=np.int64).astype(dtype).reshape(line_shape)
    return [np.broadcast_to(line, shape)]


@implements(ops.BroadcastInDim)
def broadcast_in_dim(op: ops.BroadcastInDim, ctx: Context) -> Sequence[Any]:
    x, shape = ctx.get(op.operand), op.result.type.dims
    order = sorted(range(x.ndim), key=lambda i: op.dimensions[i])
    aligned = [1] * len(shape)
    for i in order:
        aligned[op.dimensions[i]] = x.shape[i]
    return [np.broadcast_to(x.transpose(order).reshape(aligned), shape)]


@implements(ops.Reshape)
def reshape(op: ops.Reshape, ctx: Context) -> Sequence[Any]:
    return [ctx.get(op.operand).reshape(op.result.type.dims)]


@implements(ops.Transpose)
def transpose(op: ops.Transpose, ctx: Context) -> Sequence[Any]:
    return [ctx.get(op.operand).transpose(op.permutation)]


@implements(ops.Slice)
def slice_(op: ops.Slice, ctx: Context) -> Sequence[Any]:
    index = tuple(map(slice, op.start_indices, op.limit_indices, op.strides))
    return [ctx.get(op.operand)[index]]


@implements(ops.Pad)
def pad(op: ops.Pad, ctx: Context) -> Sequence[Any]:
    return [padded(ctx.get(op.operand), ctx.get(op.padding_value), op.low, op.high,
                   op.interior)]


def padded(x: Array, value: Any, low: Sequence[int], high: Sequence[int],
           interior: Sequence[int]) -> Array:
    """StableHLO pad: ``interior`` elements between neighbours, then edges; negative ones crop."""
    spread = [max(0, (n - 1) * (i + 1) + 1) if n else 0
              for n, i in zip(x.shape, interior, strict=True)]
    shape = [max(0, lo + n + hi) for lo, n, hi in zip(low, spread, high, strict=True)]
    out = np.full(shape, value, x.dtype)
    source: list[slice] = []
    target: list[slice] = []
    for n, lo, i, size in zip(x.shape, low, interior, shape, strict=True):
        step = i + 1
        # Element k lands at lo + k * step; keep those within [0, size).
        first = max(0, -(lo // step))
        count = max(0, min(n, -((lo - size) // step)) - first)
        start = lo + first * step
        source.append(slice(first, first + count))
        target.append(slice(start, start + (count - 1) * step + 1 if count else start, step))
    out[tuple(target)] = x[tuple(source)]
    return out


@implements(ops.Concatenate)
def concatenate(op: ops.Concatenate, ctx: Context) -> Sequence[Any]:
    return [np.concatenate([ctx.get(v) for v in op.args], axis=op.dimension)]


@implements(ops.Stacked)
def stacked(op: ops.Stacked, ctx: Context) -> Sequence[Any]:
    pieces = [ctx.get(v).reshape(-1) for v in op.args]
    return [np.concatenate(pieces).reshape(op.result.type.dims)]


@implements(ops.Piece)
def piece(op: ops.Piece, ctx: Context) -> Sequence[Any]:
    t = op.result.type
    return [ctx.get(op.operand).reshape(-1, t.size)[op.index].reshape(t.dims)]


@implements(ops.Reverse)
def reverse(op: ops.Reverse, ctx: Context) -> Sequence[Any]:
    return [np.flip(ctx.get(op.operand), op.dimensions)]

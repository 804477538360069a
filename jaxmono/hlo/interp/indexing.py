"""Ops whose indices are values: dynamic_slice, dynamic_update_slice, gather, scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Array, Context, implements
from jaxmono.hlo.interp.scattering import scatter_into
from jaxmono.hlo.ir import Value


def _clamped_window(ctx: Context, starts: Sequence[Value], shape: Sequence[int],
                    sizes: Sequence[int]) -> tuple[slice, ...]:
    out: list[slice] = []
    for v, n, size in zip(starts, shape, sizes, strict=True):
        start = min(max(int(ctx.get(v)), 0), n - size)
        out.append(slice(start, start + size))
    return tuple(out)


@implements(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, ctx: Context) -> Sequence[Any]:
    x = ctx.get(op.operand)
    return [x[_clamped_window(ctx, op.start_indices, x.shape, op.slice_sizes)]]


@implements(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, ctx: Context) -> Sequence[Any]:
    x, update = ctx.get(op.operand).copy(), ctx.get(op.update)
    x[_clamped_window(ctx, op.start_indices, x.shape, update.shape)] = update
    return [x]


UFUNCS: Mapping[str, np.ufunc] = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
"""Of `ops.ACCUMULATED`."""


@implements(ops.Accumulate)
def accumulate(op: ops.Accumulate, ctx: Context) -> Sequence[Any]:
    dtype = op.operand.type.dtype
    out = ctx.get(op.operand).astype(ctx.compute(dtype))
    lines, update = ctx.get(op.lines), ctx.get(op.update).astype(out.dtype, copy=False)
    there = lines >= 0
    UFUNCS[op.kind].at(out, lines[there], update[there])
    return [out.astype(ctx.stored(dtype), copy=False)]


def _index_vectors(indices: Array, index_vector_dim: int) -> Array:
    """int64 indices of shape (*batch, vector)."""
    # uint64 beyond int64 is out of range either way; saturate so that it stays so.
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    wide = indices.astype(np.int64)
    if index_vector_dim == indices.ndim:
        return wide[..., None]
    return np.moveaxis(wide, index_vector_dim, -1)


def _batch_index(batch: Sequence[int], dim: int, index_vector_dim: int) -> Array:
    """Positions along one batch dimension of the start indices, broadcastable over ``batch``."""
    axis = dim if dim < index_vector_dim else dim - 1
    shape = [1] * len(batch)
    shape[axis] = batch[axis]
    return np.arange(batch[axis]).reshape(shape)


@implements(ops.Gather)
def gather(op: ops.Gather, ctx: Context) -> Sequence[Any]:
    x = ctx.get(op.operand)
    vectors = _index_vectors(ctx.get(op.start_indices), op.index_vector_dim)
    batch = vectors.shape[:-1]
    if not op.result.type.size:
        return [np.empty(op.result.type.dims, x.dtype)]
    dropped = {*op.collapsed_slice_dims, *op.operand_batching_dims}
    # Per operand dimension its start, over batch; None where the slice begins at zero.
    starts: dict[int, Array] = {}
    for k, d in enumerate(op.start_index_map):
        starts[d] = np.clip(vectors[..., k], 0, x.shape[d] - op.slice_sizes[d])
    for d, b in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
        starts[d] = np.broadcast_to(_batch_index(batch, b, op.index_vector_dim), batch)
    indexed = sorted(starts)
    plain = [d for d in range(x.ndim) if d not in starts]
    x = x[tuple(slice(0, None if d in starts else op.slice_sizes[d]) for d in range(x.ndim))]
    x = x.transpose(*indexed, *plain)
    # Advanced indices of shape (*batch, *windows of the indexed dimensions).
    window = [op.slice_sizes[d] for d in indexed]
    index: list[Array] = []
    for i, d in enumerate(indexed):
        steps = np.arange(window[i]).reshape([-1 if j == i else 1 for j in range(len(window))])
        index.append(starts[d].reshape([*batch, *[1] * len(window)]) + steps)
    rows = x[tuple(np.broadcast_arrays(*index))] if index else np.broadcast_to(
        x, (*batch, *x.shape))
    # rows is (*batch, *indexed windows, *plain); offsets follow operand order.
    position = {d: len(batch) + i for i, d in enumerate(indexed + plain)}
    rest = [position[d] for d in sorted(position) if d not in dropped]
    squeezed = [position[d] for d in sorted(dropped)]
    result_rank = len(batch) + len(rest)
    in_order = rows.transpose(*range(len(batch)), *rest, *squeezed)
    in_order = in_order.reshape(in_order.shape[:result_rank])
    batch_dims = [d for d in range(result_rank) if d not in op.offset_dims]
    return [in_order.transpose(np.argsort([*batch_dims, *op.offset_dims]))]


@implements(ops.Scatter)
def scatter(op: ops.Scatter, ctx: Context) -> Sequence[Any]:
    targets = [ctx.get(v) for v in op.args]
    updates = [ctx.get(v) for v in op.updates]
    shape, rank = targets[0].shape, targets[0].ndim
    vectors = _index_vectors(ctx.get(op.scatter_indices), op.index_vector_dim)
    batch = vectors.shape[:-1]
    # Updates as (*batch, *window), the window over operand dimensions that are not inserted.
    window_dims = [d for d in range(rank)
                   if d not in op.inserted_window_dims and d not in op.input_batching_dims]
    update_batch = [d for d in range(updates[0].ndim) if d not in op.update_window_dims]
    arranged = [u.transpose(*update_batch, *op.update_window_dims) for u in updates]
    sizes = dict(zip(window_dims, arranged[0].shape[len(batch):], strict=True))
    starts = {d: np.zeros(batch, np.int64) for d in range(rank)}
    for k, d in enumerate(op.scatter_dims_to_operand_dims):
        starts[d] = vectors[..., k]
    for d, b in zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True):
        starts[d] = np.broadcast_to(_batch_index(batch, b, op.index_vector_dim), batch)
    # A window that does not fit is dropped as a whole.
    fits = np.ones(batch, np.bool_)
    for d in range(rank):
        fits &= (starts[d] >= 0) & (starts[d] <= shape[d] - sizes.get(d, 1))
    flat = np.zeros((*batch, *[sizes[d] for d in window_dims]), np.int64)
    stride = 1
    for d in reversed(range(rank)):
        place = starts[d].reshape([*batch, *[1] * len(window_dims)])
        if d in sizes:
            axis = window_dims.index(d)
            place = place + np.arange(sizes[d]).reshape(
                [-1 if j == axis else 1 for j in range(len(window_dims))])
        # Dropped windows may be far out of range; their product must not overflow.
        flat += np.where(fits.reshape([*batch, *[1] * len(window_dims)]), place, 0) * stride
        stride *= shape[d]
    out = scatter_into(op.body, ctx, [t.reshape(-1) for t in targets], flat[fits].reshape(-1),
                       [a[fits].reshape(-1) for a in arranged])
    return [o.reshape(shape) for o in out]

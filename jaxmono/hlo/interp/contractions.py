"""dot_general and convolution, both as batched matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Array, Context, Unsupported, implements
from jaxmono.hlo.interp.movement import padded
from jaxmono.hlo.interp.reductions import windows
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType


def _product_dtype(ctx: Context, lhs: Value, rhs: Value, result: Value) -> np.dtype[Any]:
    """Where the products and sums are computed: the widest of operands and result."""
    if result.type.dtype is DType.PRED:
        return np.dtype(np.int64)
    if result.type.dtype.is_integer:
        return result.type.dtype.numpy
    return np.result_type(*(ctx.compute(v.type.dtype) for v in (lhs, rhs, result)))


@implements(ops.DotGeneral)
def dot_general(op: ops.DotGeneral, ctx: Context) -> Sequence[Any]:
    dtype = _product_dtype(ctx, op.lhs, op.rhs, op.result)

    def arranged(v: Value, batch: Sequence[int], contract: Sequence[int],
                 contract_first: bool) -> tuple[Array, list[int]]:
        x = ctx.get(v).astype(dtype, copy=False)
        free = [d for d in range(x.ndim) if d not in batch and d not in contract]
        groups = [list(contract), free] if contract_first else [free, list(contract)]
        shape = [math.prod(x.shape[d] for d in g) for g in (list(batch), *groups)]
        return x.transpose(*batch, *groups[0], *groups[1]).reshape(shape), \
            [x.shape[d] for d in free]

    lhs, lhs_free = arranged(op.lhs, op.lhs_batch, op.lhs_contract, False)
    rhs, rhs_free = arranged(op.rhs, op.rhs_batch, op.rhs_contract, True)
    batch = [op.lhs.type.dims[d] for d in op.lhs_batch]
    out = np.matmul(lhs, rhs).reshape([*batch, *lhs_free, *rhs_free])
    return [out != 0 if op.result.type.dtype is DType.PRED else out]


@implements(ops.RaggedDot)
def ragged_dot(op: ops.RaggedDot, ctx: Context) -> Sequence[Any]:
    if not op.of_rows:
        raise Unsupported("the reference interpreter knows ragged rows alone")
    dtype = _product_dtype(ctx, op.lhs, op.rhs, op.result)
    x, w = (ctx.get(v).astype(dtype, copy=False) for v in (op.lhs, op.rhs))
    w = w if op.rhs_contract == (1,) else w.transpose(0, 2, 1)
    out, first = np.zeros(op.result.type.dims, dtype), 0
    for g, size in enumerate(ctx.get(op.group_sizes).tolist()):
        out[first:first + size] = x[first:first + size] @ w[g]
        first += size
    return [out]


@implements(ops.Convolution)
def convolution(op: ops.Convolution, ctx: Context) -> Sequence[Any]:
    dtype = _product_dtype(ctx, op.lhs, op.rhs, op.result)
    x, k = (ctx.get(v).astype(dtype, copy=False) for v in (op.lhs, op.rhs))
    x = x.transpose(op.input_batch, op.input_feature, *op.input_spatial)
    k = k.transpose(op.kernel_output_feature, op.kernel_input_feature, *op.kernel_spatial)
    spatial = k.shape[2:]
    rank = len(spatial)
    k = np.flip(k, tuple(i + 2 for i, r in enumerate(op.window_reversal) if r))
    x = padded(x, np.zeros((), dtype), [0, 0, *(p[0] for p in op.padding)],
               [0, 0, *(p[1] for p in op.padding)], [0, 0, *(d - 1 for d in op.lhs_dilation)])
    counts = [op.result.type.dims[d] for d in op.output_spatial]
    # Batch groups: the outputs of group g come from the g-th part of the batch.
    groups = op.feature_group_count * op.batch_group_count
    n, f = x.shape[0] // op.batch_group_count, x.shape[1] // op.feature_group_count
    x = x.reshape(op.batch_group_count, n, op.feature_group_count, f, *x.shape[2:])
    x = x.transpose(0, 2, 1, 3, *range(4, 4 + rank)).reshape(groups, n, f, *x.shape[4:])
    ones = [1, 1, 1]
    view = windows(x, [*ones, *spatial], [*ones, *op.window_strides],
                   [*ones, *op.rhs_dilation], [groups, n, f, *counts])
    view = view.reshape(groups, n, f, *counts, *spatial)
    # (group, n, outputs..., f, taps...) x (group, f, taps..., features of the group)
    columns = view.transpose(0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    taps = f * math.prod(spatial)
    columns = columns.reshape(groups, n * math.prod(counts), taps)
    features = k.shape[0] // groups
    kernel = k.reshape(groups, features, taps).transpose(0, 2, 1)
    out = np.matmul(columns, kernel).reshape(groups, n, *counts, features)
    # To (n, groups * features, spatial...), then to the layout that the op asks.
    out = out.transpose(1, 0, 2 + rank, *range(2, 2 + rank))
    out = out.reshape(n, groups * features, *counts)
    order = [op.output_batch, op.output_feature, *op.output_spatial]
    return [out.transpose(np.argsort(order))]

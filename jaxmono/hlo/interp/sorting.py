"""sort with any comparator, and top_k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Array, Context, implements
from jaxmono.hlo.interp.elementwise import total_order_key
from jaxmono.hlo.ir import Graph


@implements(ops.Sort)
def sort(op: ops.Sort, ctx: Context) -> Sequence[Any]:
    arrays = [np.moveaxis(ctx.get(v), op.dimension, 0) for v in op.args]
    order = sorting_order(op.comparator, ctx, arrays)
    return [np.moveaxis(np.take_along_axis(a, order, 0), 0, op.dimension) for a in arrays]


def sorting_order(comparator: Graph, ctx: Context, arrays: Sequence[Array]) -> Array:
    """The stable sorting permutation along axis 0, as int64 of the arrays' shape.

    Batcher's odd-even merge network runs the comparator on whole slices, in log2(n)^2 / 2
    steps. The network alone is not stable, so equal elements compare by position; positions
    beyond n pad to a power of two and sort last.
    """
    n, rest = arrays[0].shape[0], arrays[0].shape[1:]
    size = 1 << max(0, n - 1).bit_length()
    order = np.broadcast_to(np.arange(size).reshape(-1, *[1] * len(rest)), (size, *rest)).copy()
    if not order.size or n == 0:
        return order[:n]

    def before(a: Array, b: Array) -> Array:
        left = [np.take_along_axis(x, np.minimum(a, n - 1), 0) for x in arrays]
        right = [np.take_along_axis(x, np.minimum(b, n - 1), 0) for x in arrays]
        # The comparator takes (a0, b0, a1, b1, ...).
        forward = [x for pair in zip(left, right, strict=True) for x in pair]
        backward = [x for pair in zip(right, left, strict=True) for x in pair]
        (less,) = ctx.run_lifted(comparator, forward)
        (greater,) = ctx.run_lifted(comparator, backward)
        tie = ~less & ~greater & (a < b)
        return np.where((a >= n) | (b >= n), a < b, less | tie)

    p = 1
    while p < size:
        k = p
        while k >= 1:
            # Knuth's algorithm M (5.2.2): compare i with i + k where both lie in one 2p block.
            base = np.arange(k % p, size - k, 2 * k)
            i = (base[:, None] + np.arange(k)).reshape(-1)
            i = i[(i + k < size)]
            i = i[i // (2 * p) == (i + k) // (2 * p)]
            a, b = order[i], order[i + k]
            keep = before(a, b)
            order[i], order[i + k] = np.where(keep, a, b), np.where(keep, b, a)
            k //= 2
        p *= 2
    return order[:n]


@implements(ops.TopK)
def top_k(op: ops.TopK, ctx: Context) -> Sequence[Any]:
    x = ctx.get(op.operand)
    key = x if x.dtype.kind in "iub" else total_order_key(x)
    # Descending and stable: an ascending stable sort of the reversed line, reversed.
    ascending = np.argsort(key[..., ::-1], axis=-1, kind="stable")
    order = (x.shape[-1] - 1 - ascending)[..., ::-1]
    order = order[..., :op.k]
    return [np.take_along_axis(x, order, -1), order]

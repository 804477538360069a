"""Folding arrays with a region: single-op reducers as NumPy ufuncs, the others as a tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmono.hlo.interp.core import Array, Context
from jaxmono.hlo.interp.elementwise import function
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.rewrite import binary_kind

MONOIDS = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "xor"})


def monoid(body: Graph) -> np.ufunc | None:
    """The ufunc of a region that is one associative, commutative op of its two inputs."""
    kind = binary_kind(body)
    if kind is None or kind not in MONOIDS:
        return None
    f = function(kind, body.outputs[0].type.dtype)
    return f if isinstance(f, np.ufunc) else None


def fold(body: Graph, ctx: Context, arrays: Sequence[Array],
         inits: Sequence[Array]) -> list[Array]:
    """Reduces the leading axis of each array with ``body``, beginning with ``inits``.

    Args:
      body: takes (accumulators..., elements...) and returns accumulators.
      arrays: one per accumulator, all of shape (n, ...).
      inits: scalars, or arrays of the result's shape.

    Returns:
      Arrays of the shape without its leading axis, in the stored dtype of the accumulators.
    """
    dtypes = [v.type.dtype for v in body.outputs]
    shape = arrays[0].shape[1:]
    ufunc = monoid(body)
    if ufunc is not None:
        compute = ctx.compute(dtypes[0])
        total = ufunc.reduce(arrays[0].astype(compute, copy=False), axis=0, dtype=compute) \
            if arrays[0].shape[0] else None
        start = np.broadcast_to(inits[0].astype(compute), shape)
        out = start if total is None else ufunc(start, total)
        return [np.asarray(out).astype(ctx.stored(dtypes[0]), copy=False)]
    # Neighbours are combined pairwise, which keeps their order and needs log2(n) steps. A last
    # odd one waits for the next level.
    level = list(arrays)
    while level[0].shape[0] > 1:
        n = level[0].shape[0]
        pairs = n // 2 * 2
        folded = ctx.run_lifted(body, [a[0:pairs:2] for a in level]
                                + [a[1:pairs:2] for a in level])
        level = [np.concatenate([f, a[pairs:]]) for f, a in zip(folded, level, strict=True)]
    starts = [np.broadcast_to(i, shape) for i in inits]
    if not level[0].shape[0]:
        return starts
    return ctx.run_lifted(body, [*starts, *(a[0] for a in level)])

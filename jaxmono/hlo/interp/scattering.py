"""Combining updates into flat arrays at repeated indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxmono.hlo.interp.core import Array, Context
from jaxmono.hlo.interp.monoids import monoid
from jaxmono.hlo.ir import Graph


def scatter_into(body: Graph, ctx: Context, targets: Sequence[Array], index: Array,
                 updates: Sequence[Array]) -> list[Array]:
    """``target[index[i]] = body(target[index[i]], update[i])`` for i in order.

    Args:
      body: takes (current..., update...) scalars and returns the new ones.
      targets: flat arrays of equal length; they are not changed.
      index: flat, each within the targets, any repetition.
      updates: flat arrays, as long as ``index``.
    """
    ufunc = monoid(body)
    if ufunc is not None:
        dtype = body.outputs[0].type.dtype
        out = targets[0].astype(ctx.compute(dtype))
        ufunc.at(out, index, updates[0].astype(out.dtype, copy=False))
        return [out.astype(ctx.stored(dtype), copy=False)]
    # The k-th updates of all indices are independent of each other: one round per k.
    results = [t.copy() for t in targets]
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if index.size else order
    repeats = np.diff(np.r_[starts, index.size])
    occurrence = np.arange(index.size) - np.repeat(starts, repeats)
    for k in range(int(occurrence.max(initial=-1)) + 1):
        turn = order[occurrence == k]
        at = index[turn]
        new = ctx.run_lifted(body, [r[at] for r in results] + [u[turn] for u in updates])
        for r, n in zip(results, new, strict=True):
            r[at] = n
    return results

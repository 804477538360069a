"""reduce, window, reduce_window, scan, select_and_scatter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Array, Context, implements
from jaxmono.hlo.interp.elementwise import function
from jaxmono.hlo.interp.monoids import fold, monoid
from jaxmono.hlo.interp.movement import padded
from jaxmono.hlo.interp.scattering import scatter_into


@implements(ops.Reduce)
def reduce(op: ops.Reduce, ctx: Context) -> Sequence[Any]:
    arrays = [ctx.get(v) for v in op.args]
    inits = [ctx.get(v) for v in op.inits]
    kept = [i for i in range(arrays[0].ndim) if i not in op.dimensions]
    ufunc = monoid(op.body)
    if ufunc is not None and arrays[0].size:
        # NumPy sums pairwise along memory, both faster and closer than along a moved axis.
        compute = ctx.compute(op.result.type.dtype)
        x = arrays[0].astype(compute, copy=False)
        total = ufunc.reduce(x, axis=tuple(op.dimensions), dtype=compute)
        return [ufunc(inits[0].astype(compute), total)]
    order = [*op.dimensions, *kept]
    shape = [arrays[0].shape[i] for i in kept]
    count = math.prod(arrays[0].shape[i] for i in op.dimensions)
    flat = [a.transpose(order).reshape(count, *shape) for a in arrays]
    return fold(op.body, ctx, flat, inits)


def windows(x: Array, dimensions: Sequence[int], strides: Sequence[int],
            dilations: Sequence[int], counts: Sequence[int]) -> Array:
    """A view of shape (*counts, *dimensions): every window of ``x``, which is padded already."""
    if 0 in counts or 0 in dimensions:
        return np.empty((*counts, *dimensions), x.dtype)
    steps = [s * m for s, m in zip(x.strides, strides, strict=True)]
    inner = [s * d for s, d in zip(x.strides, dilations, strict=True)]
    return as_strided(x, (*counts, *dimensions), (*steps, *inner), writeable=False)


@implements(ops.Window)
def window(op: ops.Window, ctx: Context) -> Sequence[Any]:
    x, counts = ctx.get(op.operand), op.result.type.dims[:op.operand.type.rank]
    sizes, strides, dilations = ([1] * x.ndim for _ in range(3))
    for i, d in enumerate(op.dimensions):
        sizes[d], strides[d], dilations[d] = op.sizes[i], op.strides[i], op.dilations[i]
    view = windows(x, sizes, strides, dilations, counts)
    order = [*range(x.ndim), *(x.ndim + d for d in op.dimensions)]
    rest = [x.ndim + d for d in range(x.ndim) if d not in op.dimensions]
    return [view.transpose(*order, *rest).reshape(op.result.type.dims)]


@implements(ops.ReduceWindow)
def reduce_window(op: ops.ReduceWindow, ctx: Context) -> Sequence[Any]:
    inits = [ctx.get(v) for v in op.inits]
    counts = op.results[0].type.dims
    rank = len(counts)
    low, high = [p[0] for p in op.padding], [p[1] for p in op.padding]
    interior = [d - 1 for d in op.base_dilations]
    taps = math.prod(op.window_dimensions)

    def stacked(a: Array, fill: Any) -> Array:
        view = windows(padded(a, fill, low, high, interior), op.window_dimensions,
                       op.window_strides, op.window_dilations, counts)
        moved = view.transpose(*range(rank, 2 * rank), *range(rank))
        return moved.reshape(taps, *counts)

    arrays = [stacked(ctx.get(v), init) for v, init in zip(op.args, inits, strict=True)]
    there = stacked(np.ones(op.args[0].type.dims, np.bool_), False)
    if there.all():
        return fold(op.body, ctx, arrays, inits)
    # As XLA does it: what is not there is left out, whatever the start value is.
    ufunc = monoid(op.body)
    if ufunc is not None:
        compute = ctx.compute(op.results[0].type.dtype)
        return [ufunc.reduce(arrays[0].astype(compute, copy=False), axis=0, dtype=compute,
                             where=there, initial=inits[0].astype(compute)[()])]
    held = [np.broadcast_to(i, counts) for i in inits]
    for t in range(taps):
        new = ctx.run_lifted(op.body, [*held, *(a[t] for a in arrays)])
        held = [np.where(there[t], a, b) for a, b in zip(new, held, strict=True)]
    return held


@implements(ops.Prefix)
def prefix(op: ops.Prefix, ctx: Context) -> Sequence[Any]:
    ufunc = function(op.kind, op.args[0].type.dtype)
    assert isinstance(ufunc, np.ufunc)
    x, *front = (ctx.get(v) for v in op.args)
    parts: list[Array] = []
    for i in range(0, x.shape[-1], op.row or x.shape[-1]):
        part = x[..., i:i + (op.row or x.shape[-1])]
        found = ufunc.accumulate(part[..., ::-1] if op.back else part, axis=-1)
        parts.append(found[..., ::-1] if op.back else found)
    made = np.concatenate(parts, -1)
    return [ufunc(front[0], made) if front else made]


@implements(ops.Scan)
def scan(op: ops.Scan, ctx: Context) -> Sequence[Any]:
    arrays = [np.moveaxis(ctx.get(v), op.dimension, 0) for v in op.args]
    carries: list[Any] = [ctx.get(v) for v in op.inits]
    made: list[list[Any]] = []
    steps = range(op.args[0].type.dims[op.dimension])
    for t in reversed(steps) if op.is_reverse else steps:
        outputs = ctx.run(op.body, [*(a[t] for a in arrays), *carries])
        first = len(outputs) - len(carries)
        made.append(outputs[:first])
        carries = outputs[first:]
    if op.is_reverse:
        made.reverse()
    return [*(np.moveaxis(np.stack(line), 0, op.dimension)
              for line in zip(*made, strict=True)), *carries]


@implements(ops.SelectAndScatter)
def select_and_scatter(op: ops.SelectAndScatter, ctx: Context) -> Sequence[Any]:
    x, source = ctx.get(op.operand), ctx.get(op.source)
    rank, counts = x.ndim, source.shape
    low, high = [p[0] for p in op.padding], [p[1] for p in op.padding]
    ones = [1] * rank

    def stacked(a: Array, fill: Any) -> Array:
        view = windows(padded(a, fill, low, high, [0] * rank), op.window_dimensions,
                       op.window_strides, ones, counts)
        moved = view.transpose(*range(rank, 2 * rank), *range(rank))
        return moved.reshape(math.prod(op.window_dimensions), *counts)

    values = stacked(x, np.zeros((), x.dtype))
    places = stacked(np.arange(x.size).reshape(x.shape), -1)
    best, where = values[0], places[0]
    for value, place in zip(values[1:], places[1:], strict=True):
        (keep,) = ctx.run_lifted(op.select, [best, value])
        # Padding (place -1) is never selected and gives way to any element.
        take = (place >= 0) & ((where < 0) | ~keep)
        best, where = np.where(take, value, best), np.where(take, place, where)
    init = np.full(x.size, ctx.get(op.init), x.dtype)
    chosen = where.reshape(-1)
    (out,) = scatter_into(op.scatter, ctx, [init], chosen[chosen >= 0],
                          [source.reshape(-1)[chosen >= 0]])
    return [out.reshape(x.shape)]

"""Which operand elements one result element needs: the index rule of every op, as data.

    result[i, j]  <-  transpose{1,0} operand[j, i]
    result[i, j]  <-  broadcast_in_dim{1} operand[j]
    result[i, t]  <-  window operand[i * stride + t * dilation]
    result[i]     <-  dynamic_slice operand[clamp(start) + i]

Used to prove that an op may be inlined into a group (the anchor is demanded at its own index
only), and by the generator to compute addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxmono.fusion.indexing import (
    ZERO,
    Dyn,
    Index,
    IndexMap,
    Var,
    delinearize,
    linearize,
)
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


@dataclass(frozen=True)
class Guard:
    """The operand is only needed where ``low <= index < high`` for every listed bound."""

    bounds: tuple[tuple[Index, int, int], ...] = ()


@dataclass(frozen=True)
class Demand:
    """One operand element: ``value`` at ``index``, needed only where ``guard`` holds."""

    value: Value
    index: IndexMap
    guard: Guard = Guard()


def demands(op: Op, index: IndexMap, result: int = 0) -> tuple[Demand, ...] | None:
    """The operand elements that element ``index`` of result ``result`` of ``op`` needs.

    Returns:
      None where one result element needs more than a fixed number of operand elements
      (reduce, dot_general, sort...); see `reduction` for reduce.
    """
    del result
    rule = _RULES.get(type(op))
    return None if rule is None else rule(op, index)


def is_view(op: Op) -> bool:
    """True for ops that only rename elements: they cost nothing once inlined."""
    return isinstance(op, (ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Slice, ops.Reverse,
                           ops.Window))


def reduction_index(op: ops.Reduce, index: IndexMap, reduced: tuple[Var | Index, ...]) -> IndexMap:
    """Operand index of a reduce: ``index`` for the kept dims, ``reduced`` for the others."""
    kept, over = iter(index), iter(reduced)
    rank = op.args[0].type.rank
    return tuple(Index.of(next(over)) if d in op.dimensions else next(kept) for d in range(rank))


def _same(op: Op, index: IndexMap) -> tuple[Demand, ...]:
    # select and clamp allow scalar pred / bounds next to a shaped operand
    return tuple(Demand(v, index if v.type.rank else ()) for v in op.inputs)


def _none(op: Op, index: IndexMap) -> tuple[Demand, ...]:
    del op, index
    return ()


def _broadcast(op: ops.BroadcastInDim, index: IndexMap) -> tuple[Demand, ...]:
    shape = op.operand.type.dims
    at = tuple(ZERO if shape[i] == 1 else index[d] for i, d in enumerate(op.dimensions))
    return (Demand(op.operand, at),)


def _reshape(op: ops.Reshape, index: IndexMap) -> tuple[Demand, ...]:
    offset = linearize(index, op.result.type.dims)
    return (Demand(op.operand, delinearize(offset, op.operand.type.dims)),)


def _transpose(op: ops.Transpose, index: IndexMap) -> tuple[Demand, ...]:
    at: list[Index] = [ZERO] * len(index)
    for i, p in enumerate(op.permutation):
        at[p] = index[i]
    return (Demand(op.operand, tuple(at)),)


def _slice(op: ops.Slice, index: IndexMap) -> tuple[Demand, ...]:
    at = tuple(i * s + b for i, s, b in zip(index, op.strides, op.start_indices, strict=True))
    return (Demand(op.operand, at),)


def _reverse(op: ops.Reverse, index: IndexMap) -> tuple[Demand, ...]:
    shape = op.operand.type.dims
    at = tuple(i * -1 + (shape[d] - 1) if d in op.dimensions else i for d, i in enumerate(index))
    return (Demand(op.operand, at),)


def _window(op: ops.Window, index: IndexMap) -> tuple[Demand, ...]:
    at = list(index[:op.operand.type.rank])
    taps = index[op.operand.type.rank:]
    for d, t, stride, dilation in zip(op.dimensions, taps, op.strides, op.dilations, strict=True):
        at[d] = at[d] * stride + t * dilation
    return (Demand(op.operand, tuple(at)),)


def start_index(start: Value, extent: int, size: int) -> Index:
    """A dynamic start, clamped so that ``size`` elements of a dim of ``extent`` fit."""
    return ZERO if extent == size else Index.of(Dyn(start, (), 0, extent - size))


def _dynamic_slice(op: ops.DynamicSlice, index: IndexMap) -> tuple[Demand, ...]:
    shape = op.operand.type.dims
    at = tuple(i + start_index(s, d, n) for i, s, d, n in
               zip(index, op.start_indices, shape, op.slice_sizes, strict=True))
    return (Demand(op.operand, at),)


def _dynamic_update_slice(op: ops.DynamicUpdateSlice, index: IndexMap) -> tuple[Demand, ...]:
    shape, window = op.operand.type.dims, op.update.type.dims
    at: list[Index] = []
    bounds: list[tuple[Index, int, int]] = []
    for i, s, d, n in zip(index, op.start_indices, shape, window, strict=True):
        x = i - start_index(s, d, n)
        at.append(x)
        if n != d:
            bounds.append((x, 0, n))
    # The update wins where its guard holds; the operand is demanded elsewhere.
    return (Demand(op.update, tuple(at), Guard(tuple(bounds))), Demand(op.operand, index))


def line_index(op: ops.Accumulate, update: IndexMap) -> Index:
    """The line of an update, -1 for none."""
    return Index.of(Dyn(op.lines, update, -1, op.operand.type.dims[0] - 1))


def _accumulate(op: ops.Accumulate, index: IndexMap) -> tuple[Demand, ...] | None:
    """Of the line of one update, what that brings; what a line is in the end has no place."""
    (atom, c), *more = index[0].terms or ((None, 0),)
    if not isinstance(atom, Dyn) or atom.value is not op.lines or c != 1 or more \
            or index[0].const:
        return None
    return (Demand(op.update, (*atom.index, *index[1:])),)


def _concatenate(op: ops.Concatenate, index: IndexMap) -> tuple[Demand, ...]:
    out: list[Demand] = []
    begin = 0
    for v in op.args:
        n = v.type.dims[op.dimension]
        x = index[op.dimension] - begin
        at = (*index[: op.dimension], x, *index[op.dimension + 1:])
        out.append(Demand(v, at, Guard(((x, 0, n),))))
        begin += n
    return tuple(out)


def _pad(op: ops.Pad, index: IndexMap) -> tuple[Demand, ...] | None:
    at: list[Index] = []
    bounds: list[tuple[Index, int, int]] = []
    shape = op.operand.type.dims
    for i, low, high, inner, n in zip(index, op.low, op.high, op.interior, shape, strict=True):
        x = i - low
        if inner:
            # only every (inner+1)-th position holds an element: x % (inner+1) in [0, 1)
            bounds.append((x % (inner + 1), 0, 1))
            bounds.append((x, 0, (n - 1) * (inner + 1) + 1 if n else 0))
            x = x // (inner + 1)
        elif low or high:
            bounds.append((x, 0, n))
        at.append(x)
    return (Demand(op.operand, tuple(at), Guard(tuple(bounds))), Demand(op.padding_value, ()))


def _gather(op: ops.Gather, index: IndexMap) -> tuple[Demand, ...]:
    """operand[full_start + offset]; full_start read from start_indices and clamped."""
    batch = tuple(i for d, i in enumerate(index) if d not in op.offset_dims)
    offset = iter(i for d, i in enumerate(index) if d in op.offset_dims)
    shape = op.operand.type.dims
    vector = op.index_vector_dim
    at: list[Index] = []
    for d, (extent, size) in enumerate(zip(shape, op.slice_sizes, strict=True)):
        x = ZERO
        if d in op.start_index_map:
            k = Index((), op.start_index_map.index(d))
            where = batch if vector == op.start_indices.type.rank else (
                *batch[:vector], k, *batch[vector:])
            x = ZERO if extent == size else Index.of(
                Dyn(op.start_indices, where, 0, extent - size))
        if d in op.operand_batching_dims:
            s = op.start_indices_batching_dims[op.operand_batching_dims.index(d)]
            x = batch[s if s < vector else s - 1]
        elif d not in op.collapsed_slice_dims:
            x = x + next(offset)
        at.append(x)
    return (Demand(op.operand, tuple(at)),)


def _fourier(op: ops.Fourier, index: IndexMap) -> tuple[Demand, ...]:
    """As `Prefix` does: of a place in its line, whose others the line's task reads."""
    at = list(index[:op.args[0].type.rank])
    if op.twist:
        at[op.axis:op.axis + 2] = at[op.axis + 1], at[op.axis]
    if op.half:
        at[-1] = at[-1] // 2
    return tuple(Demand(v, tuple(at)) for v in op.args)


_RULES: dict[type[Op], Callable[[Any, IndexMap], tuple[Demand, ...] | None]] = {
    ops.Elementwise: _same,
    ops.Compare: _same,
    ops.Convert: _same,
    ops.Stored: _same,
    ops.Prefix: _same,
    ops.Fourier: _fourier,
    ops.BitcastConvert: lambda op, index: (
        _same(op, index) if op.operand.type.rank == op.result.type.rank else None),
    ops.ReducePrecision: _same,
    ops.Constant: _none,
    ops.Iota: _none,
    ops.BroadcastInDim: _broadcast,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Slice: _slice,
    ops.Reverse: _reverse,
    ops.Window: _window,
    ops.DynamicSlice: _dynamic_slice,
    ops.DynamicUpdateSlice: _dynamic_update_slice,
    ops.Accumulate: _accumulate,
    ops.Concatenate: _concatenate,
    ops.Pad: _pad,
    ops.Gather: _gather,
}

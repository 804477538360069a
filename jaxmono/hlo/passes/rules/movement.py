"""Rules for slice, pad, concatenate, reverse and the dynamic slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.rewrite import as_splat

MOST_PARTS = 32
"""Of a concatenation that others are made one with: a load chooses among them, and arrays that grow
by a part again and again have as many choices as the square of that (80 times: 3 MB of text)."""

# Slice


def slice_all(op: ops.Slice, scope: Scope) -> Sequence[Value] | None:
    # slice[0:4](x: 4)  =>  x
    # Equal shapes mean the whole, in order: strides are positive.
    return [op.operand] if op.operand.type == op.result.type else None


def slice_slice(op: ops.Slice, scope: Scope) -> Sequence[Value] | None:
    # slice[1:4](slice[10:20:2](x))  =>  slice[12:17:2](x)
    inner = scope.made_by(op.operand, ops.Slice)
    if inner is None or not op.result.type.size:
        return None
    start = [a + b * s for a, b, s in zip(inner.start_indices, op.start_indices, inner.strides,
                                          strict=True)]
    strides = [a * b for a, b in zip(inner.strides, op.strides, strict=True)]
    limit = [a + (n - 1) * s + 1 for a, n, s in zip(start, op.result.type.dims, strides,
                                                    strict=True)]
    return [scope.slice(inner.operand, start, limit, strides)]


def slice_broadcast(op: ops.Slice, scope: Scope) -> Sequence[Value] | None:
    # slice[0:2, 0:8](broadcast[4,8](x: [8], dims=[1]))  =>  broadcast[2,8](x, dims=[1])
    inner = scope.made_by(op.operand, ops.BroadcastInDim)
    if inner is None:
        return None
    old, new = op.operand.type.shape, op.result.type.shape
    for i, d in enumerate(inner.dimensions):
        if old[d] != new[d] and inner.operand.type.shape[i] != 1:
            return None
    return [scope.broadcast_in_dim(inner.operand, new, inner.dimensions)]


def slice_concatenate(op: ops.Slice, scope: Scope) -> Sequence[Value] | None:
    # slice[5:7](concatenate(x: 4, y: 6))  =>  slice[1:3](y)
    inner = scope.made_by(op.operand, ops.Concatenate)
    if inner is None or not op.result.type.size:
        return None
    d, offset = inner.dimension, 0
    for piece in inner.args:
        size = piece.type.dims[d]
        start, limit = op.start_indices[d] - offset, op.limit_indices[d] - offset
        if start >= 0 and limit <= size:
            starts, limits = list(op.start_indices), list(op.limit_indices)
            starts[d], limits[d] = start, limit
            return [scope.slice(piece, starts, limits, op.strides)]
        offset += size
    return None


# Pad, concatenate, reverse


def pad_nothing(op: ops.Pad, scope: Scope) -> Sequence[Value] | None:
    # pad[0, 0, 0](x)        =>  x
    # pad[low=-1, high=-2](x: 9)  =>  slice[1:7](x)
    if any(i and n > 1 for i, n in zip(op.interior, op.operand.type.dims, strict=True)):
        return None
    if any(e > 0 for e in (*op.low, *op.high)) or not op.result.type.size:
        return None
    start = [-e for e in op.low]
    limit = [n + e for n, e in zip(op.operand.type.dims, op.high, strict=True)]
    return [scope.slice(op.operand, start, limit)]


def pad_empty(op: ops.Pad, scope: Scope) -> Sequence[Value] | None:
    # pad[2, 2](x: 0, v)  =>  broadcast[4](v)
    if op.operand.type.size:
        return None
    return [scope.broadcast_in_dim(op.padding_value, op.result.type.shape, ())]


def concatenate_few(op: ops.Concatenate, scope: Scope) -> Sequence[Value] | None:
    # concatenate(x, y: [0])  =>  x
    args = [v for v in op.args if v.type.dims[op.dimension] or not op.result.type.size]
    if len(args) == 1:
        return args
    return [scope.concatenate(args, op.dimension)] if len(args) < len(op.args) else None


def concatenate_concatenate(op: ops.Concatenate, scope: Scope) -> Sequence[Value] | None:
    # concatenate(concatenate(x, y), z)  =>  concatenate(x, y, z)
    # A dense block's layers read all parts where their layers left them: each of its inputs is one
    # load of the part that an element lies in (codegen/joined.py), not a nest of branches.
    inner = [scope.made_by(v, ops.Concatenate) for v in op.args]
    if not any(o is not None and o.dimension == op.dimension for o in inner):
        return None
    parts = [x for v, o in zip(op.args, inner, strict=True)
             for x in (o.args if o is not None and o.dimension == op.dimension else (v,))]
    return [scope.concatenate(parts, op.dimension)] if len(parts) <= MOST_PARTS else None


def reverse_few(op: ops.Reverse, scope: Scope) -> Sequence[Value] | None:
    # reverse[0](x: [1,8])          =>  x
    # reverse[0](reverse[0,1](x))   =>  reverse[1](x)
    x, dims = op.operand, {d for d in op.dimensions if op.operand.type.shape[d] != 1}
    inner = scope.made_by(x, ops.Reverse)
    if inner is not None:
        x, dims = inner.operand, dims ^ set(inner.dimensions)
    elif dims and len(dims) == len(op.dimensions):
        return None
    if not dims:
        return [x]
    return [scope.emit1(ops.Reverse, op.result.type, operand=x, dimensions=tuple(sorted(dims)))]


# Dynamic slices


def _literal_starts(starts: Sequence[Value], shape: Sequence[int], sizes: Sequence[int],
                    scope: Scope) -> list[int] | None:
    """Clamped start indices where each is a literal, or has only one legal value."""
    out: list[int] = []
    for v, n, size in zip(starts, shape, sizes, strict=True):
        element = scope.element(v)
        if element is None and n != size:
            return None
        out.append(min(max(int(element) if element is not None else 0, 0), n - size))
    return out


def dynamic_slice_static(op: ops.DynamicSlice, scope: Scope) -> Sequence[Value] | None:
    # dynamic_slice(x: 8, 3, sizes=[2])  =>  slice[3:5](x)
    shape = op.operand.type.dims
    start = _literal_starts(op.start_indices, shape, op.slice_sizes, scope)
    if start is None:
        return None
    return [scope.slice(op.operand, start,
                        [a + n for a, n in zip(start, op.slice_sizes, strict=True)])]


def dynamic_slice_full_dims(op: ops.DynamicSlice, scope: Scope) -> Sequence[Value] | None:
    # dynamic_slice(x: [8,4], i, j, sizes=[1,4])  =>  dynamic_slice(x, i, 0, sizes=[1,4])
    new = _zero_where_full(op.start_indices, op.operand.type.dims, op.slice_sizes, scope)
    if new is None:
        return None
    return [scope.emit1(ops.DynamicSlice, op.result.type, operand=op.operand,
                        start_indices=new, slice_sizes=op.slice_sizes)]


def update_all(op: ops.DynamicUpdateSlice, scope: Scope) -> Sequence[Value] | None:
    # dynamic_update_slice(x: 8, u: 8, i)  =>  u
    # dynamic_update_slice(x: 8, u: 0, i)  =>  x
    if op.update.type == op.operand.type:
        return [op.update]
    return None if op.update.type.size else [op.operand]


def update_full_dims(op: ops.DynamicUpdateSlice, scope: Scope) -> Sequence[Value] | None:
    # as dynamic_slice_full_dims
    new = _zero_where_full(op.start_indices, op.operand.type.dims, op.update.type.dims, scope)
    if new is None:
        return None
    return [scope.emit1(ops.DynamicUpdateSlice, op.result.type, operand=op.operand,
                        update=op.update, start_indices=new)]


def _zero_where_full(starts: Sequence[Value], shape: Sequence[int], sizes: Sequence[int],
                     scope: Scope) -> tuple[Value, ...] | None:
    """Starts with the literal 0 for dimensions that are taken whole; None if all have it."""
    full = [i for i, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n == size]
    if all((e := scope.element(starts[i])) is not None and e == 0 for i in full):
        return None
    new = list(starts)
    for i in full:
        type = starts[i].type
        new[i] = scope.constant(as_splat(0, type), type.dtype)
    return tuple(new)


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Slice: (slice_all, slice_slice, slice_broadcast, slice_concatenate),
    ops.Pad: (pad_nothing, pad_empty),
    ops.Concatenate: (concatenate_few, concatenate_concatenate),
    ops.Reverse: (reverse_few,),
    ops.DynamicSlice: (dynamic_slice_static, dynamic_slice_full_dims),
    ops.DynamicUpdateSlice: (update_all, update_full_dims),
}

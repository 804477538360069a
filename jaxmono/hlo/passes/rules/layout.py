"""Rules for reshape, transpose and broadcast_in_dim.

Their normal form: at most one op of each in a row, broadcasts of operands without size-1
dimensions, and a reshape wherever only size-1 dimensions come, go or move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.types import Dim


def proper_dims(shape: Sequence[Dim]) -> list[int]:
    """Positions of the dimensions whose size is not 1."""
    return [i for i, d in enumerate(shape) if d != 1]


def without_ones(scope: Scope, v: Value) -> Value:
    """``v`` reshaped to its dimensions other than 1."""
    shape = v.type.shape
    return scope.reshape(v, [shape[i] for i in proper_dims(shape)])


# Reshape


def reshape_same(op: ops.Reshape, scope: Scope) -> Sequence[Value] | None:
    # reshape[s](x: s)  =>  x
    return [op.operand] if op.operand.type == op.result.type else None


def reshape_reshape(op: ops.Reshape, scope: Scope) -> Sequence[Value] | None:
    # reshape[s](reshape[t](x))  =>  reshape[s](x)
    inner = scope.made_by(op.operand, ops.Reshape)
    return None if inner is None else [scope.reshape(inner.operand, op.result.type.shape)]


def reshape_broadcast(op: ops.Reshape, scope: Scope) -> Sequence[Value] | None:
    # reshape[1,32](broadcast[4,8](x: []))  =>  reshape[1,32](broadcast[32](x))
    # the broadcast itself without size-1 dimensions, as canonicalise leaves it
    inner = scope.made_by(op.operand, ops.BroadcastInDim)
    if inner is None or inner.operand.type.rank:
        return None
    shape = op.result.type.shape
    flat = tuple(shape[i] for i in proper_dims(shape))
    if op.operand.type.shape == flat:
        return None
    return [scope.reshape(scope.broadcast_in_dim(inner.operand, flat, ()), shape)]


# Transpose


def transpose_as_reshape(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[0,1](x)        =>  x
    # transpose[1,0](x: 1,8)   =>  reshape[8,1](x)
    moved = [i for i in op.permutation if op.operand.type.shape[i] != 1]
    if moved != sorted(moved):
        return None
    return [scope.reshape(op.operand, op.result.type.shape)]


def transpose_transpose(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[p](transpose[q](x))  =>  transpose[q o p](x)
    inner = scope.made_by(op.operand, ops.Transpose)
    if inner is None:
        return None
    return [scope.transpose(inner.operand, [inner.permutation[i] for i in op.permutation])]


def transpose_broadcast(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[1,0](broadcast[4,8](x: [8], dims=[1]))  =>  broadcast[8,4](x, dims=[0])
    inner = scope.made_by(op.operand, ops.BroadcastInDim)
    if inner is None:
        return None
    return [scope.broadcast_in_dim(inner.operand, op.result.type.shape,
                                   [op.permutation.index(d) for d in inner.dimensions])]


def transpose_reshape(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[0,2,1](reshape[4,1,8](x: [4,8]))          =>  by transpose_as_reshape
    # transpose[2,1,0](reshape[4,1,8](transpose[1,0](y)))  =>  reshape[8,1,4](y)
    # when the reshape between two transposes only adds or drops size-1 dimensions
    middle = scope.made_by(op.operand, ops.Reshape)
    inner = None if middle is None else scope.made_by(middle.operand, ops.Transpose)
    if middle is None or inner is None:
        return None
    old, new = middle.operand.type.shape, middle.result.type.shape
    kept_old, kept_new = proper_dims(old), proper_dims(new)
    if [old[i] for i in kept_old] != [new[i] for i in kept_new]:
        return None
    # Which dimension of inner.operand each proper result dimension comes from.
    source = dict(zip(kept_new, (inner.permutation[i] for i in kept_old), strict=True))
    order = [source[i] for i in op.permutation if i in source]
    squeezed = proper_dims(inner.operand.type.shape)
    flat = without_ones(scope, inner.operand)
    turned = scope.transpose(flat, [squeezed.index(d) for d in order])
    return [scope.reshape(turned, op.result.type.shape)]


# BroadcastInDim


def broadcast_as_layout(op: ops.BroadcastInDim, scope: Scope) -> Sequence[Value] | None:
    # broadcast[4,8](x: 4,8, dims=[0,1])  =>  x
    # broadcast[8,4](x: 4,8, dims=[1,0])  =>  transpose[1,0](x)
    # broadcast[1,8](x: 8, dims=[1])      =>  reshape[1,8](x)
    x, shape = op.operand, op.result.type.shape
    order = sorted(proper_dims(x.type.shape), key=lambda i: op.dimensions[i])
    # Every proper result dimension must come from a proper operand dimension.
    if [op.dimensions[i] for i in order] != proper_dims(shape):
        return None
    kept = proper_dims(x.type.shape)
    if order == kept:
        return [scope.reshape(x, shape)]
    turned = scope.transpose(without_ones(scope, x), [kept.index(i) for i in order])
    return [scope.reshape(turned, shape)]


def broadcast_ones(op: ops.BroadcastInDim, scope: Scope) -> Sequence[Value] | None:
    # broadcast[4,8](x: [4,1], dims=[0,1])  =>  broadcast[4,8](reshape[4](x), dims=[0])
    x = op.operand
    kept = proper_dims(x.type.shape)
    if len(kept) == x.type.rank:
        return None
    return [scope.broadcast_in_dim(without_ones(scope, x), op.result.type.shape,
                                   [op.dimensions[i] for i in kept])]


def broadcast_broadcast(op: ops.BroadcastInDim, scope: Scope) -> Sequence[Value] | None:
    # broadcast[2,4,8](broadcast[4,8](x: [8], dims=[1]), dims=[1,2])
    #   =>  broadcast[2,4,8](x, dims=[2])
    inner = scope.made_by(op.operand, ops.BroadcastInDim)
    if inner is None:
        return None
    return [scope.broadcast_in_dim(inner.operand, op.result.type.shape,
                                   [op.dimensions[d] for d in inner.dimensions])]


def broadcast_transpose(op: ops.BroadcastInDim, scope: Scope) -> Sequence[Value] | None:
    # broadcast[2,8,4](transpose[1,0](x: [4,8]), dims=[1,2])
    #   =>  broadcast[2,8,4](x, dims=[2,1])
    inner = scope.made_by(op.operand, ops.Transpose)
    if inner is None:
        return None
    dimensions = [op.dimensions[inner.permutation.index(i)]
                  for i in range(len(inner.permutation))]
    return [scope.broadcast_in_dim(inner.operand, op.result.type.shape, dimensions)]


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Reshape: (reshape_same, reshape_reshape, reshape_broadcast),
    ops.Transpose: (transpose_as_reshape, transpose_transpose, transpose_broadcast,
                    transpose_reshape),
    ops.BroadcastInDim: (broadcast_as_layout, broadcast_ones, broadcast_broadcast,
                         broadcast_transpose),
}

"""Rules that move size-1 dimensions out of ops and into reshapes, which then merge or cancel.

    y: [1,4,8] = add(x: [1,4,8], z: [1,4,8])
      =>  y = reshape[1,4,8](add(reshape[4,8](x), reshape[4,8](z)))

Between graph inputs, outputs and the ops that are not listed here, no value keeps a size-1
dimension, so a program for batch 1 looks like one without a batch. Literals keep theirs here:
constant folding takes a reshape into the literal, and undoing that would never end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.interp.monoids import MONOIDS
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.layout import proper_dims, without_ones
from jaxmono.hlo.types import TensorType


def squeezed_type(type: TensorType) -> TensorType:
    return TensorType(tuple(d for d in type.shape if d != 1), type.dtype)


def _restored(op: Op, new: Op, scope: Scope) -> list[Value]:
    made = scope.append(new)
    return [scope.reshape(a, b.type.shape) for a, b in zip(made, op.results, strict=True)]


def squeeze_mapped(op: Op, scope: Scope) -> Sequence[Value] | None:
    # Ops that work element by element: all operands have the result's shape or are scalars.
    if 1 not in op.results[0].type.shape:
        return None
    narrow = {v: without_ones(scope, v) for v in op.inputs}
    out = Value(squeezed_type(op.results[0].type))
    return _restored(op, dataclasses.replace(op.clone(narrow), results=(out,)), scope)


def squeeze_bitcast(op: ops.BitcastConvert, scope: Scope) -> Sequence[Value] | None:
    # Where the width changes, the last dimension means bytes and stays.
    if op.operand.type.dtype.itemsize != op.result.type.dtype.itemsize:
        return None
    return squeeze_mapped(op, scope)


def squeeze_iota(op: ops.Iota, scope: Scope) -> Sequence[Value] | None:
    # iota[1,8](dim=1)  =>  reshape[1,8](iota[8](dim=0))      iota[8,1](dim=1)  =>  0
    type = op.result.type
    if 1 not in type.shape:
        return None
    if type.shape[op.dimension] == 1:
        return [scope.splat(0, type)]
    small = scope.iota(squeezed_type(type).dims, type.dtype,
                       proper_dims(type.shape).index(op.dimension))
    return [scope.reshape(small, type.shape)]


def squeeze_broadcast(op: ops.BroadcastInDim, scope: Scope) -> Sequence[Value] | None:
    # broadcast[1,4,8](x: [8], dims=[2])  =>  reshape[1,4,8](broadcast[4,8](x, dims=[1]))
    shape = op.result.type.shape
    if 1 not in shape or 1 in op.operand.type.shape:
        return None
    kept = proper_dims(shape)
    small = scope.broadcast_in_dim(op.operand, [shape[i] for i in kept],
                                   [kept.index(d) for d in op.dimensions])
    return [scope.reshape(small, shape)]


def squeeze_transpose(op: ops.Transpose, scope: Scope) -> Sequence[Value] | None:
    # transpose[0,2,1](x: [1,4,8])  =>  reshape[1,8,4](transpose[1,0](reshape[4,8](x)))
    kept = proper_dims(op.operand.type.shape)
    if len(kept) == op.operand.type.rank:
        return None
    small = scope.transpose(without_ones(scope, op.operand),
                            [kept.index(i) for i in op.permutation if i in kept])
    return [scope.reshape(small, op.result.type.shape)]


def squeeze_slice(op: ops.Slice, scope: Scope) -> Sequence[Value] | None:
    # slice[0:1, 2:4](x: [1,8])  =>  reshape[1,2](slice[2:4](reshape[8](x)))
    kept = proper_dims(op.operand.type.shape)
    if len(kept) == op.operand.type.rank or not op.result.type.size:
        return None
    small = scope.slice(without_ones(scope, op.operand), [op.start_indices[i] for i in kept],
                        [op.limit_indices[i] for i in kept], [op.strides[i] for i in kept])
    return [scope.reshape(small, op.result.type.shape)]


def squeeze_concatenate(op: ops.Concatenate, scope: Scope) -> Sequence[Value] | None:
    # concatenate[1](x: [1,4], y: [1,5])  =>  reshape[1,9](concatenate[0](x', y'))
    shape = op.result.type.shape
    kept = [i for i, d in enumerate(shape) if d != 1 or i == op.dimension]
    if len(kept) == len(shape):
        return None
    args = [scope.reshape(v, [v.type.shape[i] for i in kept]) for v in op.args]
    return [scope.reshape(scope.concatenate(args, kept.index(op.dimension)), shape)]


def squeeze_pad(op: ops.Pad, scope: Scope) -> Sequence[Value] | None:
    # pad[(0,0), (2,1)](x: [1,4])  =>  reshape[1,7](pad[(2,1)](reshape[4](x)))
    x, shape = op.operand.type.shape, op.result.type.shape
    kept = [i for i, d in enumerate(x)
            if d != 1 or shape[i] != 1 or op.low[i] or op.high[i]]
    if len(kept) == len(x):
        return None
    low, high, interior = ([a[i] for i in kept] for a in (op.low, op.high, op.interior))
    type = TensorType(tuple(shape[i] for i in kept), op.result.type.dtype)
    small = scope.emit1(ops.Pad, type, operand=scope.reshape(op.operand, [x[i] for i in kept]),
                        padding_value=op.padding_value, low=tuple(low), high=tuple(high),
                        interior=tuple(interior))
    return [scope.reshape(small, shape)]


def squeeze_window(op: ops.Window, scope: Scope) -> Sequence[Value] | None:
    # window[dim 1, 3 taps](x: [1,8,4]): [1,6,4,3]
    #   =>  reshape[1,6,4,3](window[dim 0, 3 taps](reshape[8,4](x)))
    x = op.operand.type.shape
    kept = [i for i, d in enumerate(x) if d != 1 or i in op.dimensions]
    taps = [i for i, n in enumerate(op.sizes) if n != 1 or op.strides[i] != 1]
    if len(kept) == len(x) and len(taps) == len(op.sizes):
        return None
    sizes, strides, dilations = ([a[i] for i in taps] for a in (op.sizes, op.strides,
                                                                op.dilations))
    small = scope.window(scope.reshape(op.operand, [x[i] for i in kept]),
                         [kept.index(op.dimensions[i]) for i in taps], sizes, strides, dilations)
    return [scope.reshape(small, op.result.type.shape)]


def squeeze_reverse(op: ops.Reverse, scope: Scope) -> Sequence[Value] | None:
    # reverse[1](x: [1,4])  =>  reshape[1,4](reverse[0](reshape[4](x)))
    kept = proper_dims(op.operand.type.shape)
    if len(kept) == op.operand.type.rank:
        return None
    dims = tuple(kept.index(d) for d in op.dimensions if d in kept)
    x = without_ones(scope, op.operand)
    small = scope.emit1(ops.Reverse, x.type, operand=x, dimensions=dims)
    return [scope.reshape(small, op.result.type.shape)]


def squeeze_dot(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    # dot(x: [1,4,1,8], y: [1,8,5], batch=0x0, contract=3x1): [1,4,1,5]
    #   =>  reshape[1,4,1,5](dot(reshape[4,8](x), reshape[8,5](y), contract=1x0))
    if 1 not in (*op.lhs.type.shape, *op.rhs.type.shape):
        return None

    def narrow(v: Value, *lists: Sequence[int]) -> tuple[Value, list[list[int]]]:
        kept = proper_dims(v.type.shape)
        return without_ones(scope, v), [[kept.index(d) for d in dims if d in kept]
                                        for dims in lists]

    lhs, (lhs_batch, lhs_contract) = narrow(op.lhs, op.lhs_batch, op.lhs_contract)
    rhs, (rhs_batch, rhs_contract) = narrow(op.rhs, op.rhs_batch, op.rhs_contract)
    dot = scope.dot_general(lhs, rhs, batch=(lhs_batch, rhs_batch),
                            contract=(lhs_contract, rhs_contract),
                            dtype=op.result.type.dtype, precision=op.precision,
                            algorithm=op.algorithm)
    return [scope.reshape(dot, op.result.type.shape)]


def squeeze_reduce(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    # reduce[0,2](x: [1,4,8])  =>  reduce[1](reshape[4,8](x))
    kept = proper_dims(op.args[0].type.shape)
    if len(kept) == op.args[0].type.rank:
        return None
    args = tuple(without_ones(scope, v) for v in op.args)
    results = tuple(Value(squeezed_type(v.type)) for v in op.results)
    return _restored(op, dataclasses.replace(
        op, args=args, results=results,
        dimensions=tuple(kept.index(d) for d in op.dimensions if d in kept)), scope)


def reduce_single(op: ops.Reduce, scope: Scope) -> Sequence[Value] | None:
    # reduce[1](x: [4,1], init, add)  =>  broadcast[4](init) + reshape[4](x)
    body = op.body
    if any(op.args[0].type.shape[d] != 1 for d in op.dimensions) or len(body.ops) != 1:
        return None
    inner = body.ops[0]
    if not isinstance(inner, ops.Elementwise) or inner.kind not in MONOIDS:
        return None
    if inner.args != body.inputs or body.outputs != inner.results:
        return None
    init = scope.broadcast_in_dim(op.inits[0], op.result.type.shape, ())
    x = scope.reshape(op.args[0], op.result.type.shape)
    return [scope.elementwise(inner.kind, init, x)]


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Elementwise: (squeeze_mapped,),
    ops.Compare: (squeeze_mapped,),
    ops.Convert: (squeeze_mapped,),
    ops.ReducePrecision: (squeeze_mapped,),
    ops.BitcastConvert: (squeeze_bitcast,),
    ops.Iota: (squeeze_iota,),
    ops.BroadcastInDim: (squeeze_broadcast,),
    ops.Transpose: (squeeze_transpose,),
    ops.Slice: (squeeze_slice,),
    ops.Concatenate: (squeeze_concatenate,),
    ops.Pad: (squeeze_pad,),
    ops.Window: (squeeze_window,),
    ops.Reverse: (squeeze_reverse,),
    ops.DotGeneral: (squeeze_dot,),
    ops.Reduce: (reduce_single, squeeze_reduce),
}

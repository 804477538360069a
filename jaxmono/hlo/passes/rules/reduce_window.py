"""Windowed reductions as chains of slices, or as reductions over a window's elements.

    reduce_window[2](x: 5, max)  =>  max(slice[0:4](x), slice[1:5](x))
    reduce_window[99](x, add)    =>  reduce[1](window[99](x), add)

A chain is element-wise: it has vectors along the dimensions that have no window, and fuses with
what comes after. Windows over several dimensions are not taken apart into one dimension after the
other: as one chain they are one pass over memory, while a row of partial results would be either
stored, which costs a stage, or computed again for every place that needs it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp.monoids import MONOIDS
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.peephole import Scope
from jaxmono.hlo.rewrite import Builder, binary_kind
from jaxmono.hlo.types import DType, TensorType

MAX_CHAIN = 128
"""Ops in the longest chain."""

MAX_READS = 256
"""Times that each element may be read; a window longer than that would do far more work than
another algorithm, so it stays what it is (those of cumulative sums: cumulative.py)."""


def refusal(op: ops.ReduceWindow) -> str:
    """Why ``op`` stays as it is; empty if it is expanded."""
    if cumulative_dimension(op) is not None:
        return ""
    taps = math.prod(op.window_dimensions)
    reads = taps * op.results[0].type.size // max(op.args[0].type.size, 1)
    if taps > MAX_READS and reads > MAX_READS:
        return (f"windows of {taps} elements that read each element {reads} times are quadratic "
                "work; XLA has other algorithms for them")
    if _is_padded(op) and not single(op) and not is_chain(op):
        return f"a padded window of {taps} elements whose reducer is no single op is not generated"
    return ""


def cumulative_dimension(op: ops.ReduceWindow) -> int | None:
    """The dimension along which each place reads all elements before it, or all behind it; None
    for other windows."""
    wide = [d for d, n in enumerate(op.window_dimensions) if n > 1]
    steps = (*op.window_strides, *op.base_dilations, *op.window_dilations)
    if len(wide) != 1 or any(s != 1 for s in steps) or not (single(op) or is_element_wise(op.body)):
        return None
    (d,) = wide
    n = op.window_dimensions[d]
    if n != op.args[0].type.dims[d] or any(p != (0, 0) for i, p in enumerate(op.padding) if i != d):
        return None
    return d if op.padding[d] in ((n - 1, 0), (0, n - 1)) else None


def reduce_window(op: ops.ReduceWindow, scope: Scope) -> Sequence[Value] | None:
    """Any windowed reduction that has no `refusal`."""
    if refusal(op) or any(g.captures for g in op.subgraphs):
        return None
    if is_chain(op):
        return _chain(op, scope)
    return _reduction(op, scope)


def _chain(op: ops.ReduceWindow, scope: Scope) -> list[Value]:
    shape = op.results[0].type.dims
    wide = sum_dtype(op)
    body = retyped(op.body, wide) if wide is not None else op.body
    args, inside = _padded(op, scope)
    held: list[Value] | None = None
    if not _starts_neutral(op, scope):
        spread = [scope.broadcast_in_dim(v, shape, ()) for v in op.inits]
        held = [_as(scope, v, wide) for v in spread]
    for taps in itertools.product(*map(range, op.window_dimensions)):
        start = [t * d for t, d in zip(taps, op.window_dilations, strict=True)]
        limit = [a + (n - 1) * s + 1 for a, n, s in
                 zip(start, shape, op.window_strides, strict=True)]

        def part(v: Value, start: list[int] = start, limit: list[int] = limit) -> Value:
            return _as(scope, scope.slice(v, start, limit, op.window_strides), wide)

        parts = [part(v) for v in args]
        if held is None:
            held = parts
            continue
        made = lifted(scope, body, [*held, *parts], shape)
        if inside is not None:
            there = scope.slice(inside, start, limit, op.window_strides)
            made = [scope.elementwise("select", there, a, b)
                    for a, b in zip(made, held, strict=True)]
        held = made
    assert held is not None
    return [scope.convert(v, r.type.dtype) for v, r in zip(held, op.results, strict=True)]


def _reduction(op: ops.ReduceWindow, scope: Scope) -> list[Value]:
    rank = len(op.window_dimensions)
    moving = [d for d in range(rank) if op.window_dimensions[d] > 1 or op.window_strides[d] > 1]
    attributes = [[a[d] for d in moving] for a in
                  (op.window_dimensions, op.window_strides, op.window_dilations)]
    args, _ = _padded(op, scope)
    views = tuple(scope.window(v, moving, *attributes) for v in args)
    return list(scope.emit(ops.Reduce, [v.type for v in op.results], args=views, inits=op.inits,
                           body=op.body, dimensions=tuple(range(rank, rank + len(moving)))))


def _padded(op: ops.ReduceWindow, scope: Scope) -> tuple[list[Value], Value | None]:
    """The operands with padding and holes, and a mask of what is there where that matters.

    XLA leaves out what is not there: a single op sees its neutral element, any other reducer is
    passed over.
    """
    low, high = zip(*op.padding, strict=True) if op.padding else ((), ())
    interior = [d - 1 if n > 1 else 0 for d, n in
                zip(op.base_dilations, op.args[0].type.dims, strict=True)]
    if not _is_padded(op):
        return list(op.args), None
    dtype, kind = op.args[0].type.dtype, single(op)
    if kind:
        filler = scope.constant(neutral(kind, dtype), dtype)
        return [scope.pad(op.args[0], filler, low, high, interior)], None
    args = [scope.pad(v, init, low, high, interior)
            for v, init in zip(op.args, op.inits, strict=True)]
    whole = scope.splat(True, TensorType(op.args[0].type.dims, DType.PRED))
    return args, scope.pad(whole, scope.constant(False, DType.PRED), low, high, interior)


def _is_padded(op: ops.ReduceWindow) -> bool:
    holes = any(d > 1 and n > 1 for d, n in
                zip(op.base_dilations, op.args[0].type.dims, strict=True))
    return holes or any(p != (0, 0) for p in op.padding)


def is_chain(op: ops.ReduceWindow) -> bool:
    """Whether a window becomes slices."""
    return (math.prod(op.window_dimensions) * max(1, len(op.body.ops)) <= MAX_CHAIN
            and is_element_wise(op.body))


def _as(scope: Scope, v: Value, dtype: DType | None) -> Value:
    return v if dtype is None else scope.convert(v, dtype)


# ---- reducers on whole arrays ------------------------------------------------------------------

_SCALAR_MOVES = (ops.BroadcastInDim, ops.Reshape)
_MAPPED = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision)


def is_element_wise(body: Graph) -> bool:
    """Whether a body of scalars means something for arrays (`lifted`)."""
    return all(isinstance(o, (*_MAPPED, *_SCALAR_MOVES, ops.Constant))
               and all(v.type.rank == 0 for v in (*o.inputs, *o.results)) for o in body.ops)


def lifted(scope: Builder, body: Graph, args: Sequence[Value], shape: Sequence[int]) -> list[Value]:
    """``body``, which takes scalars, on arrays of ``shape``."""
    env = dict(zip(body.inputs, args, strict=True))
    for o in body.ops:
        type = TensorType(tuple(shape), o.result.type.dtype)
        if isinstance(o, ops.Constant):
            env[o.result] = scope.splat(o.value.reshape(()), type)
        elif isinstance(o, _SCALAR_MOVES):
            env[o.result] = env[o.operand]
        else:
            (env[o.result],) = scope.append(
                dataclasses.replace(o.clone(env), results=(Value(type),), loc=scope.loc))
    return [env[v] for v in body.outputs]


def neutral(kind: str, dtype: DType) -> Any:
    """The element that one of `MONOIDS` does not see."""
    if kind in ("maximum", "minimum"):
        if dtype.is_float:
            return -np.inf if kind == "maximum" else np.inf
        if dtype is DType.PRED:
            return kind == "minimum"
        info = np.iinfo(dtype.numpy)
        return info.min if kind == "maximum" else info.max
    if kind == "and":
        return True if dtype is DType.PRED else ~np.zeros((), dtype.numpy)
    return -0.0 if kind == "add" and dtype.is_float else 1 if kind == "multiply" else 0


def single(op: ops.ReduceWindow) -> str:
    """The kind of a reducer that is one of `MONOIDS`, or ""."""
    kind = binary_kind(op.body)
    return kind if kind is not None and kind in MONOIDS else ""


def sum_dtype(op: ops.ReduceWindow) -> DType | None:
    """f32 for sums and products of narrow floats, as reductions have them; None: as they are."""
    dtype = op.args[0].type.dtype
    narrow = dtype.is_float and dtype not in (DType.F32, DType.F64)
    return DType.F32 if narrow and single(op) in ("add", "multiply") else None


def retyped(body: Graph, dtype: DType) -> Graph:
    """A reducer of one op, on another element type."""
    (inner,) = body.ops
    scalars = {v: Value(TensorType((), dtype), v.hint) for v in (*body.inputs, *inner.results)}
    made = dataclasses.replace(inner.clone(scalars), results=(scalars[inner.results[0]],))
    return Graph(tuple(scalars[v] for v in body.inputs), (made,),
                 tuple(scalars[v] for v in body.outputs), body.name)


def _starts_neutral(op: ops.ReduceWindow, scope: Scope) -> bool:
    """Whether the start value of a maximum or minimum changes nothing."""
    start, kind = scope.element(op.inits[0]), single(op)
    return (kind in ("maximum", "minimum") and start is not None
            and bool(start == neutral(kind, op.args[0].type.dtype)))

"""Which function of a module is Threefry-2x32, the generator behind `jax.random`.

    func @threefry2x32(%key0, %key1: u32[]; %count0, %count1: u32[1024,1024])
      xor, add, 20 times (add, shift_left, shift_right_logical, or, xor), ...      a loop for CPUs

`jax.random` lowers to calls of it, each with a copy for its shape. As one op a mask of dropout is a
line of a plan and of a kernel, not 130; its cost is known, and what both its words are for.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.interp.core import Unsupported
from jaxmono.hlo.interp.rng import threefry2x32
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.counted import counted
from jaxmono.hlo.rewrite import as_splat, is_splat, splat_value
from jaxmono.hlo.types import DType, TensorType
from jaxmono.hlo.verify import HloError, verify

NAME = "threefry2x32"
"""What the function's symbol begins with. That it is the generator says what it computes."""

_LARGE, _SAMPLES = 64, 4
"""Results whose function is looked at with fewer: with so many, and one more, along a dimension."""
_PLAIN = (ops.Constant, ops.BroadcastInDim, ops.Convert, ops.Slice, ops.Reshape)
_KINDS = frozenset({"add", "subtract", "or", "xor", "shift_left", "shift_right_logical"})
"""Its ops: none that chooses, so that some words tell of all."""
_TRIPS = 5
"""Of its loop."""


def is_threefry(function: Graph) -> bool:
    """Whether a function of two words of a key and two of counts gives Threefry-2x32's results, by
    its results for some words at random. Words are u32, scalars or arrays that go together by
    NumPy's rules, of as many dimensions as the results."""
    if len(function.inputs) != 4 or len(function.outputs) != 2:
        return False
    result = function.outputs[0].type
    if result.dtype is not DType.U32 or not result.is_static or function.outputs[1].type != result \
            or not all(_goes_with(v.type, result) for v in function.inputs):
        return False
    if not _is_plain(function):
        return False
    if result.size > _LARGE:
        small = _resized(function, result.dims, {})
        if small is None:
            return False
        function = small
    random = np.random.default_rng(0)
    words = [random.integers(0, 2**32, v.type.dims, np.uint32) for v in function.inputs]
    try:
        verify(function)
        found = evaluate(function, words)
    except (Unsupported, HloError):
        return False
    return all(np.array_equal(a, b) for a, b in zip(found, threefry2x32(*words), strict=True))


def _is_plain(function: Graph) -> bool:
    """Whether there are only such ops as it has, and a loop of not more trips than its."""
    for o in function.ops:
        if isinstance(o, ops.While):
            found = counted(o, function.producer)
            if isinstance(found, str) or found.trips > _TRIPS or not _is_plain(o.body):
                return False
        elif not isinstance(o, _PLAIN) and not (isinstance(o, ops.Elementwise)
                                                and o.kind in _KINDS):
            return False
    return True


def _goes_with(t: TensorType, result: TensorType) -> bool:
    return t.dtype is result.dtype and (not t.shape or (t.rank == result.rank and all(
        a in (1, b) for a, b in zip(t.shape, result.shape, strict=True))))


def _resized(graph: Graph, dims: tuple[int, ...], mapping: dict[Value, Value]) -> Graph | None:
    """``graph`` with fewer elements in place of its values of ``dims``, or of 1 where these are
    more; None if an op in it may ask for an element by its place."""

    def other(t: TensorType) -> TensorType:
        if not t.shape or not _goes_with(t, TensorType(dims, t.dtype)):
            return t
        shape = tuple(n if n == 1 else _SAMPLES + i for i, n in enumerate(t.dims))
        return TensorType(shape, t.dtype)

    mapping = {**mapping, **{v: Value(other(v.type)) for v in graph.inputs}}
    out: list[Op] = []
    for o in graph.ops:
        if isinstance(o, ops.Slice | ops.Reshape) and any(
                other(v.type) != v.type for v in (o.operand, o.result)):
            return None
        mapping.update((r, Value(other(r.type))) for r in o.results)
        made = dataclasses.replace(o.clone(mapping), results=tuple(mapping[r] for r in o.results))
        if isinstance(made, ops.Constant) and made.result.type != o.results[0].type:
            if not is_splat(made.value):
                return None
            made = dataclasses.replace(made, value=as_splat(splat_value(made.value),
                                                            made.result.type))
        if isinstance(made, ops.While):
            cond, body = (_resized(g, dims, mapping) for g in (made.cond, made.body))
            if cond is None or body is None:
                return None
            made = dataclasses.replace(made, cond=cond, body=body)
        out.append(made)
    return Graph(tuple(mapping[v] for v in graph.inputs), tuple(out),
                 tuple(mapping[v] for v in graph.outputs), graph.name)

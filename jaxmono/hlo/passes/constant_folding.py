"""Constant folding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import Unsupported, evaluate
from jaxmono.hlo.ir import REGISTRY, Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope, apply_rules
from jaxmono.hlo.types import DType, TensorType

LARGEST = 64
"""A folded literal that is not a splat holds at most this many elements."""

# Ops that give a splat on splats, element by element: evaluating one element is enough.
_MAPPED = (ops.Elementwise, ops.Compare, ops.Convert, ops.ReducePrecision)
_MOVED = (ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Slice, ops.Reverse,
          ops.Window)
_OF_PLACES = (ops.Constant, ops.Iota, *_MAPPED, *_MOVED)
_DEEPEST = 6
"""Ops between places and a float that are followed, one behind the other, literals included."""
_NEVER = (ops.Constant, ops.Iota, ops.While, ops.RngBitGenerator, ops.Unknown, ops.CustomCall)


def constant_folding(graph: Graph) -> Graph:
    """Evaluates ops on literals, in regions too.

        a = constant 2.0                    b = constant splat 4.0
        b = broadcast(multiply(a, a))  =>

    The result is a splat of any size, a reshaped literal, or has at most `LARGEST` elements.
    What has no elements at all becomes a literal whatever computes it, so that later rooms see
    few empty tensors.

        i = iota s32[51]                    y = constant f32[51]<0., 0.02, 0.04, ...>
        y = multiply(convert(i), 0.02)  =>

    Numbers of a few places, too, once arithmetic of floats is done with them (frequencies, slopes,
    windows, the bins of a histogram): several may read them, and a stage that makes them first
    would take longer than the kernel's others. Integers stay: later passes count with them.
    """
    folds = (_empty, _reshaped, _moved_splat, _mapped_splat, _small, _of_places)
    rules: dict[type[Op], Sequence[Rule]] = {
        cls: folds for cls in REGISTRY.values() if cls not in _NEVER}
    rules[ops.Iota] = (_empty,)
    return apply_rules(graph, rules)


def _empty(op: Op, scope: Scope) -> Sequence[Value] | None:
    types = [v.type for v in op.results]
    if ops.has_side_effect(op) or not all(t.is_static and t.size == 0 for t in types):
        return None
    return [scope.splat(0, t) for t in types]


def _reshaped(op: Op, scope: Scope) -> Sequence[Value] | None:
    # A view, whatever the size.
    literal = scope.literal(op.inputs[0]) if isinstance(op, ops.Reshape) else None
    if literal is None:
        return None
    return [scope.constant(literal.reshape(op.results[0].type.dims))]


def _moved_splat(op: Op, scope: Scope) -> Sequence[Value] | None:
    if not isinstance(op, _MOVED) or not op.result.type.is_static:
        return None
    element = scope.element(op.inputs[0])
    return None if element is None else [scope.splat(element, op.result.type)]


def _mapped_splat(op: Op, scope: Scope) -> Sequence[Value] | None:
    if not isinstance(op, _MAPPED):
        return None
    elements = [scope.element(v) for v in op.inputs]
    literals = [e for e in elements if e is not None]
    if len(literals) < len(elements):
        return None
    scalar = {v: Value(TensorType((), v.type.dtype)) for v in op.inputs}
    out = Value(TensorType((), op.result.type.dtype))
    small = dataclasses.replace(op.clone(scalar), results=(out,))
    result = _evaluated([small], list(scalar.values()),
                        [literals[op.inputs.index(v)] for v in scalar])
    return None if result is None else [scope.splat(result[0], op.result.type)]


def _small(op: Op, scope: Scope) -> Sequence[Value] | None:
    if not op.inputs or any(not v.type.is_static or v.type.size > LARGEST for v in op.results):
        return None
    if any(g.captures for g in op.subgraphs) or ops.has_side_effect(op) \
            or (isinstance(op, ops.Stored) and op.is_one_of_its_kind):
        return None
    operands = list(dict.fromkeys(op.inputs))
    literals = [scope.literal(v) for v in operands]
    arrays = [a for a in literals if a is not None]
    if len(arrays) < len(literals) or any(a.size > 64 * LARGEST for a in arrays):
        return None
    result = _evaluated([op], operands, arrays)
    return None if result is None else [scope.constant(r) for r in result]


def _of_places(op: Op, scope: Scope) -> Sequence[Value] | None:
    # Those of 16 bits are not rounded one by one where a kernel computes them.
    if not isinstance(op, ops.Elementwise) or op.result.type.dtype not in (DType.F32, DType.F64) \
            or not op.result.type.is_static or op.result.type.size > LARGEST:
        return None
    behind = dict[Op, None]()
    if not all(_behind(v, scope, behind) for v in op.inputs):
        return None
    result = _evaluated([*behind, op], [], [])
    return None if result is None else [scope.constant(r) for r in result]


def _behind(value: Value, scope: Scope, found: dict[Op, None], depth: int = _DEEPEST) -> bool:
    """Whether a value is made of literals and places alone; ``found`` gets the ops, in order."""
    op = scope.producers.get(value)
    if op in found:
        return True
    if op is None or not isinstance(op, _OF_PLACES) or not depth \
            or not value.type.is_static or value.type.size > LARGEST \
            or not all(_behind(v, scope, found, depth - 1) for v in op.inputs):
        return False
    found[op] = None
    return True


def _evaluated(path: Sequence[Op], operands: Sequence[Value],
               arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
    """The results of the last of these ops."""
    try:
        return evaluate(Graph(tuple(operands), tuple(path), path[-1].results), arrays)
    except Unsupported:
        return None

"""States of a loop that the next trip's contractions compute themselves, on the way to them.

    g = dot(h, U) + x                   g = dot(f(slices of g, c), U) + x       one stage a trip
    h = f(slices of g, c)        ──►    beside it: c = stored(...)
    c = ...

A state that takes slices of a contraction's result (an LSTM's, a GRU's gates) is no part of that
contraction's epilogue, so that it would have a stage of its own between two contractions. Each task
of the next one can compute what it reads of the state from the gates instead, as long as that is
little; whatever else needs the state reads what a group beside the contraction stores.
"""

from __future__ import annotations

import math

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MOVES = (ops.Reshape, ops.Transpose, ops.Convert)
MAX_ELEMENTS = 2048
"""Of the state, that a task of the contraction computes: 8 of a thread, of some 80 instructions
each, take about a quarter of a stage by that count."""
TILE_ROWS = 16
"""Of a task of a contraction with many rows, at least."""
_POINTWISE = (ops.Elementwise, ops.Compare, ops.Convert, ops.Constant, ops.BroadcastInDim,
              ops.Reshape, ops.Slice, ops.ReducePrecision)


def on_the_way(body: Graph) -> frozenset[int]:
    """Which carried values of a loop's body are computed so."""
    return frozenset(i for i, v in enumerate(body.inputs)
                     if any(_reads_little(o, v, body) for o in body.ops)
                     and _takes_slices(body, body.outputs[i]))


def source(body: Graph, v: Value) -> Value:
    """What ``v`` is a moved copy of."""
    while isinstance(o := body.producer.get(v), MOVES):
        v = o.inputs[0]
    return v


def _reads_little(op: Op, state: Value, body: Graph) -> bool:
    if not isinstance(op, ops.DotGeneral) or state not in (
            source(body, op.lhs), source(body, op.rhs)):
        return False
    v, contract, batch = (op.lhs, op.lhs_contract, op.lhs_batch) \
        if source(body, op.lhs) is state else (op.rhs, op.rhs_contract, op.rhs_batch)
    k = math.prod(v.type.dims[d] for d in contract)
    return not batch and k * min(v.type.size // max(k, 1), TILE_ROWS) <= MAX_ELEMENTS


def _takes_slices(body: Graph, v: Value) -> bool:
    """Whether ``v`` is computed element by element of slices of contractions' results, and of
    nothing else that takes a stage."""
    todo, seen, slices = [v], {v}, False
    while todo:
        o = body.producer.get(todo.pop())
        if o is None or isinstance(o, ops.DotGeneral | ops.DynamicSlice):
            continue
        if not isinstance(o, _POINTWISE):
            return False
        slices = slices or (isinstance(o, ops.Slice) and _behind_a_contraction(body, o.operand))
        todo += [a for a in o.inputs if a not in seen]
        seen.update(o.inputs)
    return slices


def _behind_a_contraction(body: Graph, v: Value) -> bool:
    todo, seen = [v], {v}
    while todo:
        o = body.producer.get(todo.pop())
        if isinstance(o, ops.DotGeneral):
            return True
        if isinstance(o, _POINTWISE):
            todo += [a for a in o.inputs if a not in seen]
            seen.update(o.inputs)
    return False

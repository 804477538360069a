"""Weights of 16 bits whose rows begin anywhere are read as they lie, where products take them so.

    w: [768, 50257] ── pad ── stored ── slice ──┐            w ──┐
    x: [2048, 768] ─────────────────────────────┴── dot   ►  x ──┴── dot

A pass of `hlo` gives what many tiles read a padded copy (rules/alignment.py), for all targets. On
warpgroups such weights pass through registers as fast as others through shared memory
(codegen's device/unaligned_weights.cuh): 2048x30522x768 takes 178 us of an H200 so, and 176 on the
copy, which takes 22 more; 2048x50257x768 336 and 415, and 40. Not where a reduce begins in the
product's epilogue: those tiles cannot.
"""

from __future__ import annotations

from collections.abc import Collection

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.plan import Device
from jaxmono.fusion.widened import MIN_COLUMNS, PIECE
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import replace_values
from jaxmono.hlo.types import DType

MOST_ROWS, MOST_ELEMENTS = 512, 1 << 30
"""Of a tile: as many rows may lie behind the last one; and elements up to there, whose places in
bytes have 31 bits (codegen's `operand.shifted` and `is_unaligned`)."""
_MADE = (ops.DotGeneral, ops.Convolution, ops.Reduce, ops.BroadcastInDim, ops.Constant)
_KEEPS = (ops.Elementwise, ops.Convert, ops.Compare, ops.ReducePrecision, ops.Reshape)


def unpadded(graph: Graph, device: Device, reduced: Collection[Op]) -> Graph:
    """``graph`` without such copies that one product reads; itself if it has none.

    Args:
      reduced: contractions in whose epilogue a reduce may begin.
    """
    if not device.wgmma:
        return graph
    dots = (o for o in graph.ops if isinstance(o, ops.DotGeneral) and o not in reduced)
    same = {o.rhs: w for o in dots if (w := _weights(graph, o)) is not None}
    return dead_code(replace_values(graph, same)) if same else graph


def _weights(graph: Graph, o: ops.DotGeneral) -> Value | None:
    """What a product's right operand, [k][n], is a padded copy of, for nothing else; None if it is
    none, or if the product does not take it as it lies."""
    k, n = len(o.rhs_contract), dot_dims(o).n
    leading, last = tuple(range(k)), tuple(range(o.lhs.type.rank - k, o.lhs.type.rank))
    if o.lhs_batch or k == 0 or n < MIN_COLUMNS or o.rhs.type.rank != k + 1 \
            or (tuple(o.rhs_contract), tuple(o.lhs_contract)) != (leading, last) \
            or o.lhs.type.dtype is not o.rhs.type.dtype \
            or o.rhs.type.dtype not in (DType.BF16, DType.F16) \
            or o.lhs.type.dims[-1] * o.lhs.type.dtype.itemsize % PIECE \
            or o.rhs.type.size + MOST_ROWS * n >= MOST_ELEMENTS or not _in_rows(graph, o.lhs):
        return None
    v = o.rhs
    for kind in (ops.Slice, ops.Stored, ops.Pad):
        op = graph.producer.get(v)
        if not isinstance(op, kind) or len(graph.users[v]) != 1 or v in graph.outputs:
            return None
        v = op.inputs[0]
    whole = v.type == o.rhs.type and isinstance(part := graph.producer[o.rhs], ops.Slice) \
        and not any(part.start_indices)
    return v if whole else None


def _in_rows(graph: Graph, v: Value) -> bool:
    """Whether the last dimension of ``v`` is that of what lies in memory, or is computed from such,
    element by element: not of a part of it, nor turned."""
    work, seen = [v], {v}
    while work:
        x = work.pop()
        op = graph.producer.get(x)
        if op is None or isinstance(op, _MADE):
            continue
        if not isinstance(op, _KEEPS) or (isinstance(op, ops.Reshape) and (
                op.operand.type.dims[-1:] != x.type.dims[-1:])):
            return False
        more = {p for p in op.inputs if p.type.size == x.type.size} - seen
        seen |= more
        work.extend(more)
    return True

"""Weights of bytes are widened by the products that read them, not stored once more.

    w: s8[k, n] ── convert ── bf16[k, n] ──┐
    x: bf16[m, k] ─────────────────────────┴── dot        one stage, k n bytes of weights

A stage of its own would read and write 5 k n bytes in front of a grid barrier: 2048x8192x2048 took
117 us of an H100 so, and 99 without. On Hopper the product takes bytes (codegen's
dot_schedule_bytes.py), where they lie in pieces of 16.
"""

from __future__ import annotations

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import matrix_dtype, widens_bytes
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType

PIECE = 16
"""Bytes that are copied at a time."""

_VIEWS = (ops.Reshape, ops.Transpose, ops.Slice)


def widened_weights(graph: Graph, device: Device) -> frozenset[Op]:
    """The conversions that products make on the way."""
    if not device.wgmma:
        return frozenset()
    found = (_conversion(graph, o) for o in graph.ops if isinstance(o, ops.DotGeneral))
    return frozenset(o for o in found if o is not None)


def _conversion(graph: Graph, dot: ops.DotGeneral) -> Op | None:
    if matrix_dtype(dot) not in (DType.BF16, DType.F16):
        return None
    contracted = tuple(range(dot.lhs.type.rank - len(dot.lhs_contract), dot.lhs.type.rank))
    if tuple(dot.lhs_contract) != contracted or 0 in dot_dims(dot)[2:]:
        return None  # rows whose k are no neighbours
    op = graph.producer.get(_behind_views(graph, dot.rhs))
    if op is None or not widens_bytes(op) or not isinstance(op, ops.Convert):
        return None
    bytes_ = _behind_views(graph, op.operand)
    whole = bytes_ in graph.inputs and bytes_.type.rank > 0 and not bytes_.type.dims[-1] % PIECE
    return op if whole else None


def _behind_views(graph: Graph, v: Value) -> Value:
    while isinstance(op := graph.producer.get(v), _VIEWS):
        v = op.operand
    return v

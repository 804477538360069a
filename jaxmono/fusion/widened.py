"""Weights that are stored in another type are converted by the products that read them, not stored
once more.

    w: s8[k, n] ── convert ── bf16[k, n] ──┐
    x: bf16[m, k] ─────────────────────────┴── dot        one stage, k n bytes of weights

A stage of its own would read and write 5 k n bytes in front of a grid barrier: 2048x8192x2048 took
117 us of an H100 so, and 99 without. On Hopper the product takes bytes (codegen's
dot_schedule_bytes.py), where they lie in pieces of 16.

Parameters that are f32, which a layer converts to bf16 (Flax's default), are rounded on the way as
well, by products with so few rows that this costs less than a stage. With more rows every tile of
them reads twice the bytes, and rounds them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.fusion import cost
from jaxmono.fusion.demand import demands
from jaxmono.fusion.dots import dot_dims, dot_vars, operand_index
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.indexing import Index, IndexMap, Var, contiguous, linearize
from jaxmono.fusion.plan import Device
from jaxmono.fusion.scaled_weights import scaled_operand
from jaxmono.fusion.support import converts_stored, matrix_dtype, rounds_floats, widens_bytes
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType

PIECE = 16
"""Bytes that are copied at a time."""

MIN_GROUP, FEW_ROWS = 64, 4
"""Summed elements that share a scale, where more rows are multiplied than weights are streamed
for."""

MANY_ROWS, LONG_ROWS = 2048, 3072
"""From so many rows of so many elements on weights are scaled by a stage of their own: each tile of
rows would scale them once more. On an H200 with 4 bits, groups of 128: 2048x768x3072 0.86 to 0.95
of the time so, 4096 cubed 0.91 to 0.94; 2048x8192x2048 1.02, 512x3072x768 1.05 to 1.07."""

MIN_COLUMNS = 64
"""That a tile of codegen's dot_schedule_bytes.py has."""

_LATER = 0.25
_LATER_ROW_US, _WEIGHTS = 0.0025, 2.4e6
"""By how much a product takes longer with f32 than with 16-bit weights, of the time that it takes;
and for each row, where it has so many weights. On an H100, rounded on the way and stored before:
1024x8192x2048 62 us and 86, 2048x8192x2048 128 and 135, 1024x3072x768 16.5 and 16, 2048x3072x768 30
and 26, 2048x768x3072 26 and 24."""

LEAST_SHARE = 1 / 16
"""Of a kernel's weights, how many must be of f32 for products that round them in registers: such a
product multiplies what ptxas takes for a large kernel. BERT-base's training step has two small
ones, of its classifier, and took 246 s with them, 47 without."""

_VIEWS = (ops.Reshape, ops.Transpose, ops.Slice)


def left_to_products(graph: Graph, device: Device, holders: Mapping[Op, Sequence[Draft]],
                     ) -> frozenset[Op]:
    """The conversions that products make on the way: of bytes, and of f32 where that pays.

    Args:
      holders: by op, the drafts that have it.
    """
    dots = [o for o in graph.ops if isinstance(o, ops.DotGeneral)] if device.wgmma else []
    found: dict[Op, list[ops.DotGeneral]] = {}
    for dot in dots:
        if (op := _conversion(graph, dot)) is not None:
            found.setdefault(op, []).append(dot)
    bytes_ = frozenset(op for op in found if widens_bytes(op))
    scaled = frozenset(op for dot in dots for op in _scaled(graph, dot))
    legal = {op: by for op, by in found.items() if op not in bytes_ and all(
        d.kind == "dot" and d.taps == 1 and not (d.reduced or d.paired)
        for dot in by for d in holders.get(dot, ())) and len(by) == _uses(graph, op.results[0])}
    return bytes_ | scaled | _rounded(legal, dots, device)


def _rounded(legal: Mapping[Op, Sequence[ops.DotGeneral]], dots: Sequence[ops.DotGeneral],
             device: Device) -> frozenset[Op]:
    """Which conversions of f32, that only these products read, they make. Others are stored, all in
    one stage: by a few that does not pay. Nor do few of a kernel's products bring the family that
    rounds (`LEAST_SHARE`)."""
    gains = {op: sum(_later(dot, device) for dot in by)
             - 3 * op.results[0].type.nbytes / device.read_bytes_per_us
             for op, by in legal.items()}
    stored = {op for op in legal if gains[op] > 0}
    if sum(gains[op] for op in stored) < device.phase_us:
        stored = set()
    left = frozenset(legal) - stored
    share = sum(dot.rhs.type.size for op in left for dot in legal[op])
    return left if share >= LEAST_SHARE * sum(dot.rhs.type.size for dot in dots) else frozenset()


def _later(dot: ops.DotGeneral, device: Device) -> float:
    """Microseconds that a product loses by rounding its weights."""
    dims = dot_dims(dot)
    wide = min(1.0, dims.n * dims.k / _WEIGHTS)
    return _LATER * cost.dot_flops(dot) / device.matrix_flops_per_us \
        + _LATER_ROW_US * dims.batch * dims.m * wide


def _uses(graph: Graph, v: Value) -> int:
    """How many ops read a value, through views."""
    return sum(_uses(graph, u.result) if isinstance(u, _VIEWS) else 1
               for u in graph.users.get(v, ()))


def _scaled(graph: Graph, dot: ops.DotGeneral) -> tuple[Op, ...]:
    """Of weights that a product scales on its way (scaled_weights.py), the multiplication and the
    conversion; nothing where it cannot."""
    if not _rows_in_pieces(graph, dot) or (found := scaled_operand(graph, dot)) is None:
        return ()
    dims = dot_dims(dot)
    if (found.group < MIN_GROUP and dims.m > FEW_ROWS) or (dims.m >= MANY_ROWS
                                                           and dims.k >= LONG_ROWS):
        return ()
    _, _, n, k = dot_vars(dot)
    return found.ops if _pieces(graph, found.param, found.index, (k, n), None) else ()


def _rows_in_pieces(graph: Graph, dot: ops.DotGeneral) -> bool:
    """Whether rows of 16 bits lie in memory in pieces of `PIECE` bytes along k, unless they are
    computed."""
    if matrix_dtype(dot) not in (DType.BF16, DType.F16):
        return False
    contracted = tuple(range(dot.lhs.type.rank - len(dot.lhs_contract), dot.lhs.type.rank))
    if tuple(dot.lhs_contract) != contracted or 0 in dot_dims(dot)[2:]:
        return False  # rows whose k are no neighbours
    b, m, _, k = dot_vars(dot)
    return _pieces(graph, dot.lhs, operand_index(dot, "lhs", Index.of(b), Index.of(m), Index.of(k)),
                   (k,), None)


def _conversion(graph: Graph, dot: ops.DotGeneral) -> Op | None:
    """That of a product's weights, where both operands lie in memory in pieces of `PIECE` bytes: of
    rows along k, unless they are computed."""
    op = stored_conversion(graph, dot.rhs)
    if op is None or not _rows_in_pieces(graph, dot) or (
            rounds_floats(op) and dot_dims(dot).n < MIN_COLUMNS):
        return None
    b, _, n, k = dot_vars(dot)
    weights = _pieces(graph, dot.rhs, operand_index(dot, "rhs", Index.of(b), Index.of(n),
                                                    Index.of(k)), (k, n), op)
    return op if weights else None


def _pieces(graph: Graph, v: Value, index: IndexMap, along: Sequence[Var], through: Op | None,
            ) -> bool:
    """Whether what ``v`` is a view of, demanded at ``index``, lies in whole pieces along one of
    these; ``through``: a conversion that counts as a view."""
    while (op := graph.producer.get(v)) is not None and (isinstance(op, _VIEWS) or op is through):
        needs = demands(op, index)
        assert needs is not None
        (first,) = needs
        v, index = first.value, first.index
    offset, piece = linearize(index, v.type.dims), 8 * PIECE // v.type.dtype.bits
    return any(contiguous(offset, var, piece) for var in along)


def stored_conversion(graph: Graph, v: Value) -> ops.Convert | None:
    """What makes ``v``, up to views, of bytes or f32 that the program is given; None if nothing
    does, or if their rows are not whole pieces."""
    op = graph.producer.get(_behind_views(graph, v))
    if not isinstance(op, ops.Convert) or not converts_stored(op):
        return None
    t = (stored := _behind_views(graph, op.operand)).type
    whole = stored in graph.inputs and t.rank > 0 and not t.dims[-1] % (8 * PIECE // t.dtype.bits)
    return op if whole else None


def _behind_views(graph: Graph, v: Value) -> Value:
    while isinstance(op := graph.producer.get(v), _VIEWS):
        v = op.operand
    return v

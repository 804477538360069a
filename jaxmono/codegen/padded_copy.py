"""Copies that pad, as raw bits or rounded: several neighbours per search for where they come from.

    out[n, h, w, 8 c .. 8 c + 8] = h, w inside and 8 c + l < 174 ? in[n, h - 1, w - 1, 8 c + l] : 0

Element by element, finding the place (divisions by the shape) takes more time than memory does:
Bolt's padding_5 pads 174 channels to 176, 13 MB in and out that an H200 moves in 3.3 us, and took
10 us with 20 instructions an element. Here one search serves a vector of 16 bytes. The padded
dimension's border parts the vector, so its loads are pieces, as wide as both the addresses and the
border allow; each is a predicated instruction, which needs neither a branch, an address to read
instead, nor a choice afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from jaxmono.codegen.index_code import VarCode, fits_int, guard_code, index_code
from jaxmono.codegen.names import storage, stored_literal
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.traverse import Access, Lane, access, is_multiple, operands
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.demand import Guard
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import UNKNOWN_LOC, Graph, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import DType

MOST_IN_FLIGHT = 8
"""Vectors of a thread: 256 threads with 128 bytes each are 32 KB of an SM on their way; 22 KB fill
the 0.7 us that an H200's memory takes at 4.2 TB/s."""


@dataclass(frozen=True)
class PaddedCopy:
    """Attributes:
      op: where the padding comes from.
      source: the input that is copied.
      offset: of a vector's first element in it.
      whole: holds for all elements of a vector or none.
      parts: bounds that pass through a vector, between its pieces.
      piece: elements of one load.
      fill: C initialiser of the elements outside.
      rounding: of f32, what it is rounded by on the way; None if it stays as it is.
    """

    op: ops.Pad
    source: Value
    offset: Index
    whole: Guard
    parts: Guard
    piece: int
    fill: str
    rounding: ops.ReducePrecision | None = None


def padded_copy(body: Graph, value: Value, index: IndexMap, var: Var, lanes: int,
                ) -> PaddedCopy | None:
    """``value`` at ``index``, which neighbours along ``var`` are stored of, as a padded copy.

    None where it is something else, or too scattered for vectors of ``lanes``.
    """
    lane = Lane(var, lanes)
    at = tuple(lane.split(i) for i in index)
    pad: ops.Pad | None = None
    guard, fill = Guard(), ""
    rounding: ops.ReducePrecision | None = None
    while value not in body.inputs:
        op = body.producer.get(value)
        if isinstance(op, ops.ReducePrecision) and rounding is pad is None \
                and value.type.dtype is DType.F32:
            rounding = op  # of what is padded, too
        elif not isinstance(op, (ops.Pad, ops.Stored, ops.Reshape, ops.Slice)):
            return None
        needs = operands(op, value, at)
        if not needs or len(needs) > 1 + isinstance(op, ops.Pad):
            return None
        if len(needs) == 2:
            outside = body.producer.get(needs[1].value)
            if pad is not None or not isinstance(op, ops.Pad) \
                    or not isinstance(outside, ops.Constant) or not is_splat(outside.value):
                return None
            pad, guard = op, needs[0].guard
            fill = stored_literal(np.asarray(splat_value(outside.value)), value.type.dtype)
        value, at = needs[0].value, needs[0].index
    if pad is None or lanes == 1 or not value.type.size or any(not i.is_static for i in at):
        return None
    copy = _in_pieces(pad, value, linearize(at, value.type.dims), guard, fill, lane)
    return copy and replace(copy, rounding=rounding)


def _in_pieces(pad: ops.Pad, source: Value, offset: Index, guard: Guard, fill: str, lane: Lane,
               ) -> PaddedCopy | None:
    parts = tuple(b for b in guard.bounds if lane.varies(b[:1]))
    if any(access(x, lane) not in (Access.CONTIGUOUS, Access.UNALIGNED)
           for x in (offset, *(x for x, _, _ in parts))):
        return None
    low, piece = Index.of(lane.low), lane.width
    while not (is_multiple(offset - low, piece) and all(
            is_multiple(x - low, piece) and not (first % piece or end % piece)
            for x, first, end in parts)):
        piece //= 2
    first = offset.substitute({lane.low: Index()})
    whole = tuple(b for b in guard.bounds if b not in parts)
    return PaddedCopy(pad, source, first, Guard(whole), Guard(parts), piece, fill)


def emit_padded_copy(w: Writer, copy: PaddedCopy, store: Index, var: Var, lanes: int, unroll: int,
                     function: Function, first: str) -> None:
    """One task: ``unroll`` vectors of a thread, all of whose loads come before the first store.

    Args:
      store: offset in the output, over ``var``.
      first: C expression of ``var`` at the thread's first vector.
    """
    lane = Lane(var, lanes)
    names = {lane.high: VarCode("e", lanes), lane.low: VarCode("l")}
    t = "int" if var.size < 2**31 - 2**20 else "long long"
    stride, dtype = function.threads * lanes, copy.source.type.dtype
    place = "" if copy.op.loc == UNKNOWN_LOC else f"  {copy.op.loc}"
    w.line(f"const {t} e0 = {first};")
    w.line(f"PaddedVec<{storage(dtype)}, {lanes}, {copy.piece}> out[{unroll}];")
    w.directive("#pragma unroll")
    with w.block(f"for (int u = 0; u < {unroll}; ++u)"):
        w.line(f"const {t} e = min(e0 + u * {stride}, ({t}){var.size - lanes});")
        w.line(f"const bool inside = {_test(copy.whole, names) or 'true'};", f"pad{place}")
        kind = "int" if fits_int(copy.offset) else "long long"
        w.line(f"const {kind} from = {_code(copy.offset, names)};")
        w.directive("#pragma unroll")
        with w.block(f"for (int l = 0; l < {lanes}; l += {copy.piece})"):
            test = " & ".join(x for x in ("inside", _test(copy.parts, names)) if x)
            w.line(f"out[u].load(l, {function.pointers[copy.source]} + from + l, {test}, "
                   f"{storage(dtype)}{{{copy.fill}}});")
    if (o := copy.rounding) is not None:
        w.directive("#pragma unroll")
        w.line(f"for (int u = 0; u < {unroll}; ++u) "
               f"out[u].round({o.exponent_bits}, {o.mantissa_bits});",
               "" if o.loc == UNKNOWN_LOC else f"reduce_precision  {o.loc}")
    w.directive("#pragma unroll")
    with w.block(f"for (int u = 0; u < {unroll}; ++u)"):
        w.line(f"const {t} e = e0 + u * {stride};")
        at = lane.split(store).substitute({lane.low: Index()})
        w.line(f"if (e < {var.size}) out[u].store({function.outputs[0]} + {_code(at, names)});")


def _code(index: Index, names: Mapping[Var, VarCode]) -> str:
    def dynamic(dyn: object) -> str:
        raise AssertionError(f"{dyn} in a padded copy")

    return index_code(index, names, dynamic)


def _test(guard: Guard, names: Mapping[Var, VarCode]) -> str:
    return guard_code(guard, lambda i: _code(i, names), branches=False)

"""How an operand of a contraction reaches shared memory: copied in 16-byte pieces, or computed.

    copy     the operand is a view (transpose, reshape, slice, gather of rows...) of one buffer, or
             of several that a concatenation joins, and 16 bytes along k (or along m / n) are
             contiguous and aligned there: cp.async. Where it is padded with zeros, the predicate
             of cp.async is false, which writes zeros. Rows of 392 bytes, say, are aligned to 8 (or
             4): as many copies to a piece as it takes
    pick     a view of one buffer whose pieces do not lie like that (features first, an odd number
             of 16-bit elements): an element at a time, all loads of a piece at once
    compute  anything else: the elements of a piece are evaluated and stored to shared memory

Weights that are kept as bytes and multiplied as floats of 16 or 32 bits (`x @ w.astype(x.dtype)` of
8-bit w), or as f32 and multiplied as 16, are copies as well where a family converts them on their
way to the products (`stored`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from jaxmono.codegen.traverse import Lane, guard_holds, uniform_guard
from jaxmono.fusion.demand import Demand, Guard, demands
from jaxmono.fusion.dots import both_columns
from jaxmono.fusion.indexing import Index, IndexMap, Var, contiguous, linearize, stride
from jaxmono.fusion.scaled_weights import Scaled, scaled
from jaxmono.fusion.support import converts_stored
from jaxmono.fusion.unpadded import MOST_ELEMENTS, MOST_ROWS
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import DType

NO_GUARD = Guard()

PIECE_BYTES = 16
"""Of an operand in shared memory: what one thread brings at a time."""

MAX_SOURCES = 8
"""Buffers that the pieces of one operand may come from."""

Bound: TypeAlias = tuple[Index, int, int]


@dataclass(frozen=True)
class Source:
    """A buffer, the element offset in it, and where (in the operand) its elements are meant."""

    param: Value
    offset: Index
    where: Guard


@dataclass(frozen=True)
class NewRows:
    """What takes the place of some rows of a buffer (a cache that has been updated).

    Attributes:
      value, index: the elements, demanded over (batch, outer, k) as the operand.
      first: the first of the rows. count: of them.
    """

    value: Value
    index: IndexMap
    first: Index
    count: int


@dataclass(frozen=True)
class Operand:
    """One operand of a contraction as its loader sees it.

    Attributes:
      value, index: the root in the body and where it is demanded, over (batch, outer, k).
      outer: m or n. k: the contraction Var.
      major: the Var along which the 16 bytes of a piece run (k or outer).
      param: the buffer that is copied, or None if the elements are computed.
      offset: element offset in that buffer.
      guard: where the elements are those of the buffer; they are zeros elsewhere.
      others: buffers that take the place of ``param`` in some places.
      picked: the buffer that elements are taken from one by one, if they are; zeros elsewhere.
      new: rows that are not the buffer's.
      width: bytes that are copied at a time, 16, 8 or 4.
      scaled: what its elements are multiplied with behind shared memory, if they are.

    The buffer's elements are those of ``value``, or what it is converted from (`stored`).
    """

    value: Value
    index: IndexMap
    outer: Var
    k: Var
    major: Var
    param: Value | None = None
    offset: Index | None = None
    guard: Guard = NO_GUARD
    others: tuple[Source, ...] = ()
    picked: Source | None = None
    new: NewRows | None = None
    width: int = PIECE_BYTES
    scaled: Scaled | None = None

    @property
    def k_major(self) -> bool:
        return self.major == self.k

    @property
    def params(self) -> tuple[Value, ...]:
        """The buffers that it is copied from."""
        return () if self.param is None else (self.param, *(s.param for s in self.others))

    @property
    def stored(self) -> DType | None:
        """The type of bytes, or f32, that the buffer has and ``value`` is converted from; None
        elsewhere."""
        t = None if self.param is None else self.param.type.dtype
        return t if t is not self.value.type.dtype else None

    @property
    def ragged(self) -> bool:
        """Whether the last piece of a row has fewer elements."""
        return self.param is not None and self.major.size % (
            8 * self.width // self.param.type.dtype.bits) != 0

    @property
    def in_pieces(self) -> bool:
        """Whether it is copied, in whole pieces."""
        return self.param is not None and self.width == PIECE_BYTES and not self.ragged

    @property
    def source(self) -> Source | None:
        """Where its elements are, if that is (nearly) all in one buffer."""
        if self.param is None or self.offset is None:
            return self.picked
        return Source(self.param, self.offset, self.guard)


@dataclass(frozen=True)
class View:
    """What a value is a view of, in some places.

    Attributes:
      param, index: the body input and the index there.
      guard: where the element is not padding.
      choice: the places; everywhere, unless a concatenation joins several views.
    """

    param: Value
    index: IndexMap
    guard: Guard = NO_GUARD
    choice: Guard = NO_GUARD


def views_of_params(body: Graph, value: Value, index: IndexMap,
                    updates: list[Demand] | None = None, *, stored: bool = False,
                    ) -> list[View] | None:
    """The body inputs that ``value`` is made of by pure views; None if it is not.

    Ops that only select elements (gather of rows, dynamic_slice) count as views; so do padding
    with zeros and concatenation. With a list ``updates``, so does an update of a buffer, which goes
    into it: where its guard holds, the elements are not those of the view. ``stored``: so do
    conversions of bytes that lose nothing, and of f32 to 16 bits, of one buffer.
    """
    inputs = set(body.inputs)
    guard: list[Bound] = []
    while value not in inputs:
        op = body.producer.get(value)
        needs = None if op is None else demands(op, index)
        first = needs[0] if needs else None
        if op is None or needs is None or first is None:
            return None
        if stored and converts_stored(op):
            value, index = first.value, first.index
            continue
        if first.value.type.dtype != value.type.dtype:
            return None
        if isinstance(op, ops.Concatenate) and len(needs) > 1:
            return _joined(body, needs, guard)
        if isinstance(op, ops.DynamicUpdateSlice) and updates is not None:
            updates.append(first)
            first = list(needs)[-1]
        elif isinstance(op, ops.Pad) and is_zero(body, op.padding_value):
            guard.extend(_open(first.guard))
        elif len(needs) != 1 or first.guard.bounds or not _selects(op.opcode):
            return None
        value, index = first.value, first.index
    return [View(value, index, Guard(tuple(dict.fromkeys(guard))))]


def _joined(body: Graph, needs: Sequence[Demand], guard: Sequence[Bound]) -> list[View] | None:
    out: list[View] = []
    for d in needs:
        if guard_holds(d.guard) is False:
            continue
        inner = views_of_params(body, d.value, d.index)
        if inner is None:
            return None
        out += [View(v.param, v.index, Guard((*guard, *v.guard.bounds)),
                     Guard((*_open(d.guard), *v.choice.bounds))) for v in inner]
    return out


def _open(guard: Guard) -> list[Bound]:
    """The bounds that do not hold everywhere."""
    return [x for x in guard.bounds if not guard_holds(Guard((x,)))]


def is_zero(body: Graph, value: Value) -> bool:
    """Whether a scalar is the literal 0, all bits of which are zeros."""
    op = body.producer.get(value)
    return (isinstance(op, ops.Constant) and op.value.size > 0 and is_splat(op.value)
            and not np.any(np.frombuffer(splat_value(op.value).tobytes(), np.uint8)))


_SELECTING = frozenset({"reshape", "transpose", "broadcast_in_dim", "slice", "reverse", "window",
                        "dynamic_slice", "gather", "optimization_barrier"})


def _selects(opcode: str) -> bool:
    return opcode in _SELECTING


def _uniform(guard: Guard, var: Var, piece: int) -> bool:
    """Whether a guard holds for all elements of a piece or for none."""
    lane = Lane(var, piece)
    split = Guard(tuple((lane.split(x), low, high) for x, low, high in guard.bounds))
    return uniform_guard(split, lane) is not None


def is_unaligned(x: Operand) -> bool:
    """Whether an operand is one buffer, whole, whose rows of 16-bit elements begin anywhere in
    memory: an `Unaligned` (device/unaligned_tile.cuh), which tells places in 31 bits."""
    source = x.picked
    if source is None or source.where.bounds or source.param.type.dtype.itemsize != 2:
        return False
    row = x.outer if x.k_major else x.k
    pitch = stride(source.offset, row)
    return pitch is not None and stride(source.offset, x.major) == 1 and (
        source.param.type.size + MOST_ROWS * abs(pitch) < MOST_ELEMENTS)


def shifted(x: Operand) -> tuple[int, int] | None:
    """Of rows of k of 16-bit elements that are no multiples of 16 bytes, in one buffer, whole: by
    how many elements each is shifted against the one before, and the first one against a multiple
    of 16 bytes, both modulo 8; None elsewhere, and where only the kernel knows."""
    source = x.source
    if source is None or x.k_major or x.others or source.where.bounds or x.in_pieces \
            or source.param.type.dtype.bits != 16 or x.stored is not None or x.scaled is not None:
        return None
    pitch = stride(source.offset, x.k)
    first = source.offset.substitute({x.k: Index.of(0), x.outer: Index.of(0)})
    if pitch is None or pitch < 0 or stride(source.offset, x.outer) != 1 or not first.is_static \
            or source.param.type.size + MOST_ROWS * pitch >= MOST_ELEMENTS:
        return None  # of rows in reverse order the first one ends the tile
    first %= 8
    return (pitch % 8, first.const) if first.is_const else None


def is_strided(x: Operand) -> bool:
    """Whether an operand is one buffer, whole, in which rows and columns have constant strides.
    Where it begins may be read from memory (`is_looked_up`)."""
    if x.param is None or x.offset is None or x.guard.bounds or x.others:
        return False
    row = x.outer if x.k_major else x.k
    return stride(x.offset, row) is not None and stride(x.offset, x.major) == 1


def is_looked_up(x: Operand) -> bool:
    """Whether an earlier stage may have made what tells where an operand is."""
    return x.offset is not None and not x.offset.is_static


@dataclass(frozen=True)
class Halves:
    """Two buffers, or parts of one, whose rows have the same distance.

    Attributes:
      begins: of each, the buffer and the offset of its first element. pitch: between rows.
    """

    begins: tuple[tuple[Value, Index], ...]
    pitch: int


def paired_halves(x: Operand) -> Halves | None:
    """Those of an operand whose outer elements are paired (fusion/paired_columns.py); None if they
    cannot be copied by whole pieces, or have other rows."""
    if x.param is None or x.offset is None or x.guard.bounds or not x.in_pieces:
        return None
    c = Var("h", x.outer.size // 2)
    row, major = (c, x.k) if x.k_major else (x.k, c)
    begins: list[tuple[Value, Index]] = []
    pitches: set[int | None] = set()
    for at in both_columns(c):
        param, offset = x.param, x.offset
        for other in reversed(x.others):
            holds = guard_holds(Guard(tuple((index.substitute({x.outer: at}), low, high)
                                            for index, low, high in other.where.bounds)))
            if holds is None:
                return None
            if holds:
                param, offset = other.param, other.offset
        offset = offset.substitute({x.outer: at})
        if not offset.is_static or stride(offset, major) != 1:
            return None
        pitches.add(stride(offset, row))
        begins.append((param, offset.substitute({c: Index(), x.k: Index()})))
    (pitch, *others) = pitches
    return None if others or pitch is None else Halves(tuple(begins), pitch)


def has_rows(x: Operand) -> bool:
    """Whether an operand's rows lie at a constant distance from each other, in one buffer."""
    return is_strided(x) or is_unaligned(x)


def copied_bytes(x: Operand) -> int:
    """Of an operand as producers bring it, what one copy takes: 2 if it `is_unaligned`."""
    return 2 if is_unaligned(x) else x.width


def analyse(body: Graph, value: Value, index: IndexMap, outer: Var, k: Var, itemsize: int, *,
            several: bool = False, rows: Var | None = None, narrow: bool = False,
            stored: bool = False, copied: bool = False) -> Operand:
    """Decides how an operand demanded at ``index`` is loaded, for pieces of 16 bytes.

    ``several``: pieces may come from several buffers, which a concatenation joins. ``rows``: of an
    update of one buffer, whose own elements the operand then has apart (`Operand.new`).
    ``narrow``: what is not padded may be copied 8 or 4 bytes at a time, where no more are aligned,
    and the last piece of a row may be a part of one. ``stored``: it may be bytes or f32 that are
    converted behind shared memory (`Operand.stored`), in whole pieces, and scaled; ``copied``: by
    scales that lie in memory (`scales_of`).
    """
    if stored:
        found = views_of_params(body, value, index, stored=True)
        if found and len(found) == 1 and found[0].param.type.dtype is not value.type.dtype:
            for var in (k, outer):
                made = _copied(Operand(value, index, outer, k, var), found,
                               8 * PIECE_BYTES // found[0].param.type.dtype.bits, ragged=False)
                if made is not None:
                    return made
        by = scaled(body, value, index, k)
        if by is not None and (not copied or scales_of(body, by) is not None):
            for var in (k, outer):
                made = _copied(Operand(value, index, outer, k, var, scaled=by),
                               [View(by.param, by.index)],
                               8 * PIECE_BYTES // by.param.type.dtype.bits, ragged=False)
                if made is not None:
                    return made
    updates: list[Demand] | None = None if rows is None else []
    sources = views_of_params(body, value, index, updates)
    new = _new_rows(updates, rows, sources) if updates and rows and sources else None
    if updates and new is None:
        sources = None
    if sources and len(sources) <= (MAX_SOURCES if several else 1):
        widths = (PIECE_BYTES, 8, 4) if narrow else (PIECE_BYTES,)
        ragged = narrow and itemsize > 1
        for width, var in itertools.product([w for w in widths if w >= itemsize], (k, outer)):
            made = _copied(Operand(value, index, outer, k, var, new=new, width=width), sources,
                           width // itemsize, ragged=ragged and width == PIECE_BYTES)
            if made is not None:
                return made
    if sources and new is None and len(sources) <= (MAX_SOURCES if several else 1):
        view = sources[0]
        offset = linearize(view.index, view.param.type.dims)
        major = outer if stride(offset, outer) == 1 else k
        static = all(i.is_static for i in (offset, *(at for at, _, _ in view.guard.bounds)))
        picked = Source(view.param, offset, view.guard) if len(sources) == 1 and static else None
        return Operand(value, index, outer, k, major, picked=picked)
    return Operand(value, index, outer, k, _computed_major(body, value, index, outer, k))


def scales_of(body: Graph, by: Scaled) -> View | None:
    """Where the scales of an operand lie, in floats or bytes; None if they are computed, or if
    memory tells where they are."""
    value, index, inputs = by.scale, by.scale_index, set(body.inputs)
    while value not in inputs:
        op = body.producer.get(value)
        needs = None if op is None else demands(op, index)
        if op is None or not needs or len(needs) != 1 or needs[0].guard.bounds or not (
                _selects(op.opcode) or isinstance(op, ops.Convert)):
            return None
        value, index = needs[0].value, needs[0].index
        t = value.type.dtype
        if not t.is_float and not (t.is_integer and t.bits == 8):
            return None
    return View(value, index) if all(i.is_static for i in index) else None


def _new_rows(updates: Sequence[Demand], rows: Var, sources: Sequence[View]) -> NewRows | None:
    """Those of a single update that replaces whole ``rows`` of one buffer that is not padded."""
    bounds = [x for d in updates for x in d.guard.bounds]
    if len(updates) != 1 or len(bounds) != 1 or len(sources) != 1 or sources[0].guard.bounds:
        return None
    ((at, low, count),) = bounds
    first = Index.of(rows) - at
    return None if low or first.variables else NewRows(updates[0].value, updates[0].index, first,
                                                       count)


def _copied(x: Operand, sources: Sequence[View], piece: int, *, ragged: bool) -> Operand | None:
    """``x`` as copies of ``piece`` elements along its major Var, of which the last one may be
    ``ragged``; None if they are not as many aligned bytes."""
    guard, offsets = sources[0].guard, list[Index]()
    for s in sources:
        offset = linearize(s.index, s.param.type.dims)
        static = all(i.is_static for i in (offset, *(at for at, _, _ in s.choice.bounds)))
        parts = x.width < PIECE_BYTES or x.major.size % piece != 0
        if parts and (s.guard.bounds or not offset.is_static):
            return None
        if not contiguous(offset, x.major, piece, ragged=ragged and len(sources) == 1) \
                or not _uniform(s.choice, x.major, piece) \
                or set(s.guard.bounds) != set(guard.bounds) or (len(sources) > 1 and not static):
            return None
        offsets.append(offset)
    if not _uniform(guard, x.major, piece) or not all(s.choice.bounds for s in sources[:-1]):
        return None
    others = tuple(Source(s.param, o, s.choice)
                   for s, o in zip(sources[:-1], offsets[:-1], strict=True))
    return replace(x, param=sources[-1].param, offset=offsets[-1], guard=guard, others=others)


def _computed_major(body: Graph, value: Value, index: IndexMap, outer: Var, k: Var) -> Var:
    """The axis along which the largest parameter of a computed operand is contiguous."""
    best, best_size = k, -1
    inputs, seen = set(body.inputs), set[tuple[Value, IndexMap]]()
    work = [(value, index)]
    while work:
        v, at = work.pop()
        if (v, at) in seen:
            continue
        seen.add((v, at))
        if v in inputs:
            offset = linearize(at, v.type.dims)
            for var in (k, outer):
                if stride(offset, var) == 1 and v.type.size > best_size:
                    best, best_size = var, v.type.size
            continue
        op = body.producer.get(v)
        if op is not None:
            work.extend((d.value, d.index) for d in demands(op, at) or ())
    return best

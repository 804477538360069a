"""Schedules: how a Plan's groups are mapped to threads. Data only; `choose` is the default chooser.

A tuner makes other values of the same types; the generator takes any that fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxmono.codegen.loads_first import loads_first, most_first
from jaxmono.codegen.loop_order import source_order
from jaxmono.codegen.names import storage
from jaxmono.codegen.padded_copy import MOST_IN_FLIGHT, padded_copy
from jaxmono.codegen.row_chain import KEEP_WORDS
from jaxmono.codegen.shared_loop import shared_loop
from jaxmono.codegen.stencil_loop import loads_of, stencil_loop
from jaxmono.codegen.stencil_rows import alike_rows, stencil_rows
from jaxmono.codegen.traverse import (
    Access,
    Lane,
    Reduction,
    access,
    dynamics,
    vector_width,
    walk,
)
from jaxmono.fusion.accumulated import accumulation
from jaxmono.fusion.cost import weight
from jaxmono.fusion.demand import Demand, reduction_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.plan import Device, LoopForm, RowForm, Sig, Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value


@dataclass(frozen=True)
class LoopSchedule:
    """Attributes:
      lanes: neighbouring elements per vector.
      unroll: vectors per thread whose loads are all issued before the first use (MonoNN's
        instruction rescheduling, section 4.2.2).
      order: of the form's variables between threads, outermost first, the last one's vectors for
        the last one (`loop_order`); empty: as the form has them.
      places: neighbours along each of the form's variables that a thread takes (`stencil_loop`,
        `shared_loop`); empty: one. Then ``unroll`` is 1 and ``order`` empty.
    """

    lanes: int = 1
    unroll: int = 1
    order: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowSchedule:
    """Attributes:
      tier: "warp": ``group`` lanes of a warp share a row (1: a thread has a row of its own);
        "block": ``group`` threads, the block or half of it, share a row; "slice": the lanes of a
        warp have neighbouring rows and the block's warps share the columns; "thread": a thread has
        ``lanes`` neighbouring rows, and all of their columns.
      lanes: columns (for "slice" and "thread": rows) per vector.
      keep_words: registers per thread that may hold a row between sweeps.
      places: neighbouring rows that a team takes at a time (`stencil_rows`).
    """

    tier: str
    group: int = 32
    lanes: int = 1
    keep_words: int = KEEP_WORDS
    places: int = 1


@dataclass(frozen=True)
class KernelSchedule:
    """Attributes:
      threads: per block; a multiple of 32.
      blocks_per_sm: what registers and shared memory are limited for.
      sigs: schedule of every Sig, by its key.
      wide_tiles: whether threads that compute keep next to nothing between stages that can be
        found again (`fresh` in device/opaque.cuh); None: where a tile needs their registers.
      lean: whether a text takes more instructions for fewer registers: producers do with the
        predicates that there are (`at_once` in device/opaque.cuh), a thread's number is found again
        wherever it is used, a tile's sums stay where they are (device/staged_rows.cuh).
      in_turn: whether products with the weights on the left, in registers, wait for those of the
        tile before, which needs fewer registers (device/weights_left.cuh), and those of an image
        for all but one (device/gemm_image.cuh).
      producer_registers: of a thread that brings operands, 16 n + 8; those that compute do without
        half as many. None: what device/roles.cuh gives them.
    """

    threads: int = 256
    blocks_per_sm: int = 1
    sigs: Mapping[str, Any] = field(default_factory=dict)
    wide_tiles: bool | None = None
    lean: bool = False
    in_turn: bool = False
    producer_registers: int | None = None


# ---- loops -------------------------------------------------------------------------------------


def flat_loop(form: LoopForm, lanes: int = 1, order: tuple[int, ...] = (),
              places: tuple[int, ...] = ()) -> tuple[Var, dict[Var, Index]]:
    """The iteration space as one Var, and the form's Vars as functions of it: of several ``places``
    the first."""
    if not order:
        counts = places or (1,) * len(form.vars)
        sizes = [v.size // n for v, n in zip(form.vars, counts, strict=True)]
        flat = Var("e", math.prod(sizes))
        parts = delinearize(Index.of(flat), sizes)
        return flat, {v: i * n for v, i, n in zip(form.vars, parts, counts, strict=True)}
    flat = Var("e", math.prod(v.size for v in form.vars))
    last = len(form.vars) - 1
    sizes = [form.vars[i].size // (lanes if i == last else 1) for i in order]
    # Of a warp neighbours of both sides: 32 bytes of the source, and as many as that leaves of what
    # is stored.
    near, far = 2 * lanes, 16 // lanes
    at_far = order.index(last)
    tiled = at_far < len(order) - 1 and sizes[-1] % near == 0 and sizes[at_far] % far == 0
    if not tiled:
        near = far = 1
    sizes[-1] //= near
    sizes[at_far] //= far
    *parts, far_at, near_at, lane = delinearize(Index.of(flat), [*sizes, far, near, lanes])
    parts[-1] = parts[-1] * near + near_at
    parts[at_far] = parts[at_far] * far + far_at
    at = dict(zip((form.vars[i] for i in order), parts, strict=True))
    return flat, {**at, form.vars[last]: at[form.vars[last]] * lanes + lane}


def substitute(index: IndexMap, env: Mapping[Var, Index]) -> IndexMap:
    return tuple(i.substitute(env) for i in index)


def store_offset(sig: Sig, s: Store, env: Mapping[Var, Index]) -> Index:
    """Element offset of a store in its buffer."""
    return linearize(substitute(s.index, env), sig.body.outputs[s.result].type.dims)


def widest_input(sig: Sig) -> int:
    """Bytes of an element of what a body reads, at most."""
    return max((v.type.dtype.itemsize for v in sig.body.inputs), default=4)


def sinks(sig: Sig, stores: tuple[Store, ...], env: Mapping[Var, Index]) -> list[tuple[Index, int]]:
    """Offset and item size of every store."""
    return [(store_offset(sig, s, env), sig.body.outputs[s.result].type.dtype.itemsize)
            for s in stores]


def roots(sig: Sig, stores: tuple[Store, ...], env: Mapping[Var, Index],
          ) -> list[tuple[Value, IndexMap]]:
    """The values stored, with their indices."""
    return [(sig.body.outputs[s.result], substitute(s.index, env)) for s in stores]


MOST_FLAGGED = 8
"""Places of a value with flags that an element is computed of: its loads wait one after the other.
Nucleus sampling of 4 x 1000 words, with 77 for each of the elements, took 816 us a call on an H200,
and 53 without these flags and with sums of pieces that are stored."""


def reads_few(body: Graph, every: Sequence[tuple[Value, IndexMap]], number: int,
              reduction: Reduction | None = None) -> bool:
    """Whether an element is computed of at most `MOST_FLAGGED` places of an input of the body."""
    param = body.inputs[number]
    found = (n for n in walk(body, every, reduction=reduction)
             if n.op is None and n.value is param)
    return sum(1 for _ in found) <= MOST_FLAGGED


_MOVES = (ops.Pad, ops.Stored, ops.Slice, ops.Reshape, ops.Transpose, ops.Constant,
          ops.ReducePrecision)
_FEW_TASKS = 32
"""A loop of no more tasks than this takes as few as it can beside contractions: GPT-J's 16 and 128
of a contraction do not fit 132 SMs at once; 4 do."""


_ACCESS = 16, 32
"""Bytes of a thread's widest access: where others' loads are in flight as well, and where they are
not. Threads that take 32 of f32 beside 16 of bf16 ask for halves of sectors: bf16 widened to f32
took 49 us of an H100, in vectors of 4 elements 38; AdamW's step with gradients of bf16 220 and 199.
So where a kernel only streams, and where loads come first: behind a product that step takes 56 us
in vectors of 8, 53 in vectors of 4."""
_HEAVY = 150
"""Weight of an op, as random bits have it, whose elements are worth a thread of their own where
they are few: 16384 random numbers took 2.4 us of an H100 in vectors of 4, 1.7 one by one."""
_LOOKED_UP = 64
"""Vectors for each thread of the GPU from which on a thread has eight in flight in place of four
where a load waits for an index: lines of 768 that are looked up took 59 and 50 us. With fewer the
tasks are too few to be shared out evenly (DIEN's training, 1127 us and 1272)."""
_IN_FLIGHT = 64
"""Bytes that a thread of a copy loads before it stores: narrow loads have to be many to fill the
time that memory takes."""
_HELD_WORDS = 64
"""Registers of a thread for what a scan's loop makes of a piece: a vector for each element. With
neighbours in a thread as well, which share what they read of Mamba's inputs, 580 bytes were
spilled."""
_MUCH = 320
"""Lane operations of an element from which on its arithmetic fills the time that loads take: a
thread has one vector, and a multiprocessor more threads. Black and Scholes' prices and gradients
(409) took 168 registers and 37 us of an H200 with four vectors of four, 25 with one; XLA 16.
"""
_LOADED_WORDS = 96
"""Registers of a thread, beside contractions, for what it loads before it computes. Four vectors of
3 x 3 taps are 144, and ptxas, which loads all of them first, spilled some (GoogLeNet b32)."""


def _in_turn(sig: Sig) -> bool:
    """Whether a loop makes parts of arrays, each of the one before (`stacks.in_turn`)."""
    return any(isinstance(o, ops.Stored) and o.in_turn for o in sig.body.ops)


def choose_loop(sig: Sig, device: Device, threads: int, siblings: int = 1, *,
                beside: bool = False, streaming: bool = False) -> LoopSchedule:
    """Vectors as wide as possible, of stencils as wide as it pays; unrolled as far as every SM
    still gets work.

    Args:
      beside: contractions of the same stage fill the SMs; then few tasks disturb them least, and
        threads have registers for a few loads.
      streaming: the kernel only moves data; other blocks' loads are in flight, too.
    """
    form = sig.form
    assert isinstance(form, LoopForm)
    flat, env = flat_loop(form)
    values, offsets = roots(sig, form.stores, env), sinks(sig, form.stores, env)
    lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[not streaming])
    if not streaming and loads_first(sig.body, values, flat, lanes):
        lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[0])
    if isinstance(made := sig.body.producer.get(values[0][0]), ops.Prefix):
        n = made.result.type.dims[-1]
        while n % lanes or made.row % lanes:
            lanes //= 2
        n = made.row or n  # a vector for each thread, or several
        return LoopSchedule(lanes, math.ceil(n / (threads * lanes)))
    if any(weight(o) >= _HEAVY for o in sig.body.ops):
        while lanes > 1 and 2 * flat.size * siblings <= device.sm_count * threads * lanes:
            lanes //= 2
    if _in_turn(sig):
        while lanes > 1 and (lanes * len(form.stores) > _HELD_WORDS
                             or flat.size < device.sm_count * threads * lanes):
            lanes //= 2
        return LoopSchedule(lanes)
    if any(accumulation(sig.body, v) for v, _ in values):
        lanes = vector_width(sig.body, values, offsets, flat, widest=_ACCESS[0])
        return LoopSchedule(lanes, _unrolled(flat.size * siblings / lanes / threads
                                             / device.sm_count, 4))
    moves = all(isinstance(o, _MOVES) for o in sig.body.ops)
    wide = vector_width(sig.body, values, offsets, flat, unaligned=True) if moves else 1
    padded = len(values) == 1 and padded_copy(sig.body, *values[0], flat, wide) is not None
    if padded or (lanes == 1 and moves):
        # Where each element takes a dozen divisions to find (3 channels padded to 4), one search
        # and one store do for several, whose loads stay narrow.
        lanes = wide
    vectors = flat.size * siblings / lanes / threads
    if not beside or vectors > _FEW_TASKS:
        vectors /= device.sm_count
    if padded:  # as few rounds as its registers allow, and all of them full
        rounds = max(1, math.ceil(vectors / MOST_IN_FLIGHT))
        return LoopSchedule(lanes, max(1, math.ceil(vectors / rounds)))
    plain = {v: Index.of(v) for v in form.vars}
    stencil = None if moves or beside else stencil_loop(
        sig.body, roots(sig, form.stores, plain), form.vars, lanes, itemsize=widest_input(sig),
        device=device, threads=threads)
    if stencil is not None:
        lanes, places = stencil
        return LoopSchedule(lanes, places=places)
    shared = None if moves or beside else shared_loop(
        sig.body, roots(sig, form.stores, plain), form.vars, lanes, sm_count=device.sm_count,
        threads=threads)
    if shared is not None:
        return LoopSchedule(lanes, places=shared)
    order: tuple[int, ...] = ()
    if lanes == 1:
        found = source_order(sig.body, roots(sig, form.stores, plain),
                             sinks(sig, form.stores, plain), form.vars)
        if found is not None:
            order, lanes = found
            vectors /= lanes
    most = 8 if lanes <= 4 and vectors >= _LOOKED_UP and _looks_up(sig.body, values) else 4
    if moves:
        most = max(4, _IN_FLIGHT // (lanes * max(n for _, n in offsets)))
    elif beside:
        loads = loads_of(sig.body, roots(sig, form.stores, plain))
        most = min(4, _LOADED_WORDS // max(1, loads * lanes * widest_input(sig) // 4))
    if sum(map(weight, sig.body.ops)) >= _MUCH:
        most = 1
    if not order and (ahead := loads_first(sig.body, values, flat, lanes)):
        most = min(most, most_first(ahead, lanes))
    return LoopSchedule(lanes, _unrolled(vectors, most), order)


def _unrolled(vectors: float, most: int) -> int:
    """Vectors of a thread, whose loads are in flight together, of so many for each of the GPU."""
    return max(1, min(most, 1 << int(math.log2(max(vectors, 1)))))


def _looks_up(body: Graph, values: Sequence[tuple[Value, IndexMap]]) -> bool:
    """Whether indices are read from memory: a load waits for another one."""
    return any(dynamics(n.index) for n in walk(body, values))


# ---- rows --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSpace:
    """A RowForm with flat rows and flat columns.

    Attributes:
      row, col: Vars over all rows, all columns.
      env: the form's Vars as functions of them.
    """

    row: Var
    col: Var
    env: dict[Var, Index]

    @staticmethod
    def of(form: RowForm) -> RowSpace:
        row = Var("row", math.prod(v.size for v in form.rows))
        col = Var("col", math.prod(v.size for v in form.cols))
        env = dict(zip(form.rows, delinearize(Index.of(row), [v.size for v in form.rows]),
                       strict=True))
        env |= dict(zip(form.cols, delinearize(Index.of(col), [v.size for v in form.cols]),
                        strict=True))
        return RowSpace(row, col, env)

    def reduction(self, op: ops.Reduce, index: IndexMap) -> list[Demand]:
        """What a reduce demands at column `col`."""
        shape = [op.args[0].type.dims[d] for d in sorted(op.dimensions)]
        if math.prod(shape) != self.col.size:
            return []
        at = reduction_index(op, index, delinearize(Index.of(self.col), shape))
        return [*(Demand(v, at) for v in op.args), *(Demand(v, ()) for v in op.inits)]


def is_per_row(form: RowForm, s: Store) -> bool:
    """Whether a store has one element per row."""
    return not any(v in s.over for v in form.cols)


def choose_row(sig: Sig, device: Device, threads: int, siblings: int = 1, *,
               streaming: bool = False) -> RowSchedule:
    """Where neighbouring rows are neighbours in memory, lanes take rows; else they take columns.
    Warps share short columns only where there are few rows: they meet for each task.

    Args:
      streaming: the kernel only moves data; several blocks run on a multiprocessor.
    """
    form = sig.form
    assert isinstance(form, RowForm)
    space = RowSpace.of(form)
    every = roots(sig, form.stores, space.env)
    across = tuple(s for s in form.stores if not is_per_row(form, s))
    along_cols = vector_width(sig.body, every, sinks(sig, across, space.env), space.col,
                              reduction=space.reduction)
    # Few rows that nobody reads as neighbours keep more multiprocessors busy by their columns.
    few_tasks = space.row.size <= 8 * device.sm_count and space.col.size >= threads
    along = _spread_along(sig, space)
    if space.row.size >= 32 and along is not space.col and (along is space.row or _bytes_along(
            sig, space, space.row, stores=not few_tasks) > _bytes_along(sig, space, space.col)):
        lanes = vector_width(sig.body, every, sinks(sig, form.stores, space.env), space.row,
                             reduction=space.reduction, limit=4)
        for own in (n for n in (4, 2, 1) if n <= lanes and n * space.col.size <= KEEP_WORDS):
            if space.row.size >= _MANY_TASKS * own * threads * device.sm_count:
                return RowSchedule("thread", 1, own)
        while lanes > 1 and space.row.size < 32 * lanes * device.sm_count:
            lanes //= 2
        return RowSchedule("slice", 32, lanes)
    if siblings == 1 and (found := stencil_rows(
            sig.body, every, space.row, space.col, space.reduction, along_cols,
            itemsize=widest_input(sig), device=device, threads=threads)) is not None:
        tier, group, lanes, places = found
        return RowSchedule(tier, group, lanes, places=places)
    if siblings == 1 and along is space.col and not _has_sweeps(sig.body) and (places := alike_rows(
                sig.body, every, space.row, space.col, space.reduction,
                teams=_TEAMS * device.sm_count)) > 1:
        return RowSchedule("warp", 32, along_cols, places=places)
    rows, cols = space.row.size * siblings, space.col.size
    of_each = sum(weight(o) for o in sig.body.ops
                  if o.results[0].type.size >= space.row.size * cols)
    few = (4 if streaming and cols * of_each >= _HEAVY_ROW else 2) * device.sm_count
    if cols >= 2 * threads and (rows <= few or cols > 64 * 32):
        # More rows than blocks: two at a time take one turn (ViT-B/16 b1, 197 rows of 768), as long
        # as the threads of half a block can keep a row.
        two = not streaming and device.sm_count < rows <= 2 * device.sm_count \
            and cols <= threads // 2 * KEEP_WORDS
        group = threads // 2 if two else threads
        # Four lanes even where a quarter of the threads have none then: one load of 768 columns
        # instead of two (BERT-base b1 -1.2 %, the T5-base encoder b1 -3 %). Eight lanes of 96
        # threads are no faster than two times four of 128 (ViT-B/16 b1).
        lanes = along_cols
        while lanes > 1 and cols < group * lanes and not (lanes == 4 and cols >= group * 3):
            lanes //= 2
        return RowSchedule("block", group, lanes)
    group = 1
    while group < 32 and group * 2 * along_cols <= cols:
        group *= 2
    warps = device.sm_count * (threads // 32)
    group = lanes_to_a_row(group, rows, cols, along_cols, warps)
    return RowSchedule("warp", group, along_cols, places=1 if streaming or siblings > 1 else
                       _short_rows(sig.body, space, group * along_cols, device, threads // group))


def _short_rows(body: Graph, space: RowSpace, at_once: int, device: Device, together: int) -> int:
    """How many rows a team takes at a time: several where each is a load, of very many."""
    if space.col.size > at_once or _has_sweeps(body):
        return 1
    return next((n for n in _ROWS_AT_ONCE if space.row.size % n == 0
                 and space.row.size >= _MANY_TASKS * n * together * device.sm_count), 1)


def _has_sweeps(body: Graph) -> bool:
    """Whether a reduce waits for another one."""
    behind: set[Value] = set()
    for o in body.ops:
        waits = not behind.isdisjoint(o.uses)
        if isinstance(o, ops.Reduce) and waits:
            return True
        if waits or isinstance(o, ops.Reduce):
            behind.update(o.results)
    return False


_HEAVY_ROW = 20_000
"""Weight of all elements of a row, from which on up to four rows for each SM have a block each
where several run there. Softmaxes of 512 x 1500 and 384 x 1000 took 0.55 and 0.77 of an H100's
time, norms of 512 x 2048 and 512 x 768, a quarter of the weight, 0.98 and 1.07."""

_ROWS_AT_ONCE = 4, 2
_MANY_TASKS = 4
"""Tasks of each multiprocessor that are left then. A block's threads load 4 KB, wait 0.5 us for
them, and go on: sums of 16 f32 for each of 3.1 million elements (Mamba b8) took 214 us of an H100,
at a fourth of its bandwidth; of 64 for 65536 rows 19 us."""

_MORE_ROWS = 0.6
"""What another row at a time costs a warp, of the first: they wait for the L2 together (BERT-base's
norms on an H200: 1.3 us for one, 2.2 us for two)."""


def lanes_to_a_row(group: int, rows: int, cols: int, lanes: int, warps: int) -> int:
    """``group``, or fewer lanes to a row and more rows at a time, where that takes fewer turns; a
    thread keeps no more than `KEEP_WORDS` elements, and a load takes 64 neighbours or more."""
    def cost(g: int) -> float:
        return math.ceil(rows * g / (32 * warps)) * (1 + _MORE_ROWS * (group / g - 1))

    allowed = [group]
    while (g := allowed[-1] // 2) * lanes >= 64 and math.ceil(
            cols / (g * lanes)) * lanes <= KEEP_WORDS:
        allowed.append(g)
    return min(allowed, key=cost)


_TEAMS = 4
"""Warps of each multiprocessor that are left where a team takes several rows."""
_LONG = 256
"""Columns from which on what is spread is read along them even where lanes could have rows: with 64
for each of 50257 lines, the gradient of that many words took 1.11 of its time."""
_SPREAD = 32
"""How much smaller inputs are than what is reduced where all of it is made of few: comparisons of
each with each, forces. A window of a pool reads an element up to some twenty times."""


def _spread_along(sig: Sig, space: RowSpace) -> Var | None:
    """Which lanes should have neighbours of where rows reduce what is made of few elements: no load
    is of a line of memory for each lane then. None: how large inputs lie decides, of short rows if
    either will do. In slices 4 x 1000 x 1000 comparisons took 18.7 us of an H200, in which each
    load waits for the L2, while 67 million of rows of 8192 took 39.
    """
    most = max((v.type.size for v in sig.body.inputs), default=0)
    if not most or space.col.size < 32 or _SPREAD * most >= space.row.size * space.col.size:
        return None
    col, row = (all(how is not Access.SCATTERED
                    for _, how in _accesses(sig, space, Lane(var, 2)))
                for var in (space.col, space.row))
    if col and row and space.col.size < _LONG:
        return None
    return space.col if col else space.row if row else None


def _bytes_along(sig: Sig, space: RowSpace, var: Var, *, stores: bool = True) -> int:
    """Bytes of the buffers whose neighbouring elements are neighbours along ``var``; ``stores``:
    of those that are written as well."""
    lane, form = Lane(var, 2), sig.form
    assert isinstance(form, RowForm)
    total = sum(v.type.nbytes for v, how in _accesses(sig, space, lane)
                if how in (Access.CONTIGUOUS, Access.UNALIGNED))
    for offset, size in sinks(sig, form.stores, space.env) if stores else ():
        if access(lane.split(offset), lane) in (Access.CONTIGUOUS, Access.UNALIGNED):
            total += size * space.row.size
    return total


def _accesses(sig: Sig, space: RowSpace, lane: Lane) -> Iterator[tuple[Value, Access]]:
    """The inputs that are read, and how their elements lie for the lanes."""
    form = sig.form
    assert isinstance(form, RowForm)
    split = [(v, tuple(lane.split(i) for i in at))
             for v, at in roots(sig, form.stores, space.env)]

    def reduction(op: ops.Reduce, index: IndexMap) -> list[Demand]:
        return [Demand(d.value, tuple(lane.split(i) for i in d.index))
                for d in space.reduction(op, index)]

    for n in walk(sig.body, split, reduction=reduction):
        if n.op is None:
            storage(n.value.type.dtype)
            yield n.value, access(linearize(n.index, n.value.type.dims), lane)

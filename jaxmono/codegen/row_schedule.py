"""Schedules of row chains: which threads share a row, and how they go along it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from jaxmono.codegen import short_rows, turned_rows
from jaxmono.codegen.names import storage
from jaxmono.codegen.row_chain import KEEP_WORDS
from jaxmono.codegen.schedule import Places, reads, roots, sinks, widest_input
from jaxmono.codegen.stencil_rows import alike_rows, stencil_rows
from jaxmono.codegen.traverse import (
    Access,
    Lane,
    access,
    vector_width,
    walk,
)
from jaxmono.fusion.cost import weight
from jaxmono.fusion.demand import Demand, reduction_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.plan import Device, RowForm, Sig, Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value

ON_ROWS = ("slice", "thread", "short")
"""Tiers whose lanes have different rows."""
_SLICES = 8
"""Warps of a block, each with a slice of the columns."""


@dataclass(frozen=True)
class RowSchedule:
    """Attributes:
      tier: "warp": ``group`` lanes of a warp share a row (1: a thread has a row of its own);
        "block": ``group`` threads, the block or half of it, share a row; "slice": the lanes of a
        warp have neighbouring rows and the block's warps share the columns; "thread": a thread has
        ``lanes`` neighbouring rows, and all of their columns; "short": a row, which comes through
        shared memory.
      lanes: columns (for "slice" and "thread": rows) per vector.
      keep_words: registers per thread that may hold a row between sweeps.
      places: neighbouring rows that a team takes at a time (`stencil_rows`).
      tiled: whether results leave through tiles (turned_rows.py), with "slice".
    """

    tier: str
    group: int = 32
    lanes: int = 1
    keep_words: int = KEEP_WORDS
    places: int = 1
    tiled: bool = field(default=False, repr=False)

    def along(self, cols: int) -> int:
        """Elements of a row that a thread takes (of 8 warps, with "slice")."""
        if self.tier in ON_ROWS:
            return math.ceil(cols / _SLICES) if self.tier == "slice" else cols
        return math.ceil(cols / (self.group * self.lanes)) * self.lanes


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


def row_tiles(sig: Sig, space: RowSpace, s: RowSchedule) -> dict[Store, turned_rows.RowTile]:
    """Tiles through which a schedule's stores leave."""
    if not s.tiled:
        return {}
    return turned_rows.tiles(sig, _turned(sig, space), space.col.size, s.lanes)


def combined_bytes(sig: Sig, threads: int, lanes: int) -> int:
    """Shared memory in which the warps of a "slice" combine what they have."""
    states = [8 + 8 * len(o.results) for o in sig.body.ops if isinstance(o, ops.Reduce)]
    return threads * lanes * max(states, default=0)


@lru_cache(maxsize=16)
def row_places(sig: Sig) -> Places:
    """What a column of a row reads, over a `RowSpace`."""
    form = sig.form
    assert isinstance(form, RowForm)
    space = RowSpace.of(form)
    return reads(sig.body, roots(sig, form.stores, space.env), space.reduction)


@lru_cache(maxsize=16)
def short_tiles(sig: Sig) -> short_rows.Tiles | None:
    """Tiles of a "short" schedule; None where there is none."""
    form = sig.form
    assert isinstance(form, RowForm)
    space = RowSpace.of(form)
    across = [s for s in form.stores if not is_per_row(form, s)]
    return short_rows.tiles(sig, across, row_places(sig), space.row, space.col, space.env)


def _turned(sig: Sig, space: RowSpace) -> tuple[Store, ...]:
    """Stores that lanes with rows of their own would scatter. Not of a few columns, which a thread
    has for itself, nor where no reduce lies between a task's tile and the next one's."""
    form = sig.form
    assert isinstance(form, RowForm)
    if space.col.size < _SLICES or not any(isinstance(o, ops.Reduce) for o in sig.body.ops):
        return ()
    return tuple(s for s in form.stores
                 if turned_rows.turned(sig, s, space.row, space.col, space.env))


def _fit(sig: Sig, space: RowSpace, lanes: int, threads: int, device: Device) -> bool:
    """Whether there are tiles that do, of so many rows to a lane."""
    made = turned_rows.tiles(sig, _turned(sig, space), space.col.size, lanes)
    size = sum(x.bytes for x in made.values()) + combined_bytes(sig, threads, lanes)
    words = lanes * math.ceil(space.col.size / _SLICES)
    return bool(made) and size <= device.shared_bytes \
        and (lanes == 1 or words <= turned_rows.MOST_WORDS)


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
                              reduction=space.reduction, pairs=True)
    # Few rows that nobody reads as neighbours keep more multiprocessors busy by their columns.
    few_tasks = space.row.size <= 8 * device.sm_count and space.col.size >= threads
    along = _spread_along(sig, space)
    if space.row.size >= 32 and along is not space.col and (along is space.row or _bytes_along(
            sig, space, space.row, stores=not few_tasks) > _bytes_along(sig, space, space.col)):
        tiled = _turned(sig, space)
        straight = tuple(s for s in form.stores if s not in tiled)
        lanes = vector_width(sig.body, every, sinks(sig, straight, space.env), space.row,
                             reduction=space.reduction, limit=4)
        for own in (n for n in (4, 2, 1) if n <= lanes and n * space.col.size <= KEEP_WORDS):
            if not tiled and space.row.size >= _MANY_TASKS * own * threads * device.sm_count:
                return RowSchedule("thread", 1, own)
        while lanes > 1 and (space.row.size < 32 * lanes * device.sm_count or (
                tiled and not _fit(sig, space, lanes, threads, device))):
            lanes //= 2
        return RowSchedule("slice", 32, lanes, tiled=_fit(sig, space, lanes, threads, device))
    if space.row.size >= short_rows.MIN_TASKS * threads * device.sm_count \
            and short_tiles(sig) is not None:
        return RowSchedule("short", 1, 1)
    if siblings == 1 and (found := stencil_rows(
            sig.body, every, space.row, space.col, space.reduction, along_cols,
            itemsize=widest_input(sig), device=device, threads=threads)) is not None:
        tier, group, lanes, places = found
        return RowSchedule(tier, group, lanes, places=places)
    rows, cols = space.row.size * siblings, space.col.size
    of_each = sum(weight(o) for o in sig.body.ops
                  if o.results[0].type.size >= space.row.size * cols)
    if siblings == 1 and along is space.col and not _has_sweeps(sig.body) and (shared := alike_rows(
            sig.body, every, form.rows, space.row, space.col, space.reduction, along_cols,
            work=of_each, device=device)) is not None:
        group, places = shared
        return RowSchedule("warp", group, along_cols, places=places)
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
    if streaming and group < 32 and along_cols > 4 and cols == 3 * group * along_cols \
            and _has_sweeps(sig.body):
        # Three vectors of eight that are kept leave too few registers for four blocks: with half as
        # wide ones norms of 50176 x 96 take 5 % less time on an H200, of 12544 x 192 11 %.
        group, along_cols = 2 * group, along_cols // 2
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
    thread keeps no more than `KEEP_WORDS` elements, and a load takes 64 neighbours or more, or 32
    where some lanes have none in a row's last one: 96 columns, 8 to a piece, are 12 pieces; 8 lanes
    take two each, half of them none, and 4 lanes three."""
    def pieces(g: int) -> int:
        return max(math.ceil(cols / (g * lanes)), 1)

    def cost(g: int) -> float:
        return math.ceil(rows * g / (32 * warps)) * (
            1 + _MORE_ROWS * (pieces(g) / pieces(group) - 1))

    allowed = [group]
    while (g := allowed[-1] // 2) * lanes >= (32 if cols % (allowed[-1] * lanes) else 64) \
            and pieces(g) * lanes <= KEEP_WORDS:
        allowed.append(g)
    return min(allowed, key=cost)


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
    accesses = list(_accesses(sig, space, lane))
    total = sum(v.type.nbytes for v, how in accesses
                if how in (Access.CONTIGUOUS, Access.UNALIGNED))
    if var is space.row and any(how is Access.SCATTERED for _, how in accesses):
        follow = _following_rows(sig, form, space)
        total += sum(v.type.nbytes for v, how in accesses
                     if how is Access.SCATTERED and v in follow)
    for offset, size in sinks(sig, form.stores, space.env) if stores else ():
        if access(lane.split(offset), lane) in (Access.CONTIGUOUS, Access.UNALIGNED):
            total += size * space.row.size
    return total


def _following_rows(sig: Sig, form: RowForm, space: RowSpace) -> set[Value]:
    """Inputs of which a warp's neighbouring rows, most of them, read neighbours, though some pairs
    of rows do not: the 29 x 31 places of several images."""
    out: set[Value] = set()
    for n in walk(sig.body, roots(sig, form.stores, {}), reduction=space.reduction):
        if n.op is not None:
            continue
        offset, extent = linearize(n.index, n.value.type.dims), 1
        for v in reversed(form.rows):
            if v.size > 1 and offset.coefficient(v) != extent:
                break
            extent *= v.size
        if extent >= 32:
            out.add(n.value)
    return out


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

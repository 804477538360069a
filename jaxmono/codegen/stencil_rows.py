"""Rows that read windows of an image: a depthwise convolution, and the norm behind it.

    y[p, c] = norm over c of (sum over taps t of x[p + t, c] w[t, c])

An element takes two loads a tap, nearly all of them from the L2: they, and not rows or columns, are
what a thread's time goes by. Neighbouring places share most of them. So a team of threads takes
some places at a time where there are enough of them, and a row has as many threads as it has
vectors where there are few: of the 196 rows of ConvNeXt-T's third stage eight to a block left 107
of 132 SMs idle (55 us on an H100).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from jaxmono.codegen.traverse import Root, depends_on, walk
from jaxmono.fusion.demand import Demand
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.fusion.loops import STENCIL_LOADS
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph

_PLACES = (1, 2, 4)
"""At a time: widths of images are multiples of these. With more the text grows, and sums do not fit
a thread's registers."""
_PLACES_ALIKE = (4, 3, 2)
_TEAMS = 4
"""Warps of each multiprocessor that are left where a team takes several rows that read the same."""
_AROUND, _LOAD, _TURN = 40, 3, 20
"""Instructions of a team around its columns and for an element that is loaded, and clocks that a
thread takes for each element whatever else there is to do. 51 rows of 51 for each of 1024, which
all read the same, are seven elements of three rows a thread."""
_MOST_BYTES = 64
"""Of the elements of a thread at a time: with half as many ConvNeXt-T b32 takes 4 % more."""
_IN_FLIGHT, _LATENCY_US = 16, 0.6
"""Loads of a thread that wait together, and how long."""
_BYTES_PER_US = 115e3
"""That an SM gets from the L2."""


def at_place(index: Index, row: Var, places: int, place: int) -> Index:
    """``index`` of a row that is the ``place``-th of a team's."""
    if places == 1:
        return index
    team = Var(row.name, row.size // places)
    return index.substitute({row: Index.of(team) * places + place})


Reduction = Callable[[ops.Reduce, IndexMap], Sequence[Demand]]


def _loads(body: Graph, roots: Sequence[Root], row: Var, col: Var, reduction: Reduction,
           places: int) -> int:
    """Of an element of each of so many rows, those that they share once."""
    found: set[Root] = set()
    for p in range(places):
        at = [(v, tuple(at_place(i, row, places, p) for i in index)) for v, index in roots]
        for n in walk(body, at, reduction=reduction):
            if n.op is None and depends_on(n.index, (col,)):
                found.add((n.value, n.index))
    return len(found)


def alike_rows(body: Graph, roots: Sequence[Root], rows: Sequence[Var], row: Var, col: Var,
               reduction: Reduction, lanes: int, *, work: int, device: Device,
               ) -> tuple[int, int] | None:
    """Lanes to a row, and how many neighbouring rows a team takes at a time, where all rows along
    the last of ``rows`` read the same along their columns, as comparisons of each with each do:
    loads from the L1 are what these go by, and those of a warp's rows are one. None where they do
    not, or where a warp to a row is as good.

    Args:
      work: operations of an element of a row.
    """
    if not rows:
        return None
    one = _loads(body, roots, row, col, reduction, 1)
    alike = [n for n in _PLACES_ALIKE if rows[-1].size % n == 0
             and row.size >= n * _TEAMS * device.sm_count
             and _loads(body, roots, row, col, reduction, n) == one]

    def clocks(choice: tuple[int, int]) -> float:
        group, places = choice
        teams, along = row.size / places * group / 32, math.ceil(col.size / (group * lanes)) * lanes
        text = _AROUND + along * (_LOAD * one + places * work) + places * 2 * math.log2(group)
        return teams * text / (4 * device.sm_count) + along * _TURN

    choices = [(32, 1), *((g, n) for n in alike for g in (32, 16, 8, 4))]
    best = min(choices, key=clocks)
    return best if best != choices[0] else None


def stencil_rows(body: Graph, roots: Sequence[Root], row: Var, col: Var,
                 reduction: Reduction, lanes: int, *, itemsize: int, device: Device,
                 threads: int) -> tuple[str, int, int, int] | None:
    """Tier, threads to a row, lanes and places at a time; None where an element takes few loads.

    Args:
      roots: what is stored, with its indices over ``row`` and ``col``. reduction: what a reduce of
        the body demands at column ``col``. lanes: most of a vector along the columns. itemsize: of
        the elements that are read.
    """
    loads = partial(_loads, body, roots, row, col, reduction)
    if loads(1) < STENCIL_LOADS:
        return None

    def cost(group: int, lanes: int, places: int, count: int) -> float:
        vectors = math.ceil(col.size / lanes)
        fragments, to_a_block = math.ceil(vectors / group), threads // group
        rounds = math.ceil(row.size / places / to_a_block / device.sm_count)
        bytes_ = min(to_a_block, row.size / places) * vectors * count * lanes * itemsize
        return rounds * (fragments * count / _IN_FLIGHT * _LATENCY_US + bytes_ / _BYTES_PER_US)

    teams = [("warp", 16), ("warp", 32), ("block", threads // 2), ("block", threads)]
    widths = [n for n in (lanes, lanes // 2) if n >= min(lanes, 2)]
    _, tier, group, lanes, places = min(
        (cost(group, n, places, count), tier, group, n, places)
        for places in _PLACES if row.size % places == 0
        for count in (loads(places),)
        for n in widths if n * places * itemsize <= _MOST_BYTES for tier, group in teams
        if group * n >= col.size or group == threads)
    return tier, group, lanes, places

"""Groups while they are being formulated: which ops each owns and at which index.

A Draft grows forward from an *anchor* (a contraction or a reduce). Every value inside has one
*canonical index* over the Draft's Vars: the anchor by definition, the others by following the
op's index rule forward. An op may join when the elements that it demands of values inside are
exactly those at their canonical index; by induction the anchor is then demanded at one index
only, and everything inside is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from jaxmono.fusion.demand import demands, line_index, start_index
from jaxmono.fusion.indexing import Div, Dyn, Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

JOINABLE = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision,
            ops.Reshape, ops.Transpose, ops.BroadcastInDim)
ANCHORS = (ops.DotGeneral, ops.Reduce)
IN_MEMORY = (ops.Stacked, ops.Piece)
"""What lies in memory by what other ops store, and belongs to no group (fusion/stacks.py)."""
STORED = (ops.Stored, ops.Accumulate, *ops.OF_LINES, *IN_MEMORY)
"""What its readers find in a buffer, whatever it is."""
ENDS = (*ANCHORS, *STORED)
"""What is computed element by element begins behind these."""


def depths(graph: Graph, after: Mapping[Op, tuple[Value, ...]] | None = None) -> dict[Value, int]:
    """How many anchors lie one behind the other before each value, its own op included. ``after``:
    values that ops wait for besides what they read; these come first in the graph."""
    depth: dict[Value, int] = {}
    for o in graph.ops:
        below = max((depth.get(v, 0) for v in (*o.uses, *(after or {}).get(o, ()))), default=0)
        depth.update(dict.fromkeys(o.results, below + isinstance(o, ANCHORS)))
    return depth


@dataclass(eq=False)
class Draft:
    """A group in the making.

    Attributes:
      kind: "dot", "row", "attention" or "loop".
      pot: potential; everything read has a smaller one, so groups cannot wait on each other.
      domain: Vars that every anchor result depends on (batch, m, n; rows; batch, m, v).
      cols: for a row draft, the reduced Vars.
      ops: the ops owned, in the graph's order.
      at: canonical index of each value inside.
      anchor: the op that the draft grew from (the second dot of an attention).
      stored: index at which an updated buffer (in place) is written; nothing inside reads it.
      reduced: of a dot draft, the results of reduces that begin in its epilogue: over which Vars,
        where; nothing inside reads them (epilogue_reduces.py).
      seen: values read at (rows, cols), by which later reduces find this draft.
      folded: ops of a row draft that this dot recomputes as its row prologue.
      extra: values of the row prologue that this dot also writes.
      taps: how many neighbouring rows of the contraction an element of the domain takes (its second
        Var counts windows); see window_rows.py.
      paired: whether it takes a column of each half (the third Var counts those of one); see
        paired_columns.py.
    """

    kind: str
    pot: int
    domain: tuple[Var, ...] = ()
    cols: tuple[Var, ...] = ()
    ops: dict[Op, None] = field(default_factory=dict)
    at: dict[Value, IndexMap] = field(default_factory=dict)
    anchor: Op | None = None
    first: ops.DotGeneral | None = None
    stored: dict[Value, IndexMap] = field(default_factory=dict)
    reduced: dict[Value, tuple[tuple[Var, ...], IndexMap]] = field(default_factory=dict)
    seen: dict[Value, IndexMap] = field(default_factory=dict)
    folded: dict[Op, None] = field(default_factory=dict)
    extra: tuple[Value, ...] = ()
    taps: int = 1
    paired: bool = False
    outputs: tuple[Value, ...] = ()

    def own(self, op: Op) -> None:
        self.ops[op] = None

    def has(self, op: Op | None) -> bool:
        return op is not None and (op in self.ops or op in self.folded)


@dataclass(eq=False)
class State:
    """What the formulation steps share.

    Attributes:
      owner: the draft that owns each op (a folded op keeps none).
      pot: potential of each value; program inputs have 0.
      in_place: dynamic_update_slices that write into the program input's own buffer.
      folded: ops of row drafts that contractions recompute; several own them.
      folds: how many row drafts were folded.
      banned: ops that may not grow into a draft (set when a first attempt made a cycle).
      views: updates that are never stored, and those in place that they repeat (cache_rows.py).
      after: values that contractions wait for, though they do not read them. begun: reduces that
        may join the contraction in front of them (epilogue_reduces.py). paired: contractions whose
        halves meet in one tile (gated.py). again: ops that are computed wherever they are needed,
        in place of a loop's (recompute.py).
      without: names of decisions that are left out, to measure what they are worth.
      refused: decisions that were not taken, and why, each one line for the user.
    """

    graph: Graph
    device: Device
    owner: dict[Op, Draft] = field(default_factory=dict)
    pot: dict[Value, int] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    in_place: dict[Op, int] = field(default_factory=dict)
    folded: dict[Op, None] = field(default_factory=dict)
    banned: set[Op] = field(default_factory=set)
    views: Mapping[Op, Op] = field(default_factory=dict[Op, Op])
    after: Mapping[Op, tuple[Value, ...]] = field(default_factory=dict[Op, tuple[Value, ...]])
    begun: Collection[Op] = ()
    again: Collection[Op] = ()
    paired: Collection[Op] = ()
    folds: int = 0
    without: frozenset[str] = frozenset()
    refused: dict[str, None] = field(default_factory=dict)

    @cached_property
    def late(self) -> frozenset[Op]:
        """Updates in place that other groups must not do on the way."""
        return frozenset(self.views.values())

    @cached_property
    def depth(self) -> dict[Value, int]:
        """Of the graph's values; see `depths`."""
        return depths(self.graph)

    def owner_of(self, v: Value) -> Draft | None:
        producer = self.graph.producer.get(v)
        return None if producer is None else self.owner.get(producer)

    def pot_of(self, v: Value) -> int:
        return self.pot.get(v, 0)

    def claim(self, draft: Draft, op: Op) -> None:
        draft.own(op)
        self.owner[op] = draft
        for r in op.results:
            self.pot[r] = draft.pot

    def outputs_set(self) -> frozenset[Value]:
        return frozenset(self.graph.outputs)


def forward(op: Op, operand: Value, index: IndexMap, cols: tuple[Var, ...] = ()) -> IndexMap | None:
    """Where element ``index`` of ``operand`` lands in the result of a joinable op.

    Args:
      cols: Vars that a broadcast may bring in as new dimensions (a row's value spread over its
        columns); without them a broadcast that repeats elements has no answer.
    """
    result = op.results[0].type
    if isinstance(op, ops.Reshape):
        return delinearize(linearize(index, operand.type.dims), result.dims)
    if isinstance(op, ops.Transpose):
        return tuple(index[p] for p in op.permutation)
    if isinstance(op, ops.BroadcastInDim):
        return _broadcast(op, index, cols)
    if isinstance(op, ops.Accumulate):
        return (line_index(op, index[:1]), *index[1:])
    if isinstance(op, ops.DynamicUpdateSlice):
        return tuple(i + start_index(s, d, n) for i, s, d, n in
                     zip(index, op.start_indices, op.operand.type.dims, op.update.type.dims,
                         strict=True))
    return index if operand.type.rank == result.rank else None


def _broadcast(op: ops.BroadcastInDim, index: IndexMap, cols: tuple[Var, ...]) -> IndexMap | None:
    shape, out = op.operand.type.dims, op.result.type.dims
    kept = {d: i for i, d in enumerate(op.dimensions) if shape[i] == out[d]}
    new = [d for d in range(len(out)) if d not in kept and out[d] != 1]
    filled: dict[int, Index] = {}
    if new:
        sizes = [out[d] for d in new]
        if not cols or math.prod(sizes) != math.prod(c.size for c in cols):
            return None
        if any(i.depends_on(c) for i in index for c in cols):
            return None
        offset = linearize(tuple(Index.of(c) for c in cols), [c.size for c in cols])
        filled = dict(zip(new, delinearize(offset, sizes), strict=True))
    return tuple(index[kept[d]] if d in kept else filled.get(d, Index())
                 for d in range(len(out)))


def consistent(op: Op, index: IndexMap, at: dict[Value, IndexMap]) -> bool:
    """Whether element ``index`` of ``op`` demands the values of ``at`` at their index only."""
    needed = demands(op, index)
    return needed is not None and all(
        d.value not in at or at[d.value] == d.index for d in needed)


def dynamic_values(index: IndexMap) -> tuple[Value, ...]:
    """Values that the index itself reads from memory, each once."""
    out: dict[Value, None] = {}
    for i in index:
        for d in i.dynamics():
            out[d.value] = None
            out.update(dict.fromkeys(dynamic_values(d.index)))
    return tuple(out)


def remap_index(index: IndexMap, mapping: dict[Value, Value]) -> IndexMap:
    """The same index with the values it reads replaced."""

    def one(i: Index) -> Index:
        if i.is_static:
            return i
        out = Index((), i.const)
        for a, c in i.terms:
            if isinstance(a, Dyn):
                a = Dyn(mapping.get(a.value, a.value), tuple(map(one, a.index)), a.low, a.high)
                out = out + Index.of(a) * c
            elif isinstance(a, Var):
                out = out + Index.of(a) * c
            else:
                x = one(a.x)
                out = out + (x // a.d if isinstance(a, Div) else x % a.d) * c
        return out

    return tuple(map(one, index))

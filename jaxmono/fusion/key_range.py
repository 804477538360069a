"""Which keys of an attention can count at all, read off its mask.

    logits = select(keep, scores, very small)     keep = (n <= m) & (n < lengths[b]) & ...

A comparison of the key's position with something that is the same for all keys bounds the keys of
a row. Keys outside get the weight 0 and may be skipped, unless a row has none inside: with a finite
mask all its keys then weigh the same, so all are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmono.fusion.demand import demands, is_view
from jaxmono.fusion.indexing import Div, Index, IndexMap, Mod, Var
from jaxmono.fusion.softmax import Softmax
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import is_splat, splat_value

Numbers = np.ndarray[Any, np.dtype[Any]]

SMALL = -1e30
"""A mask of at most this is one beside which no ordinary score leaves any weight."""


@dataclass(frozen=True)
class Bound:
    """Keys n of a row count only if ``n <= x`` (upper) or ``n >= x``, x = index + sign * value.

    ``value``: integers at ``at``, the same for all keys, or None.
    """

    upper: bool
    index: Index
    value: Value | None = None
    at: IndexMap = ()
    sign: int = 1


@dataclass(frozen=True)
class KeyRange:
    """All bounds of a row. ``infinite``: keys outside are masked with -inf. ``whole``: none inside
    is masked."""

    bounds: tuple[Bound, ...]
    infinite: bool
    whole: bool


def find_key_range(graph: Graph, softmax: Softmax, n: Var) -> KeyRange | None:
    """The bounds in the mask of these logits; None if there is none to rely on."""
    find = _Find(graph, n)
    value, index = find.bare(softmax.logits, softmax.index)
    op = graph.producer.get(value)
    if not isinstance(op, ops.Elementwise) or op.kind != "select":
        return None
    keep, _, masked = (d for d in demands(op, index) or ())
    small = find.literal(masked.value, masked.index)
    if small is None or not small <= SMALL:
        return None
    found = find.conjunction(keep.value, keep.index)
    infinite = small == -math.inf
    if found is None:
        return None
    bounds = [b for term in found if term is not None for b in term]
    if not bounds or (not infinite and None in found):
        return None  # keys inside may be masked too: a row of such needs those outside
    return KeyRange(tuple(bounds), infinite, None not in found)


def at_rows(index: Index, m: Var) -> Numbers:
    """The index at every m, with 0 for other variables; a single number if m is not in it."""
    def value(index: Index) -> Any:
        total: Any = index.const
        for atom, factor in index.terms:
            if isinstance(atom, (Div, Mod)):
                x = value(atom.x)
                part: Any = x // atom.d if isinstance(atom, Div) else x % atom.d
            else:
                part = np.arange(m.size) if atom == m else 0
            total = total + part * factor
        return total

    return np.asarray(value(index))


def moves_on(found: KeyRange, m: Var, n: Var, others: Sequence[Var]) -> bool:
    """Whether begin and end of the rows are known, never fall from row to row, and no row is empty.

    So the first row of a tile has its first key and the last one its last key. ``others``:
    variables that may not be in the bounds.
    """
    if any(x.value is not None or not x.index.is_static
           or any(x.index.depends_on(v) for v in (*others, n)) for x in found.bounds):
        return False
    begin, end = np.zeros(m.size, np.int64), np.full(m.size, n.size - 1, np.int64)
    for x in found.bounds:
        limit = at_rows(x.index, m)
        begin, end = (begin, np.minimum(end, limit)) if x.upper else (np.maximum(begin, limit), end)
    return bool((np.diff(begin) >= 0).all() and (np.diff(end) >= 0).all() and (begin <= end).all())


class _Find:
    def __init__(self, graph: Graph, n: Var) -> None:
        self.graph, self.n = graph, n

    def bare(self, value: Value, index: IndexMap) -> tuple[Value, IndexMap]:
        """Behind views and conversions between floats or between integers."""
        while True:
            op = self.graph.producer.get(value)
            if op is None or not (is_view(op) or _same_kind(op)):
                return value, index
            needs = demands(op, index)
            if needs is None or len(needs) != 1 or needs[0].guard.bounds:
                return value, index
            value, index = needs[0].value, needs[0].index

    def literal(self, value: Value, index: IndexMap) -> float | None:
        op = self.graph.producer.get(self.bare(value, index)[0])
        if not isinstance(op, ops.Constant) or op.value.size == 0 or not is_splat(op.value):
            return None
        return float(np.asarray(splat_value(op.value)).astype(np.float64))

    def conjunction(self, value: Value, index: IndexMap) -> list[tuple[Bound, ...] | None] | None:
        """The bounds of every term that must hold, None for a term that is something else."""
        value, index = self.bare(value, index)
        op = self.graph.producer.get(value)
        if isinstance(op, ops.Elementwise) and op.kind == "and":
            out: list[tuple[Bound, ...] | None] = []
            for d in demands(op, index) or ():
                out += self.conjunction(d.value, d.index) or [None]
            return out
        if isinstance(op, ops.Compare):
            return [self.comparison(op, index)]
        return [None]

    def comparison(self, op: ops.Compare, index: IndexMap) -> tuple[Bound, ...] | None:
        if not op.lhs.type.dtype.is_integer or op.lhs.type.dtype.is_unsigned:
            return None
        left, right = (self.linear(d.value, d.index) for d in demands(op, index) or ())
        if left is None or right is None or (left.value and right.value):
            return None
        # left - right: what is on the key's side, and what it is compared with
        difference = left.index - right.index
        slope = difference.coefficient(self.n)
        rest = difference - Index.of(self.n) * slope
        if slope not in (1, -1) or rest.depends_on(self.n):
            return None
        one = left if left.value is not None else right
        sign = (1 if one is left else -1) if one.value is not None else 1
        out: list[Bound] = []
        kinds = {"LT": ("<", 1), "LE": ("<", 0), "GT": (">", 1), "GE": (">", 0)}
        sides = [("<", 0), (">", 0)] if op.direction == "EQ" else \
            [kinds[op.direction]] if op.direction in kinds else []
        for side, strict in sides:
            # n + rest + v <= -strict, or -n + rest + v <= -strict, or the same with >=
            upper = (side == "<") == (slope == 1)
            limit = rest * -slope + (-strict if upper else strict)
            out.append(Bound(upper, limit, one.value, one.at, -slope * sign))
        return tuple(out) or None

    def linear(self, value: Value, index: IndexMap) -> _Linear | None:
        """A position as an index, or something else that does not depend on the key."""
        value, index = self.bare(value, index)
        op = self.graph.producer.get(value)
        if isinstance(op, ops.Iota):
            return _Linear(index[op.dimension])
        constant = self.literal(value, index)
        if constant is not None:
            return _Linear(Index((), int(constant)))
        if isinstance(op, ops.Elementwise) and op.kind in ("add", "subtract"):
            parts = [self.linear(d.value, d.index) for d in demands(op, index) or ()]
            if len(parts) == 2 and all(p is not None and p.value is None for p in parts):
                a, b = (p.index for p in parts if p is not None)
                return _Linear(a + b if op.kind == "add" else a - b)
        if self._varies(value, index):
            return None
        return _Linear(Index(), value, index)

    def _varies(self, value: Value, index: IndexMap) -> bool:
        return any(i.depends_on(self.n) for i in index)


@dataclass(frozen=True)
class _Linear:
    index: Index
    value: Value | None = None
    at: IndexMap = ()


def _same_kind(op: Op) -> bool:
    if not isinstance(op, ops.Convert):
        return False
    a, b = op.operand.type.dtype, op.result.type.dtype
    return (a.is_float and b.is_float) or (
        a.is_integer and b.is_integer and not a.is_unsigned and not b.is_unsigned
        and b.bits >= a.bits)

"""What a body's values need at symbolic indices: guards resolved, lanes told apart, loads found."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxmono.fusion.demand import Demand, Guard, demands
from jaxmono.fusion.indexing import Dyn, Index, IndexMap, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.constant_folding import LARGEST
from jaxmono.hlo.rewrite import is_splat

GUARDED = (ops.Pad, ops.Concatenate, ops.DynamicUpdateSlice)
"""Ops whose result element is one of several operand elements, by position."""


def guard_holds(guard: Guard) -> bool | None:
    """True or False where the bounds decide it for all points, None where it depends."""
    holds = True
    for x, low, high in guard.bounds:
        least, most = x.bounds
        if most < low or least >= high:
            return False
        holds = holds and least >= low and most < high
    return True if holds else None


def alternatives(op: Op, index: IndexMap) -> tuple[Demand, ...]:
    """For GUARDED ops: the first demand whose guard holds is the result; the last one always does.

    Alternatives that can never hold are left out.
    """
    out: list[Demand] = []
    for d in demands(op, index) or ():
        holds = guard_holds(d.guard)
        if holds is False:
            continue
        out.append(d)
        if holds:
            break
    if not out:  # an empty iteration space: any operand will do, nothing is loaded
        out = list(demands(op, index) or ())[-1:]
    return (*out[:-1], Demand(out[-1].value, out[-1].index))


def operands(op: Op, value: Value, index: IndexMap) -> tuple[Demand, ...] | None:
    """Like `demands`, with optimization_barrier and with guards resolved."""
    if isinstance(op, ops.OptimizationBarrier):
        return (Demand(op.args[op.results.index(value)], index),)
    if isinstance(op, GUARDED):
        return alternatives(op, index)
    return demands(op, index)


def dynamics(index: Iterable[Index]) -> dict[Dyn, None]:
    """The indices read from memory that occur in ``index``, in order, each once."""
    return dict.fromkeys(d for i in index for d in i.dynamics())


@dataclass(frozen=True)
class Lane:
    """The vectorised Var, split: ``var = width * high + low``."""

    var: Var
    width: int

    @property
    def high(self) -> Var:
        return Var(f"{self.var.name}_hi", self.var.size // self.width)

    @property
    def low(self) -> Var:
        return Var(f"{self.var.name}_lo", self.width)

    def split(self, index: Index) -> Index:
        if self.width == 1:
            return index
        whole = Index.of(self.high) * self.width + Index.of(self.low)
        return index.substitute({self.var: whole})

    def varies(self, index: Iterable[Index]) -> bool:
        """Whether a split index differs between the lanes."""
        return self.width > 1 and any(i.depends_on(self.low) for i in index)


class Access(enum.Enum):
    """How the lanes of one vector lie in memory."""

    UNIFORM = "all lanes the same element"
    CONTIGUOUS = "neighbouring elements, aligned to the vector"
    UNALIGNED = "neighbouring elements"
    SCATTERED = "anything else"


def access(offset: Index, lane: Lane) -> Access:
    """The pattern of a split element offset."""
    if lane.width == 1 or not offset.depends_on(lane.low):
        return Access.UNIFORM
    rest = offset - Index.of(lane.low)
    if offset.coefficient(lane.low) != 1 or rest.depends_on(lane.low):
        return Access.SCATTERED
    return Access.CONTIGUOUS if is_multiple(rest, lane.width) else Access.UNALIGNED


def every_second(offset: Index, lane: Lane) -> int | None:
    """Where the lanes are every second element of two vectors: whether from the first or from the
    second one on, which is 0 or 1; else None."""
    rest = offset - Index.of(lane.low) * 2
    if lane.width == 1 or offset.coefficient(lane.low) != 2 or rest.depends_on(lane.low):
        return None
    first = rest.const % 2
    return first if is_multiple(rest - Index.of(first), 2 * lane.width) else None


def is_multiple(x: Index, n: int) -> bool:
    """Whether every term of ``x`` is a multiple of ``n``; an index from memory has no factor."""
    return x.const % n == 0 and all(c % n == 0 for _, c in x.terms)


def uniform_guard(guard: Guard, lane: Lane) -> Guard | None:
    """The guard for a whole vector (its first lane decides), None if lanes may differ."""
    bounds: list[tuple[Index, int, int]] = []
    for x, low, high in guard.bounds:
        if lane.varies((x,)):
            if access(x, lane) is not Access.CONTIGUOUS or low % lane.width or high % lane.width:
                return None
            x = x - Index.of(lane.low)
        bounds.append((x, low, high))
    return Guard(tuple(bounds))


def alternates(guards: Iterable[Guard], lane: Lane) -> bool:
    """Whether its place in the vector alone tells which alternative a lane takes."""
    varying = [x for g in guards for x, _, _ in g.bounds if lane.varies((x,))]
    return bool(varying) and all(x.is_static and x.variables == frozenset({lane.low})
                                 for x in varying)


Root = tuple[Value, IndexMap]
Reduction = Callable[[ops.Reduce, IndexMap], Sequence[Demand]]


@dataclass(frozen=True)
class Node:
    """``value`` at ``index``; ``op`` is None for a body input. ``guards``: of its alternatives."""

    value: Value
    index: IndexMap
    op: Op | None
    guards: tuple[Guard, ...] = ()


def walk(body: Graph, roots: Iterable[Root], *, reduction: Reduction | None = None,
         stop: Callable[[Value, IndexMap], bool] | None = None,
         leaf: Callable[[Value], bool] | None = None) -> Iterator[Node]:
    """Every (value, index) that the roots need, each once, users before what they use.

    Args:
      stop: True where the walk neither yields nor goes further (values that exist already).
      leaf: True for values that are sources like the body's inputs.
      reduction: what a reduce demands; without it the walk ends at reduces, as it ends at all ops
        that need more than a fixed number of elements.
    """
    inputs = set(body.inputs)
    seen: set[Root] = set()
    work = list(roots)[::-1]
    while work:
        value, index = work.pop()
        if (value, index) in seen or (stop is not None and stop(value, index)):
            continue
        seen.add((value, index))
        if value in inputs or (leaf is not None and leaf(value)):
            yield Node(value, index, None)
            work.extend((d.value, d.index) for d in dynamics(index))
            continue
        op = body.producer[value]
        if isinstance(op, ops.Reduce):
            needs = tuple(reduction(op, index)) if reduction is not None else ()
        else:
            needs = operands(op, value, index) or ()
        guards = tuple(d.guard for d in needs if d.guard.bounds)
        yield Node(value, index, op, guards)
        # Only indices that become an address or a number are computed.
        if isinstance(op, (ops.Iota, ops.Constant)):
            work.extend((d.value, d.index) for d in dynamics(index))
        for g in guards:
            work.extend((d.value, d.index) for d in dynamics(x for x, _, _ in g.bounds))
        work.extend((d.value, d.index) for d in reversed(needs))


def sources(body: Graph, value: Value) -> frozenset[Value]:
    """The inputs of a body that a value is computed from, whatever the element."""
    found: set[Value] = set()
    work, seen = [value], {value}
    while work:
        v = work.pop()
        if v in body.inputs:
            found.add(v)
        op = body.producer.get(v)
        more = set(op.uses) - seen if op is not None else set[Value]()
        seen |= more
        work.extend(more)
    return frozenset(found)


def depends_on(index: Iterable[Index], vars: Iterable[Var]) -> bool:
    """Whether any component of ``index`` uses any of ``vars``."""
    wanted = set(vars)
    return any(not wanted.isdisjoint(i.variables) for i in index)


def vector_width(body: Graph, roots: Iterable[Root], stores: Iterable[tuple[Index, int]],
                 lane: Var, *, reduction: Reduction | None = None, limit: int = 8,
                 widest: int = 32, unaligned: bool = False, in_turn: bool = False,
                 pairs: bool = False) -> int:
    """The largest number of lanes for which every access along ``lane`` is one wide access.

    Lanes are at most ``limit`` and make at most 16 bytes of the narrowest element type accessed
    along the lane, ``widest`` bytes of the widest. Guards must decide for a whole vector at once.

    Args:
      roots: the values that are computed, with their indices (over ``lane``).
      stores: element offset and item size of every store.
      unaligned: loads may be of neighbouring elements one by one, and guards may part a vector.
      in_turn: lanes may be of a concatenation's operands in turn (alternating.py).
      pairs: loads may be of every second element, of two vectors (every_second.py).
    """
    roots, stores = list(roots), list(stores)
    width = limit
    while width > 1:
        if lane.size % width == 0 and _fits(body, roots, stores, Lane(lane, width), reduction,
                                            widest, unaligned=unaligned, in_turn=in_turn,
                                            pairs=pairs):
            return width
        width //= 2
    return 1


def _fits(body: Graph, roots: Sequence[Root], stores: Sequence[tuple[Index, int]], lane: Lane,
          reduction: Reduction | None, widest: int, *, unaligned: bool, in_turn: bool,
          pairs: bool) -> bool:
    sizes: list[int] = []
    for offset, size in stores:
        if access(lane.split(offset), lane) is not Access.CONTIGUOUS:
            return False
        sizes.append(size)
    split = [(v, tuple(lane.split(i) for i in index)) for v, index in roots]

    def reduced(op: ops.Reduce, index: IndexMap) -> Sequence[Demand]:
        needs = reduction(op, index) if reduction is not None else ()
        return [Demand(d.value, tuple(lane.split(i) for i in d.index)) for d in needs]

    def alternating(value: Value, index: IndexMap) -> bool:
        op = body.producer.get(value) if in_turn else None
        return isinstance(op, ops.Concatenate) \
            and alternates((d.guard for d in alternatives(op, index)), lane)

    for node in walk(body, split, reduction=reduced, stop=alternating):
        if not unaligned and any(uniform_guard(g, lane) is None for g in node.guards):
            return False
        is_table = isinstance(node.op, ops.Constant) and node.value.type.rank > 0 \
            and not is_splat(node.op.value)
        if is_table and node.value.type.size <= LARGEST:
            continue  # bins, frequencies: each lane may read its own (`_per_lane` in emit.py)
        if node.op is None or is_table:
            offset = linearize(node.index, node.value.type.dims)
            pattern = access(offset, lane)
            if pattern is Access.CONTIGUOUS:
                sizes.append(node.value.type.dtype.itemsize)
            elif pairs and node.op is None and every_second(offset, lane) is not None:
                sizes.append(2 * node.value.type.dtype.itemsize)
            elif pattern is not Access.UNIFORM and not (
                    unaligned and pattern is Access.UNALIGNED):
                return False
    return not sizes or (min(sizes) * lane.width <= 16 and max(sizes) * lane.width <= widest)


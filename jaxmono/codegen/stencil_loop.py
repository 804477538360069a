"""Loops that read windows of an image: a depthwise convolution, and what is computed of it.

    y[i, j, c] = sum over taps (s, t) of x[i + s, j + t, c] w[s, t, c]

    place by place        9 vectors of x and 9 of w for each vector of y
    4 places at a time    16 of x and 9 of w for 2 x 2, each asked for some loads before it is used

An element's loads, not its arithmetic, are what a thread waits for: beside contractions a
multiprocessor has eight warps, and with a few loads each in flight they get a third of what the L2
can give. Neighbouring places share most of their loads. They go from tap to tap together, so that
what is loaded is soon used by all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.stencil_rows import at_place
from jaxmono.codegen.traverse import Node, Root, operands, walk
from jaxmono.fusion.cost import LANE_OPS_PER_SM_US
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.fusion.loops import STENCIL_LOADS
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value

_PLACES = (2, 4, 7, 8)
"""Along one dimension: widths of images are multiples of these."""
_NARROWEST_BYTES = 4
"""Of a vector. A narrower one than can be loaded makes more threads, and less text of each: small
images have fewer vectors than the GPU has threads."""
_WORDS = 160
"""Registers of a thread for sums, for what it has loaded and for what it has asked for."""
_SHARED = 0.8
"""Of the loads of places one by one, that they take together at most if they are neighbours of a
window and not just elements of many arrays."""
_AHEAD = (8, 20)
"""Loads that a thread has asked for before their turn, at least and at most."""
_LATENCY_US = 0.9
_BYTES_PER_US = 100e3
"""That a multiprocessor gets from the L2."""
_WIDENED, _BEHIND = 2, 6
"""Lane operations of an element that is loaded, and behind the sum of one that is made, which takes
one more for each of its taps."""
_LOAD_INSTRUCTIONS, _OTHERS = 5, 80
_MOST_INSTRUCTIONS = 2000
"""Of a thread: with 7 x 7 taps 4 x 4 places of two lanes are 2900, which take ptxas 28 s, 2 x 4 of
them 1900, 6 s."""
_FETCH_US = 0.0065
"""Of an instruction that a multiprocessor has not run lately: where 128 KB of others have driven it
out, a line of 128 bytes takes 92 clocks from memory, 43 from the L2 (24000 instructions in a row on
an H100). A loop of MobileNetV2 b32 (7 x 7 x 960, seven places) took 20.9 us the first time, then
6.7."""


@dataclass(frozen=True)
class _Order:
    """How the places of a thread are computed.

    Attributes:
      taps: element-wise values, all places' of one op next to each other.
      loads: what is read, in the order of its first use.
      needed: of ``loads``, how many a tap and those before it use.
      live: most of them that are at hand at a time.
    """

    taps: tuple[Root, ...]
    loads: tuple[Root, ...]
    needed: tuple[int, ...]
    live: int

    def ahead(self, sums: int, lanes: int, itemsize: int) -> int:
        """Loads that may be asked for before their turn; fewer than `_AHEAD` allows: the places'
        ``sums`` and loads leave too few registers."""
        free = _WORDS - (sums + self.live) * lanes
        return min(free // max(1, lanes * itemsize // 4), _AHEAD[1])


def place_of(env: Mapping[Var, Index], at: Sequence[int]) -> dict[Var, Index]:
    """``env``, so many places further along each of its Vars."""
    return {v: i + n for (v, i), n in zip(env.items(), at, strict=True)}


def every_place(places: Sequence[int]) -> list[tuple[int, ...]]:
    """The places of a thread."""
    return list(itertools.product(*map(range, places)))


def stencil_loop(body: Graph, roots: Sequence[Root], variables: Sequence[Var], widest: int, *,
                 itemsize: int, device: Device, threads: int,
                 ) -> tuple[int, tuple[int, ...]] | None:
    """(lanes of a vector, how many places of each of ``variables`` a thread takes); None where
    elements take few loads, or share none with their neighbours.

    Args:
      roots: what is stored, with its indices over ``variables``, of which the last has the lanes.
      widest: vector that can be loaded and stored.
      itemsize: of what is read.
    """
    plain = (1,) * len(variables)
    one = _taps(body, roots)
    few = _distinct(one)
    if few < STENCIL_LOADS or len(variables) < 2:
        return None
    size = math.prod(v.size for v in variables)
    orders = {places: _order(one, _envs(variables, places))
              for places in (plain, *_choices(variables))}
    if all(len(o.loads) > _SHARED * few * math.prod(n) for n, o in orders.items()):
        return None

    def cost(lanes: int, places: tuple[int, ...]) -> float:
        made, order = math.prod(places), orders[places]
        count = len(order.loads)
        if lanes * made > _WORDS // 2:
            return math.inf
        if made > 1 and order.ahead(made, lanes, itemsize) < _AHEAD[0]:
            return math.inf
        text = (_OTHERS + count * (_LOAD_INSTRUCTIONS + lanes)
                + made * lanes * (few // 2 + _BEHIND))
        if made > 1 and text > _MOST_INSTRUCTIONS:
            return math.inf
        rounds = math.ceil(size / (made * lanes * threads) / device.sm_count)
        work = (count * (_LOAD_INSTRUCTIONS + lanes * _WIDENED)
                + made * lanes * (few // 2 + _BEHIND)) / LANE_OPS_PER_SM_US
        return text * _FETCH_US + rounds * (
            _LATENCY_US + threads * (work + count * lanes * itemsize / _BYTES_PER_US))

    narrower = {n for n in (widest // 2, widest // 4) if n > 1 and n * itemsize >= _NARROWEST_BYTES}
    return min(itertools.product(sorted(narrower | {widest}, reverse=True), orders),
               key=lambda choice: cost(*choice))


def loads_of(body: Graph, roots: Sequence[Root]) -> int:
    """Elements that are read for one of ``roots`` each."""
    return _distinct(_taps(body, roots))


def _distinct(taps: Mapping[Root, Sequence[Root]]) -> int:
    return len({load for loads in taps.values() for load in loads})


def _choices(variables: Sequence[Var]) -> Iterator[tuple[int, ...]]:
    """Several places along one or two of all variables but the last, which has the lanes."""
    inner = range(len(variables) - 1)
    some = [{i: n} for i in inner for n in _PLACES]
    some += [{i: n, j: m} for i, j in itertools.combinations(inner, 2) for n in (2, 4)
             for m in (2, 4)]
    for counts in some:
        if all(variables[i].size % n == 0 for i, n in counts.items()):
            yield tuple(counts.get(i, 1) for i in range(len(variables)))


def _envs(variables: Sequence[Var], places: Sequence[int]) -> list[dict[Var, Index]]:
    """The variables at all places of a thread, over those of its first place."""
    return [{v: at_place(Index.of(v), v, n, i)
             for v, n, i in zip(variables, places, at, strict=True)} for at in every_place(places)]


def emit_ahead(em: BodyEmitter, roots: Sequence[Root], envs: Sequence[Mapping[Var, Index]],
               itemsize: int) -> None:
    """Emits what ``roots`` need at all places, ``envs``; of a few loads a place just these: ops
    that are emitted one by one are no more found as one function (a sigmoid, codegen/finder.py).
    """
    taps = _taps(em.body, roots)
    order = _order(taps, envs)
    if _distinct(taps) < STENCIL_LOADS:
        for load in order.loads:
            em.emit(*load)
        return
    ahead = max(order.ahead(len(envs), em.lanes, itemsize), _AHEAD[0])
    asked = 0
    for (value, index), needed in zip(order.taps, order.needed, strict=True):
        for load in order.loads[asked:needed + ahead]:
            em.emit(*load)
        asked = max(asked, needed + ahead)
        em.emit(value, index)


def _taps(body: Graph, roots: Sequence[Root]) -> dict[Root, tuple[Root, ...]]:
    """Of one place: element-wise values in the order of their ops, and what each reads."""
    position = {o: i for i, o in enumerate(body.ops)}
    guarded = set[Root]()  # computed where a test holds, as what it is computed of is read there
    nodes: list[Node] = []
    for n in walk(body, roots, stop=lambda v, i: (v, i) in guarded):
        guarded.update(_behind_tests(n))
        if isinstance(n.op, ops.Elementwise):
            nodes.append(n)
    nodes.sort(key=lambda n: position[n.op] if n.op is not None else 0)
    return {(n.value, n.index): tuple(_loads(body, (n.value, n.index))) for n in nodes}


def _order(one: Mapping[Root, Sequence[Root]], envs: Sequence[Mapping[Var, Index]]) -> _Order:
    """``one`` place's taps at all places. (Walks from every place find the same; they took 6 s for
    all choices of 7 x 7 taps, this 0.6.)"""
    known: list[dict[Index, Index]] = [{} for _ in envs]  # taps of a row have the same row

    def at(root: Root, place: int) -> Root:
        moved = known[place]
        for i in root[1]:
            if i not in moved:
                moved[i] = i.substitute(envs[place])
        return root[0], tuple(moved[i] for i in root[1])

    needed: dict[Root, int] = {}
    first: dict[Root, int] = {}
    last: dict[Root, int] = {}
    for tap, loads in one.items():
        for place in range(len(envs)):
            here = at(tap, place)
            if here in needed:
                continue
            for load in loads:
                there = at(load, place)
                first.setdefault(there, len(needed))
                last[there] = len(needed)
            needed[here] = len(first)
    change = [0] * (len(needed) + 1)
    for load, begin in first.items():
        change[begin] += 1
        change[last[load] + 1] -= 1
    return _Order(tuple(needed), tuple(first), tuple(needed.values()),
                  max(itertools.accumulate(change), default=0))


def _loads(body: Graph, tap: Root) -> Iterator[Root]:
    """What is read for an op's operands, between it and the ops whose results it takes: what is
    padded or joined as such, because what is outside of its buffers is not read."""
    inside = set[Root]()

    def ends(value: Value, index: IndexMap) -> bool:
        at = (value, index)
        return at in inside or (at != tap and isinstance(body.producer.get(value), ops.Elementwise))

    for n in walk(body, [tap], stop=ends):
        parts = _behind_tests(n)
        inside.update(parts)
        if (parts or n.op is None) and any(i.variables for i in n.index):
            yield n.value, n.index


def _behind_tests(n: Node) -> list[Root]:
    """What an element is one of, by its position; nothing where that is known."""
    if n.op is None or not n.guards:
        return []
    return [(d.value, d.index) for d in operands(n.op, n.value, n.index) or ()]

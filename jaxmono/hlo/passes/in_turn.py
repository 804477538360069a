"""Loops that do something to each element by itself: a thread takes its element through trips.

    h = 0.9 * h + 0.1 * x[i]          stage 0    h1 = f(h0, x[0]); ... h16 = f(h15, x[15])
    ys[i] = h                 ──►     stage 1    h17 = f(h16, x[16]); ...

What one trip hands to the next stays in registers; memory has what trips write to places of their
own, and the carried values behind each turn of so many trips. One group makes them all
(`ops.Stored.group`), and a border between stages, some 2 us of each trip otherwise, is one of a
turn. What a trip reads is on its way before the trips begin: none of it depends on them.

So are recurrences (running means, returns of a rollout, state spaces, gates of quasi-recurrent
networks), fixed steps of a solver, iterations of a map. What no later trip needs may be anything,
of all states of a turn, which are stored for it:

    h = a[i] * h + b[i]               stage 0    h1, ..., h16
    ys[i] = c[i] @ h          ──►     stage 1    h17, ..., h32        c[0] @ h1, ..., c[15] @ h16

MonoNN (section 4.4) has a stage for each trip.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.counted import Collected, Counted
from jaxmono.hlo.types import TensorType

MAX_OPS = 512
"""Of the trips of a turn: so long is the text of their stage, for each element of a vector. 768
took NVRTC 9 s for Mandelbrot's set, 512 take 3."""
MAX_TRIPS = 64
PIECES = 16
"""Most arrays that a turn's trips write: as many vectors are in a thread's registers."""
ALONE = 1 << 15
"""Elements of a carried value up to which a thread has one of them; then it may be four times as
many arrays, and half as many ops more (RWKV's sums, 8 x 768: 76 us of an H200 by 16 trips a turn,
101 by 8)."""

_POINTWISE = (ops.Elementwise, ops.Compare, ops.Convert, ops.ReducePrecision)


@dataclass(frozen=True)
class Turn:
    """Trips that one stage takes.

    Attributes:
      trips: how many; 1 for a loop that does not treat each element by itself.
      apart: ops of the body that read several elements of ``kept`` values, and what follows.
      kept: values of the body, carried ones among them, that are stored for those in each trip.
      space: dimensions of what a group of trips makes, but for those of one element.
    """

    trips: int = 1
    apart: frozenset[Op] = frozenset()
    kept: frozenset[Value] = frozenset()
    space: tuple[int, ...] = ()

    def makes(self, v: Value) -> bool:
        """Whether a group of trips can make ``v``."""
        return self.trips > 1 and _lanes(v.type) == self.space


NONE = Turn()


def turn(loop: ops.While, found: Counted, collected: Mapping[int, Collected]) -> Turn | str:
    """How many trips a stage takes, else why each has its own."""
    body = loop.body
    carried = [i for i, v in enumerate(body.inputs)
               if i not in collected and i not in found.starts and body.outputs[i] is not v]
    lanes = {_lanes(body.inputs[i].type) for i in carried if body.inputs[i].type.rank}
    if lanes <= {()}:
        return "it carries no arrays"
    if len(lanes) != 1:
        return "it carries arrays of several shapes"
    (space,) = lanes
    updates = {c.update for c in collected.values()}
    inside, apart = _divided(body, [body.inputs[i] for i in carried], space, updates)
    mixed = apart & _behind(body, [body.outputs[i] for i in carried])
    if mixed:
        first = next(o for o in body.ops if o in mixed)
        return f"{first.opcode} at {first.loc} makes elements of what it carries of several of them"
    others = {r for o in apart for r in o.results}
    kept = frozenset(v for o in apart for v in o.uses if v in inside)
    written = [c.update.update for c in collected.values() if c.update.update not in others]
    if any(_lanes(v.type) != space for v in (*written, *kept)):
        return "what it writes, or reads of it, has another shape than what it carries"
    count = sum(not isinstance(o, ops.Constant | ops.Reshape | ops.BroadcastInDim)
                and o not in apart for o in body.ops)
    size = next(body.inputs[i].type.size for i in carried if body.inputs[i].type.rank)
    pieces, longest = (PIECES, MAX_OPS) if size > ALONE else (4 * PIECES, MAX_OPS * 3 // 2)
    arrays = len(kept.union(written))
    most = min(found.trips, longest // max(count, 1), pieces // arrays if arrays else MAX_TRIPS)
    if most < 2:
        return f"a trip is {count} ops and {arrays} arrays"
    # Turns of equal length are one Sig, which the planner rolls up.
    trips = next((n for n in range(most, most // 2, -1) if found.trips % n == 0), most)
    return Turn(trips, frozenset(apart), kept, space)


def _divided(body: Graph, carried: Collection[Value], space: tuple[int, ...],
             updates: Collection[Op]) -> tuple[set[Value], set[Op]]:
    """Carried values and what is made of them element by element; and ops that make elements of
    other elements of these, with all that depend on them."""
    moving, others, out = set(carried), set[Value](), set[Op]()
    for o in body.ops:
        if o in updates or (moving.isdisjoint(o.uses) and others.isdisjoint(o.uses)):
            continue
        by_itself = (isinstance(o, _POINTWISE) or _only_renames(o)) and all(
            r.type.size == 1 or _lanes(r.type) == space for r in o.results)
        if by_itself and others.isdisjoint(o.uses):
            moving.update(o.results)
        else:
            others.update(o.results)
            out.add(o)
    return moving, out


def _behind(body: Graph, values: Collection[Value]) -> set[Op]:
    """What ``values`` are made by."""
    wanted, out = set(values), set[Op]()
    for o in reversed(body.ops):
        if not wanted.isdisjoint(o.results):
            out.add(o)
            wanted.update(o.uses)
    return out


def _only_renames(o: Op) -> bool:
    """Whether elements stay where they are, or are all the same one."""
    return isinstance(o, ops.Reshape) or (isinstance(o, ops.BroadcastInDim) and (
        o.operand.type.size == 1 or (_lanes(o.operand.type) == _lanes(o.result.type)
                                     and list(o.dimensions) == sorted(o.dimensions))))


def _lanes(t: TensorType) -> tuple[int, ...]:
    return tuple(n for n in t.dims if n != 1)

"""Borders of stages without a grid barrier: small values carry their own flags across them.

    stage 3   y = dot(...)          y: words of (value, launch)
              no barrier            blocks go on; who reads an element of y waits for that element
    stage 4   z = dot(norm(y), W)

A border may be open if whatever crosses it, and no border that stays, is such a value. Everything
else (large values, caches that are updated in place, memory that is used again) keeps a barrier
between its ends. The words of flagged values are never used again in a launch, so nothing waits for
their readers.

Lamport, "On interprocess communication" (1986); DESIGN: flagged data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from jaxmono.fusion.edges import flagged_bytes, sync_edges
from jaxmono.fusion.memory import ALIGNMENT
from jaxmono.fusion.plan import Buffer, Group, Mechanism, Place, Plan, Sig

MOST_ELEMENTS = 16 * 1024
"""Of a flagged value: its words are read by many blocks, and are twice as many bytes."""

Position = tuple[str, bool, int]
"""Key of a Sig, whether a result (or a param), its number."""


def with_flags(plan: Plan, can: Callable[[Sig, bool, int], bool],
               apart: Collection[tuple[int, int]] = ()) -> Plan:
    """The plan with as many open borders as its values allow; itself if that is none.

    Args:
      can: whether the code of a Sig can have flags in a result (True) or a param (False), by its
        number.
      apart: pairs of stages that need a barrier between them for reasons of their code.
    """
    allowed = _allowed(plan, can)
    if not allowed:
        return plan
    best = plan
    needed = _needed(plan, allowed, apart)
    for chosen in (allowed, needed.union(*(s for s in _alike(plan, allowed) if s & needed))):
        found = _opened(_placed(plan, chosen), apart)
        if len(found.open) > len(best.open) or (
                found.open and len(found.open) == len(best.open)
                and found.flagged_bytes < best.flagged_bytes):
            best = found
    return _trimmed(plan, best, apart) if best.open else best


def borders(plan: Plan) -> list[tuple[int, ...]]:
    """Borders by the stage in front; those of a loop's trips that are the same code together."""
    out: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for x in plan.loops:
        for i in range(x.period):
            trips = x.trips if i + 1 < x.period else x.trips - 1
            out.append(tuple(x.start + i + t * x.period for t in range(trips)))
            taken.update(out[-1])
    out += [(i,) for i in range(len(plan.stages) - 1) if i not in taken]
    return sorted(out)


def unmet(plan: Plan, apart: Collection[tuple[int, int]] = ()) -> tuple[int, int] | None:
    """Two stages between which a barrier is needed and none stays, or None."""
    for first, last in sorted(_needs(plan, apart)):
        if all(i in plan.open for i in range(first, last)):
            return first, last
    return None


def stage_of(plan: Plan) -> dict[int, int]:
    """The stage of each group."""
    return {g.id: i for i, s in enumerate(plan.stages) for g in s.groups}


# ---- which values ------------------------------------------------------------------------------


def _positions(plan: Plan) -> dict[Position, list[int]]:
    """The buffers of every param and result of the Sigs, over all groups."""
    out: dict[Position, list[int]] = {}
    for g in plan.groups:
        for result, ids in ((False, g.params), (True, g.results)):
            for i, b in enumerate(ids):
                out.setdefault((g.sig.key, result, i), []).append(b)
    return out


def _allowed(plan: Plan, can: Callable[[Sig, bool, int], bool]) -> set[int]:
    """Small intermediate values whose writer and readers can; a Sig has one code for all its
    groups, so all their buffers at one place have flags, or none."""
    sigs = {s.key: s for s in plan.sigs}
    written: dict[int, int] = {}
    for g in plan.groups:
        for b in g.results:
            written[b] = written.get(b, 0) + 1
    out = {b.id for b in plan.buffers
           if b.place is Place.SCRATCH and b.type.dtype.itemsize in (2, 4)
           and 0 < b.type.size <= MOST_ELEMENTS and written.get(b.id) == 1}
    out -= {b.index for b in plan.buffers if b.place is Place.PART}
    # Not what stages that repeat find from before the trip: their words have the trip's number.
    if plan.repeat is not None:
        out -= {b.id for b in plan.buffers if b.last >= plan.repeat.start
                and (b.first < plan.repeat.start or b.before is not None)}
    places = _positions(plan)
    for (key, result, i), ids in places.items():
        if not out.isdisjoint(ids) and not can(sigs[key], result, i):
            out.difference_update(ids)
    while any(not out.isdisjoint(ids) and not out.issuperset(ids) for ids in places.values()):
        for ids in places.values():
            if not out.issuperset(ids):
                out.difference_update(ids)
    return out


def _needed(plan: Plan, allowed: set[int], apart: Collection[tuple[int, int]]) -> set[int]:
    """Those that cross no barrier once the borders are open that they open."""
    found = _opened(_placed(plan, allowed), apart)
    stage = stage_of(found)
    return {e.buffer for e in found.edges if e.mechanism is Mechanism.FLAGGED
            and all(i in found.open for i in range(stage[e.producer], stage[e.consumer]))}


def _trimmed(plan: Plan, found: Plan, apart: Collection[tuple[int, int]]) -> Plan:
    """``found`` without those values whose flags open nothing: they are twice as many bytes."""
    chosen = {b.id for b in found.buffers if b.place is Place.FLAGGED}
    for ids in _alike(plan, chosen):
        fewer = _opened(_placed(plan, chosen - ids), apart)
        if fewer.open >= found.open:
            found, chosen = fewer, chosen - ids
    return found


def _alike(plan: Plan, chosen: set[int]) -> list[set[int]]:
    """``chosen`` by what has flags together or not at all, the largest first."""
    out: list[set[int]] = []
    for ids in _positions(plan).values():
        more = chosen.intersection(ids)
        if more:
            out = [s for s in out if s.isdisjoint(more)] + [
                more.union(*(s for s in out if not s.isdisjoint(more)))]
    return sorted(out, key=lambda s: (-sum(flagged_bytes(plan.buffers[b]) for b in s), min(s)))


# ---- the plan ----------------------------------------------------------------------------------


def _placed(plan: Plan, chosen: set[int]) -> Plan:
    """The buffers ``chosen`` among the flagged words, and the edges anew."""
    at = 0
    buffers: list[Buffer] = []
    for b in plan.buffers:
        if b.id in chosen:
            b = replace(b, place=Place.FLAGGED, offset=at)
            at += -(-flagged_bytes(b) // ALIGNMENT) * ALIGNMENT
        buffers.append(b)
    return replace(plan, buffers=tuple(buffers), edges=sync_edges(buffers, plan.stages),
                   flagged_bytes=at)


def _opened(plan: Plan, apart: Collection[tuple[int, int]]) -> Plan:
    """Border by border, as long as nothing is unmet; one stays: behind it launches are counted."""
    crossing = _crossing(_shortest(_needs(plan, apart)), len(plan.stages))
    opened: set[int] = set()
    for together in borders(plan):
        if len(opened) + len(together) >= len(plan.stages) - 1 \
                or (plan.repeat and plan.repeat.start - 1 in together):
            continue
        opened.update(together)
        if any(all(i in opened for i in range(*need)) for b in together for need in crossing[b]):
            opened.difference_update(together)
    return replace(plan, open=frozenset(opened))


def _needs(plan: Plan, apart: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Pairs of stages that need a barrier between them, ``apart`` among them."""
    stage = stage_of(plan)
    return {(stage[e.producer], stage[e.consumer]) for e in plan.edges
            if e.mechanism is Mechanism.BARRIER}.union(apart)


def _shortest(needs: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that have no other within them: a barrier there is within the longer ones, too."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(needs, key=lambda x: (x[1], -x[0])):
        if not out or first > out[-1][0]:
            out.append((first, last))
    return out


def _crossing(needs: Collection[tuple[int, int]], stages: int) -> dict[int, list[tuple[int, int]]]:
    out: dict[int, list[tuple[int, int]]] = {i: [] for i in range(stages)}
    for first, last in needs:
        for i in range(first, last):
            out[i].append((first, last))
    return out


def flagged_params(plan: Plan, g: Group) -> tuple[bool, ...]:
    """Of a group's params and results, in order, which have flags."""
    return tuple(plan.buffers[b].place is Place.FLAGGED for b in (*g.params, *g.results))

"""Repeated layers: runs of stages that repeat the same Sigs become a Loop.

    stages   A | B C D | B C D | B C D | E        loop: start 1, period 3, trips 3
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion.plan import Loop, Stage


def find_loops(stages: Sequence[Stage]) -> tuple[Loop, ...]:
    """Disjoint loops over the stages, in order, each as long as it can be.

    Stages are equal when their groups have equal Sigs in equal order; buffers may differ in any
    way, the generator reads them from a table.
    """
    kinds: dict[tuple[str, ...], int] = {}
    row = [kinds.setdefault(tuple(g.sig.key for g in s.groups), len(kinds)) for s in stages]
    out: list[Loop] = []
    at = 0
    while at < len(row):
        best = _longest(row, at)
        if best is None:
            at += 1
        else:
            out.append(best)
            at = best.start + best.period * best.trips
    return tuple(out)


def _longest(row: list[int], at: int) -> Loop | None:
    """The loop that starts at ``at`` and covers most, with the shortest period."""
    best: Loop | None = None
    for period in range(1, (len(row) - at) // 2 + 1):
        end = at + period
        while end < len(row) and row[end] == row[end - period]:
            end += 1
        trips = (end - at) // period
        if trips >= 2 and (best is None or period * trips > best.period * best.trips):
            best = Loop(at, period, trips)
    return best

"""Offsets of intermediate values in one scratch allocation.

Two values may share bytes only when the stages during which they must stay are disjoint, ends
included: within a stage nothing is ordered, so the last reader of the old value and the writer of
the new one must not meet.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 256
"""Bytes; what the widest loads and the copy engines want."""


class Interval(NamedTuple):
    """``size`` bytes that must stay from stage ``first`` to stage ``last``, both included."""

    size: int
    first: int
    last: int


def assign(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Byte offsets, and the size of the allocation.

    Largest first, each into the smallest gap that holds it between the values alive with it.
    """
    order = sorted(range(len(intervals)),
                   key=lambda i: (-intervals[i].size, intervals[i].first, i))
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int, int]] = []  # in the order of their bytes
    total = 0
    for i in order:
        it = intervals[i]
        size = max(_up(it.size), ALIGNMENT)
        best, best_gap, end = None, None, 0
        for b, e, first, last in placed:
            if first > it.last or it.first > last:
                continue
            gap = b - end
            if gap >= size and (best_gap is None or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, e)
        at = end if best is None else best
        offsets[i] = at
        insort(placed, (at, at + size, it.first, it.last))
        total = max(total, at + size)
    return offsets, total


def _up(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT

"""Ranges of bytes, and which of them meet."""

from __future__ import annotations

from collections.abc import Mapping

Span = tuple[str, int, int]
"""A memory space, the first byte there, and the one behind the last."""


def overlap(a: Span, b: Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def overlaps(spans: Mapping[int, Span]) -> dict[int, list[int]]:
    """The others that each shares bytes with, in order."""
    out: dict[int, list[int]] = {i: [] for i in spans}
    reaching: list[int] = []  # those that begin before the one at hand, as far as they meet it
    for i in sorted(spans, key=lambda i: spans[i]):
        reaching = [j for j in reaching if overlap(spans[j], spans[i])]
        for j in reaching:
            out[i].append(j)
            out[j].append(i)
        reaching.append(i)
    return {i: sorted(found) for i, found in out.items()}

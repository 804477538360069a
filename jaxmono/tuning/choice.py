"""The rule that turns measured rows into one schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_TIE = 0.02
"""Relative difference below which two times are the same: what repeated runs differ by."""
_SIGMAS = 2.0


@dataclass(frozen=True)
class Row:
    """One measured candidate.

    Attributes:
      schedule: its canonical text. rank: its place among the candidates; 0 is the analytic choice.
      us: median time of one launch in microseconds, or None where it failed.
      error: standard error of ``us``.
      reason: why it failed, or "".
    """

    schedule: str
    rank: int
    us: float | None
    error: float = 0.0
    reason: str = ""


def choose(rows: Iterable[Row]) -> Row | None:
    """The fastest row; the analytic one where it is as fast within the noise. None: no times."""
    timed = sorted((r for r in rows if r.us is not None), key=lambda r: (r.us, r.rank))
    if not timed:
        return None
    best = timed[0]
    analytic = next((r for r in timed if r.rank == 0), None)
    if analytic is not None and analytic.us is not None and best.us is not None:
        noise = _SIGMAS * (analytic.error ** 2 + best.error ** 2) ** 0.5
        if analytic.us - best.us <= max(_TIE * best.us, noise):
            return analytic
    return best

"""What is kept of a case that was timed more than once: of each system the lowest.

Where each case has a process of its own, a pass has other connections to the GPU than the one
before (`connections.py`), and always another time. A time can only be too long, never too short;
what is known of a program (errors, memory, seconds of its compilation) is the first pass' in any
case. From the third pass on, a case is timed again only as long as a system's lowest time on the
device has not been seen twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from benchmarks.row import Row

Key: TypeAlias = tuple[str, str | None]
"""(system, mode), as in `benchmarks.measure`."""

_XLA: Key = ("xla", None)

_NEAR, _NEAR_US = 0.02, 2.0
"""Two times as near as the larger of these have seen the same: of the shorter one; us."""

# Figures that were measured together stay together.
_PIPELINED = ("pipelined_us", "pipelined_us_low", "pipelined_us_high", "ratio_to_xla", "throttled",
              "throttle_reasons")
_DEVICE = ("device_us", "device_ratio_to_xla", "busy_us", "kernels", "copies", "queued_us",
           "profile")
_LATENCY = ("latency_us_p50", "latency_us_p95", "latency_us_p99")


def merged(before: Mapping[Key, Row], again: Mapping[Key, Row], number: int) -> list[Row]:
    """The rows of a case after one more pass.

    Args:
      before: of the systems that have not failed, after the passes before this one.
      again: of this pass, its figures alone.
      number: of this pass, from 2.
    """
    kept = {key: _lowest(row, again.get(key), number) for key, row in before.items()}
    return [_related(row, kept.get(_XLA)) for row in kept.values()]


def lost(row: Row, why: str) -> Row:
    """The row of a system whose process has ended while it was measured: it has failed, unless an
    earlier pass has its figures.

    Args:
      row: with the number of the pass.
    """
    if row.passes == 1:
        return replace(row, status="failed", reason=why)
    return _noted(row, f"pass {row.passes} failed: {why}")


def missing(rows: Sequence[Row], number: int) -> bool:
    """Whether a case with these rows still lacks a pass: one that has failed gets no other, nor one
    whose lowest times have been seen twice."""
    return any(row.status != "failed" and row.passes < number for row in rows) and not (
        number > 2 and _settled(rows))


def _settled(rows: Iterable[Row]) -> bool:
    """Whether the lowest device time of each system has been seen in two passes."""
    return all(_seen_twice(row) for row in rows if row.status != "failed" and row.device_us)


def _seen_twice(row: Row) -> bool:
    low, following = row.device_us, row.device_us_next
    return low is not None and following is not None and \
        following - low <= max(_NEAR * low, _NEAR_US)


def _lowest(row: Row, again: Row | None, number: int) -> Row:
    row = replace(row, passes=number)
    if again is None:
        return row
    if again.status == "failed":
        return _noted(row, f"pass {number} failed: {again.reason}")
    if _less(again.pipelined_us, row.pipelined_us):
        row = replace(row, **_of(again, _PIPELINED), pipelined_pass=number)
    # A trace of which something is missing may tell of too little time.
    sound = not again.notes or again.notes in row.notes
    if _less(again.device_us, row.device_us) and sound:
        row = replace(row, **_of(again, _DEVICE), device_pass=number, device_us_next=row.device_us)
    elif _less(again.device_us, row.device_us_next) and sound:
        row = replace(row, device_us_next=again.device_us)
    if _less(again.latency_us_p50, row.latency_us_p50):
        row = replace(row, **_of(again, _LATENCY))
    return row


def _related(row: Row, xla: Row | None) -> Row:
    """With what follows from the times that were kept."""
    row = replace(row, roofline=_quotient(row.floor_us, row.device_us))
    if xla is None:
        return row
    row = replace(row, device_ratio_to_xla=_quotient(row.device_us, xla.device_us))
    if row.pipelined_pass == xla.pipelined_pass:
        return row  # its median of the rounds' own ratios came along
    return replace(row, ratio_to_xla=_quotient(row.pipelined_us, xla.pipelined_us))


def _less(mine: float | None, other: float | None) -> bool:
    return mine is not None and (other is None or mine < other)


def _quotient(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _of(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _noted(row: Row, text: str) -> Row:
    return replace(row, notes="; ".join(filter(None, (row.notes, text))))

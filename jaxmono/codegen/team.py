"""Threads that share a row, and how they combine what each has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Team:
    """The threads that share a row.

    Attributes:
      size: number of threads (or of column slices) that columns are dealt to.
      rank: C expression of this thread's number in the team, in [0, size).
      combine: template of device/reduce.cuh: combine_warp, combine_block or combine_slice; empty
        where a thread has rows of its own.
      argument: second template argument of `combine`.
      smem: C pointer to shared memory for `combine`, where it needs any.
      idle: C bool, whether a barrier lies behind whoever used ``smem`` before the row.
      lanes_on_rows: the vectorised Var runs along rows: every lane has a row of its own.
    """

    size: int
    rank: str
    combine: str
    argument: int
    smem: str = ""
    idle: str = "false"
    lanes_on_rows: bool = False


def warp_team(size: int = 32) -> Team:
    """``size`` neighbouring lanes of a warp (a power of two)."""
    rank = "lane_id()" if size == 32 else f"(lane_id() & {size - 1})" if size > 1 else "0"
    return Team(size, rank, "combine_warp", size)


def block_team(threads: int, smem: str, *, group: int = 0, idle: str = "false") -> Team:
    """All threads of the block, or ``group`` neighbouring ones (a power of two)."""
    size = group or threads
    rank = "thread_id()" if size == threads else f"(thread_id() & {size - 1})"
    return Team(size, rank, "combine_block", size, smem, idle)


def own_rows() -> Team:
    """A thread has rows of its own: as many as there are lanes in a vector."""
    return Team(1, "0", "", 1, lanes_on_rows=True)


def slice_team(threads: int, smem: str) -> Team:
    """Lanes of a warp have different rows; the block's warps share the columns."""
    return Team(threads // 32, "warp_id()", "combine_slice", threads // 32, smem,
                lanes_on_rows=True)

"""Tiles for the gemv family: an even share of the weights for every block, and nothing else.

The time of a stage is that of the block with most bytes. All groups of a stage share the SMs in
proportion to their weights (`blocks_of`), each group cuts its columns, and k where columns alone
would be narrower than memory likes, into as many equal tasks as it has blocks.

Constants are for an H200 (DESIGN.md section 6: streaming by cp.async 3.8 of 4.2 TB/s; rows of 64
bytes as good as long ones, 32 bytes 0.86 of that, 16 bytes half) or derived from issue slots; none
was fitted to this family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxmono.codegen.dot_gemv_shape import GRANULE, MAX_ROWS, Shape
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Device

STREAM = 0.9
"""Of read bandwidth that rows of 64 bytes and more reach."""
_ROW = {16: 0.5, 32: 0.86, 48: 0.93}
"""Of that, where a row of the tile has so many bytes."""
_ALONE = 1.02
"""Times its fair share of bandwidth that one SM gets while others idle. It may get more, but even
tasks cost nothing."""
LATENCY_US = 0.8
"""First bytes, x in shared memory."""
_SPLIT_US = 1.5
"""Sums out, a counter, sums of the others in."""
_EPILOGUE_US = 0.2
_WARP_SLOTS = 0.65 * 4 * 1700.0
"""Warp instructions that an SM issues in a microsecond, with two warps a scheduler."""
_RING_BYTES = 160 * 1024
_SPLITS = (1, 2, 4, 8, 16)

Group = tuple[int, int, int]
"""Batch, columns and k of a contraction in a stage."""


def blocks_of(own: Group, stage: Sequence[Group], sm_count: int) -> int:
    """Blocks for one group when all contractions of a stage run side by side, one task a block.

    The smallest task, in bytes, with which all groups fit the SMs; at least 1.
    """
    if len(stage) <= 1:
        return sm_count
    if sum(batch for batch, _, _ in stage) > sm_count:
        return max(1, sm_count * own[0] // sum(batch for batch, _, _ in stage))
    work = sum(batch * n * k for batch, n, k in stage)
    low, high = work // (2 * sm_count) + 1, max(n * k for _, n, k in stage)
    while low < high:
        size = (low + high) // 2
        if sum(_tasks(g, size) for g in stage) <= sm_count:
            high = size
        else:
            low = size + 1
    return _tasks(own, high)


def _tasks(group: Group, size: int) -> int:
    """Tasks of at most ``size`` elements: whole columns by eight, or shares of eight columns."""
    batch, n, k = group
    columns = size // k // 8 * 8
    if columns:
        return batch * math.ceil(n / columns)
    return batch * math.ceil(n / 8) * math.ceil(8 * k / max(size, 1))


def candidates_gemv(batch: int, m: int, n: int, k: int, itemsize: int, *, k_major: bool,
                    device: Device, threads: int, shared_bytes: int, blocks: int,
                    row_prologue: bool = False) -> list[tuple[float, DotSchedule]]:
    """Every sensible tile with its time in the model in microseconds, cheapest first.

    Args:
      blocks: that this contraction has for itself. k_major: weights are [n][k].
    """
    out: list[tuple[float, DotSchedule]] = []
    splits = [x for x in _SPLITS if x == 1 or (not row_prologue and k >= 4 * GRANULE * x)]
    tiles = _rows(m, n, batch, blocks, splits, threads) if k_major else _columns(
        n, itemsize, batch, blocks, splits, threads)
    for bn, wk, split in dict.fromkeys(tiles):
        s = DotSchedule("gemv", m, bn, GRANULE, 1, (1, threads // 32 // wk, wk), split)
        fitted = _fit(s, m, n, k, itemsize, k_major, threads, shared_bytes)
        if fitted is not None:
            of = Shape(fitted, m=m, n=n, k=k, itemsize=itemsize, k_major=k_major, threads=threads)
            if m > MAX_ROWS and not of.mma:
                continue
            out.append((_cost(fitted, of, batch, m, n, k, itemsize, k_major, device, blocks),
                        fitted))
    return sorted(out, key=lambda x: x[0])


def _columns(n: int, itemsize: int, batch: int, blocks: int, splits: Sequence[int],
             threads: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of weights [k][n]: the narrowest whose tasks fit the blocks, per split."""
    e, warps = 16 // itemsize, threads // 32
    pieces = math.ceil(n / e)
    for split in splits:
        tiles = max(blocks // (batch * split), 1)
        fair = math.ceil(pieces / tiles)
        for waves in (1, 2, 3, 4):
            even = math.ceil(fair / waves)
            for c in (even, even + even % 2, 8, 16, 32):
                if c <= threads:
                    yield c * e, warps, split


def _rows(m: int, n: int, batch: int, blocks: int, splits: Sequence[int], threads: int,
          ) -> Iterator[tuple[int, int, int]]:
    """Tiles of weights [n][k]: (rows, warps that share a row, split)."""
    warps = threads // 32
    for split in splits:
        tiles = max(blocks // (batch * split), 1)
        for waves in (1, 2, 4):
            bn = math.ceil(n / (tiles * waves))
            bn = math.ceil(bn / 4) * 4
            for wk in (1, 2, 4, 8):
                if wk <= warps and bn * m * wk <= 16 * 1024:
                    yield bn, wk, split


def _fit(s: DotSchedule, m: int, n: int, k: int, itemsize: int, k_major: bool, threads: int,
         shared_bytes: int) -> DotSchedule | None:
    """``s`` with the deepest ring that fits, or None."""
    def of(slots: int) -> Shape:
        made = DotSchedule(s.family, s.bm, s.bn, s.bk, slots, s.warps, s.split_k)
        return Shape(made, m=m, n=n, k=k, itemsize=itemsize, k_major=k_major, threads=threads)

    one = of(1)
    if one.empty:
        return None
    room = min(_RING_BYTES, shared_bytes - one.fixed)
    slots = min(room // one.slot_bytes, one.steps)
    if slots < min(2, one.steps) or of(slots).shared_bytes > shared_bytes:
        return None
    return DotSchedule(s.family, s.bm, s.bn, s.bk, slots, s.warps, s.split_k)


def _cost(s: DotSchedule, of: Shape, batch: int, m: int, n: int, k: int, itemsize: int,
          k_major: bool, device: Device, blocks: int) -> float:
    tasks = batch * math.ceil(n / s.bn) * s.split_k
    waves = math.ceil(tasks / blocks)
    size = s.bn * of.share * itemsize
    row = of.share * itemsize if k_major else s.bn * itemsize
    rate = device.read_bytes_per_us * STREAM * next(
        (f for bytes_, f in _ROW.items() if row <= bytes_), 1.0)
    if row % 32 and not k_major:
        rate *= 0.97  # neighbouring tiles both read a sector
    fair = rate / device.sm_count
    load = max(size / (_ALONE * fair), min(tasks, blocks) * size / rate * (
        device.sm_count / blocks if blocks < device.sm_count else 1.0))
    # A piece: loads of it and of x, unpacking, products, address and request of the next.
    each = 14 + 4 * math.ceil(m / 8) if of.mma else of.e * m + of.e + 12 + m * (1 + 8 / of.u)
    work = size / 16 / 32 * each / _WARP_SLOTS / of.busy
    split = _SPLIT_US if s.split_k > 1 else 0.0
    # A block's next task starts with an empty ring.
    return waves * (LATENCY_US + max(load, work) + _EPILOGUE_US) + split

"""Tiles for the gemv family: an even share of the weights for every block, and nothing else.

The time of a stage is that of the block with most bytes. All groups of a stage share the SMs in
proportion to their weights (`blocks_of`), each group cuts its columns, and k where columns alone
would be narrower than memory likes, into as many equal tasks as it has blocks.

Constants of weights [n][k] are for an H200 (DESIGN.md section 6: streaming by cp.async 3.8 of
4.2 TB/s; rows of 64 bytes as good as long ones, 32 bytes 0.86 of that, 16 bytes half) or derived
from issue slots; none was fitted to this family. Those of weights [k][n] are fitted to 166 tiles of
16 products with 1 and 4 rows, timed on an H200: of those within 1.25 of the best, the times are 2 %
too high, with a spread of 6 % (standard deviation of the logarithm).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from jaxmono.codegen.dot_gemv_shape import GRANULE, MAX_ROWS, Shape
from jaxmono.codegen.dot_schedule import DotSchedule, unused
from jaxmono.fusion.plan import Device

STREAM = 0.9
"""Of read bandwidth that rows of 64 bytes and more reach."""
_ROW = {16: 0.5, 32: 0.86, 48: 0.93}
"""Of that, where a row of the tile has so many bytes: weights [n][k]."""
_COLUMNS_STREAM = 1.07
"""Of read bandwidth, what tiles of weights [k][n] reach: 33 MB in 7.5 us."""
_ATOMS = 0.25
"""Of the bytes that a tile's rows of weights [k][n] touch and do not use, what they cost: the
neighbouring task uses them, mostly while they are in L2."""
_RAGGED_BYTES, _RAGGED = 48, 0.5
"""Where the rows of a tile are neither parts of a `_LINE` nor whole ones, lines are cut at both
ends of each: as much as so many bytes more a row, at most that of its time. 3072x768, 1 row: 4.3 us
with 24 columns, 3.2 us with 32; the wider, the less (2048x8192 by 88 columns and more)."""
_LINE = 128
_ALONE = {True: 1.02, False: 2.5}
"""Times its fair share of bandwidth that one SM gets while others idle, by whether weights are
[n][k]. It gets more (48 tasks of 98 KB of 3072x768 take no longer than 96 of 49 KB), but even tasks
cost nothing, and were not timed for [n][k]."""
_ALONE_BEHIND = 2.0
"""The same of [k][n] behind a grid barrier, in front of which more blocks request more: the decode
steps of OPT-125M and GPT-2 take 3 to 5 % less time with 768x3072 by 96 blocks, in four shares, than
by 48, which alone takes as long. Of 1.7, 768x768 would have rows of 16 bytes."""
_LARGE_BYTES, _ALONE_LARGE = 32 << 20, 1.25
"""Of so many bytes of a group in a kernel of several stages, whose blocks are one for each
multiprocessor: for twice 90 MB 86 of 132 blocks took 46 to 61 us there, 126 took 48. Alone, with no
more blocks than tasks, 43 and 44; nobody knows why."""
_X_BYTES = 10_000.0
"""Of x, what a task of weights [k][n] puts into shared memory in a microsecond, before anything is
multiplied."""
LATENCY_US = 0.8
"""First bytes, x in shared memory."""
_SPLIT_US = {True: 1.5, False: 0.8}
"""Sums out, sums of the others in; by whether weights are [n][k]. As fitted with a counter between
them: mail takes 0.5 us less, but with less here more splits were chosen, and those took longer
(4x1024x1024 5 %, 2048x2048 in Llama's decode step 1 %)."""
_BYTES_SPLIT_US, _BYTES_WHOLE_US, _BYTES_SPAN_US = 0.3, 1.8, 0.01
"""Of bytes [n][k], with shares of k and without: on an H100 64 rows of 2048 for each block take
9.8 us, two blocks for 128 of them 8.5; 16 rows of 8192 10.1, two blocks for 32 8.3; with 4 rows of
x 10.5 and 9.6, 12.2 and 9.3 (eight blocks for 128). Nobody knows why. Of equal ones those with
fewer steps to a row are the faster: 8.5 us and 10.8."""
_SHARE_US = {True: 0.0, False: 0.04}
"""Likewise of each share."""
_EPILOGUE_US = 0.2
_WARP_SLOTS = 0.65 * 4 * 1700.0
"""Warp instructions that an SM issues in a microsecond, with two warps a scheduler."""
_FRAGMENTS, _FRAGMENTS_OF_4 = 5.0, 1.5
"""Times as long as by its issue slots takes a piece of weights [k][n] on the tensor cores: it is
transposed by the way. Measured with 4 rows 28 KB a microsecond and SM, with 16 rows 14 to 20. A
piece of 4 bits has so many that few of them wait."""
_SUMS = 0.8
"""Likewise in ordinary arithmetic."""
_WIDENED = {False: 1.0, True: 2.25}
"""Instructions that make f32 of an element of weights, by whether it is a byte (bytes.cuh)."""
_ROUNDED = 1.5
"""The same of f32 that are rounded to 16 bits."""
_PAIRED = {8: 30.0, 4: 40.0}
"""Those that make 16-bit elements of the bytes of a piece, for the tensor cores, by bits: of 48 and
58 in all."""
_LESS = 0.05
"""Of the shorter of both times, what tiles of bytes take longer: not measured, it decides between
equal ones (1x2048x8192 of bytes [n][k] in 78 or 64 instructions a piece)."""
_RING_BYTES = 160 * 1024
"""Of weights on their way, and so of what is requested before a stage's grid barrier opens."""
_FIRST_RING_BYTES = {True: 96 * 1024, False: 64 * 1024}
"""The same of weights [k][n] where no barrier is in front of the stage, by whether blocks share k:
1x2048x8192, where they do, takes 10.24, 10.01 and 10.13 us on an H200 with rings of 64, 96 and
160 KB, 1x8192x2048 with one share 9.85, 10.00 and 10.04."""
_MOST_SUMS = 128
"""Of weights [k][n], that a thread keeps in registers: of four rows where they have 4 bits."""
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


def candidates_gemv(batch: int, m: int, n: int, k: int, bits: int, *, k_major: bool,
                    device: Device, threads: int, shared_bytes: int, blocks: int,
                    row_prologue: bool = False, behind: bool = False, sole: bool = False,
                    x_itemsize: int = 0, scales: tuple[int, int] | None = None,
                    ) -> list[tuple[float, DotSchedule]]:
    """Every sensible tile with its time in the model in microseconds, cheapest first.

    Args:
      bits: of weights as they are stored; of x as well, unless it has an ``x_itemsize``.
      blocks: that this contraction has for itself. k_major: weights are [n][k]. behind: a grid
        barrier is in front of its stage. sole: its kernel has no other. scales: as of `Shape`.
    """
    x_itemsize = x_itemsize or bits // 8
    out: list[tuple[float, DotSchedule]] = []
    splits = [x for x in _SPLITS if x == 1 or (not row_prologue and k >= 4 * GRANULE * x)]
    tiles = _rows(m, n, batch, blocks, splits, threads) if k_major else _columns(
        n, bits, batch, blocks, splits, threads)
    for bn, wk, split in dict.fromkeys(tiles):
        s = DotSchedule("gemv", m, bn, GRANULE, 1, (1, threads // 32 // wk, wk), split)
        room = _RING_BYTES if behind or k_major else _FIRST_RING_BYTES[split > 1]
        fitted = _fit(s, m, n, k, bits, x_itemsize, k_major, threads, room, shared_bytes, scales)
        if fitted is not None:
            of = Shape(fitted, m=m, n=n, k=k, bits=bits, k_major=k_major, threads=threads,
                       x_itemsize=x_itemsize, scales=scales)
            if not of.mma and (m > MAX_ROWS or (not k_major and m * of.e > _MOST_SUMS)):
                continue
            out.append((_cost(fitted, of, batch, m, n, k, bits, k_major, device, blocks,
                              behind, sole), fitted))
    return sorted(out, key=lambda x: x[0])


def _columns(n: int, bits: int, batch: int, blocks: int, splits: Sequence[int],
             threads: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of weights [k][n]: the narrowest whose tasks fit the blocks, per split."""
    e, warps = 128 // bits, threads // 32
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


def _fit(s: DotSchedule, m: int, n: int, k: int, bits: int, x_itemsize: int, k_major: bool,
         threads: int, ring_bytes: int, shared_bytes: int,
         scales: tuple[int, int] | None) -> DotSchedule | None:
    """``s`` with the deepest ring that fits, or None."""
    def of(slots: int) -> Shape:
        made = DotSchedule(s.family, s.bm, s.bn, s.bk, slots, s.warps, s.split_k)
        return Shape(made, m=m, n=n, k=k, bits=bits, k_major=k_major, threads=threads,
                     x_itemsize=x_itemsize, scales=scales)

    one = of(1)
    if one.empty:
        return None
    room = min(ring_bytes, shared_bytes - one.fixed)
    slots = min(room // one.slot_bytes, one.steps)
    if slots < min(2, one.steps) or of(slots).shared_bytes > shared_bytes:
        return None
    return DotSchedule(s.family, s.bm, s.bn, s.bk, slots, s.warps, s.split_k)


def _cost(s: DotSchedule, of: Shape, batch: int, m: int, n: int, k: int, bits: int,
          k_major: bool, device: Device, blocks: int, behind: bool, sole: bool) -> float:
    tasks = batch * math.ceil(n / s.bn) * s.split_k
    waves = math.ceil(tasks / blocks)
    size = s.bn * of.share * bits // 8
    row = (of.share if k_major else s.bn) * bits // 8
    if k_major:
        rate = device.read_bytes_per_us * STREAM * next(
            (f for bytes_, f in _ROW.items() if row <= bytes_), 1.0)
    else:
        rate = device.read_bytes_per_us * _COLUMNS_STREAM / (
            1.0 + _ATOMS * unused(row))
        if row % _LINE and _LINE % row:
            rate /= 1.0 + min(_RAGGED_BYTES / row, _RAGGED)
    fair = rate / device.sm_count
    alone = _ALONE_BEHIND if behind and not k_major else _ALONE[k_major]
    if not sole and batch * n * k * bits // 8 > _LARGE_BYTES:
        alone = min(alone, _ALONE_LARGE)
    load = max(size / (alone * fair), min(tasks, blocks) * size / rate * (
        device.sm_count / blocks if blocks < device.sm_count else 1.0))
    # A piece: loads of it and of x, unpacking, products, address and request of the next.
    beside = 16 if of.bytes and k_major else 8  # elements of x to a piece, which its rows share
    converts = _ROUNDED if bits > 8 * of.x_itemsize else _WIDENED[of.bytes]
    each = 14 + 4 * math.ceil(m / 8) if of.mma else (
        of.e * m + of.e * converts + 12 + m * (1 + beside / of.u))
    if not k_major:
        each *= _SUMS if not of.mma else _FRAGMENTS_OF_4 if bits == 4 else _FRAGMENTS
    each += _PAIRED[bits] if of.mma and of.bytes else 0.0
    work = size / 16 / 32 * each / _WARP_SLOTS / of.busy
    x = 0.0 if k_major else m * of.share * of.x_itemsize / _X_BYTES
    if k_major and of.bytes:
        split = (_BYTES_SPLIT_US if s.split_k > 1 else _BYTES_WHOLE_US) + _BYTES_SPAN_US * of.spans
    else:
        split = _SPLIT_US[k_major] + _SHARE_US[k_major] * s.split_k if s.split_k > 1 else 0.0
    # Of tiles of bytes that memory bounds alike, the one that threads have less to do with.
    less = _LESS * min(load, work) if of.bytes else 0.0
    # A block's next task starts with an empty ring.
    return waves * (LATENCY_US + max(load, work) + less + x + _EPILOGUE_US) + split

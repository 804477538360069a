"""Tiles for products of f32 in ordinary multiply-adds (device/gemm_fma.cuh).

An SM does 128 of them a clock: with more than a few rows that is what a product takes, if its tiles
are shared out evenly and a thread has many sums. Fitted to tiles of 13 products (16 to 4096 rows)
timed on an H100: times have a spread of 6 % (standard deviation of the logarithm), the model's
choice takes 3 % longer than the best of these tiles. Beside bf16 parts they take longer than that
(`LATE_US` of dot_schedule_bf16x6.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import DotSchedule, tile_bytes
from jaxmono.fusion.plan import Device

FMA = "fma"
_SUMS = ((16, 8), (8, 16), (8, 8), (8, 4), (4, 8), (4, 4))
"""Rows and columns of a thread."""
_DEEP_SUMS = 64
"""Up to so many a k tile has 32 k; with more of them 16 may be enough."""
_MULTIPLY_ADDS = 182_000.0
"""Per SM and microsecond, as the rest: 0.72 of what a clock of 1980 MHz allows."""
_SHARED_BYTES = 314_000.0
_K_TILE_US = 0.19
_L2_BYTES = 28_000.0
_L2_READS = 4.0
_EPILOGUE_BYTES = 40_000.0
_LATENCY_US = 0.4
_SPLIT_US = 0.9
_SPLIT_BYTES = 55_000.0
_RING_BYTES = 128 * 1024
"""More is not needed to cover latencies."""


def candidates_fma(batch: int, m: int, n: int, k: int, *, device: Device, warps: int,
                   shared_bytes: int) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      batch: products of this shape side by side. shared_bytes: per block.
    """
    found = _costed(batch, m, n, k, device, warps, shared_bytes)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


def _costed(batch: int, m: int, n: int, k: int, device: Device, warps: int,
            shared_bytes: int) -> Iterator[tuple[float, DotSchedule]]:
    for (tm, tn), wm, wn, split, bk in itertools.product(
            _SUMS, (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (16, 32)):
        bm, bn, wk = tm * 4 * wm, tn * 8 * wn, warps // (wm * wn)
        if wk < 1 or wm * wn * wk != warps or bk % (4 * wk) or (bm > 16 and bm >= 2 * m) or (
                bn > 32 and bn >= 2 * n) or (split > 1 and k < 64 * split) or (
                bk < 32 and tm * tn <= _DEEP_SUMS):
            continue
        tiles = math.ceil(math.ceil(k / bk) / split)
        slot = sum(max(tile_bytes(rows, bk, 4), tile_bytes(bk, rows, 4)) for rows in (bm, bn))
        stages = max(2, min(tiles, _RING_BYTES // slot))
        if max(stages * slot, wk * bm * (bn + 4) * 4) <= shared_bytes:
            s = DotSchedule(FMA, bm, bn, bk, stages, (wm, wn, wk), split)
            yield _cost(s, batch, m, n, k, device), s


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, device: Device) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    wm, wn, wk = s.warps
    depth = math.ceil(k / s.split_k / s.bk) * s.bk
    # Products and what feeds them share the schedulers: their times add up.
    work = s.bm * s.bn * depth / _MULTIPLY_ADDS \
        + (s.bm * wn + s.bn * wm) * depth * 4 / _SHARED_BYTES + depth / s.bk * _K_TILE_US
    size = (s.bm + s.bn) * depth * 4
    load = max(size / _L2_BYTES,
               min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us))
    sums = s.bm * s.bn * 4
    split = _SPLIT_US + sums / _SPLIT_BYTES if s.split_k > 1 else 0.0
    waves = math.ceil(tiles / device.sm_count)
    return waves * (_LATENCY_US + max(load, work) + sums * (wk + 1) / _EPILOGUE_BYTES) + split

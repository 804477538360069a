"""Tiles for exact products of f32 by six products of bf16 parts (gemm_bf16x6.cuh).

By the same kind of model as dot_schedule_tf32.py; constants are those unless told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import NARROW, WIDE
from jaxmono.codegen.dot_wgmma import (
    BF16X6,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    left_staging_bytes,
    parts_slot_bytes,
)
from jaxmono.fusion.plan import Device

_LOAD_BYTES = 95_000.0
_L2_READS = 3.2
_FLOPS = 0.8e6
"""Six bf16 operations each."""
_K_TILE_US = 0.1
_LATENCY_US = {True: 1.7, False: 1.3}
_EPILOGUE_BYTES = 40_000.0
_AGAIN_US = 0.2
_SPLIT_US = 1.6
_SPLIT_BYTES = 28_000.0
_SPLIT_TOTAL = {True: 0.42, False: 0.5}
_COLD = 0.25
_MIN_ROWS, _MIN_COLUMNS = 24, 40


def candidates_bf16x6(batch: int, m: int, n: int, k: int, *, device: Device, shared_bytes: int,
                      width: int = WIDE[1]) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      batch: products of this shape side by side. shared_bytes: per block.
      width: bytes of one copy of the weights.
    """
    if m < _MIN_ROWS or n < _MIN_COLUMNS:
        return []
    found = _costed(batch, m, n, k, device, shared_bytes, width)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


def _costed(batch: int, m: int, n: int, k: int, device: Device,
            shared_bytes: int, width: int) -> Iterator[tuple[float, DotSchedule]]:
    for (wm, wn), rows, split in itertools.product(((1, 2), (2, 1)), (16, 32, 64, 96, 128),
                                                   (1, 2, 4, 8)):
        bm, bn = rows * wm, 64 * wn
        if bm % 32 or (bm > 32 and bm >= 2 * m) or (bn > 64 and bn >= 2 * n) \
                or (split > 1 and k < 128 * split):
            continue
        tiles = math.ceil(math.ceil(k / 32) / split)
        room = shared_bytes - ROLES_BYTES - LOW_BYTES - left_staging_bytes(rows)
        slots = min(room // parts_slot_bytes(bm, bn), MAX_SLOTS, max(4 * tiles, 3))
        if slots >= 3:
            s = DotSchedule(BF16X6, bm, bn, 32, slots, (wm, wn, 1), split)
            yield _cost(s, batch, m, n, k, device, width), s


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, device: Device,
          width: int) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    waves = math.ceil(tiles / device.sm_count)
    depth = math.ceil(k / s.split_k / 32) * 32
    size = (min(s.bm, m) + min(s.bn, n)) * depth * 4
    slow = (min(s.bm, m) + min(s.bn, n) * NARROW[width]) * depth * 4
    load = max(slow / _LOAD_BYTES + depth / 32 * 0.01,
               min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us))
    work = 2.0 * s.bm * s.bn * depth / _FLOPS + depth / 32 * _K_TILE_US
    sums = s.bm * s.bn * 4
    split = max(_SPLIT_US + sums / _SPLIT_BYTES, tiles * sums / (
        _SPLIT_TOTAL[m <= FEW] * device.read_bytes_per_us)) if s.split_k > 1 else 0.0
    cold = _COLD * batch * n * k * 4 / device.read_bytes_per_us if m <= FEW else 0.0
    # While a tile is in its epilogue the next one's loads go on.
    return (cold + _LATENCY_US[m <= FEW] + waves * (max(load, work) + sums / _EPILOGUE_BYTES)
            + _AGAIN_US * (waves - 1) + split)

"""Tiles for exact products of f32 by six products of bf16 parts (gemm_bf16x6.cuh).

By the same kind of model as dot_schedule_tf32.py, fitted to 351 tiles of 32 products (16 to 65536
rows) timed on an H100: times have a spread of 4.8 % (standard deviation of the logarithm), the
model's choice takes 0.2 % longer than the best of these tiles, the choice of both families of
exact products 0.7 % (dot_schedule_fma.py). Gathered rows, and those that lie [k][m], are taken to
cost what others do; no tile of them has been timed alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import NARROW, WIDE
from jaxmono.codegen.dot_wgmma_shared import (
    BF16X6,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    left_staging_bytes,
    parts_slot_bytes,
)
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import PARTS_COLUMNS

_LATENCY_US = 1.76
_ROW_US = 0.00943
"""Of a k tile and a row of a warpgroup's 64 columns: twelve wgmmas each, of two warpgroups."""
_K_TILE_US, _SPLIT_ROW_US, _WEIGHTS_US = 0.264, 0.0047, 0.00131
"""Of a k tile, its rows and its columns: what the producers take, or both roles wait."""
_L2_READS = 1.12
_EPILOGUE_BYTES = 19_200.0
_SPLIT_US, _SPLIT_TOTAL = 1.86, 0.554
_COLD = 0.29
"""All as the constants of the same names there."""
LATE_US = 1.0
"""What multiply-adds took longer in that run than their model says, which is of another one: to
compare both. (215 tiles.)"""
_MIN_ROWS = 24


def candidates_bf16x6(batch: int, m: int, n: int, k: int, *, device: Device, shared_bytes: int,
                      width: int = WIDE[1]) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      batch: products of this shape side by side. shared_bytes: per block.
      width: bytes of one copy of the weights.
    """
    if m < _MIN_ROWS or n < PARTS_COLUMNS:
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
    k_tiles = math.ceil(math.ceil(k / 32) / s.split_k)
    size = (min(s.bm, m) + min(s.bn, n) * NARROW[width]) * k_tiles * 128
    load = min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us)
    step = max(_ROW_US * s.bm / s.warps[0],
               _K_TILE_US + _SPLIT_ROW_US * s.bm + _WEIGHTS_US * s.bn)
    sums = s.bm * s.bn * 4
    split = max(_SPLIT_US, tiles * sums / (_SPLIT_TOTAL * device.read_bytes_per_us)) \
        if s.split_k > 1 else 0.0
    cold = _COLD * batch * n * k * 4 / device.read_bytes_per_us if m <= FEW else 0.0
    return (cold + _LATENCY_US + waves * (max(load, k_tiles * step) + sums / _EPILOGUE_BYTES)
            + split)

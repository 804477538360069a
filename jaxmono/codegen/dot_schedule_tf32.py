"""Tiles for products of f32 whose weights are wgmma's left operand (gemm_tf32.cuh).

By the same kind of model as dot_schedule_wgmma.py. What loads, products, epilogues and splits take
is fitted to 125 tiles of 11 products timed on an H100 (128 to 2048 rows of BERT, 2048 cubed); the
other constants are those of that file. Times are 2 % too low, with a spread of 7.4 % (standard
deviation of the logarithm); the model's choice takes 1.3 % longer than the best of these tiles, and
1.2 % longer than that of 24 products with 128 to 16384 rows, timed since.
Gathered rows are taken to cost what those cost that the accelerator brings; no tile of them has
been timed alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import NARROW, WIDE
from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES, ROLES_BYTES, TF32, left_staging_bytes
from jaxmono.fusion.plan import Device
from jaxmono.fusion.round_rows import MIN_COLUMNS, MIN_ROWS

MAX_SLOTS = 15
"""A place in the ring of tensor maps is written again 16 maps later (device/tensor_maps.cuh)."""
MOST_BLOCKS = 160
"""That there are tensor maps for, one on each multiprocessor: the H100 and H200 have 132."""
_LOAD_BYTES = 95_000.0
_L2_READS = 3.2
_FLOPS = 3.4e6
_SHARED_BYTES = 240_000.0
_K_TILE_US = 0.1
_LATENCY_US = {True: 1.7, False: 1.3}
_EPILOGUE_BYTES = 40_000.0
_AGAIN_US = 0.2
_SPLIT_US = 1.6
_SPLIT_BYTES = 28_000.0
_SPLIT_TOTAL = {True: 0.42, False: 0.5}
_COLD = 0.25
"""All as the constants of the same names there, per SM and microsecond."""
_MOST_ROWS = {1: 256, 2: 128}
"""Of a warpgroup, by how many share the rows: 64 columns of weights by more than 256 rows took 1.2
to 1.7 times as long as this model says."""


def candidates_tf32(siblings: int, m: int, n: int, k: int, *, device: Device, shared_bytes: int,
                    width: int = WIDE[1]) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      siblings: such products that run side by side.
      shared_bytes: per block.
      width: bytes of one copy of the weights.
    """
    if m < MIN_ROWS or n < MIN_COLUMNS:
        return []
    found = _costed(siblings, m, n, k, device, shared_bytes, width)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


def _costed(siblings: int, m: int, n: int, k: int, device: Device,
            shared_bytes: int, width: int) -> Iterator[tuple[float, DotSchedule]]:
    for (wm, wn), rows, split in itertools.product(((1, 2), (2, 1)), range(16, 257, 16),
                                                   (1, 2, 4, 8)):
        bm, bn = rows * wm, 64 * wn
        if rows > _MOST_ROWS[wm] or (bm > 32 and bm >= 2 * m) or (bn > 64 and bn >= 2 * n) \
                or (split > 1 and k < 128 * split):
            continue
        tiles = math.ceil(math.ceil(k / 32) / split)
        room = shared_bytes - ROLES_BYTES - LOW_BYTES - left_staging_bytes(rows)
        slots = min(room // ((bm + bn) * 128), MAX_SLOTS, max(4 * tiles, 2))
        if slots >= min(3, max(tiles, 2)):
            s = DotSchedule(TF32, bm, bn, 32, slots, (wm, wn, 1), split)
            yield _cost(s, siblings, m, n, k, device, width), s


def _cost(s: DotSchedule, siblings: int, m: int, n: int, k: int, device: Device,
          width: int) -> float:
    tiles = siblings * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    waves = math.ceil(tiles / device.sm_count)
    depth = math.ceil(k / s.split_k / 32) * 32
    size = (min(s.bm, m) + min(s.bn, n)) * depth * 4
    slow = (min(s.bm, m) + min(s.bn, n) * NARROW[width]) * depth * 4
    load = max(slow / _LOAD_BYTES + depth / 32 * 0.01,
               min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us))
    wm, wn, _ = s.warps
    # Written once; each product reads its 64 columns of weights and all of its rows.
    passed = s.bm + s.bn + wm * s.bn + wn * s.bm
    work = max(2.0 * s.bm * s.bn * depth / _FLOPS, passed * depth * 4 / _SHARED_BYTES) \
        + depth / 32 * _K_TILE_US
    sums = s.bm * s.bn * 4
    split = max(_SPLIT_US + sums / _SPLIT_BYTES, tiles * sums / (
        _SPLIT_TOTAL[m <= FEW] * device.read_bytes_per_us)) if s.split_k > 1 else 0.0
    cold = _COLD * siblings * n * k * 4 / device.read_bytes_per_us if m <= FEW else 0.0
    # While a tile is in its epilogue the next one's loads go on.
    return (cold + _LATENCY_US[m <= FEW] + waves * (max(load, work) + sums / _EPILOGUE_BYTES)
            + _AGAIN_US * (waves - 1) + split)

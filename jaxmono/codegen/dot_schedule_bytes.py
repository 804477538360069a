"""Tiles for products whose weights are stored as bytes and are wgmma's left operand
(device/gemm_bytes.cuh), beside rows of bytes or of 16 bits.

By the same kind of model as dot_schedule_tf32.py. Constants are fitted to 720 tiles of 30 products
with 8 to 4096 rows, weights [k][n], timed on an H100: of the 303 within 1.25 of the best, times are
1 % too high, with a spread of 7 % (standard deviation of the logarithm); the model's choice takes
1.8 % longer than the best of these tiles.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    BYTES,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    together_bytes,
)
from jaxmono.fusion.plan import Device

MIN_ROWS = 5
"""Fewer are the gemv family's: 4x8192x2048 takes 9.9 us there, 8x8192x2048 13.8, and 9.1 here."""
MIN_COLUMNS = 64
_LOAD_BYTES = 240_000.0
_L2_READS = 3.15
_FLOPS = {1: 14.0e6, 2: 8.0e6}
"""By bytes of an element of rows."""
_SHARED_BYTES = 270_000.0
_K_TILE_US = 0.03
_LINE_US = {1: 0.007, 2: 0.06}
"""Of each line of k in a tile, by bytes of an element of rows: fragments of weights come, and are
widened beside rows of 16 bits."""
_LATENCY_US = {True: 1.3, False: 2.15}
_EPILOGUE_BYTES = 36_000.0
_MEET_US = 0.4
"""Of warpgroups that share k, in the epilogue."""
_AGAIN_US = 0.54
_SPLIT_US = 0.95
_SPLIT_BYTES = 48_000.0
_SPLIT_TOTAL = {True: 1.3, False: 0.7}
_COLD = 0.64
"""The others as the constants of the same names there, per SM and microsecond."""
_MOST_ROWS = {1: 256, 2: 128}
_MOST_DEEP = 96
"""Rows of tiles with two lines of k, whose fragments take 64 registers."""
_PANEL_US = 0.03 / 1024
"""Per byte of rows that are computed, as in dot_schedule_swapped.py."""


def candidates_bytes(batch: int, m: int, n: int, k: int, itemsize: int, *, device: Device,
                     shared_bytes: int, computed: bool = False) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      itemsize: bytes of an element of the rows. computed: they are, a task's share at once.
      shared_bytes: per block.
    """
    if m < MIN_ROWS or n < MIN_COLUMNS:
        return []
    found = _costed(batch, m, n, k, itemsize, device, shared_bytes, computed)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


_LAYOUTS = ((1, 2, 1), (2, 1, 1), (1, 1, 2))
"""Warpgroups along m, n, k: 128 columns of weights, or 64."""


def _costed(batch: int, m: int, n: int, k: int, itemsize: int, device: Device,
            shared_bytes: int, computed: bool) -> Iterator[tuple[float, DotSchedule]]:
    for warps, rows, lines, split in itertools.product(_LAYOUTS, range(16, 257, 16), (1, 2),
                                                       (1, 2, 4, 8)):
        bm, bn, bk = rows * warps[0], 64 * warps[1], lines * 128 // itemsize
        if rows > _MOST_ROWS[warps[0] * warps[2]] or (bm > 16 * warps[0] and bm >= 2 * m) \
                or (bn > 64 and bn >= 2 * n) or (split > 1 and k < 4 * bk * split) \
                or (lines > 1 and (itemsize == 1 or bm > _MOST_DEEP)):
            continue
        tiles = math.ceil(math.ceil(k / bk) / split)
        panel, x = (tiles * bm * bk * itemsize, 0) if computed else (0, bm * bk * itemsize)
        room = shared_bytes - ROLES_BYTES - LOW_BYTES - together_bytes(bm, warps[2]) - panel
        slots = min(room // (bn * bk + x), MAX_SLOTS, max(4 * tiles, 2))
        if slots >= min(3, max(tiles, 2)):
            s = DotSchedule(BYTES, bm, bn, bk, slots, warps, split)
            yield _cost(s, batch, m, n, k, itemsize, device) + _PANEL_US * panel, s


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, itemsize: int,
          device: Device) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    waves = math.ceil(tiles / device.sm_count)
    depth = math.ceil(k / s.split_k / s.bk) * s.bk
    size = (min(s.bm, m) * itemsize + min(s.bn, n)) * depth
    k_tiles = depth // s.bk
    load = max(size / _LOAD_BYTES + k_tiles * 0.01,
               min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us))
    wm, wn, wk = s.warps
    # Written once; each product reads its 64 columns of weights and all of its rows.
    passed = (s.bm + wn * s.bm) * itemsize + s.bn + wm * s.bn
    lines = s.bk * itemsize / 128 / wk
    work = max(2.0 * s.bm * s.bn * depth / _FLOPS[itemsize], passed * depth / _SHARED_BYTES) \
        + k_tiles * (_K_TILE_US + _LINE_US[itemsize] * lines)
    sums = s.bm * s.bn * 4
    epilogue = sums / _EPILOGUE_BYTES + (_MEET_US if wk == 2 else 0.0)
    split = max(_SPLIT_US + sums / _SPLIT_BYTES, tiles * sums / (
        _SPLIT_TOTAL[m <= FEW] * device.read_bytes_per_us)) if s.split_k > 1 else 0.0
    cold = _COLD * batch * n * k / device.read_bytes_per_us if m <= FEW else 0.0
    # While a tile is in its epilogue the next one's loads go on.
    return (cold + _LATENCY_US[m <= FEW] + waves * (max(load, work) + epilogue)
            + _AGAIN_US * (waves - 1) + split)

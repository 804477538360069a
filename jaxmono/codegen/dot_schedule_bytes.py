"""Tiles for products whose weights are stored as bytes, as f32, or as 16 bits in rows that begin
anywhere, and are wgmma's left operand (device/gemm_bytes.cuh), beside rows of bytes or of 16 bits.

By the same kind of model as dot_schedule_tf32.py. Constants are fitted to 720 tiles of 30 products
with 8 to 4096 rows, weights [k][n] of bytes, timed on an H100: of the 303 within 1.25 of the best,
times are 1 % too high, with a spread of 7 % (standard deviation of the logarithm); the model's
choice takes 1.8 % longer than the best of these tiles. Those of f32 to 742 tiles of 21 products
with 16 to 2048 rows: within 1.3 of the best the spread is 10 %, the choice takes 1.9 % longer, at
most 11. Those of 16 bits in rows that begin anywhere to 116 tiles of 18 products with 1 to 12288
rows, on an H200: the spread is 7 %, the choice takes 0.8 % longer than the best, at most 12.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxmono.codegen.dot_schedule import FEW, DotSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    BYTES,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    together_bytes,
)
from jaxmono.codegen.operand import PIECE_BYTES
from jaxmono.fusion.plan import Device
from jaxmono.fusion.widened import MIN_COLUMNS

MIN_ROWS = {4: 5, 8: 5, 16: 1, 32: 5}
"""By bits of an element of the weights. Fewer are the gemv family's: 4x8192x2048 takes 9.9 us
there, 8x8192x2048 13.8, and 9.1 here. Not of rows that begin anywhere, whose elements it picks."""


@dataclass(frozen=True)
class _Model:
    """Constants per SM and microsecond, named as those of dot_schedule_tf32.py.

    Attributes:
      flops: by bytes of an element of rows.
      line_us: of each line of k in a tile, likewise: fragments of weights come, and are widened
        beside rows of 16 bits.
      meet_us: of warpgroups that share k, in the epilogue.
      latency_us, split_total: by whether there are at most `FEW` rows.
    """

    load_bytes: float
    l2_reads: float
    flops: Mapping[int, float]
    shared_bytes: float
    k_tile_us: float
    line_us: Mapping[int, float]
    latency_us: Mapping[bool, float]
    epilogue_bytes: float
    meet_us: float
    again_us: float
    split_us: float
    split_bytes: float
    split_total: Mapping[bool, float]
    cold: float


_MODELS = {
    8: _Model(load_bytes=240_000.0, l2_reads=3.15, flops={1: 14.0e6, 2: 8.0e6},
              shared_bytes=270_000.0, k_tile_us=0.03, line_us={1: 0.007, 2: 0.06},
              latency_us={True: 1.3, False: 2.15}, epilogue_bytes=36_000.0, meet_us=0.4,
              again_us=0.54, split_us=0.95, split_bytes=48_000.0,
              split_total={True: 1.3, False: 0.7}, cold=0.64),
    16: _Model(load_bytes=134_000.0, l2_reads=3.62, flops={2: 4.78e6}, shared_bytes=204_000.0,
              k_tile_us=0.003, line_us={2: 0.13}, latency_us={True: 1.78, False: 5.1},
              epilogue_bytes=363_000.0, meet_us=0.3, again_us=0.39, split_us=1.31,
              split_bytes=169_000.0, split_total={True: 0.6, False: 1.0}, cold=0.55),
    32: _Model(load_bytes=134_000.0, l2_reads=3.8, flops={2: 5.05e6}, shared_bytes=252_000.0,
              k_tile_us=0.0, line_us={2: 0.0}, latency_us={True: 1.63, False: 3.5},
              epilogue_bytes=20_000.0, meet_us=0.42, again_us=0.43, split_us=1.0,
              split_bytes=229_000.0, split_total={True: 0.4, False: 1.65}, cold=0.78),
}
_MODELS[4] = _MODELS[8]
"""By bits of an element of the weights. Of 4 as of 8: not fitted."""
_MOST_ROWS = {1: 256, 2: 128}
_MOST_DEEP = 96
"""Rows of tiles with two lines of k, whose fragments take 64 registers."""
_PANEL_US = 0.03 / 1024
"""Per byte of rows that are computed, as in dot_schedule_swapped.py."""


def candidates_bytes(batch: int, m: int, n: int, k: int, itemsize: int, *, device: Device,
                     shared_bytes: int, computed: bool = False, row_prologue: bool = False,
                     bits: int = 8) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      itemsize: bytes of an element of the rows. computed: they are, a task's share at once.
      row_prologue: they are, and by whole rows.
      bits: of an element of the weights, 4, 8, 16 (in rows that begin anywhere) or 32.
      shared_bytes: per block.
    """
    if m < MIN_ROWS[bits] or n < MIN_COLUMNS:
        return []
    found = _costed(batch, m, n, k, itemsize, device, shared_bytes, computed, row_prologue, bits)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


_LAYOUTS = ((1, 2, 1), (2, 1, 1), (1, 1, 2))
"""Warpgroups along m, n, k: 128 columns of weights, or 64."""


def _costed(batch: int, m: int, n: int, k: int, itemsize: int, device: Device,
            shared_bytes: int, computed: bool, row_prologue: bool, bits: int,
            ) -> Iterator[tuple[float, DotSchedule]]:
    splits = (1,) if row_prologue else (1, 2, 4, 8)
    for warps, rows, lines, split in itertools.product(_LAYOUTS, range(16, 257, 16), (1, 2),
                                                       splits):
        bm, bn, bk = rows * warps[0], 64 * warps[1], lines * 128 // itemsize
        if rows > _MOST_ROWS[warps[0] * warps[2]] or (bm > 16 * warps[0] and bm >= 2 * m) \
                or (bn > 64 and bn >= 2 * n) or (split > 1 and k < 4 * bk * split) \
                or (lines > 1 and (itemsize == 1 or bm > _MOST_DEEP)):
            continue
        tiles = math.ceil(math.ceil(k / bk) / split)
        panel, x = (tiles * bm * bk * itemsize, 0) if computed else (0, bm * bk * itemsize)
        room = shared_bytes - ROLES_BYTES - LOW_BYTES - together_bytes(bm, warps[2]) - panel
        line = PIECE_BYTES if bits == 16 else 0
        slots = min(room // (bk * (bn * bits // 8 + line) + x), MAX_SLOTS, max(4 * tiles, 2))
        if slots >= min(3, max(tiles, 2)):
            s = DotSchedule(BYTES, bm, bn, bk, slots, warps, split)
            yield _cost(s, batch, m, n, k, itemsize, device, bits) + _PANEL_US * panel, s


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, itemsize: int,
          device: Device, bits: int) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    of, few, stored = _MODELS[bits], m <= FEW, bits / 8
    waves = math.ceil(tiles / device.sm_count)
    depth = math.ceil(k / s.split_k / s.bk) * s.bk
    size = (min(s.bm, m) * itemsize + min(s.bn, n) * stored) * depth
    k_tiles = depth // s.bk
    load = max(size / of.load_bytes + k_tiles * 0.01,
               min(tiles, device.sm_count) * size / (of.l2_reads * device.read_bytes_per_us))
    wm, wn, wk = s.warps
    # Written once; each product reads its 64 columns of weights and all of its rows.
    passed = (s.bm + wn * s.bm) * itemsize + (s.bn + wm * s.bn) * stored
    lines = s.bk * itemsize / 128 / wk
    work = max(2.0 * s.bm * s.bn * depth / of.flops[itemsize], passed * depth / of.shared_bytes) \
        + k_tiles * (of.k_tile_us + of.line_us[itemsize] * lines)
    sums = s.bm * s.bn * 4
    epilogue = sums / of.epilogue_bytes + (of.meet_us if wk == 2 else 0.0)
    split = max(of.split_us + sums / of.split_bytes, tiles * sums / (
        of.split_total[few] * device.read_bytes_per_us)) if s.split_k > 1 else 0.0
    cold = of.cold * batch * n * k * stored / device.read_bytes_per_us if few else 0.0
    # While a tile is in its epilogue the next one's loads go on.
    return (cold + of.latency_us[few] + waves * (max(load, work) + epilogue)
            + of.again_us * (waves - 1) + split)

"""Tiles for products with few rows whose weights are wgmma's left operand (gemm_swapped.cuh).

Such a stage is a stream of weights. mma.sync passes them through fragments in registers: on an H200
a stage with 46 MB of them took 21.6 us, 2.1 TB/s. Here the tensor core reads them from shared
memory, and what is left is memory's own time, in proportion to the SMs that have a tile:
llama_decode b16 1181 -> 1076 us.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import NARROW, WIDE
from jaxmono.codegen.dot_wgmma_shared import (
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    SWAPPED,
    operand_bytes,
    swapped_staging_bytes,
    tile_bytes,
)
from jaxmono.fusion.loops import COPIED_ROWS
from jaxmono.fusion.plan import Device

MIN_ROWS, MAX_ROWS = 2, COPIED_ROWS - 1
"""Rows of activations. Fewer are the gemv family's; of more, a tile of 64 rows on the left wastes
nothing."""
FEW_ROWS, FEW_BYTES = 8, 8e6
"""Rows up to which a stage has to have so many bytes of weights: Llama-1B's decode step of 8 texts
takes 0.79 of the time on an H200 that it took with weights streamed otherwise, those of GPT-2 and
T5, whose stages have 5 MB, 1.02."""
MIN_COLUMNS = 512
"""Of weights. Tiles have at least 64: fewer columns leave most SMs idle."""
GAIN = 0.95
"""Of another family's time, what this one may take to be chosen: both are models, and equal times
are no reason for warps of another role in a kernel."""
_RATE = 1.05
"""Of read bandwidth, what a stream of weights reaches that wgmma reads from shared memory."""
_STREAM = {"mma": 0.55, "wgmma": _RATE}
"""Of read bandwidth, what other families reach on a stream of weights: measured 2.0 to 2.5 of
4.2 TB/s (mma)."""
LATENCY_US = 0.8
"""x in shared memory: the weights are under way before the barrier opens."""
_START_US = 1.0
"""In the times of tiles, which leave out what dot_schedule.py says: first bytes and products."""
_ALONE = 1.7
"""Times its fair share of bandwidth that one SM gets while others idle: 12 tiles of 768x768 take
4.0 us, 48 of the same size of 3072x768 4.4 us."""
_LOAD_BYTES = 90_000.0
_FLOPS = 5.3e6
_K_TILE_US = 0.01
_SPLIT_US = 1.0
_SPLIT_BYTES = 34_000.0
_SPLIT_TOTAL = 0.5
"""These per SM and microsecond; sums that all blocks exchange, of what memory can read. Fitted to
49 tiles of 16 products with 16 and 64 rows, timed on an H200: 4 % too low, with a spread of 6 %."""
_LEFT_BYTES = 200_000.0
"""Of weights that the tensor core reads from shared memory, however few columns a product has: 128
a clock."""
_PANEL_US = 0.03 / 1024
"""Per byte of x that is computed: loads and stores (fusion/fold.py). Weights arrive meanwhile, as
many as the ring holds: 8x4096x11008 of silu(x) * y takes 31.5 us with 176 KB of it beside a ring of
40 KB, in four shares of k, 88 and 128 KB, 26.9."""
_EPILOGUE_US = 0.3
_EPILOGUE_BYTES = 160_000.0

_LAYOUTS = ((1, 2, 1), (1, 1, 2))
"""Warpgroups along m, n, k: 128 columns of weights, or 64."""


def candidates_swapped(batch: int, m: int, n: int, k: int, *, device: Device, shared_bytes: int,
                       k_major: tuple[bool, bool], computed: bool, blocks: int,
                       widths: tuple[int, int] = WIDE,
                       ) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model in microseconds, cheapest first.

    Args:
      k_major: of x and of the weights. computed: x is, a task's share at once.
      shared_bytes: per block.
      blocks: that this contraction has for itself.
      widths: bytes of one copy of x and of the weights; 2: an `UnalignedTile`. Of such weights rows
        may be fewer: the gemv family would pick their elements.
    """
    if not (1 if widths[1] == 2 else MIN_ROWS) <= m <= MAX_ROWS or n < MIN_COLUMNS:
        return []
    found = _costed(batch, m, n, k, device, shared_bytes, k_major, computed, blocks, widths)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


def stream_us(family: str, stage_bytes: int, device: Device) -> float:
    """The least time in which a family passes the weights of a stage; 0 where there is no bound."""
    rate = _STREAM.get(family)
    return 0.0 if rate is None else LATENCY_US + stage_bytes / (rate * device.read_bytes_per_us)


def _costed(batch: int, m: int, n: int, k: int, device: Device, shared_bytes: int,
            k_major: tuple[bool, bool], computed: bool, blocks: int,
            widths: tuple[int, int]) -> Iterator[tuple[float, DotSchedule]]:
    bm = math.ceil(m / 16) * 16
    for warps, split in itertools.product(_LAYOUTS, (1, 2, 4, 8)):
        bn = 64 * warps[1]
        if split > 1 and k < 256 * split:
            continue
        x = operand_bytes(bm, 64, k_major[0], widths[0])
        w = operand_bytes(bn, 64, k_major[1], widths[1])
        tiles = math.ceil(math.ceil(k / 64) / split)
        panel = tile_bytes(bm, tiles * 64) if computed else 0
        if computed:
            x = 0
        room = (shared_bytes - ROLES_BYTES - LOW_BYTES - panel
                - swapped_staging_bytes(bm, bn, warps[2]))
        slots = min(room // (x + w), MAX_SLOTS, max(tiles, 2))
        if slots >= min(3, max(tiles, 2)):
            s = DotSchedule(SWAPPED, bm, bn, 64, slots, warps, split)
            yield _cost(s, batch, n, k, device, blocks, panel, widths), s


def _cost(s: DotSchedule, batch: int, n: int, k: int, device: Device, blocks: int,
          panel: int, widths: tuple[int, int]) -> float:
    tasks = batch * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tasks > blocks:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    depth = math.ceil(math.ceil(k / 64) / s.split_k) * 64
    weights, x = s.bn * depth * 2, s.bm * depth * 2
    fair = _RATE * device.read_bytes_per_us / device.sm_count
    load = max(weights / (_ALONE * fair), min(tasks, blocks) / blocks * weights / fair,
               (weights * NARROW[widths[1]] + x * NARROW[widths[0]]) / _LOAD_BYTES)
    work = max(2.0 * s.bm * s.bn * depth / _FLOPS, weights / _LEFT_BYTES) \
        + _K_TILE_US * depth / 64 + _PANEL_US * panel
    # While a panel is computed no more weights arrive than the ring holds.
    ring = min(s.stages * s.bn * s.bk * 2, weights)
    load = max(load, _PANEL_US * panel + load * (1 - ring / weights))
    epilogue = _EPILOGUE_US + s.bm * s.bn * 4 / _EPILOGUE_BYTES
    sums = s.bm * s.bn * 4
    split = _SPLIT_US + max(sums / _SPLIT_BYTES, tasks * sums / (
        _SPLIT_TOTAL * device.read_bytes_per_us)) if s.split_k > 1 else 0.0
    # While a tile is in its epilogue the next one's loads go on.
    return _START_US + math.ceil(tasks / blocks) * max(load, work) + epilogue + split

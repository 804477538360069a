"""Tiles for the wgmma family, by the same kind of model as dot_schedule.py.

What the producers bring from L2, what wgmma multiplies, what passes through shared memory, per SM
and microsecond, and what splits cost with many rows are fitted to 220 tiles of 22 products timed on
an H200 (512 to 4096 rows of BERT's base and large and of Llama): times are right with a spread of
5 % (standard deviation of the logarithm), and the model's choice takes 0.1 % longer than the best.
The first two are those of an earlier fit where rows are gathered. What memory adds with cold
weights, and what splits cost with few rows, are fitted to 167 tiles of 15 products with 64 and 128
rows; their loads and products have become faster since, their latency may be too long.

Elements of other sizes cost what 16-bit elements of as many bytes do: wgmma reads 128 bytes of k in
the same time whatever is in them. Shared memory is used more for tf32, which is rounded there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from jaxmono.codegen.dot_schedule import FEW, DotSchedule, unused
from jaxmono.codegen.dot_wgmma import meets_as_fragments
from jaxmono.codegen.dot_wgmma_shared import (
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    has_halves,
    operand_bytes,
    staging_bytes,
    tile_bytes,
)
from jaxmono.fusion.plan import Device

_LOAD_BYTES = {False: 109_000.0, True: 99_000.0}
"""Of one SM, by whether rows are gathered; of all together `_L2_READS` times what memory reads."""
_L2_READS = {False: 3.2, True: 2.8}
_K_TILE_US = 0.01
"""Of the producers, for every k tile: 64 x 64 tiles load 82 KB a microsecond."""
_TF32_K_TILE_US = 0.1
"""Of tf32's consumers, for every k tile of 32: fragments come, are rounded and multiplied in turn.
1280 and 2048x768x3072 on an H100 by 48 to 256 columns: this and what `_SHARED_BYTES` allows."""
_DEEP_SLOTS = 5
"""Slots of two lines of k that a ring has at least, or all of a task. Each slot costs its producers
some 0.1 us beside its loads (barriers), which small tiles do not hide: BERT-base b1 287 -> 276 us,
512x768x768 5.0 -> 4.6. With 4 slots of 64 x 128 1024 cubed was 11 % slower, with 3 of 64 x 96
ViT-B/16 b1 4 %."""
_ODD_LINES = (3, 5, 7)
"""Of which two to a slot leave one of zeros: 12544 x 192 to 576 x 192 took 14 to 19 % more time.
Few rows wait for barriers, not for products."""
_DEEP_LINE_US = -0.02
"""`_K_TILE_US` of those, for each line."""
_TURNS_AHEAD = 4
"""Tasks whose tiles producers may have requested: VGG-16 b32, whose first tasks have two tiles,
takes 1.3 % less time, 65536 x 64 to 256 x 64, four tasks of one tile for each block, 3 to 10."""
_FLOPS = {False: 6.3e6, True: 6.1e6}
"""The same. With what strided rows take, VGG-16 b32 got tiles of 128 columns, not 256, and took 4 %
longer."""
_SHARED_BYTES = 240_000.0
"""Written and read in shared memory: 128 a clock are 225 to 250. A fit, not the limit: in ncu's
counters the tiles of these kernels pass 109 to 116 a clock, those of NVIDIA's library up to 194."""
_GATHERED_TF32 = 1.6
"""Of f32 whose rows are gathered, how much longer a tile takes than all this says: 1.5 to 1.8 with
48 columns and k = 432 (RepVGG-A0 b32 on an H100), 2 to 2.8 with k = 36 of three channels padded."""
_EXCHANGE_BYTES = 160_000.0
"""Of f32 sums of a wide tile whose warpgroups share k, half of which they exchange."""
_EXCHANGE_BEHIND_US = 0.4
"""More of that in a model: 2048x768x3072 alone takes as long by 64 x 192 so as by 128 x 96,
BERT-base b16 took 2 % longer."""
_LATENCY_US = {True: 1.7, False: 1.3}
"""First bytes, first products, the epilogue's first stores, by whether a product has at most `FEW`
rows: as the model of dot_schedule.py, which this one is compared with. A kernel of its own takes
1 us more."""
_COLD = 0.25
"""Of the time in which memory reads the weights of few rows, what nothing hides: with 64 rows,
tiles of one size take 0.16 us longer for each MB of weights."""
_RAGGED = 1.05
"""Of wide tiles whose last columns fill no line of 64, beside what these are loaded for: CLIP and
ViT-B/16 b16 took 1.3 and 1.7 % longer with 160 columns than with 192 and 256."""
_AGAIN_US = 0.2
"""Of every further tile of a block: in models more of them pay less than alone (queries, keys and
values of the T5-small encoder b16: 1 % longer in three turns than in one)."""
_EPILOGUE_BYTES = 60_000.0
"""Of f32 sums that the consumers turn into outputs."""
_SPLIT_US = 1.1
_SPLIT_BYTES = 34_000.0
"""Of f32 sums that the blocks of a tile exchange."""
_FRAGMENTS_US = 1.2
_FRAGMENT_BYTES = 22_000.0
"""The same where they leave each other fragments of what each finishes, half of the bytes:
512x1024x4096 14.0 -> 11.6 us, 512x768x3072 10.7 -> 9.6, 1280x768x3072 15.7 -> 13.7. Not counted
where other contractions share the multiprocessors: CLIP b16 was 4 % slower."""
_FRAGMENTS_BEHIND = 1.2
"""In a model: with 2048x768x3072 so the T5-base encoder b16 was 1.1 % slower, BERT-base b16 0.3 %
faster, where the product alone was 2.6 % faster."""
_SPLIT_TOTAL = {True: 0.42, False: 0.5}
"""Of what memory can read, what all blocks exchange together of their sums, by whether a product
has at most `FEW` rows. 128x2048x8192: 128 blocks with 64 KB each take 18.2 us, with 32 KB 14.9
us; of more rows a part is hidden (512x768x3072 by 48 KB of 128 blocks, 10.5 us)."""
_ROW_PROLOGUE_US = 0.055 / 1024
"""Per byte of a normalised row panel: loads, two reductions, stores."""

WIDE = (16, 16)
NARROW = {16: 1.0, 8: 2.5, 4: 4.0, 2: 4.0}
"""Bytes of an operand, by those of one copy, take so many times as long. Fitted to 23 products on
an H100: the choice takes 3.4 % longer than the best, times have a spread of 11 %."""
_NARROW_TF32 = {16: 1.0, 8: 2.5, 4: 7.0}
"""The same of f32 that producers round as well; by hand: 128x50257x768 gets its best tile so."""

_LAYOUTS = {True: ((1, 2, 1), (2, 1, 1), (1, 1, 2)), False: ((2, 1, 1), (1, 2, 1), (1, 1, 2))}
"""Warpgroups along m, n, k, by whether a product has at most `FEW` rows. Of equal times the first
counts: 128x8192x2048 takes 5 % less time by 64 x 128 than by 128 x 64, 128x2048x2048 8 %; the
T5-small encoder b16 (2048 rows) 1 % more."""
COLUMNS = (16, 32, 48, 64, 80, 96, 128, 144, 160, 192, 256)
"""Of a warpgroup."""
_TALL = 32
"""Fewer rows than this waste most of a 64-row product: other families take them."""


def choose_wgmma(batch: int, m: int, n: int, k: int, itemsize: int = 2, *, device: Device,
                 shared_bytes: int, row_prologue: bool, k_major: tuple[bool, bool],
                 gathered: bool = False, behind: bool = False, beside: bool = False,
                 widths: tuple[int, int] = WIDE,
                 ) -> tuple[float, DotSchedule] | None:
    """The cheapest tile and its time in microseconds; None if no tile fits or pays.

    Args:
      itemsize: bytes of an element; 4 is tf32.
      shared_bytes: per block. k_major: of the left and the right operand, in shared memory.
      gathered: rows of the left operand do not lie one behind the other at a constant distance
        (a convolution's).
      behind, beside: the stage has a grid barrier in front of it; has other contractions.
      widths: bytes of one copy of the left and the right operand; 2: an `UnalignedTile`.
    """
    found = candidates_wgmma(
        batch, m, n, k, itemsize, device=device, shared_bytes=shared_bytes,
        row_prologue=row_prologue, k_major=k_major, gathered=gathered, behind=behind, beside=beside,
        widths=widths)
    return found[0] if found else None


def candidates_wgmma(batch: int, m: int, n: int, k: int, itemsize: int = 2, *, device: Device,
                     shared_bytes: int, row_prologue: bool, k_major: tuple[bool, bool],
                     gathered: bool = False, behind: bool = False, beside: bool = False,
                     widths: tuple[int, int] = WIDE,
                     ) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model, cheapest first: what a tuner may measure."""
    found = _costed(batch, m, n, k, itemsize, device, shared_bytes, row_prologue, k_major, gathered,
                    behind, beside, widths)
    # Of times that differ by a rounding the first counts.
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: round(x[0], 9))


def _costed(batch: int, m: int, n: int, k: int, itemsize: int, device: Device, shared_bytes: int,
            row_prologue: bool, k_major: tuple[bool, bool], gathered: bool, behind: bool,
            beside: bool, widths: tuple[int, int]) -> Iterator[tuple[float, DotSchedule]]:
    k = math.ceil(k * itemsize / 2)  # from here on of 16 bits
    if m < _TALL or n < 16:
        return
    splits = (1,) if row_prologue else (1, 2, 4, 8)
    for warps, columns, split in itertools.product(_LAYOUTS[m <= FEW], COLUMNS, splits):
        bm, bn = 64 * warps[0], columns * warps[1]
        if warps[1] == 2 and not k_major[1] and columns % 64:
            continue
        if has_halves(columns, warps[2]) and (gathered or columns % 32):
            continue  # quarters of the tile are whole fragments
        if (bm > 64 and bm >= 2 * m) or (bn > 16 and bn >= 2 * n):
            continue
        if split > 1 and k < 256 * split:
            continue
        turns = math.ceil(batch * math.ceil(m / bm) * math.ceil(n / bn) / device.sm_count)
        ring = partial(_ring, bm, bn, warps, k, split, turns=turns, shared_bytes=shared_bytes,
                       row_prologue=row_prologue, k_major=k_major, widths=widths)
        plain = itemsize == 2 and not row_prologue
        lines = math.ceil(math.ceil(k / 64) / split)
        odd = m > FEW and lines in _ODD_LINES
        whole = _whole(k, warps[2]) if plain else 0
        deep = 128 if plain and not gathered and not odd else 0
        rings = (ring(depth=d) for d in (whole, deep, 64) if d)
        s = next((s for s in rings if s is not None), None)
        if s is not None:
            fragments = meets_as_fragments(s, gathered=gathered) and not beside
            cost = _cost(s, batch, m, n, k, itemsize, device, row_prologue, k_major[1], gathered,
                         fragments, behind, widths)
            if behind:
                cost *= _FRAGMENTS_BEHIND if fragments else 1.0
                cost += _EXCHANGE_BEHIND_US if has_halves(columns, warps[2]) else 0.0
            yield cost, replace(s, bk=s.bk * 2 // itemsize)
        # One tile of columns, loaded once for a block's tasks: RepVGG-A0 b32 takes 6 % less time.
        # Tiles of 64 rows would multiply as many bytes of weights by half of the rows each: VGG-16
        # b32 took 17 % more.
        stays = plain and 2 not in widths and not beside and batch == 1 and n <= bn \
            and split == 1 and turns > _TURNS_AHEAD and warps[0] == 2
        s = ring(depth=_whole(k, 1) or 64, resident=True) if stays else None
        if s is not None:
            yield _cost(s, batch, m, n, k, itemsize, device, row_prologue, k_major[1], gathered,
                        fragments=False, behind=behind, widths=widths), s


def _whole(k: int, warpgroups: int) -> int:
    """Columns of a slot that has all of k, where lines of 64 would be filled badly; 0 elsewhere.
    72 of k as 80 instead of 128: the first convolution of VGG-16 b32."""
    depth = math.ceil(k / 16) * 16
    return depth if k < 128 and depth % 64 and depth // 16 % warpgroups == 0 else 0


def _ring(bm: int, bn: int, warps: tuple[int, int, int], k: int, split: int, *, depth: int,
          turns: int, shared_bytes: int, row_prologue: bool, k_major: tuple[bool, bool],
          widths: tuple[int, int], resident: bool = False) -> DotSchedule | None:
    """The tile with a ring whose slots have ``depth`` columns of k; None if there is no room, or if
    two lines leave too few slots. ``turns``: tasks that a block has. ``resident``: the right
    operand has room of its own.
    """
    tiles = math.ceil(math.ceil(k / 64) / split)
    if depth == 128:
        if tiles == 1:
            return None
        tiles = math.ceil(tiles / 2)  # an odd line at the end is zeros
    elif depth != 64:
        tiles = 1
    a = 0 if row_prologue else operand_bytes(bm, depth, k_major[0], widths[0])
    b = operand_bytes(bn, depth, k_major[1], widths[1])
    panel = tile_bytes(bm, math.ceil(k / 64) * 64) if row_prologue else 0
    if resident:
        panel, b = tiles * b, 0
    room = (shared_bytes - ROLES_BYTES - LOW_BYTES - panel
            - staging_bytes(bn // warps[1], warps[2]))
    ahead = min(turns, _TURNS_AHEAD)
    # Deep rings have all slots that there is room for: then those of neighbouring stages are alike.
    needed = MAX_SLOTS if depth == 128 else max(tiles * ahead, 4 if 2 in widths else 2)
    slots = min(room // (a + b), MAX_SLOTS, needed)
    if slots < min(_DEEP_SLOTS if depth == 128 else 3, max(tiles, 2)):
        return None
    return DotSchedule("wgmma", bm, bn, depth, slots, warps, split, resident)


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, itemsize: int, device: Device,
          row_prologue: bool, k_major: bool, gathered: bool, fragments: bool,
          behind: bool, widths: tuple[int, int]) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    waves = math.ceil(tiles / device.sm_count)
    depth = math.ceil(k / s.split_k / s.bk) * s.bk
    columns = s.bn if k_major else _loaded(s.bn, behind)
    right = min(columns, n) * depth * 2
    if not k_major and not gathered:
        # Of lines of 64 columns, where tiles do not begin at what memory hands out.
        right *= 1.0 + unused(s.bn * 2, min(columns, n) * 2)
    once = 0.0
    if s.resident:
        once, right = right / _LOAD_BYTES[gathered], 0
    left = (0 if row_prologue else min(s.bm, m)) * depth * 2
    total = min(tiles, device.sm_count) * (left + right)
    narrow = _NARROW_TF32 if itemsize == 4 else NARROW
    size = left * narrow[widths[0]] + right * narrow[widths[1]]
    # Not for convolutions: it made RepVGG b32 3 % slower.
    k_tile = 0.0 if gathered else _DEEP_LINE_US if s.bk > 64 else _K_TILE_US
    load = max(size / _LOAD_BYTES[gathered] + depth / 64 * k_tile,
               total / (_L2_READS[gathered] * device.read_bytes_per_us))
    work = 2.0 * s.bm * s.bn * depth / _FLOPS[gathered]
    if not gathered or itemsize == 4:
        passed = _passed(s, itemsize, row_prologue, k_major, behind) * depth * 2
        work = max(work, passed / _SHARED_BYTES)
    if itemsize == 4:
        work += depth / 64 * _TF32_K_TILE_US
    epilogue = s.bm * s.bn * 4 / _EPILOGUE_BYTES / (s.split_k if fragments else 1)
    if has_halves(s.bn, s.warps[2]):
        epilogue += s.bm * s.bn * 4 / _EXCHANGE_BYTES
    prologue = _ROW_PROLOGUE_US * s.bm * k * 2 if row_prologue else 0.0
    sums = s.bm * s.bn * 4
    split = 0.0
    if fragments:
        split = _FRAGMENTS_US + sums * (s.split_k - 1) / s.split_k / _FRAGMENT_BYTES
    elif s.split_k > 1:
        split = max(_SPLIT_US + sums / _SPLIT_BYTES, tiles * sums / (
            _SPLIT_TOTAL[m <= FEW] * device.read_bytes_per_us))
    cold = _COLD * batch * n * k * 2 / device.read_bytes_per_us if m <= FEW else 0.0
    loop = max(load, work) * (_GATHERED_TF32 if gathered and itemsize == 4 else 1.0)
    again = 0.0
    if not gathered:
        loop *= _RAGGED if 128 < s.bn < columns else 1.0
        again = _AGAIN_US * (waves - 1)
    # While a tile is in its epilogue the next one's loads go on.
    return (cold + once + _LATENCY_US[m <= FEW] + waves * (loop + epilogue + prologue) + again
            + split)


def _loaded(columns: int, behind: bool) -> int:
    """Of [k, n], what so many columns cost to load and to read: they come 64 at a time, and 96 take
    as long as 128. Alone 16 or 32 take less than 64 (128x768x768: 3.6, 3.75 and 4.25 us);
    ``behind`` a grid barrier, in front of which most of them come, not: on an H100 CLIP b1 took 6 %
    longer, BERT-base b1 1.5 %."""
    return columns if columns <= 32 and not behind else math.ceil(columns / 64) * 64


def _passed(s: DotSchedule, itemsize: int, row_prologue: bool, k_major: bool,
            behind: bool) -> int:
    """Elements that pass through shared memory for each k of a tile.

    It is written by the producers, and read by every product: its 64 rows, and all of its columns,
    of [k, n] in panels of 64. 128 x 96 tiles of 2048x768x3072 multiply for 12.4 us, and take 20.0;
    64 x 192 where the warpgroups share k, so that less is read, 19.1.
    """
    wm, wn, _ = s.warps
    columns = s.bn // wn
    read = wm * wn * (64 + (columns if k_major else _loaded(columns, behind)))
    written = (0 if row_prologue else s.bm) + (0 if s.resident else s.bn)
    # tf32: the right operand is also read and written to round it.
    return read + written + (2 * s.bn if itemsize == 4 else 0)

"""Tile shapes for contractions, chosen by an analytic model of one stage of a persistent kernel.

The time of a stage is ``waves * (latency + max(bytes / bandwidth, flops / rate))`` for the block
that does most. At small M the bytes that a block must load decide, (BM + BN) * K per tile: larger
tiles load less in total but leave SMs idle; split-K trades a reduction for both. Constants are per
SM, measured on an H200 (DESIGN.md section 6) and scaled by the device's SM count elsewhere.

What a family's model leaves out is the same for all, so that they can be compared: the launch,
1 us of what a kernel of its own takes. Fitted to tiles of 42 bf16 products with 1 to 128 rows,
weights [k][n] from memory: of the 225 tiles within 1.25 of the best, the times are 3 % too high,
with a spread of 7 % (standard deviation of the logarithm).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import plain_algorithm
from jaxmono.hlo.precision import allows_tf32
from jaxmono.hlo.types import DType

# Per SM, per microsecond, fitted by hand to tiles timed on an H200. Good for ranking tiles of one
# problem, not for predicting times.


@dataclass(frozen=True)
class _Rates:
    l2_bytes: float
    k_tile_us: float
    """Wait, barrier and first fragments of every k tile."""
    epilogue_us: float
    split_us: float
    split_bytes: float
    """Of f32 sums that the blocks of a tile exchange."""
    beside: float
    """Of the shorter one of loads and products, what shows where all is requested at once."""


FEW = 128
"""Rows up to which the weights' way from memory decides; the fits below are of that many. With more
rows they took mma for wgmma: Inception b1 15 % slower, RepVGG b1 4 %."""
_FEW_ROWS = _Rates(58_000.0, 0.02, 0.1, 1.5, 15_000.0, 0.1)
_MANY_ROWS = _Rates(42_000.0, 0.06, 0.2, 2.2, 12_000.0, 0.3)
_STREAM = 0.9
"""Of what memory can read, what tiles stream of weights."""
_SAME = 0.65
"""Of what memory can read, what blocks get that read the same rows at once. 16 rows of 1024 cost
128 blocks 1.5 us more than one row does, 32 blocks 0.5 us."""
ATOM = 64
"""Bytes that memory hands out at once: two sectors."""
_ATOMS = 0.5
"""Of the bytes that a tile's rows of weights touch and do not use, what they cost: the neighbouring
tile uses them, often while they are in L2. 128 tiles of 24 columns of 3072x768 took 3.9 us, 96 of
32 columns 3.4 us."""
_SHARED_BYTES = 224_000.0
_FLOPS = {1: 9.2e6, 2: 4.6e6, 4: 1.2e6}
F8_FLOPS = 3.7e6
"""8-bit floats: Hopper has no mma.sync for them. They are multiplied as f16, behind a conversion of
every fragment."""
_LATENCY_US = 0.8
_ROW_PROLOGUE_US = 0.055 / 1024
"""Per byte of a normalised row panel: loads, two reductions, stores."""


@dataclass(frozen=True)
class DotSchedule:
    """How one contraction is tiled.

    Attributes:
      family: "wgmma" (Hopper's warpgroup products), "swapped" (the same with the weights on the
        left), "tf32" (likewise, of f32), "bytes" (likewise, of weights stored as bytes or f32),
        "bf16x6" (likewise, of f32, exact),
        "mma" (tensor cores, warp by warp), "gemv" (a few rows, weights streamed through ordinary
        arithmetic), "fma" (tiles of f32 in ordinary arithmetic) or "simt" (the same of any type,
        element by element).
      bm, bn, bk: tile of the output and of k, in elements; "gemv": bk is what shares of k are
        multiples of.
      stages: k tiles (steps of the stream) in the shared-memory ring.
      warps: (m, n, k) warps, their product is the block's warps; "wgmma", "swapped",
        "tf32", "bytes", "bf16x6": warpgroups.
      split_k: blocks that share one output tile, each with its share of k.
      resident: all of the right operand stays in shared memory, for all tasks of a block ("wgmma",
        a single tile of columns).
      source: what an epilogue reads for each element may come through the ring (`source_of` in
        dot_wgmma.py; "wgmma").
    """

    family: str
    bm: int
    bn: int
    bk: int
    stages: int
    warps: tuple[int, int, int]
    split_k: int = 1
    resident: bool = False
    source: bool = field(default=True, kw_only=True, repr=False)


@dataclass(frozen=True)
class ImageSchedule(DotSchedule):
    """Of a convolution whose image stays in shared memory ("image", dot_schedule_image.py): bk are
    channels, stages may be none (``resident``).

    Attributes:
      images: buffers, 2 or 4.
      tall: lines of the box that a tile is, 8 or 16; 0: it is a line (codegen/image.py).
    """

    images: int = 2
    tall: int = 0


def mma_type(lhs: DType, rhs: DType, precision: tuple[str, str], algorithm: str) -> DType | None:
    """Operand type of the tensor-core path, or None where only ordinary arithmetic is exact enough.

    f32 runs as tf32 but at precision HIGHEST, as XLA does on these GPUs.
    """
    if lhs != rhs or not plain_algorithm(algorithm, lhs):
        return None
    if lhs in (DType.BF16, DType.F16):
        return lhs
    return lhs if lhs is DType.F32 and allows_tf32(precision) else None


def choose_simt(m: int, n: int, threads: int) -> DotSchedule:
    bn = 64 if n > 16 else 16
    bm = 64 if m > 16 else 16
    return DotSchedule("simt", bm, min(bn, threads), 16, 1, (1, 1, 1))


def choose_mma(batch: int, m: int, n: int, k: int, itemsize: int, *, device: Device, warps: int,
               shared_bytes: int, row_prologue: bool = False,
               allow_split: bool = True, k_major: bool = False) -> DotSchedule:
    """The cheapest tile by the model above; deterministic.

    Args:
      shared_bytes: per block. k_major: weights are [n][k].
    """
    return best_mma(batch, m, n, k, itemsize, device=device, warps=warps,
                    shared_bytes=shared_bytes, row_prologue=row_prologue,
                    allow_split=allow_split, k_major=k_major)[1]


class NoTile(ValueError):
    """A left operand that stays in shared memory, and nothing beside it."""


def best_mma(batch: int, m: int, n: int, k: int, itemsize: int, *, device: Device, warps: int,
             shared_bytes: int, row_prologue: bool = False, allow_split: bool = True,
             flops: float | None = None, k_major: bool = False) -> tuple[float, DotSchedule]:
    """`choose_mma`'s choice and its time in the model, in microseconds. ``flops``: per SM and
    microsecond, where it is not that of the item size.

    Raises:
      NoTile: none fits.
    """
    best: tuple[float, DotSchedule] | None = None
    for cost, s in _costed(batch, m, n, k, itemsize, device, warps, shared_bytes, row_prologue,
                           allow_split, flops, k_major):
        if best is None or cost < best[0] - 1e-9:
            best = (cost, s)
    if best is None:
        raise NoTile(f"no tile of a {m}x{n}x{k} dot fits {shared_bytes} bytes of shared memory")
    return best


def candidates_mma(batch: int, m: int, n: int, k: int, itemsize: int, *, device: Device, warps: int,
                   shared_bytes: int, row_prologue: bool = False, flops: float | None = None,
                   k_major: bool = False) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model, cheapest first: what a tuner may measure."""
    found = _costed(batch, m, n, k, itemsize, device, warps, shared_bytes, row_prologue, True,
                    flops, k_major)
    return sorted((x for x in found if x[0] < math.inf), key=lambda x: x[0])


def _costed(batch: int, m: int, n: int, k: int, itemsize: int, device: Device, warps: int,
            shared_bytes: int, row_prologue: bool, allow_split: bool, flops: float | None,
            k_major: bool) -> Iterator[tuple[float, DotSchedule]]:
    for s in _candidates(m, n, k, itemsize, warps, row_prologue, allow_split):
        fitted = _fit(s, k, itemsize, shared_bytes, row_prologue)
        if fitted is not None:
            yield _cost(fitted, batch, m, n, k, itemsize, device, row_prologue,
                        flops or _FLOPS[itemsize], k_major), fitted


_M_WARPS = ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 2), (128, 4))
_NT_TF32 = {1: 16, 2: 10, 4: 6}
"""Most columns of 8 of a warp, by its rows of 16: f32 fragments of wider tiles spill."""
_NT_BYTES = 20
"""Likewise of bytes; 8-bit floats take registers for their conversion."""
_N = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 192)


def _candidates(m: int, n: int, k: int, itemsize: int, warps: int, row_prologue: bool,
                allow_split: bool) -> list[DotSchedule]:
    kstep = 32 // itemsize
    narrow = 16 if itemsize == 1 else 8
    out: list[DotSchedule] = []
    splits = (1, 2, 4, 8) if allow_split and not row_prologue else (1,)
    for (bm, wm), bn, wn, split in itertools.product(_M_WARPS, _N, (1, 2, 4, 8), splits):
        wk, left = divmod(warps, wm * wn)
        if left or wk < 1 or bm % (16 * wm) or bn % (8 * wn):
            continue
        mt, nt = bm // (16 * wm), bn // (8 * wn)
        if mt * nt > 24 or (itemsize == 4 and nt > _NT_TF32[mt]) or (bm > 16 and bm >= 2 * m) or (
                bn > narrow and bn >= 2 * n):
            continue
        if itemsize == 1 and (nt % 2 or nt > _NT_BYTES):
            continue  # columns of bytes are transposed 16 at a time
        for bk in (128 // itemsize, 256 // itemsize):
            if bk % (kstep * wk) or (split > 1 and k // split < 2 * bk):
                continue
            if bk * itemsize > 128 and bm * bn >= 8192:
                continue  # deep k tiles are for short stages; others want more in flight
            out.append(DotSchedule("mma", bm, bn, bk, 0, (wm, wn, wk), split))
    return out


def tile_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Shared memory of a tile, as `Tile` of device/tile.cuh lays it out."""
    return rows * ((cols * itemsize // 16) | 1) * 16


def _fit(s: DotSchedule, k: int, itemsize: int, shared_bytes: int,
         row_prologue: bool) -> DotSchedule | None:
    """``s`` with the deepest ring that fits, or None."""
    tiles = math.ceil(math.ceil(k / s.bk) / s.split_k)
    panel = tile_bytes(s.bm, math.ceil(k / s.bk) * s.bk, itemsize) if row_prologue else 0
    a = 0 if row_prologue else max(tile_bytes(s.bm, s.bk, itemsize),
                                   tile_bytes(s.bk, s.bm, itemsize))
    b = max(tile_bytes(s.bk, s.bn, itemsize), tile_bytes(s.bn, s.bk, itemsize))
    sums = s.warps[2] * s.bm * (s.bn + 4) * 4
    room = shared_bytes - panel
    # Six tiles in flight cover any latency; what is left of shared memory caches in L1.
    deep = 24 if a + b < 24 * 1024 else max(3, 176 * 1024 // (a + b))
    stages = min(tiles, room // (a + b), deep)
    if stages < min(3, tiles) or max(stages, 2) * (a + b) > room or sums > room:
        return None
    return DotSchedule(s.family, s.bm, s.bn, s.bk, max(stages, 2), s.warps, s.split_k)


def unused(step: int, row: int = 0) -> float:
    """Bytes that memory hands out beside those of a row of a tile of weights [k][n], per byte.

    Args:
      step: rows of the tiles begin at multiples of so many bytes.
      row: bytes of a row, where they are not ``step``.
    """
    return (ATOM - math.gcd(step, ATOM)) / (row or step)


def _cost(s: DotSchedule, batch: int, m: int, n: int, k: int, itemsize: int, device: Device,
          row_prologue: bool, flops: float, k_major: bool) -> float:
    tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn) * s.split_k
    if s.split_k > 1 and tiles > device.sm_count:
        return math.inf  # the blocks of a tile wait for each other: only in a single wave
    of = _FEW_ROWS if m <= FEW else _MANY_ROWS
    depth = k / s.split_k
    active = min(tiles, device.sm_count)
    rows = min(s.bm, m) if m <= FEW else s.bm
    left, right = rows * depth * itemsize, s.bn * depth * itemsize
    size, same = left + right, 0.0
    if m <= FEW:
        if not k_major:
            right *= 1.0 + _ATOMS * unused(s.bn * itemsize)
        load = max((left + right) / of.l2_bytes,
                   active * right / (_STREAM * device.read_bytes_per_us))
        # The tiles of a row of tiles read the same, and wait for one another.
        alike = active / max(batch * math.ceil(m / s.bm) * s.split_k, 1)
        same = alike * left / (_SAME * device.read_bytes_per_us)
    else:
        # All blocks together are bound by the memory behind the SMs too.
        load = max(size / of.l2_bytes, active * size / (1.25 * device.read_bytes_per_us))
    wm, wn, wk = s.warps
    # Every warp column reads all of A, every warp row all of B; the ring is written once. Products
    # and shared-memory reads hardly overlap at two warps per scheduler, so their times add up.
    shared = (wn * s.bm + wm * s.bn + s.bm + s.bn) * depth * itemsize / _SHARED_BYTES
    work = 2.0 * s.bm * s.bn * depth / flops + shared
    if wk > 1 and s.bm * s.bn >= 8192:
        work *= 1.15  # every set of warps has accumulators for the whole tile
    work += of.k_tile_us * math.ceil(depth / s.bk)
    epilogue = of.epilogue_us + s.bm * s.bn * (wk + 1) * 4 / 400_000.0
    prologue = _ROW_PROLOGUE_US * s.bm * k * itemsize if row_prologue else 0.0
    split = of.split_us + s.bm * s.bn * 4 / of.split_bytes if s.split_k > 1 else 0.0
    # What fits shared memory is requested at once, before the products; more hides behind them.
    beside = of.beside if size <= 256 * 1024 else 0.0
    tile = max(load, work) + same + beside * min(load, work) + epilogue + prologue
    return math.ceil(tiles / device.sm_count) * (_LATENCY_US + tile) + split

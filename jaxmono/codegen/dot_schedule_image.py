"""Tiles for convolutions whose image stays in shared memory (device/gemm_image.cuh), by the model of
dot_schedule_wgmma.py: an image comes once, weights come for every tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from jaxmono.codegen.dot_schedule import DotSchedule, ImageSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    IMAGE,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    image_bytes,
    operand_bytes,
    staging_bytes,
)
from jaxmono.codegen.image import Arrangement, Image, arrangements
from jaxmono.fusion.plan import Device

_LOAD_BYTES = 109_000.0
_L2_READS = 3.2
_FLOPS = 6.3e6
_SHARED_BYTES = 240_000.0
_EPILOGUE_BYTES = 60_000.0
_LATENCY_US = 1.3
"""Of one SM and microsecond, as in dot_schedule_wgmma.py."""
_TAP_US = 0.02
"""Of each slot: a barrier both ways."""
_AGAIN_US = 0.2
"""Of every further tile of a block."""
_LAYOUTS = ((2, 1), (1, 2))
"""Warpgroups along rows and columns."""
_COLUMNS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
"""Of a warpgroup."""
_LEAST_SLOTS, _MANY_SLOTS = 3, 6


def candidates_image(image: Image, siblings: int, n: int, *, device: Device, shared_bytes: int,
                     k_major: bool) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model, cheapest first.

    Args:
      siblings: as many run side by side.
      n: columns. k_major: weights are [n][k].
    """
    return sorted(_costed(image, siblings, n, device, shared_bytes, k_major), key=lambda x: x[0])


def _costed(image: Image, siblings: int, n: int, device: Device, shared_bytes: int, k_major: bool,
            ) -> Iterator[tuple[float, ImageSchedule]]:
    taps, tiles = math.prod(image.taps), [(w, a) for w in _LAYOUTS
                                          for a in arrangements(image, 64 * w[0])]
    for ((wm, wn), a), columns, bk in itertools.product(tiles, _COLUMNS, _depths(image.channels)):
        bn = columns * wn
        if (wn == 2 and not k_major and columns % 64) or (bn > 16 and bn >= 2 * n):
            continue
        slot = operand_bytes(bn, bk, k_major, 16)
        room = {images: shared_bytes - ROLES_BYTES - LOW_BYTES - staging_bytes(columns, 1)
                - image_bytes(a.copied, bk, images) for images in (4, 2)}
        # (images, slots), 0 of these: all weights stay.
        found = [(i, min(room[i] // slot, MAX_SLOTS - i, taps)) for i in room]
        rings = [(i, slots) for i, slots in found
                 if slots >= (_LEAST_SLOTS if i == 2 else min(_MANY_SLOTS, taps))][:1]
        if siblings == 1 and n <= bn and a.tiles > device.sm_count:
            rings += [(i, 0) for i in room if taps * image.channels // bk * slot <= room[i]][:1]
        for images, slots in rings:
            s = ImageSchedule(IMAGE, 64 * wm, bn, bk, slots, (wm, wn, 1), 1, slots == 0, images,
                              a.tall)
            yield _cost(a, s, siblings, n, device, k_major), s


def _depths(channels: int) -> list[int]:
    """Channels of a slot."""
    return [d for d in range(16, min(channels, 192) + 1, 16)
            if channels % d == 0 and (d >= 32 or d == channels)]


def _cost(a: Arrangement, s: DotSchedule, siblings: int, n: int, device: Device, k_major: bool,
          ) -> float:
    taps, channels = math.prod(a.image.taps), a.image.channels
    k = taps * channels
    tiles = siblings * a.tiles * math.ceil(n / s.bn)
    waves = math.ceil(tiles / device.sm_count)
    wide = s.bn if k_major else math.ceil(s.bn / 64) * 64
    weights, once = 2 * k * min(wide, n), 0.0
    if s.resident:
        weights, once = 0, weights / _LOAD_BYTES
    size = 2 * a.copied * channels + weights
    load = max(size / _LOAD_BYTES + (0.0 if s.resident else k / s.bk * _TAP_US),
               min(tiles, device.sm_count) * size / (_L2_READS * device.read_bytes_per_us))
    wm, wn, _ = s.warps
    passed = 2 * (k * wm * wn * (64 + s.bn / wn)) + size
    work = max(2.0 * s.bm * s.bn * k / _FLOPS, passed / _SHARED_BYTES)
    epilogue = s.bm * s.bn * 4 / _EPILOGUE_BYTES
    return _LATENCY_US + once + waves * (max(load, work) + epilogue) + _AGAIN_US * (waves - 1)

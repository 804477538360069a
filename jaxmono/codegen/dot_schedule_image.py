"""Tiles for convolutions whose image stays in shared memory (device/gemm_image.cuh).

The model: producers copy an image for each `bk` channels and weights for each tap; what they do
besides takes them longer than the bytes. Warpgroups multiply, or wait for shared memory. Then the
epilogue. It is fitted to 753 tiles of 64 convolutions timed on an H200 (VGG-16, RepVGG-A0,
Inception v3, GoogLeNet, ResNet-18, CRNN, Bolt's Table 3; batch 1 and 32): times are right with a
spread of 12 % (standard deviation of the logarithm), its choice takes 1.2 % longer than the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from jaxmono.codegen.dot_schedule import FEW, DotSchedule, ImageSchedule
from jaxmono.codegen.dot_wgmma_shared import (
    IMAGE,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    image_bytes,
    operand_bytes,
    staged_columns,
    staging_bytes,
)
from jaxmono.codegen.image import Arrangement, Image, arrangements
from jaxmono.fusion.plan import Device

_LATENCY_US = 0.4
"""First image, first products, first stores; timed alone 1.9."""
_BEHIND_US = 0.3
"""Behind a grid barrier, where rings of gathered rows mostly go on from stage to stage and these do
not: ResNet-18 b1 took 1 to 3 % longer with four images that take as long alone."""
_IN_MODELS = 0.95
"""Of the times alone. So, and with 1.5 us less of latency, a choice between this model and that of
rows that lie one behind the other is 1.1 % slower than the best of both families."""
_IMAGE_US, _POSITIONS_US = 0.9, 0.031
"""Of a tile, for each of its images; for each 16 positions of it and 64 channels."""
_TAP_US = 0.011
"""Of the producers, for each slot. Of the consumers:"""
_PRODUCTS_US = 0.026
_LOAD_BYTES = 223_000.0
_SHARED_BYTES = 232_000.0
_FLOPS = 7.5e6
_EPILOGUE_BYTES = 32_000.0
"""Of one SM and microsecond."""
_ALL_BYTES = 14e6
"""What L2 gives all SMs in a microsecond."""
_NARROW = {16: 1.0, 8: 1.5, 4: 2.5}
"""Positions whose channels begin anywhere, by the bytes of a copy: by hand."""
_LAYOUTS = ((2, 1), (1, 2))
"""Warpgroups along rows and columns."""
_COLUMNS = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
"""Of a warpgroup."""
_LEAST_SLOTS, _MANY_SLOTS = 3, 6
_SPLITS = (2, 4, 8)
"""Blocks that share the channels of a tile, all of a stage's in a single wave. Of more than `FEW`
places: two images of 8 x 8 with 1280 channels took longer so than rows one behind the other, one
kernel of Stable Diffusion's UNet 1.9 %."""
_MEET_US, _MEET_BYTES = 2.4, 22_000.0
"""What that costs: as where rows lie one behind the other (dot_schedule_wgmma.py, fragments), and
1.2 us more: with 1.2 in all the last layers of ResNet-50 b32 were shared, and took as long."""


def candidates_image(image: Image, siblings: int, n: int, *, device: Device, shared_bytes: int,
                     k_major: bool, behind: bool = False,
                     alone: bool = True) -> list[tuple[float, DotSchedule]]:
    """Every legal tile with its time in the model, cheapest first.

    Args:
      siblings: as many run side by side.
      n: columns. k_major: weights are [n][k]. behind: a grid barrier is in front. alone: nothing
        else runs in the stage that blocks which wait for each other would wait for, too.
    """
    late = _BEHIND_US if behind else 0.0
    found = _costed(image, siblings, n, device, shared_bytes, k_major, alone)
    return sorted(((cost + late, s) for cost, s in found), key=lambda x: x[0])


def _costed(image: Image, siblings: int, n: int, device: Device, shared_bytes: int, k_major: bool,
            alone: bool) -> Iterator[tuple[float, ImageSchedule]]:
    taps, tiles = math.prod(image.taps), [(w, a) for w in _LAYOUTS
                                          for a in arrangements(image, 64 * w[0])]
    shares = alone and not image.pooled and image.images * math.prod(image.out) > FEW
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
            yield _cost(a, s, siblings, n, device), s
            tiles_of = siblings * a.tiles * math.ceil(n / bn)
            for split in _SPLITS if shares and slots else ():
                if image.channels // bk % split == 0 and columns % (8 * split) == 0 \
                        and staged_columns(columns // split) <= staged_columns(columns) \
                        and tiles_of * split <= device.sm_count:
                    shared = replace(s, split_k=split)
                    yield _cost(a, shared, siblings, n, device), shared


def _depths(channels: int) -> list[int]:
    """Channels of a slot."""
    return [d for d in range(16, min(channels, 192) + 1, 16)
            if channels % d == 0 and (d >= 32 or d == channels)]


def _cost(a: Arrangement, s: ImageSchedule, siblings: int, n: int, device: Device) -> float:
    """Microseconds in the model."""
    taps, channels, (wm, wn, _) = math.prod(a.image.taps), a.image.channels, s.warps
    channels //= s.split_k
    k, images = taps * channels, channels // s.bk
    tiles = siblings * a.tiles * math.ceil(n / s.bn) * s.split_k
    waves = math.ceil(tiles / device.sm_count)
    weights = 2 * k * min(math.ceil(s.bn / 64), math.ceil(n / 64)) * 64
    lines = a.copied * math.ceil(s.bk / 64)  # of 128 bytes, of an image
    image = _IMAGE_US + lines / 16 * _POSITIONS_US * _NARROW[a.image.width_bytes]
    size = 2 * a.copied * channels + (0 if s.resident else weights)
    load = images * image + size / _LOAD_BYTES
    passed = 2 * k * wm * wn * (64 + s.bn / wn) + images * lines * 128 \
        + (0 if s.resident else weights)
    work = max(2.0 * s.bm * s.bn * k / _FLOPS, passed / _SHARED_BYTES) \
        + taps * images * _PRODUCTS_US
    sums = s.bm * s.bn * 4
    epilogue = sums / s.split_k / _EPILOGUE_BYTES
    if s.split_k > 1:
        epilogue += _MEET_US + sums * (s.split_k - 1) / s.split_k / _MEET_BYTES
    if s.resident:  # the warpgroups take turns
        loop = weights / _LOAD_BYTES + waves * max(load, work, work / 2 + epilogue)
    else:
        load += taps * images * _TAP_US
        loop = waves * max(max(load, work) + epilogue,
                           min(tiles, device.sm_count) * size / _ALL_BYTES)
    return _LATENCY_US + _IN_MODELS * loop

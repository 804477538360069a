"""Convolutions whose image stays in shared memory, in the emulator: every arrangement, exact."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    dot_sigs,
    in_order,
    plan_of,
    small_integers,
)
from harness import DEVICE
from jax import lax
from lost_waits import Case, failure
from test_convolution import conv

from jaxmono.codegen import cuda_target
from jaxmono.codegen.dot import DotCode, any_tile
from jaxmono.codegen.dot_schedule import DotSchedule, ImageSchedule
from jaxmono.codegen.dot_schedule_image import candidates_image
from jaxmono.codegen.dot_wgmma_shared import comes
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.image import Image, arrangements, image_of, takes_image
from jaxmono.fusion import padded_images
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.passes.rules import alignment
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
BF16, F16 = jnp.bfloat16, jnp.float16


def image(bm: int, bn: int, bk: int, slots: int = 3, images: int = 2, tall: int = 0,
          ) -> ImageSchedule:
    return ImageSchedule("image", bm, bn, bk, slots, (2, 1, 1) if bm == 128 else (1, 2, 1), 1,
                         not slots, images, tall)


def resident(bm: int, bn: int, bk: int, images: int = 2, tall: int = 0) -> ImageSchedule:
    """All weights stay."""
    return image(bm, bn, bk, 0, images, tall)


def plan(x: tuple[int, ...], w: tuple[int, ...], dtype: Any = BF16, **kw: Any) -> Plan:
    def fn(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.relu(conv(x, w, **kw) + b)

    return plan_of(fn, Spec(x, dtype), Spec(w, dtype), Spec((w[-1],), dtype))


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("x", "w", "s", "kw"), [
    ((2, 13, 11, 48), (3, 3, 48, 32), image(128, 32, 48), {}),
    ((2, 13, 11, 32), (3, 3, 32, 40), image(64, 128, 32, 2, 4), {}),
    ((2, 13, 11, 48), (3, 3, 48, 32), image(128, 32, 16, 6, 4), {}),
    ((2, 13, 11, 64), (3, 3, 64, 80), image(128, 80, 32, 4), {}),
    ((1, 16, 24, 32), (3, 3, 32, 32), image(128, 32, 32, tall=16), {}),
    ((1, 24, 32, 32), (3, 3, 32, 16), image(128, 16, 32, tall=8), {}),
    ((3, 8, 8, 16), (3, 3, 16, 128), image(64, 128, 16, tall=8), {}),
    ((2, 12, 9, 96), (5, 3, 96, 16), image(128, 16, 32), {"padding": ((1, 3), (2, 0))}),
    ((1, 12, 20, 64), (2, 4, 64, 24), image(128, 32, 64, 6),
     {"padding": "VALID", "rhs_dilation": (3, 2)}),
    ((2, 40, 32), (7, 32, 48), image(128, 48, 16), {}),
    ((2, 9, 9, 32), (3, 3, 32, 40), image(128, 48, 32), {"dtype": F16}),
    ((2, 9, 12, 32), (7, 1, 32, 16), image(128, 16, 32), {}),
    ((2, 13, 11, 32), (3, 3, 32, 40), image(128, 48, 32, tall=8), {}),
    ((2, 13, 21, 32), (5, 3, 32, 40), image(64, 128, 32, tall=8), {}),
    ((2, 9, 12, 32), (1, 7, 32, 16), image(128, 16, 32, 7), {}),
])
def test_arrangements(x: tuple[int, ...], w: tuple[int, ...], s: DotSchedule,
                      kw: dict[str, Any]) -> None:
    """Lines and boxes; one image of the channels and several; margins of all kinds."""
    p = plan(x, w, **kw)
    check_exact(p, build(p, in_order(p, s), threads=256), seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("x", "w", "s", "split"), [
    ((2, 13, 11, 64), (3, 3, 64, 48), image(128, 32, 32), 2),
    ((2, 13, 11, 64), (3, 3, 64, 48), image(128, 32, 16, 6, 4), 4),
    ((1, 16, 16, 128), (3, 3, 128, 72), image(128, 64, 32, tall=8), 2),
    ((2, 8, 8, 128), (3, 3, 128, 128), image(64, 128, 16, tall=8), 8),
    ((2, 9, 12, 64), (1, 7, 64, 32), image(128, 32, 16, 7), 2)])
def test_blocks_that_share_the_channels(x: tuple[int, ...], w: tuple[int, ...], s: ImageSchedule,
                                        split: int) -> None:
    """Each leaves the others fragments of the columns that they finish."""
    p = plan(x, w)
    s = dataclasses.replace(s, split_k=split)
    made = build(p, in_order(p, s), threads=256)
    assert f", {split}>;" in made.source and f"finish_split<{split}, " in made.source
    check_exact(p, made, seeds=(0, 1, 2), blocks=(DotCode.of(dot_sigs(p)[0], s).tasks,))


def test_fewer_products_in_flight() -> None:
    """Of small ones two may run behind those that are issued; in turn one."""
    p = plan((2, 13, 11, 48), (3, 3, 48, 32))
    s = in_order(p, image(128, 32, 16, 6, 4))
    texts = [build(p, s, threads=256, in_turn=turn) for turn in (False, True)]
    assert ["#define JM_IN_TURN" in t.source for t in texts] == [False, True]
    check_exact(p, texts[1], seeds=(0, 1, 2), blocks=(1, 3))


def test_weights_with_their_channels_last() -> None:
    """[n][k] weights: not transposed on their way."""
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME",
                                        dimension_numbers=("NHWC", "OHWI", "NHWC"))

    p = plan_of(fn, Spec((2, 9, 12, 64), BF16), Spec((48, 3, 3, 64), BF16))
    made = build(p, in_order(p, image(128, 48, 64)), threads=256)
    assert "GemmImage<bf16, 128, 48, 64, 3, 2, 2, 1, true, 1," in made.source
    check_exact(p, made, blocks=(1, 3))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("channels", "padding", "s", "copy"), [
    (46, "SAME", image(128, 32, 48), "4, 46"), (44, "VALID", image(64, 128, 48, tall=8), "8, 44"),
    (42, "SAME", resident(128, 32, 48), "4, 42")])
def test_channels_that_begin_anywhere(channels: int, padding: str, s: DotSchedule, copy: str,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied as they lie in memory, zeros behind them: no padded copy, no stage for it."""
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(padded_images, "MIN_ROWS", 0)

    def fn(x: Any, w: Any) -> Any:
        return conv(x, w, padding=padding)

    args = Spec((2, 9, 11, channels), BF16), Spec((3, 3, channels, 32), BF16)
    assert len(plan_of(fn, *args, device=dataclasses.replace(DEVICE, wgmma=False)).stages) == 2
    p = plan_of(fn, *args, device=dataclasses.replace(DEVICE, wgmma=True))
    assert len(p.stages) == 1
    made = build(p, in_order(p, s), threads=256)
    assert f", {copy}>" in made.source
    check_exact(p, made, seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("channels", "behind", "s"), [
    (40, 8, image(128, 32, 48)), (40, 24, image(128, 32, 32, tall=8)), (46, 2, image(128, 32, 48))])
def test_channels_that_the_user_pads(channels: int, behind: int, s: DotSchedule) -> None:
    """With the image's own margin or without: zeros, not those of the next place."""
    def fn(x: Any, w: Any) -> Any:
        return conv(jnp.pad(x, ((0, 0), (1, 0), (0, 1), (0, behind))), w, padding="VALID")

    p = plan_of(fn, Spec((2, 9, 11, channels), BF16), Spec((3, 3, channels + behind, 32), BF16))
    check_exact(p, build(p, in_order(p, s), threads=256), blocks=(1, 3))


SIZE = (32, 20, 26, 46)
KEPT = {
    "computed": lambda x, w: conv(jax.nn.relu(x), w),
    "a part": lambda x, w: conv(x[:, 1:, 2:], w),
    "other weights": lambda x, w: conv(x, w * 2),
    "reduced": lambda x, w: conv(x, w).sum(-1),
    "wide margins": lambda x, w: conv(x, w, padding=((7, 7), (7, 7))),
    "pooled": lambda x, w: lax.reduce_window(
        conv(x, w), jnp.asarray(-jnp.inf, x.dtype), lax.max, (1, 2, 1, 1), (1, 2, 1, 1), "VALID"),
}


@pytest.mark.parametrize("name", KEPT)
def test_copies_that_are_kept(name: str) -> None:
    """Where the family cannot take the convolution: each element would be computed for each tap."""
    p = plan_of(KEPT[name], Spec(SIZE, BF16), Spec((5, 5, 46, 32), BF16), device=Device())
    assert [o for s in p.sigs for o in s.body.ops if isinstance(o, ops.Stored)]
    (sig,) = dot_sigs(p)
    made = default_schedule(p, cuda_target("sm_90a"), Device()).sigs[sig.key]
    assert made.family in ("wgmma", "image")
    assert comes(any_tile(sig).lhs) and comes(any_tile(sig).rhs)


@pytest.mark.parametrize(("x", "window"), [((32, 1, 400, 64), (1, 1, 4, 1)),
                                           ((32, 400, 1, 64), (1, 4, 1, 1))])
def test_windows_of_four_in_a_line(x: tuple[int, ...], window: tuple[int, ...]) -> None:
    """No pool of 2 x 2: refused, by its reason."""
    def fn(x: Any, w: Any) -> Any:
        y = jax.nn.relu(conv(x, w))
        return lax.reduce_window(y, jnp.asarray(-jnp.inf, y.dtype), lax.max, window, window,
                                 "VALID")

    p = plan_of(fn, Spec(x, BF16), Spec((3, 3, 64, 32), BF16), device=Device())
    (sig,) = dot_sigs(p)
    assert takes_image(sig, DType.BF16) is not None
    made = default_schedule(p, cuda_target("sm_90a"), Device()).sigs[sig.key]
    assert made.family == "wgmma"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", [
    image(128, 48, 32, tall=16), image(128, 48, 32, tall=8), image(64, 128, 32, tall=8),
    resident(128, 48, 32, tall=8)])
def test_pooled(s: DotSchedule) -> None:
    """Windows of 2 x 2: of two lines of a box, a warp's own rows."""
    def fn(x: Any, w: Any) -> Any:
        y = jax.nn.relu(conv(x, w))
        return lax.reduce_window(y, jnp.asarray(-jnp.inf, y.dtype), lax.max, (1, 2, 2, 1),
                                 (1, 2, 2, 1), "VALID")

    p = plan_of(fn, Spec((2, 12, 18, 32), BF16), Spec((3, 3, 32, 40), BF16))
    assert [f.form.taps for f in dot_sigs(p)] == [4]
    check_exact(p, build(p, in_order(p, s), threads=256), seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("s", "channels"), [
    (resident(128, 32, 48), 48), (resident(128, 32, 16, 4), 48), (resident(64, 128, 32), 32)])
def test_weights_that_stay(s: DotSchedule, channels: int) -> None:
    """For all tasks of a block, of one image of the channels and of several."""
    p = plan((3, 13, 11, channels), (3, 3, channels, 32))
    check_exact(p, build(p, in_order(p, s), threads=256), seeds=(0, 1, 2), blocks=(1, 2))


@pytest.mark.parametrize("alike", [True, False])
def test_layers_behind_each_other(alike: bool) -> None:
    """Rings that go on from stage to stage, and rings that do not; an odd number of images, so that
    the next stage begins with the other buffer."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return conv(jax.nn.relu(conv(jax.nn.relu(conv(x, u)), v)), w)

    p = plan_of(fn, Spec((1, 9, 8, 48), BF16), *(Spec((3, 3, 48, 48), BF16),) * 3)
    assert len(p.stages) == 3
    schedules = [image(128, 48, 16)] * 3 if alike else [
        image(128, 48, 16, images=4), resident(128, 48, 16), image(64, 128, 48, 4)]
    made = build(p, in_order(p, *schedules), threads=256)
    x, u, v, w = small_integers(p.graph)
    at = np.random.default_rng(2).integers(0, 9 * 48, (2, 48))
    for weights, one in ((u, at[0]), (v, at[1])):  # a single 1 a column: exact in bf16
        weights.reshape(-1, 48)[:] = np.arange(9 * 48)[:, None] == one
    check_exact(p, made, seeds=(0, 1, 2, 3), blocks=(1, 2), inputs=[x, u, v, w])


IMAGE_EMPTY = "      mbarrier_wait(&roles->empty[SLOTS + number], at.parity(SLOTS + number) ^ 1);\n"
IMAGE_FULL = "    mbarrier_wait(&roles->full[SLOTS + number], at.parity(SLOTS + number));\n"
FILL = "        b.fill(slot(smem, at.slot), tap * CHUNKS + own + chunk);\n"
WAITS = {
    "a free image": (IMAGE_EMPTY, ""),
    "an image": (IMAGE_FULL, ""),
    "a free slot": (
        "        mbarrier_wait(&roles->empty[at.slot], at.parity() ^ 1);\n" + FILL, FILL),
    "weights": ("          mbarrier_wait(&roles->full[at.slot], at.parity());\n", ""),
    "the products of a slot": ("give_back(LAG);", "give_back(0);"),
    "the products of an image": ("x == LAG - 1 && y == 0 && chunk > 0", "x == 0 && chunk > 0"),
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("what", WAITS)
def test_nothing_that_is_waited_for_may_be_left_out(what: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait or its place taken out of the text: some order of threads goes wrong."""
    p = plan((2, 13, 11, 96), (3, 3, 96, 32))
    # In a ring, weights behind an image tell that it has landed, and the one before is free.
    s = resident(128, 32, 32) if what in ("a free image", "an image") else image(128, 32, 32)
    case = Case(p, in_order(p, s), small_integers(p.graph), 0.0, threads=256)

    def change(source: str) -> str:
        assert source.count(WAITS[what][0]) == 1
        return source.replace(*WAITS[what])

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, change) != ""


@pytest.mark.parametrize(("x", "w", "kw", "why"), [
    ((1, 8, 8, 32), (3, 3, 32, 16), {"stride": 2}, "one place apart"),
    ((1, 8, 8, 24), (3, 3, 24, 16), {}, "multiple of 16"),
    ((1, 8, 8, 32), (1, 1, 32, 16), {}, "no windows"),
    ((1, 8, 8, 32), (3, 3, 32, 16), {"padding": ((-1, 1), (1, 1))}, "zeros around"),
    ((1, 8, 8, 32), (2, 2, 32, 16), {"padding": ((4, 4), (4, 4))}, "more places"),
])
def test_refusals(x: tuple[int, ...], w: tuple[int, ...], kw: dict[str, Any], why: str) -> None:
    p = plan(x, w, **kw)
    reason = takes_image(dot_sigs(p)[0], DType.BF16)
    assert reason is not None and why in reason


def test_margins_are_shared() -> None:
    """Positions and tiles of 56 x 56 places: a line has one column and one line more, a box what 16
    and 8 leave."""
    made = image_of(dot_sigs(plan((2, 56, 56, 64), (3, 3, 64, 64)))[0])
    assert isinstance(made, Image)
    assert [(a.tall, a.tiles, a.copied) for a in arrangements(made, 128)] == [
        (0, 51, 244), (16, 56, 180), (8, 56, 180)]
    costs = candidates_image(made, 1, 64, device=Device(), shared_bytes=227 << 10, k_major=False)
    assert costs == sorted(costs, key=lambda x: x[0]) and costs[0][1].family == "image"


def test_channels_are_shared_where_blocks_may_wait_for_each_other() -> None:
    """All at once, and beside nothing else."""
    def shares(height: int, channels: int, *, alone: bool = True, siblings: int = 1) -> set[int]:
        made = image_of(dot_sigs(plan((2, height, 16, channels), (3, 3, channels, 640)))[0])
        assert isinstance(made, Image)
        found = candidates_image(made, siblings, 640, device=Device(), shared_bytes=227 << 10,
                                 k_major=False, alone=alone)
        for _, s in found:
            (a,) = (a for a in arrangements(made, s.bm) if a.tall == s.tall)
            blocks = siblings * a.tiles * -(-640 // s.bn) * s.split_k
            assert s.split_k == 1 or (blocks <= Device().sm_count and not s.resident)
            assert channels // s.bk % s.split_k == 0
        return {s.split_k for _, s in found}

    assert shares(16, 1280) == {1, 2, 4, 8}
    assert shares(16, 1280, alone=False) == {1}
    assert 8 not in shares(16, 1280, siblings=2)
    assert shares(256, 320) == {1}


def test_few_tiles_of_many_channels_share_them() -> None:
    """Of Stable Diffusion's UNet."""
    for height, channels, split in ((16, 1280, 4), (32, 640, 2), (64, 320, 1)):
        p = plan_of(lambda x, w: conv(x, w), Spec((2, height, height, channels), BF16),
                    Spec((3, 3, channels, channels), BF16), device=Device())
        schedule = default_schedule(p, cuda_target("sm_90a"), Device())
        assert schedule.sigs[dot_sigs(p)[0].key].split_k == split


def test_few_places_do_not() -> None:
    p = plan_of(lambda x, w: conv(x, w), Spec((2, 8, 8, 1280), BF16),
                Spec((3, 3, 1280, 1280), BF16), device=Device())
    schedule = default_schedule(p, cuda_target("sm_90a"), Device())
    assert schedule.sigs[dot_sigs(p)[0].key].family == "wgmma"

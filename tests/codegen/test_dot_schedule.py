"""Tile shapes: what the model chooses is legal; each tile, ring, warp layout, split-K is exact."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, plan_of, with_dots
from thinned import crossed, thinned

from jaxmono.codegen import dot_schedule
from jaxmono.codegen.dot_schedule import (
    DotSchedule,
    candidates_mma,
    choose_mma,
    choose_simt,
    mma_type,
    unused,
)
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
H200 = Device()
SMALL = Device(sm_count=16, shared_bytes=99 * 1024, read_bytes_per_us=4e5)


# ---- the chooser -------------------------------------------------------------------------------

SHAPES = [(1, 1, 1, 1), (1, 1, 768, 768), (1, 128, 768, 768), (1, 128, 3072, 768),
          (1, 128, 768, 3072), (12, 128, 128, 64), (1, 4096, 4096, 4096), (1, 16, 50257, 768),
          (1, 33, 7, 100003), (64, 1, 128, 64), (1, 512, 2, 2)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", [H200, SMALL])
@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_choice_is_legal(shape: tuple[int, int, int, int], device: Device, warps: int) -> None:
    """The static assertions of the device code, shared memory, and no wait beyond one wave."""
    batch, m, n, k = shape
    for itemsize in (2, 4):
        s = choose_mma(batch, m, n, k, itemsize, device=device, warps=warps,
                       shared_bytes=device.shared_bytes)
        wm, wn, wk = s.warps
        kstep = 16 if itemsize == 2 else 8
        assert wm * wn * wk == warps
        assert s.bm % (16 * wm) == 0 and s.bn % (8 * wn) == 0 and s.bk % (kstep * wk) == 0
        assert s.stages >= 2 and s.split_k in (1, 2, 4, 8)
        a = max(_tile(s.bm, s.bk, itemsize), _tile(s.bk, s.bm, itemsize))
        b = max(_tile(s.bn, s.bk, itemsize), _tile(s.bk, s.bn, itemsize))
        sums = wk * s.bm * (s.bn + 4) * 4
        assert max(s.stages * (a + b), sums) <= device.shared_bytes
        if s.split_k > 1:
            tiles = batch * math.ceil(m / s.bm) * math.ceil(n / s.bn)
            assert tiles * s.split_k <= device.sm_count
            assert math.ceil(k / s.bk) >= s.split_k  # no split without work


def _tile(rows: int, cols: int, size: int) -> int:
    return rows * ((cols * size // 16) | 1) * 16


def test_choice_is_deterministic_and_follows_the_problem() -> None:
    def choose(m: int, n: int, k: int) -> DotSchedule:
        return choose_mma(1, m, n, k, 2, device=H200, warps=8, shared_bytes=H200.shared_bytes)

    assert choose(128, 768, 3072) == choose(128, 768, 3072)
    assert choose(8, 768, 768).bm == 16
    assert choose(8192, 8192, 4096).bm * choose(8192, 8192, 4096).bn >= 64 * 128
    assert choose(16, 128, 8192).split_k > 1  # few tiles, long k


def test_rows_of_weights_that_memory_does_not_hand_out_at_once_cost_more() -> None:
    """Of 64 bytes; the layout [n][k] has long rows."""
    assert [unused(x) for x in (64, 128, 192)] == [0, 0, 0]
    assert [unused(x) for x in (16, 32, 48, 96)] == [3, 1, 1, 1 / 3]
    assert unused(96, 128) == 1 / 4

    def costs(k_major: bool) -> dict[DotSchedule, float]:
        found = candidates_mma(1, 16, 3072, 768, 2, device=H200, warps=8, k_major=k_major,
                               shared_bytes=H200.shared_bytes)
        return {s: cost for cost, s in found}

    columns, rows = costs(False), costs(True)
    for s, cost in columns.items():
        assert cost == rows[s] if s.bn % 32 == 0 else cost >= rows[s]
    assert any(columns[s] > rows[s] for s in columns if s.bn == 24)
    assert min(columns, key=lambda s: columns[s]).bn == 32


def test_a_panel_and_its_ring_fit() -> None:
    for k in (64, 768, 1024, 2048):
        s = choose_mma(1, 128, 768, k, 2, device=H200, warps=8, shared_bytes=H200.shared_bytes,
                       row_prologue=True)
        panel = _tile(s.bm, math.ceil(k / s.bk) * s.bk, 2)
        b = max(_tile(s.bn, s.bk, 2), _tile(s.bk, s.bn, 2))
        assert s.split_k == 1
        assert panel + max(s.stages * b, s.warps[2] * s.bm * (s.bn + 4) * 4) <= H200.shared_bytes


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="no tile of a 64x64x4096 dot fits 1024 bytes"):
        choose_mma(1, 64, 64, 4096, 2, device=H200, warps=8, shared_bytes=1024)


def test_simt_threads_cover_the_tile() -> None:
    for m in (1, 16, 17, 500):
        for n in (1, 16, 17, 500):
            s = choose_simt(m, n, 128)
            cols = min(s.bn, 128)
            assert 128 % cols == 0 and s.bn % cols == 0


@pytest.mark.parametrize(("lhs", "rhs", "precision", "wanted"), [
    (DType.BF16, DType.BF16, "DEFAULT", DType.BF16), (DType.F16, DType.F16, "HIGHEST", DType.F16),
    (DType.F32, DType.F32, "DEFAULT", DType.F32), (DType.F32, DType.F32, "HIGH", DType.F32),
    (DType.F32, DType.F32, "HIGHEST", None), (DType.F64, DType.F64, "DEFAULT", None),
    (DType.S8, DType.S8, "DEFAULT", None), (DType.BF16, DType.F32, "DEFAULT", None)])
def test_operand_type(lhs: DType, rhs: DType, precision: str, wanted: DType | None) -> None:
    assert mma_type(lhs, rhs, (precision, precision), "") is wanted


# ---- forced schedules --------------------------------------------------------------------------


def product(m: int, k: int, n: int, dtype: Any = jnp.bfloat16, batch: int = 1) -> Plan:
    """Two products of one shape, [k][n] and [n][k] weights."""
    def fn(x: Any, w: Any, u: Any) -> Any:
        return (jnp.einsum("bmk,bkn->bmn", x, w, preferred_element_type=jnp.float32),
                jnp.einsum("bmk,bnk->bmn", x, u, preferred_element_type=jnp.float32))

    return plan_of(fn, Spec((batch, m, k), dtype), Spec((batch, k, n), dtype),
                   Spec((batch, n, k), dtype))


def reachable(warps: int) -> list[DotSchedule]:
    """One candidate of the chooser for every (m, n, k) layout of the warps and tile of a warp."""
    found: dict[tuple[Any, ...], DotSchedule] = {}
    for s in dot_schedule._candidates(128, 192, 256, 2, warps, False, False):
        wm, wn, _ = s.warps
        found.setdefault((s.warps, min(s.bm // (16 * wm), 2), s.bn // (8 * wn) % 2), s)
    return [dataclasses.replace(s, stages=3) for s in found.values()]


@pytest.mark.parametrize("warps", thinned([2, 8, 4], 3))
def test_every_warp_layout(warps: int) -> None:
    """All of them in one kernel: a dot of its own shape for each, so that Sigs differ."""
    chosen = reachable(warps)
    assert {s.warps for s in chosen} >= {(1, 1, warps), (1, 2, warps // 2), (2, 1, warps // 2)}

    def fn(*xs: Any) -> Any:
        return tuple(jnp.dot(a, b, preferred_element_type=jnp.float32)
                     for a, b in zip(xs[::2], xs[1::2], strict=True))

    args: list[Any] = []
    for i, s in enumerate(chosen):
        k = s.bk + 8 * (i % 3) + 16 + i // 3 * 8
        args += [Spec((s.bm + 1 + i, k), jnp.bfloat16), Spec((k, s.bn + 8 + i % 2), jnp.bfloat16)]
    plan = plan_of(fn, *args)
    by_shape = {(f.m.size, f.k.size, f.n.size): s for s in plan.sigs
                if isinstance(f := s.form, DotForm)}
    assert len(by_shape) == len(chosen)
    forced: dict[str, Any] = {}
    for s, a, b in zip(chosen, args[::2], args[1::2], strict=True):
        forced[by_shape[a.shape[0], a.shape[1], b.shape[1]].key] = s
    check_exact(plan, build(plan, forced, threads=32 * warps), seeds=(0, 1), blocks=(3,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("split", thinned([4, 2, 8], 3))
def test_split_k(split: int, dtype: Any) -> None:
    """More tasks than blocks, a last split with fewer k tiles, rows that splits share unevenly."""
    bk = 64 if dtype is jnp.bfloat16 else 32
    k = split * 2 * bk - bk - bk // 2  # the last split has a part of the others' k tiles
    plan = product(37, k, 50, dtype)
    s = DotSchedule("mma", 16 if split == 8 else 32, 24, bk, 2, (1, 1, 4), split)
    program = build(plan, with_dots(plan, s))
    assert program.cooperative
    check_exact(plan, program, seeds=(0, 1, 2), blocks=sorted({max(split, 3), split + 1, 8}))


def test_split_k_where_some_splits_have_no_work() -> None:
    """5 k tiles over 4 splits are 2, 2, 1 and 0; over 8: three of 8 have none."""
    plan = product(16, 5 * 64 - 8, 24)
    for split in (4, 8):
        s = DotSchedule("mma", 16, 8, 64, 3, (1, 1, 4), split)
        check_exact(plan, build(plan, with_dots(plan, s)), seeds=(0, 1), blocks=(8,))


def test_split_k_twice_in_one_launch_and_over_launches() -> None:
    """Layers share the workspace and the counters, which are never reset."""
    def fn(x: Any, *ws: Any) -> Any:
        for w in ws:
            x = jnp.maximum(x @ w, -1).clip(-1, 1)
        return x

    plan = plan_of(fn, Spec((24, 256), jnp.bfloat16), *[Spec((256, 256), jnp.bfloat16)] * 4)
    assert plan.barriers == 3
    s = DotSchedule("mma", 32, 64, 64, 2, (2, 2, 1), 4)
    program = build(plan, with_dots(plan, s))
    check_exact(plan, program, seeds=(0, 1, 2, 3), blocks=(4, 7))


@pytest.mark.sampled(2)
@crossed(("stages", [2, 3, 5]), ("k", [320, 40, 64]))
def test_ring_depths(stages: int, k: int) -> None:
    """Rings that are shallower and deeper than there are k tiles; odd and even steps of a tile."""
    plan = product(33, k, 40)
    check_exact(plan, build(plan, with_dots(plan, DotSchedule("mma", 32, 32, 64, stages,
                                                              (2, 2, 1)))))


def test_one_k_step_per_tile() -> None:
    """A tile that is one step of the tensor cores, for each k warp: the odd unrolling."""
    for dtype, bk, warps in ((jnp.bfloat16, 64, (1, 1, 4)), (jnp.float32, 8, (2, 2, 1)),
                             (jnp.bfloat16, 48, (2, 2, 1))):
        plan = product(40, 208, 24, dtype)
        check_exact(plan, build(plan, with_dots(plan, DotSchedule("mma", 32, 16, bk, 3, warps))))


def test_widest_tile_of_a_warp() -> None:
    plan = product(20, 136, 200)
    check_exact(plan, build(plan, with_dots(plan, DotSchedule("mma", 16, 192, 64, 2, (1, 1, 4)))))


def test_batches() -> None:
    plan = product(17, 72, 20, batch=5)
    check_exact(plan, build(plan, with_dots(plan, DotSchedule("mma", 16, 16, 64, 2, (1, 2, 2), 2))),
                blocks=(3, 4))

"""Integers of 4 bits, two in a byte of memory: read by loops and rows, and as weights by streams of
few rows (gemv) and by wgmma's left operand (bytes)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_exact, check_near, dot_sigs, in_order, plan_of
from contraction_harness import run_wgmma as run
from harness import check, run_program
from models import graph_of, norm

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_gemv import shape
from jaxmono.codegen.dot_gemv_shape import GRANULE
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import DotForm, Plan

Spec = jax.ShapeDtypeStruct
S4, U4 = jnp.int4, jnp.uint4
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
WARPS = 4  # of the emulator's blocks in the gemv family


def codes(plan: Plan, seed: int = 0) -> list[Any]:
    """All that 4 bits have; activations are small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(*((-8, 8) if t is S4 else (0, 16) if t is U4 else (-2, 3)),
                         v.type.dims).astype(v.type.dtype.numpy)
            for v in plan.graph.inputs for t in [jnp.dtype(v.type.dtype.numpy).type]]


def both(m: int, n: int, k: int, t: Any, w: Any) -> Plan:
    """Weights [k][n] and [n][k]."""
    def fn(x: Any, q: Any, qt: Any) -> Any:
        return tuple(jnp.einsum(spec, x, v.astype(t), preferred_element_type=F32,
                                precision="highest")
                     for spec, v in (("mk,kn->mn", q), ("mk,nk->mn", qt)))
    return plan_of(fn, Spec((m, k), t), Spec((k, n), w), Spec((n, k), w))


# ---- element by element ------------------------------------------------------------------------


@pytest.mark.parametrize("w", [S4, U4])
@pytest.mark.parametrize("dims", [(6, 64), (5, 13), (3,), (2, 40)])
def test_loops(dims: tuple[int, ...], w: Any) -> None:
    """Rows of an odd number begin in the middle of a byte."""
    graph = graph_of(lambda q: (q.astype(F32) * 3, q.T.astype(jnp.int32) + 1,
                                q.astype(jnp.int8)[..., 1:]), Spec(dims, w))
    rng = np.random.default_rng(0)
    low, high = (-8, 8) if w is S4 else (0, 16)
    check(graph, [rng.integers(low, high, dims).astype(w)], rtol=0)


def test_rows_with_scales() -> None:
    graph = graph_of(lambda q, s: (q.reshape(8, 4, 32).astype(F32) * s[:, :, None]).sum((1, 2)),
                     Spec((8, 128), S4), Spec((8, 4), F32))
    rng = np.random.default_rng(0)
    check(graph, [rng.integers(-8, 8, (8, 128)).astype(S4),
                  rng.standard_normal((8, 4)).astype(np.float32)], rtol=1e-5)


# ---- streams of weights ------------------------------------------------------------------------


def gemv(bn: int, slots: int, wk: int = 1, split: int = 1) -> DotSchedule:
    return DotSchedule("gemv", 1, bn, GRANULE, slots, (1, WARPS // wk, wk), split)


def check_gemv(plan: Plan, columns: DotSchedule, rows: DotSchedule, *, scaled: bool = False,
               ) -> set[bool]:
    """Runs both layouts with their schedules; whether the tensor cores multiply."""
    sigs: dict[str, DotSchedule] = {}
    for s in dot_sigs(plan):
        assert isinstance(s.form, DotForm)
        own = dataclasses.replace(columns, bm=s.form.m.size)
        code = DotCode.of(s, own)
        assert code.rhs.stored is not None and (code.rhs.scaled is not None) == scaled
        sigs[s.key] = dataclasses.replace(rows, bm=s.form.m.size) if code.rhs.k_major else own
    check_exact(plan, build(plan, sigs), inputs=codes(plan), seeds=(0, 1), blocks=(4,))
    return {shape(DotCode.of(s, sigs[s.key]), 32 * WARPS).mma for s in dot_sigs(plan)}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("w", [S4, U4])
@pytest.mark.parametrize(("t", "m"), [(BF16, 1), (F16, 2), (F32, 1), (F32, 3)])
@pytest.mark.parametrize(("columns", "rows"), [
    (gemv(64, 2), gemv(20, 2)), (gemv(32, 1), gemv(4, 1)),
    (gemv(96, 3, split=2), gemv(12, 2, wk=2, split=4)), (gemv(160, 2), gemv(40, 4, wk=4))])
def test_multiply_adds(columns: DotSchedule, rows: DotSchedule, t: Any, m: int, w: Any) -> None:
    """But for weights [n][k] beside 16 bits, which are the tensor cores' from the first row on."""
    mma = check_gemv(both(m, 160, 1056, t, w), columns, rows)
    assert mma == ({False} if t is F32 else {False, True})


@pytest.mark.sampled(11)
@pytest.mark.parametrize("w", [S4, U4])
@pytest.mark.parametrize("t", [BF16, F16])
@pytest.mark.parametrize("m", [3, 8, 11])
@pytest.mark.parametrize(("columns", "rows"), [
    (gemv(256, 2), gemv(36, 2)), (gemv(512, 1), gemv(16, 2, wk=4)),
    (gemv(256, 3, split=2), gemv(64, 2, wk=2, split=2))])
def test_tensor_cores(columns: DotSchedule, rows: DotSchedule, m: int, t: Any, w: Any) -> None:
    assert check_gemv(both(m, 544, 608, t, w), columns, rows) == {True}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("m", [1, 4, 11])
def test_normalised_rows(m: int, scaled: bool) -> None:
    """What a row prologue makes of x lies in the order of the products."""
    k, n = 608, 256

    def fn(x: Any, s: Any, b: Any, q: Any, qt: Any, st: Any) -> Any:
        y = norm(x.astype(F32), s, b).astype(BF16)
        turned = qt.astype(BF16)
        if scaled:
            turned = (qt.reshape(n, -1, 32).astype(BF16) * st[..., None].astype(BF16)).reshape(n, k)
        return y @ q.astype(BF16), jnp.einsum("mk,nk->mn", y, turned)

    plan = plan_of(fn, Spec((m, k), BF16), Spec((k,), F32), Spec((k,), F32), Spec((k, n), S4),
                   Spec((n, k), S4), Spec((n, k // 32), F32))
    assert all(isinstance(s.form, DotForm) and s.form.row_prologue for s in dot_sigs(plan))
    sigs: dict[str, DotSchedule] = {}
    for s in dot_sigs(plan):
        rows = DotCode.of(s, gemv(256, 2)).rhs.k_major
        sigs[s.key] = dataclasses.replace(gemv(36, 2) if rows else gemv(256, 2), bm=m)
    given = [np.random.default_rng(i).standard_normal(v.type.dims).astype(v.type.dtype.numpy)
             if v.type.dtype.is_float else codes(plan)[i]
             for i, v in enumerate(plan.graph.inputs)]
    check_near(plan, build(plan, sigs), given, 2e-2, seeds=(0, 1))


# ---- wgmma -------------------------------------------------------------------------------------


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], *, split: int = 1,
         lines: int = 1) -> DotSchedule:
    return DotSchedule("bytes", bm, bn, 64 * lines, slots, warps, split)


SHAPES: list[tuple[int, int, int, tuple[int, int, int]]] = [
    (128, 128, 3, (1, 2, 1)), (64, 64, 4, (2, 1, 1)), (16, 128, 2, (1, 2, 1)),
    (96, 64, 5, (2, 1, 1)), (64, 64, 3, (1, 1, 2)), (48, 64, 3, (1, 1, 2))]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize(("t", "w"), [(BF16, S4), (F16, U4)])
def test_on_the_left(shape: Any, lines: int, t: Any, w: Any) -> None:
    """Sizes that no tile divides."""
    if lines == 2 and shape[0] > 96:
        shape = (96, *shape[1:])
    run(both(140, 160, 224, t, w), tile(*shape, lines=lines), seeds=(0, 1))


@pytest.mark.parametrize("split", [2, 4])
def test_shares_of_k(split: int) -> None:
    run(both(40, 160, 544, BF16, S4), tile(48, 64, 3, (1, 1, 2), split=split), seeds=(0, 1))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("t", [BF16, F16])
@pytest.mark.parametrize("w", [S4, U4])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize("rows", [64, 3, 1])
def test_every_code_is_widened_exactly(rows: int, w: Any, t: Any, layout: str) -> None:
    """By one row of x that picks a k at a time: results are the weights themselves."""
    k, n = 64, 256
    plan = plan_of(lambda x, q: jnp.einsum(layout, x, q.astype(t), preferred_element_type=F32),
                   Spec((rows, k), t), Spec((k, n) if layout == "mk,kn->mn" else (n, k), w))
    schedule = tile(*SHAPES[1]) if rows == 64 else dataclasses.replace(gemv(256, 2), bm=rows)
    program = build(plan, in_order(plan, schedule), threads=256 if rows == 64 else 32 * WARPS)
    numbers = (np.arange(k * n) // 3 % 16 - (8 if w is S4 else 0)).astype(np.int8).reshape(k, n)
    q = numbers if layout == "mk,kn->mn" else numbers.T
    for first in range(0, k - rows + 1, rows):
        x = np.zeros((rows, k), np.float32)
        x[np.arange(rows), first + np.arange(rows)] = 1
        (found,) = run_program(program, [x.astype(t), q.astype(w)])
        np.testing.assert_array_equal(found, numbers[first:first + rows].astype(np.float32))


# ---- scales along k ----------------------------------------------------------------------------


def in_groups(m: int, n: int, k: int, t: Any, w: Any, group: int, scales: Any = F32) -> Plan:
    """Both layouts, a scale for each group of summed elements of a column."""
    def fn(x: Any, q: Any, s: Any, qt: Any, st: Any) -> Any:
        wide = (q.reshape(-1, group, n).astype(t) * s[:, None].astype(t)).reshape(k, n)
        turned = (qt.reshape(n, -1, group).astype(t) * st[..., None].astype(t)).reshape(n, k)
        return tuple(jnp.einsum(spec, x, v, preferred_element_type=F32)
                     for spec, v in (("mk,kn->mn", wide), ("mk,nk->mn", turned)))
    return plan_of(fn, Spec((m, k), t), Spec((k, n), w), Spec((k // group, n), scales),
                   Spec((n, k), w), Spec((n, k // group), scales))


@pytest.mark.sampled(31)
@pytest.mark.parametrize("w", [S4, U4, jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize(("t", "m"), [(BF16, 1), (F16, 2), (BF16, 3), (BF16, 11)])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("columns", "rows"), [
    (gemv(64, 2), gemv(20, 2)), (gemv(256, 1), gemv(4, 1)), (gemv(32, 2), gemv(16, 2)),
    (gemv(256, 3, split=2), gemv(12, 2, wk=2, split=4)), (gemv(160, 2), gemv(40, 4, wk=4))])
def test_scaled_streams(columns: DotSchedule, rows: DotSchedule, group: int, t: Any, m: int,
                        w: Any) -> None:
    if m > 8 and columns.bn % 256:
        columns = dataclasses.replace(columns, bn=256)
    plan = in_groups(m, 544, 1152, t, w, group, t if m in (2, 3) else F32)
    assert (True in check_gemv(plan, columns, rows, scaled=True)) == (
        m > 2 or w in (S4, U4))


@pytest.mark.sampled(29)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("t", "w"), [(BF16, S4), (F16, U4), (BF16, jnp.int8)])
def test_scaled_on_the_left(shape: Any, lines: int, group: int, t: Any, w: Any) -> None:
    if lines == 2 and shape[0] > 96:
        shape = (96, *shape[1:])
    plan = in_groups(72, 160, 384, t, w, group)
    assert all(DotCode.of(s, tile(*shape)).rhs.scaled is not None for s in dot_sigs(plan))
    run(plan, tile(*shape, lines=lines), seeds=(0,))


def test_scaled_shares_of_k() -> None:
    run(in_groups(40, 160, 768, BF16, S4, 128), tile(48, 64, 3, (1, 1, 2), split=2), seeds=(0, 1))

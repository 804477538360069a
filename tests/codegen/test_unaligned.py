"""Operands whose rows are no multiples of 16 bytes: copied in parts of 8 or 4 bytes, or shifted in
shared memory, by every family. In the emulator, bit-exact."""

from __future__ import annotations

import re
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
    wgmma,
)
from contraction_harness import run_wgmma as run
from lost_waits import Case, failure, removed
from test_dot_swapped import swapped
from test_dot_tf32 import TF32
from test_dot_tf32_left import tile as tf32
from test_gemv import gemv

from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.operand import is_unaligned
from jaxmono.fusion.plan import Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32

PRODUCTS = ("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn")


def products(m: int, n: int, k: int, dtype: Any = BF16, *, rows: int = 0) -> Plan:
    """Of all layouts, in one stage. ``rows``: elements in front of each operand, of its buffer."""
    def fn(*xs: Any) -> Any:
        a, at, b, bt = (x.reshape(-1)[rows:].reshape(s) for x, s in zip(xs, shapes, strict=True))
        args = ((a, b), (a, bt), (at, b), (at, bt))
        return tuple(jnp.einsum(e, *xs, preferred_element_type=F32)
                     for e, xs in zip(PRODUCTS, args, strict=True))

    shapes = ((m, k), (k, m), (k, n), (n, k))
    sizes = [(s[0] * s[1] + rows,) if rows else s for s in shapes]
    return plan_of(fn, *(Spec(s, dtype) for s in sizes))


def widths(plan: Plan, schedule: DotSchedule) -> set[int]:
    """Bytes that are copied at a time; 2: of what is shifted; 0: of what is not copied."""
    codes = [DotCode.of(s, schedule) for s in dot_sigs(plan)]
    return {2 if is_unaligned(x) else x.width if x.param is not None else 0
            for c in codes for x in (c.lhs, c.rhs)}


@pytest.mark.sampled(23)
@pytest.mark.parametrize(("sizes", "width"), [
    ((84, 52, 148), 8), ((70, 34, 138), 4), ((67, 41, 135), 2), ((131, 163, 65), 2)])
@pytest.mark.parametrize("s", [
    wgmma(64, 48, 3, (1, 1, 2)), wgmma(128, 96, 3, (2, 1, 1)), wgmma(64, 160, 2, (1, 1, 2)),
    wgmma(64, 128, 3, (1, 2, 1), split=2), wgmma(64, 48, 2, (1, 1, 2), lines=2)])
def test_wgmma(sizes: tuple[int, int, int], width: int, s: DotSchedule) -> None:
    plan = products(*sizes)
    assert widths(plan, s) == {width}
    run(plan, s, seeds=(0, 1))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("first", [1, 3, 6, 7])
def test_operands_that_begin_inside_a_line(first: int) -> None:
    """Nothing before the buffer is read, nor behind it."""
    run(products(67, 41, 135, F16, rows=first), wgmma(64, 48, 3, (1, 1, 2)), seeds=(0,))


def test_what_other_rows_have_does_not_count() -> None:
    """Behind the last k of a row lie others' numbers, and they are infinite."""
    def fn(x: Any, w: Any) -> Any:
        return jnp.einsum("mk,nk->mn", x[:, 7:70], w[:, 7:70], preferred_element_type=F32)

    plan = plan_of(fn, Spec((70, 77), BF16), Spec((41, 77), BF16))
    s = wgmma(64, 48, 3, (1, 1, 2))
    assert widths(plan, s) == {2}
    x, w = small_integers(plan.graph)
    for a in (x, w):
        a[:, :7], a[:, 70:] = np.inf, np.nan
    check_exact(plan, build(plan, in_order(plan, s), threads=256), inputs=[x, w])


def test_a_batch() -> None:
    """Of which each begins anywhere, too."""
    plan = plan_of(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b, preferred_element_type=F32),
                   Spec((3, 35, 71), BF16), Spec((3, 71, 39), BF16))
    run(plan, wgmma(64, 48, 3, (1, 1, 2)))


@pytest.mark.slow
@pytest.mark.sampled(11)
@pytest.mark.parametrize(("sizes", "width"), [
    ((20, 68, 148), 8), ((18, 74, 138), 4), ((17, 71, 135), 2), ((11, 163, 201), 2)])
@pytest.mark.parametrize("s", [swapped(32, 64, 3), swapped(32, 128, 4, split=2)])
def test_swapped(sizes: tuple[int, int, int], width: int, s: DotSchedule) -> None:
    plan = products(*sizes)
    assert widths(plan, s) == {width}
    run(plan, s, seeds=(0, 1))


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize(("sizes", "taken"), [((84, 52, 146), {8, 16}), ((67, 41, 135), {4})])
@pytest.mark.parametrize("s", TF32[:3])
def test_tf32(sizes: tuple[int, int, int], taken: set[int], s: DotSchedule) -> None:
    plan = products(*sizes, F32)
    assert widths(plan, s) == taken
    run(plan, s, seeds=(0, 1))


@pytest.mark.slow
def test_tf32_on_the_left() -> None:
    """Rows come by the accelerator, weights in parts."""
    def fn(x: Any, w: Any, v: Any) -> Any:
        return x @ w, jnp.einsum("mk,kn->mn", x, v)

    plan = plan_of(fn, Spec((70, 148), F32), Spec((148, 135), F32), Spec((148, 102), F32))
    run(plan, tf32(80, 128, 3, (1, 2, 1)), seeds=(0, 1))


@pytest.mark.slow
def test_tf32_rows_that_end_within_a_piece() -> None:
    plan = plan_of(lambda x, w: x[:, :146] @ w, Spec((70, 148), F32), Spec((146, 136), F32))
    run(plan, tf32(80, 128, 3, (1, 2, 1)), seeds=(0, 1))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("sizes", [(20, 36, 148), (18, 34, 138), (17, 41, 135)])
def test_mma(sizes: tuple[int, int, int], dtype: Any) -> None:
    plan = products(*sizes, dtype)
    s = DotSchedule("mma", 32, 32, 32, 3, (2, 2, 1))
    check_exact(plan, build(plan, in_order(plan, s)), seeds=(0, 1))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("sizes", [(76, 148), (74, 138), (73, 135)])
def test_gemv(sizes: tuple[int, int], m: int, dtype: Any) -> None:
    n, k = sizes

    def fn(x: Any, w: Any, v: Any) -> Any:
        return (jnp.dot(x, w, preferred_element_type=F32),
                jnp.einsum("mk,nk->mn", x, v, preferred_element_type=F32))

    plan = plan_of(fn, Spec((m, k), dtype), Spec((k, n), dtype), Spec((n, k), dtype))
    check_exact(plan, build(plan, in_order(plan, gemv(m, 32, 2), gemv(m, 16, 2, wk=2))),
                seeds=(0, 1))


def test_joined_operands() -> None:
    """Features of two sources behind each other, as a NeRF's skip connection has them."""
    def fn(x: Any, y: Any, w: Any) -> Any:
        return jnp.dot(jnp.concatenate([x, y], 1), w, preferred_element_type=F32)

    plan = plan_of(fn, Spec((70, 64), BF16), Spec((70, 60), BF16), Spec((124, 48), BF16))
    s = wgmma(64, 48, 3, (1, 1, 2))
    assert widths(plan, s) == {8, 16}
    run(plan, s)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("s", "dtype"), [
    (wgmma(64, 48, 3, (1, 1, 2)), BF16), (wgmma(64, 48, 2, (1, 1, 2), lines=2), F16),
    (swapped(80, 64, 3), BF16), (DotSchedule("mma", 32, 32, 32, 3, (2, 4, 1)), BF16),
    (TF32[0], F32), (DotSchedule("mma", 32, 32, 32, 3, (2, 4, 1)), F32)])
def test_rows_that_end_within_a_piece(s: DotSchedule, dtype: Any) -> None:
    """Rows of a padded buffer: of the last piece a part is theirs, the rest may be infinite."""
    def fn(*xs: Any) -> Any:
        parts = [x[:rows, :columns] for x, (rows, columns) in zip(xs, shapes, strict=True)]
        a, at, b, bt = parts
        return tuple(jnp.einsum(e, *xs, preferred_element_type=F32)
                     for e, xs in zip(PRODUCTS, ((a, b), (a, bt), (at, b), (at, bt)), strict=True))

    shapes = ((67, 135), (135, 67), (135, 41), (41, 135))
    plan = plan_of(fn, *(Spec((r, -(-c // 8) * 8), dtype) for r, c in shapes))
    assert widths(plan, s) == {16}
    given = small_integers(plan.graph)
    for a, (_, columns) in zip(given, shapes, strict=True):
        a[:, columns:] = np.nan
    check_exact(plan, build(plan, in_order(plan, s), threads=256), inputs=given)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("m", [1, 4])
def test_rows_that_end_within_a_piece_of_a_stream(m: int, dtype: Any) -> None:
    def fn(x: Any, w: Any, v: Any) -> Any:
        return (jnp.dot(x[:, :135], w[:, :73], preferred_element_type=F32),
                jnp.einsum("mk,nk->mn", x[:, :135], v[:, :135], preferred_element_type=F32))

    plan = plan_of(fn, Spec((m, 136), dtype), Spec((135, 80), dtype), Spec((73, 136), dtype))
    x, w, v = small_integers(plan.graph)
    x[:, 135:] = w[:, 73:] = v[:, 135:] = np.nan
    check_exact(plan, build(plan, in_order(plan, gemv(m, 32, 2), gemv(m, 16, 2, wk=2))),
                seeds=(0, 1), inputs=[x, w, v])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [136, 132])
def test_bytes(k: int) -> None:
    """Rows that 8 and 4 divide: of integers by mma.sync, of 8-bit floats in pairs by wgmma."""
    def fn(x: Any, w: Any) -> Any:
        return jnp.einsum("mk,nk->mn", x, w,
                          preferred_element_type=jnp.int32 if x.dtype == jnp.int8 else F32)

    width = 8 if k % 8 == 0 else 4
    for dtype, s in ((jnp.int8, DotSchedule("mma", 32, 32, 64, 3, (2, 4, 1))),
                     (jnp.float8_e4m3fn, DotSchedule("wgmma", 64, 48, 128, 3, (1, 1, 2)))):
        plan = plan_of(fn, Spec((70, k), dtype), Spec((41, k), dtype))
        assert widths(plan, s) == {width}
        check_exact(plan, build(plan, in_order(plan, s), threads=256))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "statement", "number"), [
    ("unaligned_tile.cuh", r"syncwarp\(\);", 0),  # the lines of all lanes have landed
    ("unaligned_tile.cuh", r"syncwarp\(\);", 1),  # the neighbours have read theirs
    ("gemm_wgmma.cuh", r"cp_async_wait<LAG>\(\);", 0)])
def test_every_wait_for_lines_is_needed(name: str, statement: str, number: int,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    plan = products(67, 41, 135)
    case = Case(plan, in_order(plan, wgmma(64, 48, 3, (1, 1, 2))), small_integers(plan.graph),
                0.0, threads=256)
    assert failure(case, monkeypatch, lambda text: text) == ""
    assert failure(case, monkeypatch, removed(name, re.compile(statement), number)) != ""

"""Products whose weights are stored as bytes, wgmma's left operand in registers: beside rows of
bytes, and widened to the 16 bits of the rows; or as f32, rounded to these."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    check_near,
    dot_sigs,
    in_order,
    plan_of,
    small_integers,
    smooth,
)
from contraction_harness import run_wgmma as run
from harness import run_program
from lost_waits import Case, failure, own_text, removed
from models import norm

from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_bytes import candidates_bytes
from jaxmono.codegen.dot_wgmma_takes import takes_bytes
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
S8, U8, S32 = jnp.int8, jnp.uint8, jnp.int32
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
H200 = Device()
D = 4096


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], *, bits: int, split: int = 1,
         lines: int = 1) -> DotSchedule:
    """``bits``: of an element of the rows. ``lines``: of 128 bytes of a row in a k tile."""
    return DotSchedule("bytes", bm, bn, 1024 // bits * lines, slots, warps, split)


SHAPES: list[tuple[int, int, int, tuple[int, int, int]]] = [
    (128, 128, 3, (1, 2, 1)), (64, 64, 4, (2, 1, 1)), (16, 128, 2, (1, 2, 1)),
    (256, 128, 2, (1, 2, 1)), (96, 64, 5, (2, 1, 1)), (64, 64, 3, (1, 1, 2)),
    (48, 64, 3, (1, 1, 2))]


def both_layouts(rows: Any, weights: Any, out: Any, *, m: int = 140, n: int = 112,
                 k: int = 208) -> Plan:
    """Weights [k][n] and [n][k], converted to the type of the rows if that is wider; a bias."""
    def fn(a: Any, b: Any, bt: Any, bias: Any) -> Any:
        wide = a.dtype if a.dtype.itemsize > 1 else b.dtype
        return tuple(jax.lax.dot_general(a, w.astype(wide), (((1,), (dim,)), ((), ())),
                                         preferred_element_type=out) + bias
                     for dim, w in enumerate((b, bt)))

    return plan_of(fn, Spec((m, k), rows), Spec((k, n), weights), Spec((n, k), weights),
                   Spec((n,), out))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("rows", "weights", "out"), [
    (S8, S8, S32), (U8, U8, S32),
    (E4M3, E4M3, F32), (E4M3, E5M2, F32), (E5M2, E4M3, F32), (E5M2, E5M2, F32)])
def test_rows_of_bytes(rows: Any, weights: Any, out: Any) -> None:
    """Sizes that no tile divides."""
    shape = SHAPES[1] if rows in (S8, E5M2) else SHAPES[0]
    run(both_layouts(rows, weights, out), tile(*shape, bits=8))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("rows", [BF16, F16])
@pytest.mark.parametrize("weights", [S8, U8, E4M3, E5M2, F32])
def test_rows_of_16_bits(rows: Any, weights: Any) -> None:
    shape = SHAPES[1] if weights in (S8, E5M2) else SHAPES[0]
    run(both_layouts(rows, weights, F32), tile(*shape, bits=16))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("rows", "weights"), [(S8, S8), (BF16, S8), (BF16, F32)])
def test_all_tiles(shape: Any, rows: Any, weights: Any) -> None:
    out, bits = (S32, 8) if rows is S8 else (F32, 16)
    run(both_layouts(rows, weights, out), tile(*shape, bits=bits), seeds=(0, 1))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[5], SHAPES[6]])
@pytest.mark.parametrize("weights", [U8, E5M2, F32])
def test_two_lines_of_k(shape: Any, weights: Any) -> None:
    run(both_layouts(BF16, weights, F32), tile(*shape, bits=16, lines=2), seeds=(0, 1))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("rows", [BF16, F16])
@pytest.mark.parametrize("weights", [S8, U8, E4M3, E5M2])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn"])
def test_every_byte_is_widened_exactly(rows: Any, weights: Any, layout: str) -> None:
    """By one row of x that picks a k at a time: results are the weights themselves, NaN and
    infinities included."""
    k, n = 64, 64
    shape = (k, n) if layout == "mk,kn->mn" else (n, k)
    plan = plan_of(lambda x, w: jnp.einsum(layout, x, w.astype(rows), preferred_element_type=F32),
                   Spec((64, k), rows), Spec(shape, weights))
    program = build(plan, in_order(plan, tile(*SHAPES[1], bits=16)), threads=256)
    codes = np.arange(k * n, dtype=np.int64).reshape(k, n) % 256
    w = codes.astype(np.uint8).view(np.dtype(weights))
    finite = w.astype(np.float32)
    w = np.where(np.isfinite(finite), w, w.dtype.type(0))
    x = np.eye(64, k, dtype=np.float32).astype(rows)
    (found,) = run_program(program, [x, w if layout == "mk,kn->mn" else w.T.copy()], seed=1)
    np.testing.assert_array_equal(found, w.astype(np.float32))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows", [BF16, F16])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1]])
def test_floats_are_rounded(rows: Any, layout: str, shape: Any) -> None:
    """Likewise of f32: to the nearest, ties to even, beyond the greatest to infinity."""
    k, n = 64, shape[1]
    stored = (k, n) if layout == "mk,kn->mn" else (n, k)
    plan = plan_of(lambda x, w: jnp.einsum(layout, x, w.astype(rows), preferred_element_type=F32),
                   Spec((64, k), rows), Spec(stored, F32))
    program = build(plan, in_order(plan, tile(*shape, bits=16)), threads=256)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((k, n)).astype(np.float32)
    w[::2] = w[::2].astype(np.dtype(rows)).astype(np.float32) * np.float32(1 + 2.0 ** -9)
    rounded = w.astype(np.dtype(rows)).astype(np.float32)
    assert (w != rounded).any()
    x = np.eye(64, k, dtype=np.float32).astype(rows)
    (found,) = run_program(program, [x, w if layout == "mk,kn->mn" else w.T.copy()], seed=1)
    np.testing.assert_array_equal(found, rounded)
    w[3, 5], w[4, 6] = np.nan, 3e38
    (found,) = run_program(program, [x, w if layout == "mk,kn->mn" else w.T.copy()], seed=1)
    assert np.isnan(found[:, 5]).all()
    with np.errstate(over="ignore"):
        assert np.isinf(w.astype(np.dtype(rows)).astype(np.float32)[4, 6]) == np.isinf(found[4, 6])
    np.testing.assert_array_equal(np.delete(found, (5, 6), 1), np.delete(rounded, (5, 6), 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights", [E4M3, E5M2])
def test_what_is_not_finite_stays_in_its_column(weights: Any) -> None:
    plan = both_layouts(BF16, weights, F32)
    a, b, bt, bias = small_integers(plan.graph)
    b[5, 7], bt[100, 3] = np.nan, np.nan
    if weights is E5M2:
        b[6, 8], bt[2, 200] = np.inf, -np.inf
    program = build(plan, in_order(plan, tile(*SHAPES[0], bits=16)), threads=256)
    with np.errstate(all="ignore"):
        check_exact(plan, program, inputs=[np.abs(a) + a.dtype.type(1), b, bt, bias])


def test_integer_sums_wrap() -> None:
    k = (1 << 17) + 64
    plan = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=S32), Spec((16, k), S8),
                   Spec((k, 64), S8))
    x, w = np.full((16, k), -128, np.int8), np.full((k, 64), -128, np.int8)
    x[1, ::7] = 127
    program = build(plan, in_order(plan, tile(32, 64, 3, (2, 1, 1), bits=8)), threads=256)
    check_exact(plan, program, inputs=[x, w], seeds=(0,), blocks=(1,))


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("rows", "weights", "out", "bits"), [
    (S8, S8, S32, 8), (E4M3, E4M3, F32, 8), (BF16, S8, F32, 16), (BF16, F32, F32, 16)])
@pytest.mark.parametrize("split", [2, 4])
def test_k_shared_by_blocks(rows: Any, weights: Any, out: Any, bits: int, split: int) -> None:
    """Floats of small tiles by mail, integers by a counter."""
    plan = both_layouts(rows, weights, out, m=70, n=48, k=1040)
    run(plan, tile(64, 64, 3, (2, 1, 1), bits=bits, split=split))
    run(plan, tile(128, 128, 2, (1, 2, 1), bits=bits, split=split), seeds=(0, 1))
    run(plan, tile(32, 64, 2, (1, 1, 2), bits=bits, split=split), seeds=(0, 1))


def test_quantised_layers_one_behind_the_other() -> None:
    """Scales of rows and columns, a gelu and a residual; a rounding to bytes, which the next one
    reads; then weights that are widened."""
    def fn(x: Any, w: Any, row: Any, column: Any, v: Any, u: Any, r: Any) -> Any:
        y = jnp.dot(x, w, preferred_element_type=S32).astype(F32) * row[:, None] * column
        z = jnp.clip(jnp.round(jax.nn.gelu(y)), -127, 127).astype(S8)
        t = jnp.dot(z, v, preferred_element_type=S32).astype(F32) / 256
        return (t.astype(BF16) @ u.astype(BF16) + r).astype(BF16), z

    plan = plan_of(fn, Spec((140, 96), S8), Spec((96, 144), S8), Spec((140,), F32),
                   Spec((144,), F32), Spec((144, 80), S8), Spec((80, 64), S8),
                   Spec((140, 64), BF16))
    eight, sixteen = (tile(*SHAPES[1], bits=b) for b in (8, 16))
    program = build(plan, in_order(plan, eight, eight, sixteen), threads=256)
    assert program.source.count("using G = GemmBytes<int8_t, int8_t") == 4
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1), blocks=(1, 3))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("shape", "lines"), [(SHAPES[0], 1), (SHAPES[1], 1), (SHAPES[2], 2),
                                              (SHAPES[5], 2)])
@pytest.mark.parametrize("weights", [S8, F32])
def test_rows_that_are_computed(shape: Any, lines: int, split: int, weights: Any) -> None:
    """silu(gate) * up of an earlier stage: a panel of the consumers; k that no tile divides."""
    def fn(x: Any, w: Any, u: Any) -> Any:
        y = jnp.dot(x, w.astype(BF16), preferred_element_type=F32)
        gate, up = jnp.split(y.astype(BF16), 2, axis=1)
        return jax.nn.relu(gate) * up @ u.astype(BF16), y

    plan = plan_of(fn, Spec((48, 64), BF16), Spec((64, 1072), weights), Spec((536, 80), weights))
    assert len(plan.stages) == 2
    s = tile(*shape, bits=16, split=split, lines=lines)
    program = build(plan, in_order(plan, tile(*SHAPES[1], bits=16), s), threads=256)
    tiles = math.ceil(math.ceil(536 / s.bk) / split)
    assert f", {lines}, {tiles}>;" in program.source
    x, w, u = small_integers(plan.graph, high=1)
    check_exact(plan, program, inputs=[x, w, u], seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("weights", [S8, F32])
@pytest.mark.parametrize(("m", "k", "shape", "lines"), [
    (16, 144, SHAPES[2], 1), (30, 208, SHAPES[6], 2), (9, 80, SHAPES[5], 1)])
def test_normalised_rows(m: int, k: int, shape: Any, lines: int, weights: Any) -> None:
    """A panel of whole rows, which the first column of tiles stores as well."""
    def fn(x: Any, s: Any, b: Any, w: Any, v: Any) -> Any:
        y = norm(x, s, b)
        return y @ w.astype(BF16), y @ v.astype(BF16).T, y

    plan = plan_of(fn, Spec((m, k), BF16), Spec((k,), BF16), Spec((k,), BF16),
                   Spec((k, 144), weights), Spec((72, k), weights))
    assert len(plan.stages) == 1
    assert all(isinstance(s.form, DotForm) and s.form.row_prologue for s in dot_sigs(plan))
    s = tile(*shape, bits=16, lines=lines)
    program = build(plan, in_order(plan, s, s), threads=256)
    assert program.source.count("using G = GemmBytes<") == 4
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("fn", "left", "right", "why"), [
    (lambda x, w: x @ w.astype(F32), Spec((128, 64), F32), Spec((64, 64), S8), "16 bits"),
    (lambda x, w: x @ w.astype(BF16), Spec((128, 60), BF16), Spec((60, 72), S8), "stored"),
    (lambda x, w: x @ w.astype(BF16), Spec((128, 60), BF16), Spec((60, 74), F32), "stored"),
    (lambda x, w: x @ w, Spec((128, 64), F32), Spec((64, 64), F32), "stored"),
    (lambda x, w: jnp.einsum("mk,nk->mn", x, w.astype(E4M3), preferred_element_type=F32),
     Spec((128, 64), E4M3), Spec((64, 64), F32), "stored"),
    (lambda x, w: x @ (w.astype(BF16) + 2), Spec((128, 64), BF16), Spec((64, 64), S8), "stored"),
    (lambda x, w: x @ w, Spec((128, 64), BF16), Spec((64, 64), BF16), "stored"),
    (lambda x, w: x.T @ w.astype(BF16), Spec((64, 128), BF16), Spec((64, 64), S8), "neighbours"),
    (lambda x, w: jnp.dot(x, w, precision="highest", preferred_element_type=F32),
     Spec((128, 64), E4M3), Spec((64, 64), E4M3), "14 bits"),
    (lambda x, w: x @ (w.astype(BF16) * 2), Spec((128, 64), BF16), Spec((64, 64), S8), None),
    (lambda x, w: jax.nn.relu(x) @ w.astype(BF16), Spec((48, 64), BF16), Spec((64, 64), S8), None),
    (lambda x, w: x @ w.astype(F32).astype(BF16), Spec((128, 64), BF16), Spec((64, 64), S8), None),
    (lambda x, w: x @ w[1].T.astype(BF16), Spec((128, 64), BF16), Spec((2, 96, 64), S8), None),
    (lambda x, w: x[1:, :64] @ w.astype(BF16), Spec((129, 80), BF16), Spec((64, 64), S8), None),
    (lambda x, w: x @ w.astype(BF16), Spec((60, 60), BF16), Spec((60, 68), F32), None),
    (lambda x, w: x @ w[1].T.astype(F16), Spec((60, 64), F16), Spec((2, 96, 64), F32), None),
])
def test_what_is_taken(fn: Any, left: Any, right: Any, why: str | None) -> None:
    plan = plan_of(fn, left, right)
    (sig,) = dot_sigs(plan)
    s = tile(*SHAPES[1], bits=8 * left.dtype.itemsize)
    assert isinstance(sig.form, DotForm)
    found = takes_bytes(sig.form, DotCode.of(sig, s))
    if why is None:
        assert found is None
        run(plan, s, seeds=(0,))
    else:
        assert found is not None and why in found


@pytest.mark.parametrize("rows", [S8, E4M3, BF16])
@pytest.mark.parametrize("m", [16, 128, 512, 2048])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn"])
def test_choices(rows: Any, m: int, layout: str) -> None:
    """One stage: weights are never widened, or transposed, in memory."""
    weights, out = (S8, BF16) if rows is BF16 else (rows, S32 if rows is S8 else F32)
    shape = (2048, 8192) if layout == "mk,kn->mn" else (8192, 2048)

    def fn(x: Any, w: Any) -> Any:
        wide = w.astype(BF16) if rows is BF16 else w
        return jnp.einsum(layout, x, wide, preferred_element_type=out)

    plan = plan_of(fn, Spec((m, 2048), rows), Spec(shape, weights), device=H200)
    assert len(plan.stages) == 1
    (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
    also = {"wgmma"} if rows is E4M3 and layout == "mk,nk->mn" else set()
    assert s.family in {"bytes", *also}


@pytest.mark.parametrize(("fn", "shapes", "families"), [
    (lambda x, w: x @ w.astype(BF16), ((512, D), (D, D)), {"bytes"}),
    (lambda x, w: x @ w.astype(BF16)[:, 1:D + 1], ((512, D), (D, D + 4)), {"bytes"}),
    (lambda x, w: x @ w.astype(BF16).reshape(D, D - 1), ((512, D), (D - 1, D)), {"bytes"}),
    (lambda x, w: x[:, 1:D + 1] @ w.astype(BF16), ((512, D + 4), (D, D)), {"wgmma"}),
    (lambda x, w: jnp.einsum("bmk,knb->bmn", x, w.astype(BF16)),
     ((8, 512, D), (D, 512, 8)), {"wgmma"}),
    (lambda x, w: x @ w.astype(BF16), ((1024, 16 * D), (16 * D, 48)), {"wgmma"}),
    (lambda x, w: x @ w.astype(BF16), ((8, D), (D, 48)), {"gemv"}),
    (lambda x, w: (x @ w.astype(BF16), w.astype(BF16)), ((512, D), (D, D)), {"wgmma"}),
    (lambda x, w: (x @ w.astype(BF16), jnp.tanh(w.astype(BF16))), ((512, D), (D, D)), {"wgmma"}),
], ids=["plain", "slice", "reshape", "rows that begin anywhere", "batch last", "few columns",
        "few columns and rows", "an output as well", "other readers"])
def test_where_f32_is_stored_first(fn: Any, shapes: Any, families: set[str]) -> None:
    """Where no family rounds it on the way, or where it is stored anyway. What is stored in 16 bits
    may begin anywhere (device/unaligned_weights.cuh)."""
    plan = plan_of(fn, Spec(shapes[0], BF16), Spec(shapes[1], F32), device=H200)
    sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
    assert {sigs[s.key].family for s in dot_sigs(plan)} == families
    sources = [DotCode.of(s, sigs[s.key]).rhs.source for s in dot_sigs(plan)]
    read = DType.F32 if len(plan.stages) == 1 else DType.BF16
    assert {x.param.type.dtype for x in sources if x is not None} == {read}


@pytest.mark.parametrize(("m", "family"), [(16, "bytes"), (512, "bytes"), (4096, "wgmma")])
def test_f32_is_stored_for_many_rows(m: int, family: str) -> None:
    plan = plan_of(lambda x, w: x @ w.astype(BF16), Spec((m, D), BF16), Spec((D, D), F32),
                   device=H200)
    assert len(plan.stages) == (1 if family == "bytes" else 2)
    sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
    assert {sigs[s.key].family for s in dot_sigs(plan)} == {family}


def test_a_stage_of_copies_has_to_pay() -> None:
    """One layer's would not, those of six do."""
    def layers(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = jax.nn.relu(x @ w.astype(BF16))
        return x

    for count, family in ((1, "bytes"), (6, "wgmma")):
        plan = plan_of(layers, Spec((1024, 1536), BF16), *[Spec((1536, 1536), F32)] * count,
                       device=H200)
        sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
        assert {sigs[s.key].family for s in dot_sigs(plan)} == {family}


def test_whole_rows_are_no_ones_share() -> None:
    found = candidates_bytes(1, 16, 3072, 768, 2, device=H200, shared_bytes=H200.shared_bytes,
                             computed=True, row_prologue=True, bits=32)
    assert found and {s.split_k for _, s in found} == {1}


def test_f32_is_stored_where_an_epilogue_reduces() -> None:
    """Or pairs columns: tiles with the weights on the left can do neither."""
    def largest(x: Any, w: Any) -> Any:
        return jnp.argmax(x @ w.astype(BF16), axis=1)

    def loss(x: Any, w: Any) -> Any:
        return (jax.nn.relu(x @ w.astype(BF16)).astype(F32) ** 2).sum(0)

    for fn in (largest, loss):
        plan = plan_of(fn, Spec((1024, D), BF16), Spec((D, D), F32), device=H200)
        (sig,) = dot_sigs(plan)
        assert isinstance(sig.form, DotForm) and sig.form.reduced
        s = default_schedule(plan, cuda_target("sm_90a"), H200).sigs[sig.key]
        assert s.family == "wgmma" and len(plan.stages) >= 3


def test_few_of_a_kernels_weights_bring_no_family() -> None:
    """ptxas takes five times as long for a large kernel with one such product."""
    def fn(x: Any, u: Any, w: Any) -> Any:
        return jax.nn.relu(x @ u) @ w.astype(BF16)

    for n, few in ((64, True), (512, False)):
        plan = plan_of(fn, Spec((64, 2048), BF16), Spec((2048, 1024), BF16), Spec((1024, n), F32),
                       device=H200)
        sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
        assert ("bytes" in {sigs[s.key].family for s in dot_sigs(plan)}) == (not few)
    plan = plan_of(lambda x, u, w: (x @ u, x @ w.astype(BF16)), Spec((512, D), BF16),
                   Spec((D, 16 * D), BF16), Spec((D, D), F32), device=H200)
    sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
    assert {sigs[s.key].family for s in dot_sigs(plan)} == {"wgmma"}, "rows enough for a stage"


WAITS = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_mbarrier_arrive|wgmma_wait<\w+>"
                   r"|wgmma_commit|wgmma_fence|ready|meet)\([^;{}]*\);")
COUNTS = {"weights_left.cuh": 11, "staged_together.cuh": 3}


@functools.cache
def case(widens: bool) -> Case:
    """Two stages, so that a grid barrier is waited for; three tiles of k for each slot. Warpgroups
    share k where bytes are widened."""
    def fn(x: Any, u: Any, w: Any) -> Any:
        if widens:
            return jnp.clip(x @ u.astype(BF16), -2, 2) @ w.astype(BF16)
        y = jnp.clip(jnp.dot(x, u, preferred_element_type=S32), -2, 2).astype(S8)
        return jnp.dot(y, w, preferred_element_type=S32)

    k = 384 if widens else 768
    plan = plan_of(fn, Spec((128, k), BF16 if widens else S8), Spec((k, k), S8), Spec((k, 128), S8))
    s = tile(64, 64, 2, (1, 1, 2), bits=16) if widens else tile(64, 64, 2, (2, 1, 1), bits=8)
    sigs = in_order(plan, s, s)
    return Case(plan, sigs, small_integers(plan.graph, high=1), 0.0, threads=256)


ALONE = ("staged_together.cuh", 0), ("staged_together.cuh", 1)
"""Where a warpgroup stages its sums alone, the next task's products, which all four warps have to
issue, stand for the first meeting here (a memory model does not know that), and two buffers for the
second. Where both do, the first matters for tasks that the ring holds: below."""


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("header", "number", "widens"), [
    (x, i, widens) for x, count in COUNTS.items() for i in range(count) for widens in (False, True)
    if (x, i) not in (ALONE[:1] if widens else ALONE)])
def test_every_wait_matters(header: str, number: int, widens: bool,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(case(widens), monkeypatch, removed(header, WAITS, number)) != ""


def test_tasks_that_the_ring_holds_wait_for_the_last_ones_sums(
        monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(lambda x, w: x @ w.astype(BF16), Spec((384, 64), BF16), Spec((64, 128), S8))
    given = Case(plan, in_order(plan, tile(64, 64, 4, (1, 1, 2), bits=16)),
                 small_integers(plan.graph), 0.0, threads=256, blocks=(1,), seeds=48)
    assert failure(given, monkeypatch, lambda text: text) == ""
    assert failure(given, monkeypatch, removed(*ALONE[0][:1], WAITS, 0)) != ""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("widens", [False, True])
def test_nothing_fails_unchanged(widens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for header, count in COUNTS.items():
        assert len(WAITS.findall(own_text(header))) == count
    for define in ("", "#define JM_IN_TURN\n", "#define JM_RACECHECK\n"):
        assert failure(case(widens), monkeypatch, lambda text, d=define: d + text) == ""


@pytest.mark.sampled(23)
@pytest.mark.parametrize(("rows", "weights"), [(S8, S8), (U8, U8), (E4M3, E5M2), (BF16, S8),
                                               (F16, U8), (BF16, E4M3), (F16, E5M2), (BF16, F32),
                                               (F16, F32)])
@pytest.mark.parametrize("rows_of_a_tile", [128, 192])
def test_products_run_while_weights_come(rows: Any, weights: Any, rows_of_a_tile: int) -> None:
    """ptxas lets no product wait for another one, and has registers for the weights."""
    out = S32 if rows in (S8, U8) else F32
    plan = both_layouts(rows, weights, out, m=512, n=256, k=1024)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    s = tile(rows_of_a_tile, 128, 3, (1, 2, 1), bits=8 * jnp.dtype(rows).itemsize)
    kernel = emit(plan, target, H200, "test", dataclasses.replace(
        schedule, sigs={**schedule.sigs, **in_order(plan, s)}))
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0

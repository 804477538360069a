"""The gemv family with weights that are bytes in memory, or f32 beside 16 bits:
`x @ w.astype(x.dtype)`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    check_near,
    dot_sigs,
    plan_of,
    smooth,
)
from harness import DEVICE, run_program
from jax import lax
from thinned import crossed, thinned

from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_candidates import gemv_bound, stage_bytes
from jaxmono.codegen.dot_gemv import shape
from jaxmono.codegen.dot_gemv_shape import GRANULE, Shape
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_gemv import candidates_gemv
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.sig_code import Request
from jaxmono.fusion.plan import Device, DotForm, Plan, Sig

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
S8, U8, E4M3, E5M2 = jnp.int8, jnp.uint8, jnp.float8_e4m3fn, jnp.float8_e5m2
BYTES, FLOATS = [S8, U8, E4M3, E5M2], (E4M3, E5M2)
H200 = Device()
WARPS = 4  # of the emulator's blocks


def gemv(bn: int, slots: int, wk: int = 1, split: int = 1) -> DotSchedule:
    return DotSchedule("gemv", 1, bn, GRANULE, slots, (1, WARPS // wk, wk), split)


def product(spec: str, x: Any, w: Any) -> Any:
    return jnp.einsum(spec, x, w.astype(x.dtype), preferred_element_type=F32, precision="highest")


def both(x: Any, w: Any, v: Any) -> Any:
    return product("mk,kn->mn", x, w), product("mk,nk->mn", x, v)


def pair(m: int, n: int, k: int, t: Any, w: Any) -> Plan:
    return plan_of(both, Spec((m, k), t), Spec((k, n), w), Spec((n, k), w))


def stored(sig: Sig) -> Any:
    t = DotCode.of(sig, gemv(16, 1)).rhs.stored
    return None if t is None else t.numpy


def forced(plan: Plan, columns: DotSchedule, rows: DotSchedule) -> dict[str, DotSchedule]:
    """The first schedule for weights [k][n], the second for weights [n][k], which are bytes."""
    out: dict[str, DotSchedule] = {}
    for s in dot_sigs(plan):
        assert isinstance(s.form, DotForm) and stored(s) is not None
        own = dataclasses.replace(columns, bm=s.form.m.size)
        out[s.key] = dataclasses.replace(rows, bm=s.form.m.size) \
            if DotCode.of(s, own).rhs.k_major else own
    return out


def given(plan: Plan, seed: int = 0) -> list[Any]:
    """Integers whose sums are exact: all that 8 bits have, or f8 exactly; activations are small."""
    rng = np.random.default_rng(seed)
    out: list[Any] = []
    for v in plan.graph.inputs:
        t = v.type.dtype
        low, high = (-2, 3) if t.itemsize > 1 else (-8, 9) if t.is_float else \
            (0, 256) if t.is_unsigned else (-128, 128)
        out.append(rng.integers(low, high, v.type.dims).astype(t.numpy))
    return out


def check(plan: Plan, columns: DotSchedule, rows: DotSchedule, *, seeds: Any = (0, 1),
          blocks: Any = (4,)) -> None:
    check_exact(plan, build(plan, forced(plan, columns, rows)), inputs=given(plan), seeds=seeds,
                blocks=blocks)


# ---- right at any shape ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(7)
@crossed(("w", BYTES), ("t", [BF16, F16, F32]), ("m", [1, 2, 3, 8]))
def test_rows_of_x(m: int, t: Any, w: Any) -> None:
    """Three of 16 bits and more on the tensor cores, where tiles have 128 columns."""
    plan = pair(m, 144, 528, t, w)
    for columns, rows in ((gemv(48, 2), gemv(20, 2)), (gemv(128, 3), gemv(36, 2, wk=2))):
        sigs = forced(plan, columns, rows)
        mma = {shape(DotCode.of(s, sigs[s.key]), 128).mma for s in dot_sigs(plan)}
        assert (True in mma) == (m > 2 and t is not F32) and (m < 3 or columns.bn < 128 or
                                                              len(mma) == 1)
        check(plan, columns, rows, blocks=(3,))


@pytest.mark.sampled(7)
@crossed(("t", [BF16, F32]), ("m", [1, 2, 5]), (("columns", "rows"), [
    (gemv(16, 1), gemv(4, 1)),
    (gemv(80, 2), gemv(20, 2, wk=2)),  # 5 pieces a row: lanes left over
    (gemv(256, 4), gemv(4, 4, wk=4)),
    (gemv(32, 2, split=2), gemv(12, 2, split=4)),
    (gemv(128, 3, split=4), gemv(40, 3, wk=2, split=2)),
]))
def test_tiles(columns: DotSchedule, rows: DotSchedule, m: int, t: Any) -> None:
    check(pair(m, 272, 1040, t, S8), columns, rows, blocks=(1, 5))


@pytest.mark.slow
@pytest.mark.sampled(11)
@pytest.mark.parametrize("m", [4, 9, 16])
@pytest.mark.parametrize("w", [U8, E4M3])
def test_more_rows_on_tensor_cores(m: int, w: Any) -> None:
    plan = pair(m, 272, 656, BF16, w)
    for columns, rows in ((gemv(128, 2), gemv(16, 2)),
                          (gemv(256, 2, split=4), gemv(40, 3, wk=4, split=2))):
        check(plan, columns, rows, blocks=(1, 5))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("n", "k"), [(40, 64), (64, 40), (7, 129)])
def test_rows_that_are_no_whole_pieces_are_computed(n: int, k: int) -> None:
    plan = pair(3, n, k, BF16, S8)
    for s in dot_sigs(plan):
        k_major = DotCode.of(s, gemv(16, 1)).rhs.k_major
        assert (stored(s) is None) == ((k if k_major else n) % 16 != 0)
    sigs = {s.key: dataclasses.replace(gemv(16, 2), bm=3) for s in dot_sigs(plan)}
    check_exact(plan, build(plan, sigs), inputs=given(plan))


@pytest.mark.sampled(7)
@crossed(("t", [BF16, F16]), ("m", [1, 2, 3, 8]), (("columns", "rows"), [
    (gemv(16, 1), gemv(4, 1)), (gemv(20, 2), gemv(20, 2, wk=2)), (gemv(256, 4), gemv(4, 4, wk=4)),
    (gemv(32, 2, split=2), gemv(12, 2, split=4))]))
def test_floats(columns: DotSchedule, rows: DotSchedule, m: int, t: Any) -> None:
    """Pieces of four, never on tensor cores."""
    plan = pair(m, 140, 528, t, F32)
    sigs = forced(plan, columns, rows)
    assert not any(shape(DotCode.of(s, sigs[s.key]), 128).mma for s in dot_sigs(plan))
    check(plan, columns, rows, blocks=(1, 5))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("t", [BF16, F16])
@pytest.mark.parametrize("m", [1, 4])
def test_floats_are_rounded(m: int, t: Any) -> None:
    """To the nearest, ties to even, NaN and infinities too, wherever in a piece they are."""
    plan = pair(m, 64, 64, t, F32)
    program = build(plan, forced(plan, gemv(32, 2), gemv(12, 2)))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64)).astype(np.float32)
    w[::2] = w[::2].astype(np.dtype(t)).astype(np.float32) * np.float32(1 + 2.0 ** -9)
    for at in (0, 13, 63):
        w[at, at], w[at, 7] = np.nan, 3e38
        x = np.zeros((m, 64), t)
        x[:, at] = [1 << i for i in range(m)]
        only = np.where(np.arange(64)[:, None] == at, w, np.float32(0))
        with np.errstate(over="ignore", invalid="ignore"):
            exact = w[at].astype(np.dtype(t)).astype(np.float32) \
                * x[:, at:at + 1].astype(np.float32)
        for y in run_program(program, [x, only, only.T.copy()], seed=at):
            np.testing.assert_array_equal(y, exact)


@pytest.mark.slow
def test_batches_strides_and_gathers() -> None:
    def fn(x: Any, w: Any, u: Any, t: Any, i: Any) -> Any:
        wide = [v.astype(x.dtype) for v in (w, u, t)]
        y = jnp.einsum("bmk,bkn->bmn", x, wide[0][:, 8:72, 16:])
        z = jnp.einsum("bmk,bnk->bmn", x, wide[1][::2, :, 64:128])
        return y, z, x[0] @ wide[2][i].T, x[1] @ jnp.pad(w[1, :64].astype(x.dtype),
                                                        ((0, 0), (16, 16)))

    plan = plan_of(fn, Spec((3, 2, 64), F32), Spec((3, 80, 48), S8), Spec((6, 24, 128), S8),
                   Spec((9, 64), S8), Spec((16,), jnp.int32))
    values = given(plan)
    values[4] = np.arange(16, dtype=np.int32) % 9
    program = build(plan, forced(plan, gemv(16, 2), gemv(8, 2)))
    check_exact(plan, program, inputs=values, seeds=(0, 1, 2))


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.sampled(19)
@pytest.mark.parametrize("t", [BF16, F16, F32])
@pytest.mark.parametrize("w", BYTES)
def test_every_byte_is_converted_exactly(w: Any, t: Any) -> None:
    """In every place of a word, by multiply-adds and on tensor cores; NaN and infinities too, which
    would reach all of their column if other rows had them."""
    codes = np.arange(256, dtype=np.uint8)
    for m, columns, rows in ((1, gemv(32, 2), gemv(4, 2)), (8, gemv(256, 2), gemv(16, 2))):
        plan = pair(m, 256, 256, t, w)
        program = build(plan, forced(plan, columns, rows))
        for at in (0, 5, 130, 255):
            x = np.zeros((m, 256), t)
            x[:, at] = [1 << i for i in range(m)]
            a, b = np.zeros((256, 256), np.uint8), np.zeros((256, 256), np.uint8)
            a[at], b[:, at] = codes + np.uint8(at), codes + np.uint8(at // 2)
            found = run_program(program, [x, a.view(w), b.view(w)], seed=at)
            with np.errstate(invalid="ignore"):
                for y, row in zip(found, (a[at], b[:, at]), strict=True):
                    exact = row.view(w).astype(np.float32) * x[:, at:at + 1].astype(np.float32)
                    np.testing.assert_array_equal(y, exact)


@pytest.mark.slow
def test_not_a_number_stays_in_its_column() -> None:
    plan = pair(3, 48, 144, BF16, E4M3)
    x, w, v = given(plan)
    w[63, 3], w[143, 47], v[7, 143] = np.nan, np.nan, np.nan
    for split in (1, 2):
        program = build(plan, forced(plan, gemv(48, 2, split=split), gemv(12, 2, split=split)))
        check_exact(plan, program, inputs=[x, w, v])
        y, z = run_program(program, [x, w, v])
        assert np.isnan(y).sum() == 6 and np.isnan(z).sum() == 3


@pytest.mark.slow
def test_the_same_bits_in_any_order() -> None:
    plan = pair(2, 48, 1008, BF16, S8)
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((2, 1008)).astype(BF16), *given(plan)[1:]]
    program = build(plan, forced(plan, gemv(16, 2, split=4), gemv(12, 2, split=4)))
    found = {tuple(a.tobytes() for a in run_program(program, values, seed=seed, blocks=blocks))
             for seed in range(4) for blocks in (1, 3, 8)}
    assert len(found) == 1


# ---- prologues, epilogues, stages --------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("m", [1, 3])
def test_scales_in_two_stages(m: int) -> None:
    """The weights of the second are requested in front of the barrier, where they are bytes."""
    def fn(x: Any, w: Any, s: Any, v: Any, u: Any) -> Any:
        y = jnp.clip(product("mk,kn->mn", x, w) * s, -2, 2).astype(BF16)
        return product("mk,nk->mn", y, v) * u + u

    plan = plan_of(fn, Spec((m, 160), BF16), Spec((160, 272), S8), Spec((272,), F32),
                   Spec((80, 272), S8), Spec((80,), F32))
    assert plan.barriers == 1
    for split in (1, 2):
        program = build(plan, forced(plan, gemv(48, 2, split=split), gemv(12, 2, split=split)))
        assert "_prefetch" in program.source and "const int8_t* " in program.source
        check_exact(plan, program, inputs=given(plan), seeds=(0, 1, 2), blocks=(1, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("t", "w"), [(BF16, S8), (F32, S8), (BF16, F32)])
def test_normalised_rows(m: int, t: Any, w: Any) -> None:
    def fn(x: Any, s: Any, b: Any, u: Any, v: Any) -> Any:
        y = models.norm(x.astype(F32), s, b).astype(t)
        return y @ u.astype(t), jnp.einsum("mk,nk->mn", y, v.astype(t))

    plan = plan_of(fn, Spec((m, 208), t), Spec((208,), F32), Spec((208,), F32),
                   Spec((208, 96), w), Spec((72, 208), w))
    assert all(isinstance(s.form, DotForm) and s.form.row_prologue for s in dot_sigs(plan))
    program = build(plan, forced(plan, gemv(32, 2), gemv(12, 2)))
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2))


def layers(k: int, w: Any, device: Device = DEVICE) -> Plan:
    """Streams of square weights whose x comes with flags."""
    def step(x: Any, u: Any, last: Any, *weights: Any) -> Any:
        x = jnp.clip(product("mk,kn->mn", x, u), -2, 2).astype(BF16)
        for a, b in zip(weights[::2], weights[1::2], strict=True):
            h = jnp.clip(product("mk,kn->mn", x, a), -2, 2).astype(BF16)
            x = jnp.clip(x + product("mk,kn->mn", h, b), -3, 3).astype(BF16)
        return product("mk,kn->mn", x, last)

    return plan_of(step, Spec((1, 32), BF16), Spec((32, k), w), Spec((k, 48), w),
                   *[Spec((k, k), w)] * 6, device=device)


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("k", "bn", "steps"), [(64, 32, 1), (208, 48, 2), (208, 96, 3)])
@pytest.mark.parametrize("w", [S8, E5M2])
def test_layers_hold_their_weights(w: Any, k: int, bn: int, steps: int) -> None:
    """In registers, as f32, while x comes with flags; not twelve pieces."""
    plan = layers(k, w)
    sigs = forced(plan, gemv(bn, 4), gemv(4, 4))
    program = build(plan, sigs)
    assert "stage_flagged" in program.source
    assert ("G::run(smem, held);" in program.source) == (steps < 3)
    assert max(shape(DotCode.of(s, sigs[s.key]), 128).steps for s in dot_sigs(plan)) >= steps
    values = [np.clip(a.astype(np.float32), -1, 1).astype(a.dtype) for a in given(plan)]
    check_exact(plan, program, inputs=values, seeds=(0, 1, 2, 3), blocks=(1, 3, 7))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("k", "bn", "steps"), [(64, 32, 1), (208, 48, 4), (208, 96, 8)])
def test_layers_hold_floats(k: int, bn: int, steps: int) -> None:
    """Up to 24 pieces of four."""
    plan = layers(k, F32)
    sigs = forced(plan, gemv(bn, 8), gemv(4, 4))
    program = build(plan, sigs)
    assert "stage_flagged" in program.source
    assert ("G::run(smem, held);" in program.source) == (steps < 7)
    values = [np.clip(a.astype(np.float32), -1, 1).astype(a.dtype) for a in given(plan)]
    check_exact(plan, program, inputs=values, seeds=(0, 1, 2, 3), blocks=(1, 3, 7))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("t", [BF16, F32])
def test_flagged_rows_beside_rows_of_weights(m: int, t: Any) -> None:
    """Pieces of x change places in shared memory."""
    def step(x: Any, u: Any, *weights: Any) -> Any:
        x = jnp.clip(product("mk,nk->mn", x, u), -2, 2).astype(t)
        for w in weights:
            x = jnp.clip(x + product("mk,nk->mn", x, w), -3, 3).astype(t)
        return x

    plan = plan_of(step, Spec((m, 32), t), Spec((96, 32), S8), *[Spec((96, 96), S8)] * 4)
    program = build(plan, forced(plan, gemv(16, 2), gemv(12, 2)))
    assert "stage_flagged" in program.source
    values = [np.clip(a.astype(np.float32), -1, 1).astype(a.dtype) for a in given(plan)]
    check_exact(plan, program, inputs=values, seeds=(0, 1, 2), blocks=(1, 3))


# ---- choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "t", "family"), [
    (1, BF16, "gemv"), (2, F16, "gemv"), (4, F32, "gemv"), (4, BF16, "gemv"), (16, BF16, "bytes")])
@pytest.mark.parametrize("w", [S8, F32])
def test_few_rows_are_streamed(m: int, t: Any, w: Any, family: str) -> None:
    plan = plan_of(both, Spec((m, 2048), t), Spec((2048, 8192), w), Spec((8192, 2048), w),
                   device=H200)
    sigs = default_schedule(plan, cuda_target("sm_90a"), H200).sigs
    assert {sigs[s.key].family for s in dot_sigs(plan)} == {family}


def test_weights_count_as_they_are_stored() -> None:
    request = Request(H200, 256, H200.shared_bytes, siblings=1)
    bounds: list[float] = []
    for w, size in ((BF16, 2), (S8, 1)):
        plan = plan_of(lambda x, w: x @ w.astype(x.dtype), Spec((1, 2048), BF16),
                       Spec((2048, 8192), w), device=H200)
        (sig,) = dot_sigs(plan)
        assert stage_bytes(sig, request) == size << 24
        bounds.append(gemv_bound(sig, request, 0.0))
    assert bounds[1] < 0.6 * bounds[0]


def test_every_candidate_fits() -> None:
    room = 100 * 1024
    for m, n, k in ((1, 512, 768), (3, 50304, 8192), (8, 2048, 2048)):
        for k_major, wide in ((False, 2), (True, 4), (True, 2)):
            found = candidates_gemv(1, m, n, k, 8, k_major=k_major, device=H200, threads=256,
                                    shared_bytes=room, blocks=132, x_itemsize=wide)
            assert found
            for _, s in found:
                of = Shape(s, m=m, n=n, k=k, bits=8, k_major=k_major, threads=256,
                           x_itemsize=wide)
                assert of.shared_bytes <= room and (k_major or s.bn % 16 == 0)


@pytest.mark.sampled(7)
@crossed(("m", [1, 2, 4]), (("t", "w"), [(BF16, S8), (BF16, E4M3), (F32, S8), (F32, E4M3),
                                         (BF16, F32), (F16, F32)]))
def test_no_spills(m: int, t: Any, w: Any) -> None:
    plan = plan_of(both, Spec((m, 2048), t), Spec((2048, 2048), w), Spec((2048, 2048), w),
                   device=H200)
    target = cuda_target("sm_90a")
    program = generate(plan, target, H200, "test", default_schedule(plan, target, H200))
    assert program.source.count("family='gemv'") == 2
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0


@pytest.mark.parametrize("k", thinned([768, 2048]))
def test_no_spills_where_x_comes_with_flags(k: int) -> None:
    """With 16 pieces held, int8 Llama's decode step spilled 648 bytes beside its 255 registers."""
    plan, target = layers(k, S8, H200), cuda_target("sm_90a")
    program = generate(plan, target, H200, "test", default_schedule(plan, target, H200))
    assert "stage_flagged" in program.source
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0


def test_an_update_of_a_cache_of_bytes() -> None:
    """A buffer that the launch writes is not requested early, whatever its elements are."""
    def fn(cache: Any, x: Any, w: Any, pos: Any) -> Any:
        new = lax.dynamic_update_slice(cache, jnp.clip(x @ w, -4, 4).astype(S8), (pos, 0))
        return new, product("mk,nk->mn", jnp.clip(x @ w, -1, 1).astype(BF16), new)

    plan = plan_of(fn, Spec((16, 32), S8), Spec((1, 48), BF16), Spec((48, 32), BF16),
                   Spec((), jnp.int32))
    values = given(plan)
    values[3] = np.asarray(5, np.int32)
    check_exact(plan, build(plan), inputs=values, seeds=(0, 1, 2, 3))

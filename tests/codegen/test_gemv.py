"""The gemv family: few rows, weights streamed, in the emulator and through NVRTC."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
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
    small_integers,
    smooth,
)
from harness import run_program
from jax import lax
from thinned import crossed, thinned_rows

from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_gemv import shape
from jaxmono.codegen.dot_gemv_shape import GRANULE, Shape
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_gemv import blocks_of, candidates_gemv
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import Device, DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()
WARPS = 4  # of the emulator's blocks


def gemv(m: int, bn: int, slots: int, wk: int = 1, split: int = 1) -> DotSchedule:
    return DotSchedule("gemv", m, bn, GRANULE, slots, (1, WARPS // wk, wk), split)


def forced(plan: Plan, columns: DotSchedule, rows: DotSchedule) -> dict[str, Any]:
    """The first schedule for weights [k][n], the second for weights [n][k]."""
    assert all(isinstance(s.form, DotForm) and s.form.m.size <= 16 for s in dot_sigs(plan))
    out: dict[str, Any] = {}
    for s in dot_sigs(plan):
        assert isinstance(s.form, DotForm)
        own = DotCode.of(s, dataclasses.replace(columns, bm=s.form.m.size))
        chosen = rows if own.rhs.k_major else columns
        out[s.key] = dataclasses.replace(chosen, bm=s.form.m.size)
    return out


def both(x: Any, w: Any, v: Any) -> Any:
    def dot(spec: str, a: Any, b: Any) -> Any:
        return jnp.einsum(spec, a, b, preferred_element_type=F32, precision="highest")

    return dot("mk,kn->mn", x, w), dot("mk,nk->mn", x, v)


def pair(m: int, n: int, k: int, t: Any = BF16) -> Plan:
    return plan_of(both, Spec((m, k), t), Spec((k, n), t), Spec((n, k), t))


# ---- right at any shape ------------------------------------------------------------------------


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8])
def test_rows_of_x(m: int) -> None:
    plan = pair(m, 96, 320, F32)
    check_exact(plan, build(plan, forced(plan, gemv(m, 16, 2), gemv(m, 20, 2))), seeds=(0, 1, 2))


@pytest.mark.sampled(7)
@crossed(("t", [BF16, F16, F32]), (("columns", "rows"), [
    (gemv(1, 8, 1), gemv(1, 4, 1)),
    (gemv(1, 24, 3), gemv(1, 24, 3)),  # 3 pieces a row (f32: 6): lanes left over
    (gemv(1, 88, 2), gemv(1, 20, 2, wk=2)),  # 11 pieces: dealt to the block
    (gemv(1, 128, 4), gemv(1, 4, 4, wk=4)),
    (gemv(1, 32, 2, split=2), gemv(1, 12, 2, split=4)),
    (gemv(1, 136, 3, split=4), gemv(1, 40, 3, wk=2, split=2)),
]))
def test_tiles(columns: DotSchedule, rows: DotSchedule, t: Any) -> None:
    plan = pair(2, 136, 520, t)
    check_exact(plan, build(plan, forced(plan, columns, rows)), seeds=(0, 1), blocks=(1, 5))


@pytest.mark.sampled(7)
@crossed(("t", [BF16, F16]), ("m", [3, 7, 8, 9, 16]), (("columns", "rows"), [
    (gemv(1, 64, 2), gemv(1, 16, 2)),
    (gemv(1, 128, 3), gemv(1, 40, 3, wk=2)),
    (gemv(1, 256, 2, split=4), gemv(1, 12, 2, wk=4, split=2)),
]))
def test_products_on_tensor_cores(columns: DotSchedule, rows: DotSchedule, m: int, t: Any) -> None:
    plan = pair(m, 136, 520, t)
    sigs = forced(plan, columns, rows)
    assert all(shape(DotCode.of(s, sigs[s.key]), 128).mma for s in dot_sigs(plan))
    check_exact(plan, build(plan, sigs), seeds=(0, 1), blocks=(1, 5))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 40), (37, 129), (40, 65), (130, 8), (3, 1000)])
def test_sizes_that_nothing_divides(n: int, k: int) -> None:
    """Rows that are not 16-byte aligned are loaded an element at a time."""
    plan = pair(3, n, k)
    check_exact(plan, build(plan, forced(plan, gemv(3, 16, 2), gemv(3, 12, 2))))


def test_shares_of_k_may_be_empty() -> None:
    plan = pair(1, 24, 136)
    check_exact(plan, build(plan, forced(plan, gemv(1, 8, 2, split=4), gemv(1, 8, 2, split=4))))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_chosen_tiles_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        m, n, k = (int(rng.integers(1, top)) for top in (9, 300, 700))
        plan = pair(m, n, k)
        sigs = default_schedule(plan, cuda_target("sm_90a"), Device(sm_count=5)).sigs
        check_exact(plan, build(plan, {
            key: dataclasses.replace(s, warps=(1, WARPS, 1)) for key, s in sigs.items()
            if s.family == "gemv"}))


def test_batches_strides_and_gathers() -> None:
    def fn(x: Any, w: Any, u: Any, t: Any, i: Any) -> Any:
        y = jnp.einsum("bmk,bkn->bmn", x, w[:, 8:72])
        z = jnp.einsum("bmk,bnk->bmn", x, u[::2, :, 64:128])
        return y, z, x[0] @ t[i].T, jnp.einsum("bmk,kn->bmn", x, w[1, :64])

    plan = plan_of(fn, Spec((3, 2, 64), BF16), Spec((3, 80, 40), BF16), Spec((6, 24, 128), BF16),
                   Spec((9, 64), BF16), Spec((16,), jnp.int32))
    given = small_integers(plan.graph)
    given[4] = np.arange(16, dtype=np.int32) % 9
    check_exact(plan, build(plan, forced(plan, gemv(2, 16, 2), gemv(2, 8, 2))), inputs=given,
                seeds=(0, 1, 2))


def test_weights_on_the_left_are_weights() -> None:
    plan = plan_of(lambda w, x: jnp.einsum("kn,mk->nm", w, x), Spec((64, 40), BF16),
                   Spec((3, 64), BF16))
    (sig,) = plan.sigs
    assert isinstance(sig.form, DotForm) and sig.form.m.size == 3
    check_exact(plan, build(plan))


def test_not_a_number_and_infinity() -> None:
    """They reach their row and column, also beside the end of a share, and no other."""
    plan = pair(3, 40, 200)
    x, w, v = small_integers(plan.graph)
    x[1, 199], x[2, 0] = np.nan, np.inf
    w[63, 3], w[64, 5], v[7, 199] = np.inf, np.nan, -np.inf
    for split in (1, 2):
        program = build(plan, forced(plan, gemv(3, 24, 2, split=split),
                                     gemv(3, 12, 2, split=split)))
        with np.errstate(invalid="ignore"):
            check_exact(plan, program, inputs=[x, w, v], seeds=(0, 1))


# ---- prologues, epilogues, stages --------------------------------------------------------------


def test_prologue_and_epilogue() -> None:
    def fn(g: Any, u: Any, w: Any, v: Any, b: Any, r: Any) -> Any:
        y = jnp.dot(jax.nn.relu(g) * u, w, preferred_element_type=F32) + b + r
        z = jnp.einsum("mk,nk->mn", g - u, v, preferred_element_type=F32) * b
        return y, y.T, jnp.maximum(z, 0).astype(BF16)

    plan = plan_of(fn, Spec((4, 160), BF16), Spec((4, 160), BF16), Spec((160, 48), BF16),
                   Spec((48, 160), BF16), Spec((48,), F32), Spec((4, 48), F32))
    for split in (1, 2):
        check_exact(plan, build(plan, forced(plan, gemv(4, 16, 2, split=split),
                                             gemv(4, 16, 2, split=split))), seeds=(0, 1, 2))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("m", [1, 3, 6])
def test_normalised_rows(m: int) -> None:
    """One row by the block, several by a warp each; those are an output too."""
    def fn(spec: str, x: Any, s: Any, b: Any, w: Any) -> Any:
        y = models.norm(x.astype(F32), s, b).astype(BF16)
        z = jnp.einsum(spec, y, w)
        return (y, z) if m > 1 else z

    for spec, weights in (("mk,kn->mn", (200, 96)), ("mk,nk->mn", (72, 200))):
        plan = plan_of(functools.partial(fn, spec), Spec((m, 200), BF16), Spec((200,), F32),
                       Spec((200,), F32), Spec(weights, BF16))
        (sig,) = plan.sigs
        assert isinstance(sig.form, DotForm) and sig.form.row_prologue
        program = build(plan, forced(plan, gemv(m, 24, 2), gemv(m, 12, 2)))
        check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2))


def test_a_long_row_is_normalised_too() -> None:
    """Tiles of 16 rows would not fit shared memory; one row does."""
    def fn(x: Any, s: Any, b: Any, w: Any) -> Any:
        return models.norm(x.astype(F32), s, b).astype(BF16) @ w

    plan = plan_of(fn, Spec((1, 8192), BF16), Spec((8192,), F32), Spec((8192,), F32),
                   Spec((8192, 24), BF16))
    (sig,) = plan.sigs
    assert isinstance(sig.form, DotForm) and sig.form.row_prologue
    check_near(plan, build(plan), smooth(plan.graph), 2e-2)


def test_stages_request_weights_before_their_barrier() -> None:
    """Three layers of a loop and what follows: other tiles in the same shared memory."""
    def fn(x: Any, w: Any, v: Any, u: Any) -> Any:
        for i in range(3):
            x = x + jnp.clip(jnp.einsum("mk,nk->mn", jnp.clip(x @ w[i], -2, 2), v[i]), -2, 2)
        return x @ u

    plan = plan_of(fn, Spec((2, 72), F32), Spec((3, 72, 160), F32), Spec((3, 72, 160), F32),
                   Spec((72, 40), F32))
    assert plan.barriers >= 6
    program = build(plan, forced(plan, gemv(2, 16, 2), gemv(2, 16, 3)))
    assert "G::prologue(smem, n0, k0, ks, load_b);" in program.source
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=tuple(range(6)),
                blocks=(1, 3))


def test_a_cache_that_the_launch_writes_is_not_requested_early() -> None:
    def fn(cache: Any, x: Any, w: Any, pos: Any) -> Any:
        new = lax.dynamic_update_slice(cache, x @ w, (pos, 0))
        return new, jnp.tanh(x @ w) @ new.T

    plan = plan_of(fn, Spec((16, 32), BF16), Spec((1, 40), BF16), Spec((40, 32), BF16),
                   Spec((), jnp.int32))
    given = small_integers(plan.graph, high=1)
    given[3] = np.asarray(5, np.int32)
    program = build(plan, forced(plan, gemv(1, 8, 2), gemv(1, 4, 2)))
    assert sum("G::prologue" in line for line in program.source.splitlines()) < 4
    check_near(plan, program, given, 2e-2, seeds=(0, 1, 2, 3))


def test_tasks_that_are_prefetched_come_first() -> None:
    def fn(cache: Any, x: Any, w: Any, v: Any, pos: Any) -> Any:
        y = x @ w
        turned = jnp.concatenate([y[:, 16:], y[:, :16]], axis=-1)
        return lax.dynamic_update_slice(cache, turned, (pos, 0)), y @ v

    plan = plan_of(fn, Spec((16, 32), BF16), Spec((1, 40), BF16), Spec((40, 32), BF16),
                   Spec((32, 24), BF16), Spec((), jnp.int32))
    assert [g.sig.kind for g in plan.stages[1].groups] == ["loop", "dot"]
    given = small_integers(plan.graph)
    given[4] = np.asarray(5, np.int32)
    program = build(plan, forced(plan, gemv(1, 8, 2), gemv(1, 4, 2)))
    (stage,) = [x for x in program.source.splitlines() if "// stage 1:" in x]
    assert stage.index("_dot") < stage.index("_loop")
    check_exact(plan, program, inputs=given, seeds=(0, 1, 2), blocks=(1, 2, 5))


def test_beside_producer_warps() -> None:
    """A kernel whose other products have producers: stages of both families, and one with both."""
    def fn(x: Any, u: Any, w: Any, v: Any) -> Any:
        y = jnp.clip(x @ u, -1, 1)
        z = jnp.clip(y[:1] @ w, -1, 1)
        return y @ v, z, z @ v

    plan = plan_of(fn, Spec((70, 64), BF16), Spec((64, 72), BF16), Spec((72, 72), BF16),
                   Spec((72, 48), BF16))
    sigs: dict[str, Any] = {}
    for s in dot_sigs(plan):
        assert isinstance(s.form, DotForm)
        sigs[s.key] = DotSchedule("wgmma", 64, 48, 64, 2, (1, 1, 2)) if s.form.m.size > 1 else \
            DotSchedule("gemv", 1, 16, GRANULE, 2, (1, 1, 8))
    program = build(plan, sigs, threads=256)
    assert program.threads == 384
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=(0, 1, 2, 3),
                blocks=(1, 3))


def test_the_same_bits_in_any_order() -> None:
    """Whichever block comes last adds the shares up in their order."""
    plan = pair(2, 40, 1000)
    given = smooth(plan.graph)
    program = build(plan, forced(plan, gemv(2, 16, 2, split=8), gemv(2, 12, 2, split=8)))
    assert program.min_blocks == 1
    found = {tuple(a.tobytes() for a in run_program(program, given, seed=seed, blocks=blocks))
             for seed, blocks in itertools.product(range(8), (1, 3, 8))}
    assert len(found) == 1


# ---- choice ------------------------------------------------------------------------------------


def chosen(plan: Plan, arch: str = "sm_90a") -> list[DotSchedule]:
    sigs = default_schedule(plan, cuda_target(arch), H200).sigs
    return [sigs[s.key] for s in dot_sigs(plan)]


@pytest.mark.parametrize(("m", "n", "k"), [
    (1, 768, 768), (4, 768, 768), (1, 2048, 8192), (2, 2048, 8192), (1, 50272, 768),
    (2, 16384, 4096)])
def test_few_rows_are_streamed_in_one_even_wave(m: int, n: int, k: int) -> None:
    plan = plan_of(both, Spec((m, k), BF16), Spec((k, n), BF16), Spec((n, k), BF16), device=H200)
    for sig in dot_sigs(plan):
        (s,) = {default_schedule(plan, cuda_target("sm_90a"), H200).sigs[sig.key]}
        assert s.family == "gemv"
    assert sum(DotCode.of(g.sig, s).tasks for g, s in zip(
        plan.groups, chosen(plan), strict=True)) <= H200.sm_count


@pytest.mark.parametrize("m", [3, 4, 5, 8])
def test_three_rows_are_by_wgmma_where_no_stage_is_in_front(m: int) -> None:
    plan = plan_of(both, Spec((m, 2048), BF16), Spec((2048, 8192), BF16), Spec((8192, 2048), BF16),
                   device=H200)
    assert {s.family for s in chosen(plan)} == {"swapped"}
    assert {s.family for s in chosen(plan, "sm_80")} <= {"gemv", "mma"}


def test_rows_of_a_panel_that_has_no_room_are_streamed() -> None:
    """16 normalised rows of 4096 f32 are 256 KB, three of them 48."""
    def fn(x: Any, w: Any) -> Any:
        return (x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)) @ w

    plan = plan_of(fn, Spec((3, 4096), F32), Spec((4096, 768), F32), device=H200)
    assert [s.family for s in chosen(plan)] == ["gemv"]


def test_many_rows_are_not() -> None:
    plan = plan_of(both, Spec((24, 768), BF16), Spec((768, 768), BF16), Spec((768, 768), BF16),
                   device=H200)
    assert {s.family for s in chosen(plan)} == {"mma"}


def test_siblings_share_the_blocks_by_their_weights() -> None:
    q, k, v = (1, 2048, 2048), (1, 512, 2048), (1, 512, 2048)
    blocks = [blocks_of(g, (q, k, v), 132) for g in (q, k, v)]
    assert blocks == [86, 22, 22]
    assert blocks_of(q, (q,), 132) == 132
    assert blocks_of((40, 64, 128), ((40, 64, 128),) * 4, 132) == 33


def test_no_tile_is_far_from_an_even_share() -> None:
    """Of columns, twice as many may be better: 16 of 1024x1024 take 2.7 us, 8 3.1 us."""
    for n, k in itertools.product((768, 2304, 3072, 4096, 8192, 50257, 128256), (768, 2048, 4096)):
        for k_major in (False, True):
            s = candidates_gemv(1, 1, n, k, 16, k_major=k_major, device=H200, threads=256,
                                shared_bytes=H200.shared_bytes, blocks=132)[0][1]
            most = math.ceil(k / s.split_k) * s.bn * math.ceil(
                math.ceil(n / s.bn) * s.split_k / 132)
            assert most <= (1.4 if k_major else 2.0) * max(n * k / 132, 8 * k)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("k", "n", "m", "t", "k_major", "bn", "wk"), [
    (7680, 96, 4, F32, True, 8, 4), (5376, 512, 8, BF16, False, 64, 1),
    (5376, 96, 2, F32, True, 8, 1)])
def test_no_share_of_k_begins_behind_the_weights(k: int, n: int, m: int, t: Any, k_major: bool,
                                                 bn: int, wk: int) -> None:
    """84 tiles of 64 over 16 blocks would be 14 shares of 6: the others would read what follows."""
    found = candidates_gemv(1, m, n, k, 8 * jnp.dtype(t).itemsize, k_major=k_major, device=H200,
                            threads=256, shared_bytes=H200.shared_bytes, blocks=132)
    assert found and all((s.split_k - 1) * math.ceil(math.ceil(k / s.bk) / s.split_k) * s.bk < k
                         for _, s in found)
    spec, shape = ("mk,nk->mn", (n, k)) if k_major else ("mk,kn->mn", (k, n))
    plan = plan_of(lambda x, w: jnp.einsum(spec, x, w, preferred_element_type=F32),
                   Spec((m, k), t), Spec(shape, t))
    (sig,) = dot_sigs(plan)
    s = DotSchedule("gemv", m, bn, GRANULE, 2, (1, 8 // wk, wk), 16)  # forced, it is right as well
    check_exact(plan, build(plan, {sig.key: s}, threads=256))


def test_every_candidate_fits() -> None:
    room = 100 * 1024
    for m, n, k, size in itertools.product((1, 3, 8), (512, 50257), (768, 8192), (2, 4)):
        for k_major in (False, True):
            for _, s in candidates_gemv(1, m, n, k, 8 * size, k_major=k_major, device=H200,
                                        threads=256, shared_bytes=room, blocks=132):
                of = Shape(s, m=m, n=n, k=k, bits=8 * size, k_major=k_major, threads=256)
                assert of.shared_bytes <= room and s.split_k in (1, 2, 4, 8, 16)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "t"), thinned_rows([
    (1, BF16), (1, F16), (1, F32), (4, BF16), (4, F16), (4, F32), (8, BF16), (8, F16), (8, F32),
], 7))
def test_no_spills(m: int, t: Any) -> None:
    def fn(x: Any, w: Any, v: Any, s: Any) -> Any:
        y = models.norm(x.astype(F32), s, s).astype(t)
        return jax.nn.gelu(y @ w) + s.astype(t), jnp.einsum("mk,nk->mn", x, v)

    plan = plan_of(fn, Spec((m, 2048), t), Spec((2048, 2048), t), Spec((2048, 2048), t),
                   Spec((2048,), F32), device=H200)
    sigs = {s.key: found[1] for s in dot_sigs(plan) if (found := _own(s, m, t))}
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    program = generate(plan, target, H200, "test",
                       dataclasses.replace(schedule, sigs={**schedule.sigs, **sigs}))
    assert program.source.count("family='gemv'") >= 2
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0


def _own(sig: Any, m: int, t: Any) -> Any:
    code = DotCode.of(sig, DotSchedule("gemv", m, 8, GRANULE, 1, (1, 1, 1)))
    found = candidates_gemv(1, m, 2048, 2048, 8 * jnp.dtype(t).itemsize, k_major=code.rhs.k_major,
                            device=H200, threads=256, shared_bytes=H200.shared_bytes, blocks=66,
                            row_prologue=sig.form.row_prologue)
    return found[0] if found else None


def test_shared_memory_is_what_the_header_says() -> None:
    """The generated static_assert compares every constant with device/gemv.cuh."""
    plan = pair(3, 136, 520)
    sigs = forced(plan, gemv(3, 88, 2), gemv(3, 20, 2, wk=2))
    source = build(plan, sigs).source
    for s in dot_sigs(plan):
        total = shape(DotCode.of(s, sigs[s.key]), 128).shared_bytes
        assert f"static_assert(G::SHARED_BYTES == {total}" in source

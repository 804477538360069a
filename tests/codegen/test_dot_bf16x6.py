"""Exact products of f32 by six products of bf16 parts."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    Array,
    build,
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
from thinned import crossed

from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_takes import takes_bf16x6
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.support import exact_algorithm

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
H200 = Device()
matmul = functools.partial(jnp.matmul, precision="highest")


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1) -> DotSchedule:
    return DotSchedule("bf16x6", bm, bn, 32, slots, warps, split)


TILES = [tile(128, 128, 3, (1, 2, 1)), tile(64, 64, 4, (2, 1, 1)), tile(32, 128, 3, (1, 2, 1)),
         tile(256, 64, 3, (2, 1, 1)), tile(96, 128, 4, (1, 2, 1))]


def precise(plan: Plan, *schedules: DotSchedule) -> None:
    """Integers, every bit; and numbers of 24 bits of one sign, to what f32 itself loses of sums.
    Without p2 of an operand 4e-6 would be lost, without p1 1e-3."""
    run(plan, *schedules)
    program = build(plan, in_order(plan, *schedules), threads=256)
    check_near(plan, program, [np.abs(a) for a in smooth(plan.graph)], 5e-7, seeds=(1,),
               blocks=(2,))


def forced(fn: Any, *specs: Any, s: DotSchedule = TILES[1]) -> tuple[Plan, Any]:
    plan = plan_of(fn, *specs)
    program = build(plan, in_order(plan, s), threads=256)
    assert "GemmBf16x6<" in program.source
    return plan, program


@pytest.mark.sampled(23)
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"])
@pytest.mark.parametrize("s", TILES)
def test_all_layouts(s: DotSchedule, layout: str) -> None:
    """Sizes that no tile divides."""
    size = {"m": 140, "n": 116, "k": 204}
    left, right = (Spec(tuple(size[c] for c in x), F32)
                   for x in layout.split("->")[0].split(","))
    precise(plan_of(lambda x, y: jnp.einsum(layout, x, y, precision="highest"), left, right), s)


@pytest.mark.slow
def test_k_shared_by_blocks() -> None:
    plan = plan_of(lambda a, b: jax.nn.relu(matmul(a, b)), Spec((70, 648), F32),
                   Spec((648, 40), F32))
    precise(plan, tile(64, 64, 3, (2, 1, 1), split=4))
    precise(plan, tile(128, 128, 3, (1, 2, 1), split=2))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["bmk,bkn->bmn", "bkm,bnk->bmn"])
def test_batches(layout: str) -> None:
    size = {"b": 3, "m": 70, "n": 50, "k": 68}
    left, right = (Spec(tuple(size[c] for c in x), F32)
                   for x in layout.split("->")[0].split(","))
    precise(plan_of(lambda x, y: jnp.einsum(layout, x, y, precision="highest"), left, right),
            TILES[1])


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize(("m", "n", "k"), [(70, 67, 77), (33, 66, 130), (66, 33, 202)])
@pytest.mark.parametrize("layout", ["mk,kn->mn", "km,nk->mn"])
def test_rows_that_begin_anywhere(m: int, n: int, k: int, layout: str) -> None:
    """Copies of 4 and 8 bytes; columns that fill no vector."""
    size = {"m": m, "n": n, "k": k}
    left, right = (Spec(tuple(size[c] for c in x), F32)
                   for x in layout.split("->")[0].split(","))
    precise(plan_of(lambda x, y: jnp.einsum(layout, x, y, precision="highest"), left, right),
            TILES[1])


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_convolutions(stride: int, dilation: int) -> None:
    """Gathered rows, with padding."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", rhs_dilation=(dilation, dilation),
            precision="highest", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y + b)

    plan, program = forced(fn, Spec((2, 9, 9, 8), F32), Spec((3, 3, 8, 40), F32), Spec((40,), F32))
    assert "gathered<" in program.source
    precise(plan, TILES[1])


def test_rows_are_read_in_windows() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = jax.nn.relu(jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", precision="highest",
            dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    plan, program = forced(fn, Spec((2, 8, 8, 8), F32), Spec((3, 3, 8, 40), F32))
    assert "finish_windows<" in program.source
    precise(plan, TILES[1])


@pytest.mark.slow
def test_epilogues() -> None:
    """A bias and a residual, a gelu, outputs of 16 bits; columns that fill no vector."""
    def fn(x: Any, w: Any, b: Any, r: Any, v: Any) -> Any:
        y = matmul(x, w) + b
        return jax.nn.gelu(y), (y + r).astype(BF16), (matmul(x, v.T) + b[:67]).astype(BF16)

    plan, program = forced(fn, Spec((140, 96), F32), Spec((96, 136), F32), Spec((136,), F32),
                           Spec((140, 136), BF16), Spec((67, 96), F32), s=TILES[0])
    check_near(plan, program, smooth(plan.graph), 6e-3, seeds=(0, 1))


@pytest.mark.parametrize("layout", ["mk,kn->mn", "km,nk->mn"])
def test_as_exact_as_f32(layout: str) -> None:
    """Of one sign, so that what is lost adds up: less than f32 itself loses of a sum."""
    size = {"m": 64, "n": 64, "k": 512}
    left, right = (Spec(tuple(size[c] for c in x), F32)
                   for x in layout.split("->")[0].split(","))
    plan, program = forced(
        lambda x, y: jnp.einsum(layout, x, y, precision="highest"), left, right)
    x, y = (np.abs(a) for a in smooth(plan.graph))
    (found,) = run_program(program, [x, y], seed=1)
    wanted = np.einsum(layout, x.astype(np.float64), y.astype(np.float64))
    error = (found.astype(np.float64) - wanted) / wanted
    assert abs(error.mean()) < 2e-8 and np.abs(error).max() < 4e-7  # p2 left out: 4e-6


def test_products_that_f32_holds_are_exact() -> None:
    """One k of each row is no zero: x of any size, subnormal ones, too, by powers of two; and 17
    bits by 7, 12 by 12, 7 by 17."""
    _, program = forced(matmul, Spec((64, 128), F32), Spec((128, 64), F32))
    for bits in (24, 17, 12, 7):
        x, w = products_of_one(bits)
        (found,) = run_program(program, [x, w], seed=1)
        np.testing.assert_array_equal(
            found, (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32))


def products_of_one(bits: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(bits)

    def of(bits: int, low: int, high: int, shape: tuple[int, ...]) -> Any:
        whole = rng.integers(1 << (bits - 1), 1 << bits, shape) * rng.choice([-1, 1], shape)
        return np.ldexp(whole.astype(np.float64), rng.integers(low, high, shape) - bits)

    x = np.zeros((64, 128))
    x[np.arange(64), rng.permutation(128)[:64]] = of(bits, -125, 111, (64,))
    if bits == 24:
        x[:8] = np.ldexp(np.sign(x[:8]) * rng.integers(1, 1 << 23, (8, 1)), -149)
    w = of(max(24 - bits, 1), 1 if bits == 24 else -20, 16, (128, 64))
    # What f32 cannot hold is none of this test.
    return np.where(np.abs(x) < 2.0 ** 110, x, 1.0).astype(np.float32), w.astype(np.float32)


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    plan, program = forced(matmul, Spec((70, 128), F32), Spec((128, 72), F32))
    x, w = (a + 3 for a in small_integers(plan.graph))
    x[3, 5], x[7, 9], x[11, 100], x[64, 64] = np.nan, np.inf, 3.4e38, -3e38
    w[2, 8], w[9, 9], w[9, 10] = -np.inf, 0, -1
    with np.errstate(all="ignore"):
        wanted = np.zeros((70, 72), np.float32)
        for k in range(128):  # in the order of the kernel's multiply-adds
            wanted += x[:, k:k + 1] * w[k]
        for seed in (0, 1):
            (found,) = run_program(program, [x, w], seed=seed)
            np.testing.assert_array_equal(found, wanted)
    assert np.isnan(wanted[3]).all() and np.isnan(wanted[7, 9]) and np.isinf(wanted).any()
    assert np.isfinite(np.delete(np.delete(wanted, [3, 7, 11, 64], 0), 8, 1)).all()


def same(x: Any, w: Any) -> Any:
    return jax.nn.relu(jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", precision="highest", dimension_numbers=("NHWC", "HWIO", "NHWC")))


def pooled(x: Any, w: Any) -> Any:
    return jax.lax.reduce_window(same(x, w), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1),
                                 "VALID")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("fn", "left", "right", "split"), [
    (matmul, (70, 648), (648, 40), 4), (matmul, (3, 70, 68), (3, 68, 50), 1),
    (lambda x, w: matmul(x.T, w), (77, 70), (77, 66), 1),
    (same, (2, 9, 9, 8), (3, 3, 8, 40), 1), (pooled, (2, 8, 8, 8), (3, 3, 8, 40), 1)],
    ids=["shares of k", "batches", "km", "convolution", "windows"])
def test_what_is_made_once_more(fn: Any, left: Any, right: Any, split: int) -> None:
    """NaN, infinities, elements whose parts are none and sums beyond 2^94, wherever they are."""
    plan, program = forced(fn, Spec(left, F32), Spec(right, F32),
                           s=tile(64, 64, 3, (2, 1, 1), split=split))
    for seed in (0, 1):
        x, w = (np.abs(a) + np.float32(1) for a in smooth(plan.graph, seed))
        rng = np.random.default_rng(seed)
        for value in (np.nan, np.inf, 3e33, 2.0 ** 95):
            x.reshape(-1)[rng.integers(x.size)] = value
        w.reshape(-1)[rng.integers(w.size)] = np.inf
        with np.errstate(all="ignore"):
            check_near(plan, program, [x, w], 5e-7, seeds=(seed,), blocks=(2,))


def test_large_sums_are_made_once_more() -> None:
    """From 2^94 on, whether they are finite or not: by the order of their roundings."""
    plan, program = forced(matmul, Spec((64, 64), F32), Spec((64, 64), F32))
    x, w = (np.abs(a) * np.float32(2.0 ** 45) for a in smooth(plan.graph))
    (found,) = run_program(program, [x, w], seed=1)
    fused, rounded = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    for k in range(64):
        product = x[:, k:k + 1].astype(np.float64) * w[k]
        fused = (fused + product).astype(np.float32)
        rounded = rounded + product.astype(np.float32)
    assert np.isfinite(found).all() and (found > 2.0 ** 94).mean() > 0.9
    large = (found == fused) | (found == rounded) | (found < 2.0 ** 94)
    assert large.all()


@pytest.mark.parametrize(("fn", "left", "right", "why"), [
    (lambda x, w: matmul(x, jnp.tanh(w)), (128, 64), (64, 64), "weights are computed"),
    (lambda x, w: matmul(jnp.tanh(x), w), (128, 64), (64, 64), "rows are computed"),
    (lambda x, w: matmul(x[::-1], w), (128, 64), (64, 64), None),
    (lambda x, w: matmul(x.T[1:], w), (64, 129), (64, 64), None),
])
def test_what_it_takes(fn: Any, left: Any, right: Any, why: str | None) -> None:
    plan = plan_of(fn, Spec(left, F32), Spec(right, F32))
    (sig,) = dot_sigs(plan)
    assert isinstance(sig.form, DotForm)
    found = takes_bf16x6(sig.form, DotCode.of(sig, TILES[1]))
    if why is None:
        assert found is None
        run(plan, TILES[1])
    else:
        assert found is not None and why in found


@pytest.mark.parametrize(("algorithm", "family"), [
    ("F32_F32_F32", "bf16x6"), ("BF16_BF16_F32_X3", "bf16x6"), ("BF16_BF16_F32_X6", "bf16x6"),
    ("BF16_BF16_F32", "bytes")])  # rounded on the way
def test_algorithms_that_ask_for_no_more(algorithm: str, family: str) -> None:
    preset = jax.lax.DotAlgorithmPreset[algorithm]
    plan = plan_of(lambda x, w: jax.lax.dot(x, w, precision=preset), Spec((1024, 512), F32),
                   Spec((512, 1024), F32), device=H200)
    (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
    assert s.family == family


def test_an_algorithm_that_rounds_operands() -> None:
    preset = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    plan = plan_of(lambda x, w: jax.lax.dot(x, w, precision=preset), Spec((70, 64), F32),
                   Spec((64, 48), F32))
    x, w = smooth(plan.graph)
    (found,) = run_program(build(plan), [x, w], seed=1)
    wanted = x.astype(jnp.bfloat16).astype(np.float64) @ w.astype(jnp.bfloat16).astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(x.astype(np.float64) @ w - wanted).max() > 1e-3


def test_algorithms_that_have_more_parts() -> None:
    """As the compiler for a GPU is given them; JAX refuses some where it has the CPU only."""
    plan = plan_of(matmul, Spec((64, 64), F32), Spec((64, 64), F32))
    (sig,) = dot_sigs(plan)
    assert isinstance(sig.form, DotForm)
    for type_, count, exact, six in (("tf32", 3, True, True), ("bf16", 9, True, False),
                                     ("tf32", 1, False, False), ("f32", 1, True, True)):
        algorithm = ", ".join([
            f"lhs_precision_type = {type_}", f"rhs_precision_type = {type_}",
            "accumulation_type = f32", "lhs_component_count = 1", "rhs_component_count = 1",
            f"num_primitive_operations = {count}", "allow_imprecise_accumulation = false"])
        assert exact_algorithm(algorithm) == exact
        form = dataclasses.replace(sig.form, dot=dataclasses.replace(
            sig.form.dot, algorithm=algorithm))
        code = DotCode.of(sig, TILES[1])
        if exact:
            assert (takes_bf16x6(form, code) is None) == six
    assert exact_algorithm("")
    assert not exact_algorithm(algorithm.replace("type = f32", "type = f64"))


@pytest.mark.parametrize(("columns", "rows", "families"), [
    (512, 4096, ["bf16x6"]),  # a stage stores the rows, and costs less than multiply-adds
    (36, 4096, ["fma"]),      # a tile of parts would be half empty
    (512, 24, ["fma"])])
def test_operands_are_stored_where_parts_gain_by_it(columns: int, rows: int,
                                                    families: list[str]) -> None:
    plan = plan_of(lambda x, w: matmul(jnp.tanh(x) * 2 + x, w), Spec((rows, 512), F32),
                   Spec((512, columns), F32), device=H200)
    schedule = default_schedule(plan, cuda_target("sm_90a"), H200)
    assert [schedule.sigs[s.key].family for s in dot_sigs(plan)] == families
    assert len(plan.stages) == (2 if families == ["bf16x6"] else 1)


@pytest.mark.sampled(2)
@crossed(("s", [tile(128, 128, 5, (1, 2, 1)), tile(256, 64, 3, (2, 1, 1))]), ("x", ["mk", "km"]))
def test_nothing_is_spilled(s: DotSchedule, x: str) -> None:
    """ptxas lets no product wait for another one, and has registers for all sums."""
    plan = plan_of(lambda x_, w, b, r: jax.nn.gelu(
        jnp.einsum(f"{x},kn->mn", x_, w, precision="highest") + b) + r,
        Spec((2048, 768) if x == "mk" else (768, 2048), F32),
        Spec((768, 768), F32), Spec((768,), F32), Spec((2048, 768), F32), device=H200)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    (sig,) = dot_sigs(plan)
    kernel = emit(plan, target, H200, "test", dataclasses.replace(
        schedule, sigs={**schedule.sigs, sig.key: s}))
    assert "GemmBf16x6<" in kernel.source
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


WAITS = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_\w+(?:<\w+>)?|wgmma_wait<\w+>"
                   r"|wgmma_commit|wgmma_fence|ready|fence_proxy_async|syncwarp)\([^;{}]*\);")
COUNTS = {"gemm_bf16x6.cuh": 12, "bf16_parts.cuh": 4}


@functools.cache
def case(layout: str = "mk") -> Case:
    """Two stages, so that a grid barrier is waited for; three tiles of k for each slot."""
    def fn(x: Any, u: Any, w: Any) -> Any:
        y = jnp.clip(jnp.einsum(f"{layout},kn->mn", x, u, precision="highest"), -2, 2)
        return matmul(y, w)

    plan = plan_of(fn, Spec((128, 288) if layout == "mk" else (288, 128), F32),
                   Spec((288, 288), F32), Spec((288, 128), F32))
    sigs = in_order(plan, *[tile(64, 64, 3, (2, 1, 1))] * 2)
    return Case(plan, sigs, small_integers(plan.graph), 0.0, threads=256)


def lost(case: Case, monkeypatch: pytest.MonkeyPatch, change: Any) -> str:
    """`failure` where sums that are no numbers are left alone: what is read too early often is
    none, and would be made once more."""
    def apply(text: str) -> str:
        assert text.count("repair(sums, again);") == 1
        return change(text).replace("repair(sums, again);", "")

    return failure(case, monkeypatch, apply)


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("header", "number"),
                         [(x, i) for x, count in COUNTS.items() for i in range(count)])
def test_every_wait_matters(header: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = "km" if header == "bf16_parts.cuh" and number >= 2 else "mk"
    assert lost(case(layout), monkeypatch, removed(header, WAITS, number)) != ""


@pytest.mark.slow
def test_text_for_racecheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """All consumers give slots back, both roles meet twice."""
    assert failure(case(), monkeypatch, lambda text: "#define JM_RACECHECK\n" + text) == ""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["mk", "km"])
def test_nothing_fails_unchanged(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for header, count in COUNTS.items():
        assert len(WAITS.findall(own_text(header))) == count
    assert lost(case(layout), monkeypatch, lambda text: text) == ""

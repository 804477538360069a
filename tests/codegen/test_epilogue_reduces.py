"""Kernels that begin a reduce in a contraction's epilogue, in every family."""

from __future__ import annotations

from collections.abc import Callable
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
from harness import run_program
from jax import lax
from lost_waits import Case, failure, replaced
from thinned import crossed

from jaxmono.codegen import cuda_target, dot_function, dot_wgmma, generate
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import Device, DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def product(x: X, w: X) -> X:
    return jnp.matmul(x, w, preferred_element_type=F32)


def gradient(x: X, w: X, z: X) -> X:
    """A bias's gradient, and the largest of what it sums, rounded."""
    dz = jnp.where(z > 0, product(x, w), 0)
    return dz.astype(BF16), dz.sum(0), dz.astype(BF16).astype(F32).max(0)


def nearest(x: X, words: X) -> X:
    d = (words.astype(F32) ** 2).sum(1) - 2 * product(x, words.T)
    return jnp.argmin(d, 1), d.min(1)


def sums(x: X, w: X) -> X:
    """Two of all rows: nothing is stored."""
    y = product(x, w)
    return y.sum(0), (y * y).sum(0)


def likeliest(x: X, w: X) -> X:
    return jnp.argmax(product(x, w), 1)


def reduced(fn: Callable[..., Any], *args: Any) -> Plan:
    plan = plan_of(fn, *args)
    assert any(s.form.reduced for s in dot_sigs(plan) if isinstance(s.form, DotForm))
    return plan


def plans(m: int, n: int) -> dict[str, Plan]:
    x, w = Spec((m, 64), BF16), Spec((64, n), BF16)
    return {"gradient": reduced(gradient, x, w, Spec((m, n), BF16)), "sums": reduced(sums, x, w),
            "nearest": reduced(nearest, x, Spec((n, 64), BF16)),
            "likeliest": reduced(likeliest, x, w)}


WARPGROUPS = [wgmma(128, 64, 2, (2, 1, 1)), wgmma(128, 128, 2, (2, 1, 1)),
              wgmma(128, 32, 2, (2, 1, 1)), wgmma(64, 128, 2, (1, 1, 2)),
              wgmma(64, 256, 2, (1, 2, 1))]


def run(plan: Plan, schedule: DotSchedule, threads: int = 256) -> str:
    program = build(plan, in_order(plan, schedule), threads=threads)
    check_exact(plan, program, blocks=(1, 3))
    return program.source


@pytest.fixture(scope="module", params=[(512, 1152), (1000, 1064), (1021, 1038)], ids=str)
def sized(request: pytest.FixtureRequest) -> dict[str, Plan]:
    """Whole groups of rows and columns; whole pieces only; neither."""
    return plans(*request.param)


@pytest.mark.sampled(19)
@crossed(("name", ["gradient", "sums", "nearest", "likeliest"]), ("schedule", WARPGROUPS))
def test_warpgroups(sized: dict[str, Plan], name: str, schedule: DotSchedule) -> None:
    run(sized[name], schedule)


@pytest.mark.sampled(23)
@crossed(("name", ["gradient", "sums", "nearest", "likeliest"]), ("schedule", [
    DotSchedule("mma", 64, 32, 64, 2, (2, 2, 1)), DotSchedule("mma", 32, 96, 64, 2, (2, 2, 1)),
    DotSchedule("mma", 16, 64, 64, 2, (1, 2, 2))]))
def test_other_tensor_cores(sized: dict[str, Plan], name: str, schedule: DotSchedule) -> None:
    run(sized[name], schedule, threads=128)


@pytest.mark.sampled(23)
@crossed(("name", ["gradient", "sums", "nearest", "likeliest"]), ("split", [2, 4]))
def test_blocks_that_share_k(sized: dict[str, Plan], name: str, split: int) -> None:
    """They leave each other fragments, and each finishes a share of the columns."""
    assert "finish_split<" in run(sized[name], wgmma(128, 64 * split, 2, (2, 1, 1), split))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gradient", "sums"])
def test_tf32(name: str) -> None:
    args = Spec((1021, 40), F32), Spec((40, 1038), F32), Spec((1021, 1038), F32)
    plan = reduced(gradient, *args) if name == "gradient" else reduced(sums, *args[:2])
    for tile in ((128, 64, (2, 1, 1)), (64, 256, (1, 2, 1))):
        run(plan, DotSchedule("wgmma", *tile[:2], 32, 3, tile[2]))


@pytest.mark.parametrize("schedule", [
    DotSchedule("simt", 64, 64, 16, 1, (1, 1, 1)), DotSchedule("fma", 64, 64, 16, 2, (2, 1, 2)),
    pytest.param(DotSchedule("fma", 128, 64, 16, 2, (2, 1, 2)), marks=pytest.mark.slow)])
def test_ordinary_arithmetic(schedule: DotSchedule) -> None:
    with jax.default_matmul_precision("highest"):
        plan = reduced(sums, Spec((1021, 16), F32), Spec((16, 1040), F32))
    run(plan, schedule, 128)


def test_an_exact_product_is_not_made_element_by_element() -> None:
    with jax.default_matmul_precision("highest"):
        plan = reduced(sums, Spec((1024, 64), F32), Spec((64, 1024), F32))
    (sig,) = dot_sigs(plan)
    schedule = default_schedule(plan, cuda_target("sm_90a"), Device())
    assert schedule.sigs[sig.key].family == "fma"


@pytest.mark.parametrize(("m", "k", "n", "computed", "stays"), [
    (1024, 512, 1024, False, True),
    (1024, 64, 1024, False, False),    # the bytes cost more
    (65536, 128, 36, False, False),    # too narrow for parts
    (65536, 128, 64, True, False)])    # its rows are computed on the way
def test_where_an_exact_product_is_no_place_for_a_reduce(m: int, k: int, n: int, computed: bool,
                                                         stays: bool) -> None:
    """Parts of bf16 are 2.4 times as fast, and their tiles cannot reduce."""
    with jax.default_matmul_precision("highest"):
        plan = plan_of(lambda x, w: sums(x * 2 + 1 if computed else x, w), Spec((m, k), F32),
                       Spec((k, n), F32), device=Device())
    told = f"an exact product of {k} summed elements takes longer so" in str(plan.notes)
    assert told == stays
    schedule = default_schedule(plan, cuda_target("sm_90a"), Device())
    assert {schedule.sigs[s.key].family for s in dot_sigs(plan)} == {"bf16x6" if stays else "fma"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", [WARPGROUPS[0], DotSchedule("mma", 32, 96, 64, 2, (2, 4, 1))],
                         ids=str)
def test_not_a_number_reaches_its_own_results_only(schedule: DotSchedule) -> None:
    def fn(x: X, w: X) -> X:
        y = product(x, w)
        return y.max(0), y.sum(0), jnp.argmax(y.T, 1)

    plan = reduced(fn, Spec((1040, 64), BF16), Spec((64, 512), BF16))
    program = build(plan, in_order(plan, schedule), threads=256)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(1, 3, v.type.dims).astype(v.type.dtype.numpy) for v in plan.graph.inputs)
    w[5, 37], x[700, 3], w[3, 40:] = np.nan, np.inf, 0
    y = x.astype(np.float32) @ w.astype(np.float32)
    assert np.isnan(y.sum(0)).sum() == 1 + 512 - 40
    found = run_program(program, [x, w], seed=0, blocks=3)
    for got, want in zip(found, (y.max(0), y.sum(0), np.argmax(y, 0)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("m", [1040, 1037])
def test_a_maximum_is_of_what_is_stored(m: int) -> None:
    """Whoever looks for it finds it; a sum is of what was there before it was rounded."""
    def fn(x: X, w: X, c: X) -> X:
        y = (product(x, w) + c).astype(BF16)
        wide = y.astype(F32)
        return y, wide.max(0), wide.sum(0)

    args = Spec((m, 64), BF16), Spec((64, 1024), BF16), Spec((1024,), F32)
    plan = reduced(fn, *args)
    program = build(plan, in_order(plan, WARPGROUPS[1]), threads=256)
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(v.type.dims).astype(v.type.dtype.numpy)
               for v in plan.graph.inputs)
    y, most, total = run_program(program, [x, w, c], seed=0, blocks=3)
    np.testing.assert_array_equal(most, y.astype(np.float32).max(0))
    exact = (x.astype(np.float64) @ w.astype(np.float64) + c).sum(0)
    rounded = y.astype(np.float64).sum(0)
    assert np.abs(total - exact).mean() < 0.1 * np.abs(rounded - exact).mean()


def test_another_operand_that_the_program_pads() -> None:
    def fn(x: X, w: X, q: X) -> X:
        pairs = product(x, w), jnp.pad(q, ((0, 0), (0, 8)), constant_values=7.0)
        return lax.reduce(pairs, (jnp.float32(0), jnp.float32(0)),
                          lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,))

    for n in (1024, 1048):
        run(reduced(fn, Spec((512, 64), BF16), Spec((64, n), BF16), Spec((512, n - 8), F32)),
            WARPGROUPS[0])


def test_tiles_that_cannot() -> None:
    plan = reduced(nearest, Spec((512, 64), BF16), Spec((1024, 64), BF16))
    (sig,) = dot_sigs(plan)

    def why(schedule: DotSchedule) -> str | None:
        family = dot_wgmma if schedule.family in ("wgmma", "swapped") else dot_function
        return family.cannot_finish(DotCode.of(sig, schedule))

    assert why(wgmma(128, 64, 2, (2, 1, 1))) is None
    assert why(wgmma(128, 128, 2, (2, 1, 1), split=2)) is None
    assert why(wgmma(128, 32, 2, (2, 1, 1), split=2)) == \
        "a row of 16 columns does not have whole 32s"
    assert why(wgmma(128, 64, 2, (2, 1, 1), split=8)) == \
        "blocks that share k meet by rows, or the operands are swapped"
    assert why(wgmma(64, 64, 2, (1, 1, 2))) == "its warpgroups share k and meet in shared memory"
    assert why(wgmma(128, 96, 2, (2, 1, 1))) == "6 pieces to a row are no part of a warp"
    assert why(wgmma(128, 16, 2, (2, 1, 1))) == "a row of 16 columns does not have whole 32s"
    assert why(DotSchedule("mma", 64, 48, 64, 2, (2, 2, 1))) == \
        "a row of 16 columns does not have whole 32s"
    assert why(DotSchedule("mma", 64, 64, 64, 2, (2, 2, 1), 2)) == "blocks share k"


def test_compiles_for_hopper_without_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    plan = reduced(gradient, Spec((4096, 768), BF16), Spec((768, 3072), BF16),
                   Spec((4096, 3072), BF16))
    program = generate(plan, cuda_target("sm_90a"), Device(), "reduced")
    assert "GemmWgmma<bf16, 128" in program.source and "ReduceRows<" in program.source
    assert program.resources["spill_stores"] == 0


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("there", "instead"), [
    ("acc[i] = turn == 0 ? s :", "acc[i] = turn <= 1 ? s :"),
    ("if (turn != ROWS / AT_ONCE - 1) return false;", "if (turn != 0) return false;"),
    ("return lane_id() / PER_ROW * LANES / AT_ONCE;", "return 0;"),
    ("v[i] = f(keep, shfl_xor(give, STEP));", "v[i] = keep;")],
    ids=["rows", "the last row", "columns", "exchange"])
def test_each_step_counts(there: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = reduced(sums, Spec((512, 64), BF16), Spec((64, 1024), BF16))
    case = Case(plan, in_order(plan, WARPGROUPS[0]), small_integers(plan.graph), 0.0, threads=256,
                seeds=1)

    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, replaced(there, instead)) != ""

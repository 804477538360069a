"""Kernels whose contractions are pooled in their epilogue, in every family."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, dot_sigs, in_order, plan_of, wgmma
from jax import lax
from thinned import crossed

from jaxmono.codegen import cuda_target, dot_gemv_shape, dot_wgmma_takes, generate
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import Device, DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def pooled(window: tuple[int, int], *, n: int = 64, dtype: Any = BF16, h: int = 12, w: int = 16,
           kernel: int = 3, k: int = 16) -> Plan:
    """A convolution, a bias that is rounded and not, a pool; 192 rows of two images of 12 x 8."""
    def fn(x: X, w: X, b: X, c: X) -> X:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type=F32,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu((y + b).astype(dtype)) + c
        size = (1, *window, 1)
        return lax.reduce_window(y, jnp.asarray(-jnp.inf, dtype), lax.max, size, size, "VALID")

    plan = plan_of(fn, Spec((2, h, w, k), dtype), Spec((kernel, kernel, k, n), dtype),
                   Spec((n,), F32), Spec((n,), dtype))
    assert [s.form.taps for s in dot_sigs(plan) if isinstance(s.form, DotForm)] == \
        [window[0] * window[1]]
    return plan


def run(plan: Plan, schedule: DotSchedule, threads: int = 256, *, lean: bool = False) -> str:
    program = build(plan, in_order(plan, schedule), threads=threads, lean=lean)
    check_exact(plan, program, blocks=(1, 3))
    return program.source


@pytest.mark.sampled(7)
@crossed(("window", [(2, 2), (1, 2), (2, 4)]), ("schedule", [
    wgmma(128, 64, 2, (2, 1, 1)), wgmma(64, 128, 2, (1, 2, 1)), wgmma(64, 48, 2, (1, 1, 2)),
    wgmma(128, 32, 2, (2, 1, 1), split=2)]))
def test_warpgroups(window: tuple[int, int], schedule: DotSchedule) -> None:
    source = run(pooled(window, n=schedule.bn), schedule)
    assert ("finish_windows<" in source) == (schedule.split_k == 1)
    assert (f", {window[0] * window[1]}>;" in source) == (schedule.split_k > 1), "SplitK's group"


@pytest.mark.slow
def test_wide_tiles_whose_warpgroups_share_k() -> None:
    """Each finishes half of the columns."""
    assert "finish_windows<4, 8>" in run(pooled((2, 2), n=128, kernel=1, k=64),
                                         wgmma(64, 128, 2, (1, 1, 2)))


def test_four_chunks_of_columns_that_move_or_stay() -> None:
    for lean in (False, True):
        source = run(pooled((2, 4), n=256, kernel=1), wgmma(128, 256, 2, (2, 1, 1)), lean=lean)
        assert "finish_windows<8, 8>" in source and ("#define JM_LEAN" in source) == lean


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [20, 33])
def test_rows_and_columns_that_do_not_fill_the_tiles(n: int) -> None:
    plan = pooled((2, 2), n=n, h=10, w=6)
    run(plan, wgmma(128, 32, 2, (2, 1, 1)))
    run(plan, DotSchedule("mma", 32, 32, 64, 2, (2, 2, 1)), threads=128)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("schedule", "threads"), [
    (DotSchedule("mma", 64, 32, 64, 2, (2, 2, 1)), 128),
    (DotSchedule("mma", 16, 64, 32, 2, (1, 4, 1), 2), 128),
    (DotSchedule("mma", 16, 64, 32, 2, (1, 4, 1), 4), 128)], ids=str)
def test_other_tensor_cores(schedule: DotSchedule, threads: int) -> None:
    """Four blocks that share 16 rows finish four each; with windows of eight, two of them none."""
    for window in ((2, 2), (2, 4)):
        run(pooled(window), schedule, threads)


def test_ordinary_arithmetic() -> None:
    with jax.default_matmul_precision("highest"):
        run(pooled((2, 2), dtype=F32, n=24), DotSchedule("simt", 32, 32, 16, 1, (1, 1, 1)), 128)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("schedule", [
    wgmma(128, 32, 2, (2, 1, 1)), wgmma(64, 32, 2, (1, 1, 2)),
    wgmma(128, 32, 2, (2, 1, 1), split=2), DotSchedule("mma", 32, 32, 64, 2, (2, 4, 1))], ids=str)
def test_each_element_of_a_window_is_its_own(schedule: DotSchedule) -> None:
    def fn(x: X, w: X) -> X:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type=F32,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        a, b, c, d = (y[:, i::2, j::2] for i in (0, 1) for j in (0, 1))
        return a - 2 * b + 3 * c - 4 * d

    plan = plan_of(fn, Spec((2, 12, 16, 16), BF16), Spec((3, 3, 16, 32), BF16))
    assert [s.form.taps for s in dot_sigs(plan) if isinstance(s.form, DotForm)] == [4]
    run(plan, schedule)


def test_families_that_cannot() -> None:
    (sig,) = dot_sigs(pooled((2, 2), kernel=1))
    form = sig.form
    assert isinstance(form, DotForm)
    code = DotCode.of(sig, wgmma(64, 64, 2, (1, 1, 2)))
    assert dot_gemv_shape.takes(form) is not None
    assert dot_wgmma_takes.takes_swapped(form, code, code.element) == "the rows are read in windows"


@pytest.mark.slow
def test_compiles_for_hopper_without_spills() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    plan = pooled((2, 2), n=256, k=64, h=56, w=56)
    program = generate(plan, cuda_target("sm_90a"), Device(), "pooled")
    assert "finish_windows<4, 8>" in program.source
    assert program.resources["spill_stores"] == 0

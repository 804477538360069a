"""Roundings to fewer bits in kernels, of every float type."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from contraction_harness import build, plan_of
from harness import run_program

from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.generate import emit
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate


@pytest.mark.sampled(13)
@pytest.mark.parametrize(("dtype", "exponent", "mantissa"), [
    (np.float16, 5, 4), (np.float16, 4, 10), (np.float16, 8, 7), (np.float16, 5, 10),
    (ml_dtypes.bfloat16, 8, 3), (ml_dtypes.bfloat16, 5, 5), (np.float64, 8, 10),
    (np.float64, 11, 20), (np.float32, 8, 10)])
def test_as_the_interpreter_and_for_hopper(dtype: Any, exponent: int, mantissa: int) -> None:
    """On their own bits: 16-bit types are computed in f32, whose exponents are more. On Hopper one
    case is an instruction."""
    def fn(x: Any) -> Any:
        return jax.lax.reduce_precision(x * 1, exponent, mantissa)

    with jax.enable_x64(dtype is np.float64):
        plan = plan_of(fn, jax.ShapeDtypeStruct((1000,), dtype))
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        x = (rng.normal(size=1000) * 10.0 ** rng.integers(-44, 38, 1000)).astype(dtype)
        x[500:] = (rng.normal(size=500) * 10.0 ** rng.integers(-8, 5, 500)).astype(dtype)
    (found,) = run_program(build(plan), [x])
    (wanted,) = evaluate(plan.graph, [x])
    np.testing.assert_array_equal(found, wanted.astype(dtype))
    kernel = emit(plan, cuda_target("sm_90a"), Device(), "k")
    nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")


@pytest.mark.parametrize("outside", [0.1, -1e6])
def test_before_padding(outside: float) -> None:
    """A padded copy rounds what it copies only where the padding is rounded, too."""
    border = ((0, 0, 0), (1, 1, 0), (0, 3, 0))
    plan = plan_of(lambda x: jax.lax.pad(jax.lax.reduce_precision(x, 5, 2), outside, border),
                   jax.ShapeDtypeStruct((4, 9, 5), np.float32))
    x = np.random.default_rng(0).standard_normal((4, 9, 5)).astype(np.float32)
    (found,) = run_program(build(plan), [x])
    np.testing.assert_array_equal(found, evaluate(plan.graph, [x])[0].astype(np.float32))
    assert (found == np.float32(outside)).sum() == 4 * 11 * 8 - 4 * 9 * 5

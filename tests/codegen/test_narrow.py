"""The cheaper functions for 16-bit results keep the accuracy that narrow.cuh states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
from emulated import emulate

from jaxmono.hlo.types import DType

X = np.ndarray[Any, Any]
EXACT = {"exponential": np.exp, "logistic": scipy.special.expit, "erf": scipy.special.erf,
         "erfc": scipy.special.erfc, "log": np.log, "log_plus_one": np.log1p, "tanh": np.tanh,
         "reciprocal": np.reciprocal}
SCALE = 0.70703125  # sqrt(0.5) in bf16 and in f16
BF16 = DType.BF16.numpy
WHOLE = [*(("bf16_gelu", s) for s in (SCALE, 2.0 ** -16, 2.0 ** 16)),
         *(("f16_gelu", s) for s in (SCALE, 2.0 ** -16, 2.0 ** 16)),
         *(("bf16_logistic", s) for s in (1.0, -1.702, 2.0 ** 64)),
         *(("f16_logistic", s) for s in (1.0, -1.702, 2.0 ** 64)),
         ("bf16_softplus", None), ("f16_softplus", None)]
_SIGMA = 2 ** -0.5
BOUNDS = {"bf16_gelu": ((4 * _SIGMA, 2.0 ** -12.4), (6 * _SIGMA, 2.0 ** -8.4), (np.inf, np.inf)),
          "f16_gelu": ((4 * _SIGMA, 2.0 ** -17.5), (6 * _SIGMA, 2.0 ** -14), (np.inf, np.inf)),
          "bf16_logistic": ((np.inf, 2.0 ** -11.5),), "f16_logistic": ((np.inf, 2.0 ** -16),),
          "bf16_softplus": ((np.inf, 2.0 ** -14),), "f16_softplus": ((np.inf, 2.0 ** -16),)}
"""Of the relative error, where erfc's argument is below a number."""
OF: dict[str, Callable[[X, float], X]] = {
    "gelu": lambda x, scale: x / 2 * scipy.special.erfc(-scale * x),
    "logistic": lambda x, scale: scipy.special.expit(scale * x),
    "softplus": lambda x, _: np.logaddexp(x, 0)}
N = 40_000
SOURCE = """
#include "jaxmono/narrow.cuh"
namespace jaxmono { struct Params { void* buf[2]; }; }
extern "C" __global__ void __launch_bounds__(128, 1) k(const __grid_constant__ jaxmono::Params p) {
  using namespace jaxmono;
  for (int i = block_id() * 128 + thread_id(); i < %d; i += num_blocks() * 128)
    static_cast<float*>(p.buf[1])[i] = op_%s(static_cast<const float*>(p.buf[0])[i]%s);
}
JAXMONO_EMULATE_MAIN(k, jaxmono::Params, 2, 128, 0)
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_accuracy_and_limits(name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-87, 87, N // 2), rng.uniform(-4, 4, N // 4),
                        rng.choice([-1, 1], N // 4) * 10.0 ** rng.uniform(-30, 1, N // 4)])
    x = x.astype(np.float32)
    x[:5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    y = np.full(N, 77, np.float32)
    emulate(SOURCE % (N, f"narrow_{name}", "")).run([x, y])
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
    assert np.isnan(y[0])
    np.testing.assert_array_equal(y[1:5], exact[1:5].astype(np.float32))
    normal = (np.abs(exact) > 2.0 ** -125) & np.isfinite(exact)
    error = np.abs(y[normal] - exact[normal]) / np.abs(exact[normal])
    worst = np.full(N, 2.0 ** -16)
    if name == "erfc":
        worst[x > 4] = 2.0 ** -13
    late = error >= worst[normal]
    assert not late.any(), (np.log2(error[late].max()), x[normal][late])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "scale"), WHOLE)
def test_all_bf16_arguments(name: str, scale: float | None) -> None:
    x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    y = np.full(x.size, 77, np.float32)
    emulate(SOURCE % (x.size, name, f", {scale}f" if scale else "")).run([x, y])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = OF[name.split("_")[1]](wide, scale or 1)
        a = np.abs(wide * (scale or 1))
        factor = np.abs([y, exact]) / np.maximum(np.abs(wide), 1)  # of gelu: the half of an erfc
    special = ~np.isfinite(x)
    np.testing.assert_array_equal(y[special], exact[special].astype(np.float32))
    normal = ~special & (factor[1] > 2.0 ** -125) & (exact != 0)
    # What is not normal may be flushed.
    assert (factor[0, ~special & ~normal] <= 2.0 ** -124).all()
    error = np.abs(y / np.where(normal, exact, 1) - 1)
    worst = np.select([a < below for below, _ in BOUNDS[name]], [b for _, b in BOUNDS[name]])
    late = normal & (error >= worst)
    assert not late.any(), (np.log2(error[late].max()), x[late])
    assert (np.abs(y[normal]) <= np.abs(exact[normal]) * 1.01).all()  # never farther out
    dtype = DType(name.split("_")[0]).numpy
    kept = normal & (np.abs(exact) >= 2.0 ** -14) & (np.abs(exact) < 2.0 ** 15)
    with np.errstate(all="ignore"):
        other = y[kept].astype(dtype) != exact[kept].astype(np.float32).astype(dtype)
    assert np.mean(other) < 0.02, np.mean(other)


def test_logarithms_of_all_bf16_numbers() -> None:
    """Next to 1, too, and of subnormal ones."""
    x = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    y = np.full(x.size, 77, np.float32)
    emulate(SOURCE % (x.size, "bf16_log", "")).run([x, y])
    with np.errstate(all="ignore"):
        exact = np.log(x.astype(np.float64))
    plain = np.isfinite(exact) & (exact != 0)
    np.testing.assert_array_equal(y[~plain], exact[~plain].astype(np.float32))
    assert (np.abs(y[plain] / exact[plain] - 1) < 2.0 ** -13).all()

"""The cheaper functions for 16-bit results keep the accuracy that narrow.cuh states."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from emulated import emulate

EXACT = {"exponential": np.exp, "logistic": scipy.special.expit, "erf": scipy.special.erf,
         "erfc": scipy.special.erfc, "log_plus_one": np.log1p, "tanh": np.tanh,
         "reciprocal": np.reciprocal}
N = 40_000
SOURCE = """
#include "jaxmono/narrow.cuh"
namespace jaxmono { struct Params { void* buf[2]; }; }
extern "C" __global__ void __launch_bounds__(128, 1) k(const __grid_constant__ jaxmono::Params p) {
  using namespace jaxmono;
  for (int i = block_id() * 128 + thread_id(); i < %d; i += num_blocks() * 128)
    static_cast<float*>(p.buf[1])[i] = op_narrow_%s(static_cast<const float*>(p.buf[0])[i]);
}
JAXMONO_EMULATE_MAIN(k, jaxmono::Params, 2, 128, 0)
"""


@pytest.mark.parametrize("name", sorted(EXACT))
def test_accuracy_and_limits(name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-87, 87, N // 2), rng.uniform(-4, 4, N // 4),
                        rng.choice([-1, 1], N // 4) * 10.0 ** rng.uniform(-30, 1, N // 4)])
    x = x.astype(np.float32)
    x[:5] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    y = np.full(N, 77, np.float32)
    emulate(SOURCE % (N, name)).run([x, y])
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

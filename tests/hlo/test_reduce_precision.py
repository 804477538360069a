"""The interpreter's rounding against XLA's, subnormal numbers included where exponents stay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate


@pytest.mark.parametrize(("dtype", "exponent", "mantissa"), [
    (jnp.float32, 8, 10), (jnp.float32, 8, 7), (jnp.float32, 8, 23), (jnp.float32, 5, 10),
    (jnp.bfloat16, 8, 3), (jnp.float16, 5, 4), (jnp.float16, 4, 4)])
def test_bits(dtype: Any, exponent: int, mantissa: int) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.reduce_precision(x, exponent, mantissa)

    rng = np.random.default_rng(0)
    x = (rng.normal(size=512) * 10.0 ** rng.integers(-44, 38, 512)).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 65519, 1e-40]
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    full = exponent == (5 if dtype is jnp.float16 else 8)
    if not full:  # XLA's CPU code treats subnormal inputs as zeros
        x = np.where(np.abs(x) < float(jnp.finfo(dtype).tiny), np.zeros((), dtype), x)
    graph = import_module(jax.jit(fn).lower(x).compiler_ir("stablehlo")).graph
    (found,) = evaluate(graph, [x])
    np.testing.assert_array_equal(np.asarray(found, np.float64), np.asarray(fn(x), np.float64))

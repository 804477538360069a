"""mode="stitch": kernels between XLA's contractions, equal ones built once."""

from __future__ import annotations

import jax
import numpy as np

import jaxmono


def _layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
    for w in weights:
        y = x @ w
        x = x + (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return x


def _args() -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    x, *weights = (jax.random.normal(k, (4 if i == 0 else 32, 32)) for i, k in enumerate(keys))
    return x, *weights


def test_contractions_stay_with_xla_and_the_results_are_right() -> None:
    fn = jaxmono.jit(_layers, mode="stitch", interpret=True)
    compiled = fn.lower(*_args()).compile()
    told = compiled.explain()
    assert {r.op for r in told.refused} == {"dot_general"}
    assert told.kernels == 3
    np.testing.assert_allclose(compiled(*_args()), jax.jit(_layers)(*_args()), rtol=2e-5, atol=2e-5)


def test_equal_regions_are_one_kernel() -> None:
    told = jaxmono.jit(_layers, mode="stitch", interpret=True).explain(*_args())
    assert len({k.name for k in told.planned}) == 1 and len(told.planned) == 3


def test_a_mode_is_no_lack_of_support() -> None:
    fn = jaxmono.jit(_layers, mode="stitch", interpret=True, on_unsupported="error")
    np.testing.assert_allclose(fn(*_args()), jax.jit(_layers)(*_args()), rtol=2e-5, atol=2e-5)

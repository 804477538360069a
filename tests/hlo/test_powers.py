"""Powers that roots and products make (hlo/passes/rules/powers.py)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from models import graph_of

from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.passes.pipeline import simplify

SPECIAL = np.asarray([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -3.5, 2.5e8, 1e-30],
                     np.float32)


def powers(fn: Any, x: Any) -> list[ops.Elementwise]:
    return [o for o in simplify(graph_of(fn, x)).ops
            if isinstance(o, ops.Elementwise) and o.kind == "power"]


@pytest.mark.parametrize("k", [0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0])
def test_the_same_values(k: float) -> None:
    """Infinities, NaN and the sign of zeros included."""
    rng = np.random.default_rng(0)
    x = np.concatenate([SPECIAL, np.exp(rng.normal(size=200) * 8).astype(np.float32)])

    def fn(x: Any) -> Any:
        return x ** jnp.full(x.shape, k, x.dtype)

    assert not powers(fn, x)
    graph = graph_of(fn, x)
    with np.errstate(all="ignore"):
        (got,), (want,) = evaluate(simplify(graph), [x]), evaluate(graph, [x])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("fn", [
    lambda x: x ** jnp.full(x.shape, 0.3, x.dtype), lambda x: x ** jnp.full(x.shape, 4.0, x.dtype),
    lambda x: x ** x,
    lambda x: (x.astype(jnp.bfloat16) ** jnp.full(x.shape, 1.5, jnp.bfloat16))])
def test_other_powers_stay(fn: Any) -> None:
    assert len(powers(fn, SPECIAL)) == 1

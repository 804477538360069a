"""Softmaxes of 16 bits as kernels: long ones of few rows (fusion/split_softmax.py), and others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import compile_graph, run_program

from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, RowForm


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rows, long", [(3, 40961), (8, 1000)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_only_the_result_is_rounded(dtype: jnp.dtype, rows: int, long: int) -> None:
    """Few values of x, with a rounding of their own each, which no average hides."""
    def softmax(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=-1)

    graph = models.graph_of(softmax, jax.ShapeDtypeStruct((rows, long), dtype))
    plan = make_plan(graph, Device())
    split = long > 1000
    assert len(plan.stages) == (3 if split else 1)
    assert sum(isinstance(g.sig.form, RowForm) for g in plan.groups) == 1 + split
    x = np.random.default_rng(0).standard_normal((rows, long), np.float32) * 4
    x = (x - 300).astype(dtype)
    (found,) = run_program(compile_graph(graph, plan=plan), [x])
    power = np.exp(x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True))
    exact = power / power.sum(-1, keepdims=True)
    rounding = np.linalg.norm(exact.astype(dtype).astype(np.float64) - exact)
    assert np.linalg.norm(found.astype(np.float64) - exact) <= 1.05 * rounding

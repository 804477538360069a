"""Literals that loops read: how wide their vectors are, and the values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from harness import DEVICE, check
from harness_graphs import data
from models import graph_of

from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device


def scaled(x: Any) -> Any:
    return x * (jnp.arange(x.shape[-1], dtype=jnp.float32) * 0.02 - 1).astype(x.dtype)


@pytest.mark.parametrize(("dtype", "n", "lanes"), [
    (jnp.float32, 51, 4), (jnp.bfloat16, 51, 8), (jnp.float32, 50, 4), (jnp.bfloat16, 64, 8)])
def test_small_tables_make_no_vector_narrower(dtype: Any, n: int, lanes: int) -> None:
    graph = graph_of(scaled, jax.ShapeDtypeStruct((4096, n), dtype))
    plan = make_plan(graph, DEVICE)
    (sig,) = plan.sigs
    found = default_schedule(plan, cuda_target("sm_90a"), Device()).sigs[sig.key]
    assert isinstance(found, LoopSchedule)
    assert found.lanes == lanes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("n", [3, 50, 51, 64])
def test_values(dtype: Any, n: int) -> None:
    graph = graph_of(scaled, jax.ShapeDtypeStruct((48, n), dtype))
    check(graph, [data(v, i) for i, v in enumerate(graph.inputs)])

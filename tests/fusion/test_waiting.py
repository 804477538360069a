"""Operands that products of a batch would wait for, while they are computed (fusion/loops.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec
from models import graph_of

from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops

BF16, F32 = jnp.bfloat16, jnp.float32


def decays(a: Any, b: Any, x: Any) -> Any:
    """Mamba-2's: how much of each place is left at each later one."""
    return jnp.einsum("clm,cmp->clp", jnp.exp(a[:, :, None] - a[:, None]).astype(BF16) * b, x)


def of_a_matrix(a: Any, b: Any, x: Any) -> Any:
    return (jnp.exp(a[0, :, None] - a[0]).astype(BF16) * b[0]) @ x[0]


def scaled(a: Any, b: Any, x: Any) -> Any:
    return jnp.einsum("clm,cmp->clp", b * a[:, :, None].astype(BF16), x)


@pytest.mark.parametrize(("fn", "chunks", "chunk", "apart"), [
    (decays, 96, 256, True), (decays, 2, 128, False), (decays, 96, 48, False),
    (of_a_matrix, 1, 1024, False), (scaled, 8, 256, False)],
    ids=["large", "small", "few rows", "no batch", "cheap"])
def test_what_takes_long_is_stored_first(fn: Callable[..., Any], chunks: int, chunk: int,
                                         apart: bool) -> None:
    shapes = ((chunks, chunk), F32), ((chunks, chunk, chunk), BF16), ((chunks, chunk, 64), BF16)
    plan = make_plan(graph_of(fn, *(Spec(*s) for s in shapes)), Device(wgmma=True))
    (dot,) = [s for s in plan.sigs if s.kind == "dot"]
    computed = any(isinstance(o, ops.Elementwise) for o in dot.body.ops)
    assert computed != apart

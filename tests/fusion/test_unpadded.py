"""Weights whose rows begin anywhere: read as they lie, or as padded copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from models import graph_of

from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def copies(fn: Callable[..., Any], *args: Any, wgmma: bool = True) -> int:
    plan = make_plan(graph_of(fn, *args), Device(wgmma=wgmma))
    return sum(isinstance(o, ops.Stored) for o in plan.graph.ops)


def head(x: Any, w: Any) -> Any:
    return jnp.maximum(x @ w, 0)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("n", [3002, 3001])
def test_weights_are_read_as_they_lie(dtype: Any, n: int) -> None:
    args = Spec((2048, 768), dtype), Spec((768, n), dtype)
    assert copies(head, *args) == 0
    assert copies(head, *args, wgmma=False) == 1


@pytest.mark.parametrize(("fn", "dtype", "x", "w", "count", "why"), [
    (head, F32, (2048, 768), (768, 3001), 1, "of 32 bits"),
    (head, BF16, (2048, 769), (769, 3008), 1, "rows begin anywhere, not weights"),
    (lambda x, w: x @ w.T, BF16, (2048, 769), (3008, 769), 2, "both have k next to each other"),
    (head, BF16, (8192, 768), (768, 59), 0, "few columns: nothing is copied for the weights"),
    (head, BF16, (2048, 8192), (8192, 131071), 1, "places of 31 bits do not do"),
    (lambda x, w: head(x[:, 1:769], w), BF16, (2048, 776), (768, 3001), 1, "rows begin anywhere"),
    (lambda x, w: head(x[:, :768], w), BF16, (2048, 769), (768, 3001), 1, "likewise"),
    (lambda x, w: head(x.T, w), BF16, (768, 2048), (768, 3001), 1, "rows are columns"),
])
def test_others_are_copied_as_before(fn: Any, dtype: Any, x: Any, w: Any, count: int,
                                     why: str) -> None:
    args = Spec(x, dtype), Spec(w, dtype)
    assert copies(fn, *args) == copies(fn, *args, wgmma=False) == count, why


def test_several_products_read_a_copy() -> None:
    def both(x: Any, y: Any, w: Any) -> Any:
        return x @ w, jnp.tanh(y) @ w

    x = Spec((2048, 768), BF16)
    assert copies(both, x, Spec((1024, 768), BF16), Spec((768, 3001), BF16)) == 1


def test_epilogues_that_reduce_read_a_copy() -> None:
    """Largest logits are found in the product's epilogue, by tiles from shared memory."""
    def largest(x: Any, w: Any) -> Any:
        return (x @ w).max(-1)

    assert copies(largest, Spec((2048, 768), BF16), Spec((768, 3002), BF16)) == 1

"""Small products whose results are only widened are not rounded before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X, W = Spec((32, 256), BF16), Spec((256, 8), BF16)


def graph_of(fn: Any, *args: Any) -> Graph:
    """As imported."""
    return import_module(jax.jit(fn).lower(*args).compiler_ir("stablehlo")).graph


def result(graph: Graph) -> DType:
    (dot,) = (o for o in graph.ops if isinstance(o, ops.DotGeneral))
    return dot.result.type.dtype


def routed(x: Any, w: Any) -> Any:
    return jax.nn.softmax((x @ w).astype(F32))


@pytest.mark.parametrize("rows", [1, 32, 4096])
def test_logits_of_a_router(rows: int) -> None:
    args = Spec((rows, 512), BF16), Spec((512, 64), BF16)
    assert result(simplify(graph_of(routed, *args))) is DType.F32


def test_both_conversions_of_two() -> None:
    def f(x: Any, w: Any) -> Any:
        y = x @ w
        return y.astype(F32).sum(), jnp.exp(y.astype(F32))

    graph = simplify(graph_of(f, X, W))
    assert result(graph) is DType.F32
    assert not any(isinstance(o, ops.Convert) for o in graph.ops)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "another reader": (lambda x, w: (routed(x, w), jnp.cos(x @ w)), (X, W)),
    "returned": (lambda x, w: (routed(x, w), x @ w), (X, W)),
    "something between": (lambda x, w: jnp.exp(jnp.floor(x @ w).astype(F32)), (X, W)),
    "many words": (routed, (Spec((256, 256), BF16), Spec((256, 512), BF16))),
    "few rows of large weights": (routed, (Spec((4, 2048), BF16), Spec((2048, 4096), BF16))),
    "a word too many": (routed, (Spec((32, 512), BF16), Spec((512, 65), BF16))),
    "sums of another type": (lambda x, w: jax.nn.softmax(jnp.dot(
        x, w, precision=lax.DotAlgorithmPreset.BF16_BF16_F32).astype(F32)), (X, W)),
    "a batch": (lambda q, k: jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k).astype(F32)),
                (Spec((8, 1, 64), BF16), Spec((8, 96, 64), BF16))),
    "f16": (routed, (Spec((32, 256), F16), Spec((256, 8), F16))),
    "f64": (lambda x, w: (x @ w).astype(jnp.float64), (X, W)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_rounded(name: str) -> None:
    fn, args = LEFT[name]
    with jax.enable_x64(True):
        assert result(simplify(graph_of(fn, *args))) is not DType.F32


def test_nearly_equal_logits_are_told_apart() -> None:
    # Of 16 bits both are 0.3418.
    x = np.zeros((32, 256), np.float32)
    x[:, 0] = 1
    w = np.zeros((256, 8), np.float32)
    w[0, :] = -1
    x[:, 1] = 2.0 ** -12
    w[0, 2] = w[0, 5] = 0.341796875
    w[1, 5] = 1
    graph = simplify(graph_of(lambda x, w: jnp.argmax((x @ w).astype(F32), 1), X, W))
    (found,) = evaluate(graph, [jnp.asarray(x, BF16), jnp.asarray(w, BF16)])
    assert set(np.asarray(found).tolist()) == {5}

"""Gradients of pools: whose place gets what, beside XLA's and the op's own meaning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from thinned import crossed

import jaxmono
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.parse import parse
from jaxmono.hlo.passes import expand, simplify
from jaxmono.hlo.verify import verify

Padding = Any

CASES = [  # operand, window, strides, padding
    ((2, 8, 6, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    ((2, 9, 7, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),  # a last row that no window sees
    ((2, 9, 8, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    ((1, 7, 7, 2), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    ((2, 11, 3), (1, 2, 1), (1, 3, 1), "VALID"),  # some that no window sees between two
    ((2, 3, 12), (1, 1, 5), (1, 1, 3), ((0, 0), (0, 0), (4, 3))),
    ((40,), (3,), (2,), ((0, 1),)),
]


def gradient(window: tuple[int, ...], strides: tuple[int, ...], padding: Padding,
             reducer: Any = lax.max, start: float = -np.inf) -> Any:
    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            y = lax.reduce_window(x, np.asarray(start, x.dtype), reducer, window, strides, padding)
            return (y.astype(jnp.float32) * w[tuple(map(slice, y.shape))]).sum()

        return jax.grad(loss)(x)

    return fun


def graph_of(fun: Any, *args: Any) -> Graph:
    return import_module(jax.jit(fun).lower(*args).compiler_ir("stablehlo")).graph


def inputs(shape: tuple[int, ...], dtype: Any, *, ties: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(len(shape))
    x = rng.integers(-2, 3, shape) if ties else rng.normal(size=shape)
    return x.astype(dtype), rng.normal(size=shape).astype(np.float32)


@crossed((("shape", "window", "strides", "padding"), CASES), ("ties", [False, True]))
def test_it_is_comparisons_and_gives_the_same(shape: tuple[int, ...], window: tuple[int, ...],
                                              strides: tuple[int, ...], padding: Padding,
                                              ties: bool) -> None:
    for reducer, start in ((lax.max, -np.inf), (lax.min, np.inf)):
        fun = gradient(window, strides, padding, reducer, start)
        x, w = inputs(shape, np.float32, ties=ties)
        graph = graph_of(fun, x, w)
        assert any(isinstance(o, ops.SelectAndScatter) for o in graph.ops)
        made = simplify(expand(graph))
        verify(made)
        assert not any(isinstance(o, ops.SelectAndScatter | ops.Scatter) for o in made.ops)
        for a, b in zip(evaluate(made, (x, w)), evaluate(graph, (x, w)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(evaluate(made, (x, w))[0], jax.jit(fun)(x, w), rtol=1e-6,
                                   atol=1e-6)


def test_what_compares_with_nothing_gives_way() -> None:
    """As XLA has it: an element that is no number is left for the next one."""
    fun = gradient((1, 3), (1, 2), ((0, 0), (1, 1)))
    x, w = inputs((6, 13), np.float32, ties=True)
    x[0, 3:5] = x[1, :4] = x[2, -1] = x[3, :] = np.nan
    x[4, 2:9], x[5, :] = -np.inf, -np.inf
    graph = graph_of(fun, x, w)
    (made,), (meant,) = (evaluate(g, (x, w)) for g in (simplify(expand(graph)), graph))
    np.testing.assert_array_equal(made, meant)
    np.testing.assert_array_equal(made, jax.jit(fun)(x, w))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_kernel_has_it(dtype: Any) -> None:
    fun = gradient((1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    x, w = inputs((2, 9, 8, 16), dtype, ties=True)
    kernel = jaxmono.jit(fun, interpret=True, on_unsupported="error")
    assert "left to XLA" not in str(kernel.explain(x, w))
    made = np.asarray(kernel(x, w), np.float32)
    wide = np.asarray(jax.jit(fun)(x.astype(np.float32), w))
    # What a window gives is rounded before it is added.
    off = 1e-6 if dtype is jnp.float32 else 2e-2
    np.testing.assert_allclose(made, wide, rtol=off, atol=off)


PADDED = """\
graph main(%0: f32[9,8], %1: f32[5,5]) {
  %2 = f32[] constant() {value=f32[]<0.5>}
  %3 = f32[9,8] select_and_scatter(%0, %1, %2) {window_dimensions=[3, 4], window_strides=[2, 2], \
padding=[[1, 1], [3, 1]]}
    select(%4: f32[], %5: f32[]) {
      %6 = pred[] compare(%4, %5) {direction=DIRECTION, compare_type=FLOAT}
      return %6
    }
    scatter(%7: f32[], %8: f32[]) {
      %9 = f32[] add(%7, %8)
      return %9
    }
  return %3
}
"""


@pytest.mark.parametrize("direction", ["GE", "GT", "LE", "LT"])
def test_padding_is_never_chosen(direction: str) -> None:
    graph = parse(PADDED.replace("DIRECTION", direction))
    verify(graph)
    made = expand(graph)
    assert made is not graph
    verify(made)
    for ties in (False, True):
        x, w = inputs((9, 8), np.float32, ties=ties)
        x[0, :3], x[4, 5:], x[7:, 2] = np.nan, -np.inf, np.inf
        for a, b in zip(evaluate(made, (x, w[:5, :5])), evaluate(graph, (x, w[:5, :5])),
                        strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_others_stay_with_a_reason() -> None:
    def only(g: Graph) -> ops.SelectAndScatter:
        (op,) = [o for o in g.ops if isinstance(o, ops.SelectAndScatter)]
        return op

    wide = graph_of(gradient((10, 10), (1, 1), "VALID"), *inputs((40, 40), np.float32, ties=False))
    assert expand(wide) is wide
    assert "windows of 100 elements" in (refusal(only(wide)) or "")
    op = only(parse(PADDED.replace("DIRECTION", "GE")))
    assert refusal(op) is None
    assert "lie in its padding" in (refusal(replace(op, padding=((0, 3), (0, 0)))) or "")
    assert "selects by no comparison" in (refusal(only(parse(
        PADDED.replace("DIRECTION", "EQ")))) or "")

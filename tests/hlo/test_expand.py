"""Convolutions and windowed reductions, expanded: the same numbers, in the form that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import WINDOWS
from jax import lax
from programs import random_program, reference
from thinned import thinned

from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.parse import parse
from jaxmono.hlo.passes import expand, simplify
from jaxmono.hlo.passes.rules import reduce_window as rules
from jaxmono.hlo.verify import verify

NHWC = ("NHWC", "HWIO", "NHWC")


def graph_of(fun: Any, *args: Any) -> Graph:
    lowered = jax.jit(fun, keep_unused=True).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def kinds(graph: Graph) -> set[type]:
    return {type(o) for o in graph.ops}


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("block", thinned(range(8), 8))
def test_random_programs_keep_their_results(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        program = random_program(seed, dtypes=("f32", "bf16", "f16"), ops=WINDOWS)
        simple = simplify(graph_of(program.fun, *program.args))
        verify(simple)
        assert simplify(simple) is simple
        assert kinds(simple).isdisjoint({ops.Convolution, ops.ReduceWindow})
        program.check(evaluate(simple, program.args), reference(program))


# ---- convolutions ------------------------------------------------------------------------------

REVERSED = """\
graph main(%0: f32[2,6,7,3], %1: f32[3,2,3,5]) {
  %2 = f32[2,4,3,5] convolution(%0, %1) {window_strides=[1, 2], padding=[[1, -1], [0, 0]], \
lhs_dilation=[1, 1], rhs_dilation=[1, 2], window_reversal=[true, false], input_batch=0, \
input_feature=3, input_spatial=[1, 2], kernel_input_feature=2, kernel_output_feature=3, \
kernel_spatial=[0, 1], output_batch=0, output_feature=3, output_spatial=[1, 2], \
feature_group_count=1, batch_group_count=1}
  return %2
}
"""


def test_a_reversed_kernel() -> None:
    graph = parse(REVERSED)
    verify(graph)
    args = [normal(2, 6, 7, 3), normal(3, 2, 3, 5)]
    wanted = lax.conv_general_dilated(args[0], args[1][::-1], (1, 2), ((1, -1), (0, 0)),
                                      rhs_dilation=(1, 2), dimension_numbers=NHWC,
                                      precision="highest")
    for g in (graph, simplify(graph)):
        np.testing.assert_allclose(evaluate(g, args)[0], wanted, rtol=1e-4, atol=1e-5)


def convolved(x: Sequence[int], k: Sequence[int], stride: int = 1, padding: Any = "VALID",
              numbers: Any = NHWC, **kw: Any) -> Graph:
    def fun(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (stride,) * (len(x.shape) - 2), padding,
                                        dimension_numbers=numbers, **kw)

    return simplify(graph_of(fun, jnp.zeros(x, jnp.bfloat16), jnp.zeros(k, jnp.bfloat16)))


def test_features_that_lie_side_by_side_are_the_inner_part_of_k() -> None:
    (dot,) = [o for o in convolved((2, 8, 8, 16), (3, 3, 16, 8), padding="SAME").ops
              if isinstance(o, ops.DotGeneral)]
    assert [dot.lhs.type.dims[d] for d in dot.lhs_contract] == [3, 3, 16]
    assert dot.lhs_contract[-1] == 3 and dot.rhs_contract == (0, 1, 2)


def test_a_kernel_of_one_element_is_a_plain_product() -> None:
    assert kinds(convolved((2, 8, 8, 16), (1, 1, 16, 8))) == {ops.DotGeneral, ops.Reshape}
    assert kinds(convolved((2, 8, 8, 16), (1, 1, 16, 8), 2)) <= {
        ops.DotGeneral, ops.Reshape, ops.Slice}


def test_groups() -> None:
    grouped = convolved((2, 8, 8, 32), (3, 3, 8, 64), feature_group_count=4)
    (dot,) = [o for o in grouped.ops if isinstance(o, ops.DotGeneral)]
    assert len(dot.lhs_batch) == 1 and dot.result.type.dims[0] == 4
    # depthwise: a sum of slices, in f32
    assert ops.DotGeneral not in kinds(convolved((2, 8, 8, 32), (3, 3, 1, 32),
                                                 feature_group_count=32))
    # with a large window: a reduction
    large = convolved((2, 12, 12, 32), (9, 9, 1, 32), feature_group_count=32)
    assert ops.Reduce in kinds(large) and ops.DotGeneral not in kinds(large)


def test_precision_and_result_type_are_kept() -> None:
    def fun(x: Any, k: Any) -> Any:
        return lax.conv(x, k, (1, 1), "SAME", precision=("high", "highest"),
                        preferred_element_type=jnp.float32)

    graph = simplify(graph_of(fun, jnp.zeros((1, 4, 8, 8), jnp.bfloat16),
                              jnp.zeros((4, 4, 3, 3), jnp.bfloat16)))
    (dot,) = [o for o in graph.ops if isinstance(o, ops.DotGeneral)]
    assert set(dot.precision) == {"HIGH", "HIGHEST"} and dot.result.type.dtype.value == "f32"


@pytest.mark.parametrize("shape", [(0, 8, 8, 3), (2, 8, 8, 0)])
def test_convolutions_of_nothing(shape: tuple[int, ...]) -> None:
    def fun(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=NHWC)

    args = [np.zeros(shape, np.float32), np.zeros((3, 3, shape[3], 4), np.float32)]
    graph = simplify(graph_of(fun, *args))
    (out,) = evaluate(graph, args)
    assert out.shape == (*shape[:3], 4) and not out.any()


# ---- windowed reductions -----------------------------------------------------------------------


def pooled(size: int, window: Sequence[int], padding: Any = "VALID",
           reducer: Any = lax.add, start: Any = 0.0) -> Graph:
    return graph_of(lambda x: lax.reduce_window(x, start, reducer, window, (1,) * len(window),
                                                padding), jnp.zeros((4, size), jnp.float32))


def test_small_windows_are_chains_and_large_ones_reductions() -> None:
    small = kinds(simplify(pooled(32, (1, 5))))
    assert {ops.Slice, ops.Elementwise} <= small and small.isdisjoint({ops.Window, ops.Reduce})
    assert {ops.Window, ops.Reduce} <= kinds(simplify(pooled(300, (1, 200))))


def test_a_quadratic_window_is_left_to_xla() -> None:
    graph = pooled(4096, (1, 4096), ((0, 0), (2047, 2048)))
    (op,) = [o for o in graph.ops if isinstance(o, ops.ReduceWindow)]
    assert "quadratic work" in (refusal(op) or "")
    assert expand(graph) is graph


def test_a_long_padded_window_needs_a_reducer_of_one_op() -> None:
    def lazy(a: Any, b: Any) -> Any:
        return jnp.where(a >= b, a, b)

    def reason(padding: Any) -> str:
        graph = pooled(300, (1, 200), padding, lazy, -np.inf)
        (op,) = [o for o in graph.ops if isinstance(o, ops.ReduceWindow)]
        return refusal(op) or ""

    assert "whose reducer is no single op" in reason("SAME")
    assert reason("VALID") == ""


def test_every_monoid_has_a_neutral_element() -> None:
    from jaxmono.hlo.interp.elementwise import function
    from jaxmono.hlo.interp.monoids import MONOIDS
    from jaxmono.hlo.types import DType

    for kind in MONOIDS:
        for dtype in (DType.F32, DType.S8, DType.U16, DType.PRED):
            if dtype.is_float and kind in ("and", "or", "xor"):
                continue
            x = np.asarray([0, 1] if dtype is DType.PRED else [0, 1, 5, 100], dtype.numpy)
            start = np.asarray(rules.neutral(kind, dtype), dtype.numpy)
            np.testing.assert_array_equal(function(kind, dtype)(start, x), x)

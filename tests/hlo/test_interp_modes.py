"""What evaluate promises beyond agreement: modes, errors, regions that NumPy has no name for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxmono.hlo import ops
from jaxmono.hlo.interp import Unsupported, evaluate
from jaxmono.hlo.interp.special import digamma, erf, erf_inv, lgamma
from jaxmono.hlo.ir import Graph, Loc, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

F32, S32 = DType.F32, DType.S32


def value(dtype: DType, *shape: int) -> Value:
    return Value(TensorType(shape, dtype))


def test_f32_mode_rounds_after_every_op() -> None:
    x, b = value(DType.BF16, 1), Builder()
    big = b.elementwise("add", x, b.splat(256.0, x.type))
    back = b.elementwise("subtract", big, b.splat(256.0, x.type))
    graph = Graph((x,), tuple(b.ops), (back,))
    one = np.ones(1, ml_dtypes.bfloat16)
    assert evaluate(graph, [one])[0] == 0.0  # 257 is no bf16
    wide = evaluate(graph, [one], accumulate="f64")[0]
    assert wide.dtype == np.float64 and wide == 1.0


def test_f64_mode_takes_f64_inputs_and_accumulates_in_f64() -> None:
    x, b = value(F32, 2), Builder()
    out = b.dot_general(x, x, batch=((), ()), contract=((0,), (0,)), dtype=F32)
    graph = Graph((x,), tuple(b.ops), (out,))
    data = np.array([1.0, 1e-6])
    assert evaluate(graph, [data], accumulate="f64")[0] == 1.0 + 1e-12
    assert evaluate(graph, [data.astype(np.float32)])[0] == 1.0
    with pytest.raises(ValueError, match=r"input 0 must be f32\[2\], got float64"):
        evaluate(graph, [data])


def test_input_errors() -> None:
    x = value(F32, 2)
    graph = Graph((x,), (), (x,))
    with pytest.raises(ValueError, match="takes 1 inputs, got 0"):
        evaluate(graph, [])
    with pytest.raises(ValueError, match=r"with shape \(3,\)"):
        evaluate(graph, [np.zeros(3, np.float32)])
    with pytest.raises(ValueError, match="accumulate must be"):
        bad: Any = "f16"
        evaluate(graph, [np.zeros(2, np.float32)], accumulate=bad)


def test_unsupported_names_op_and_source() -> None:
    x = value(F32)
    op = ops.CustomCall(results=(value(F32),), args=(x,), target="t", has_side_effect=False,
                        loc=Loc("model.py", 7))
    with pytest.raises(Unsupported, match=r"custom_call.*model\.py:7"):
        evaluate(Graph((x,), (op,), op.results), [np.float32(1)])


def test_reduce_with_a_body_numpy_has_no_name_for() -> None:
    # (a, b) -> a + b + a * b folds to the product of (1 + x), minus 1; it is associative.
    a, b, body = value(F32), value(F32), Builder()
    out = body.elementwise("add", body.elementwise("add", a, b), body.elementwise(
        "multiply", a, b))
    region = Graph((a, b), tuple(body.ops), (out,))
    for n in (0, 1, 2, 7, 8):
        x, builder = value(F32, n, 3), Builder()
        result = builder.emit1(ops.Reduce, TensorType((3,), F32), args=(x,),
                               inits=(builder.constant(0.5, F32),), body=region,
                               dimensions=(0,))
        data = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
        got, = evaluate(Graph((x,), tuple(builder.ops), (result,)), [data])
        np.testing.assert_allclose(got, 1.5 * np.prod(1 + data, axis=0) - 1, rtol=1e-5)


def test_reduce_keeps_the_order_of_elements() -> None:
    # (a, b) -> b is associative and not commutative: the fold is the last element.
    a, b = value(S32), value(S32)
    x, builder = value(S32, 7), Builder()
    result = builder.emit1(ops.Reduce, TensorType((), S32), args=(x,),
                           inits=(builder.constant(-1, S32),), body=Graph((a, b), (), (b,)),
                           dimensions=(0,))
    assert evaluate(Graph((x,), tuple(builder.ops), (result,)),
                    [np.arange(7, dtype=np.int32)])[0] == 6


def test_scatter_keeps_the_order_of_updates() -> None:
    x, i, u = value(S32, 4), value(S32, 6, 1), value(S32, 6)
    a, b, body = value(S32), value(S32), Builder()
    out = body.elementwise("add", body.elementwise("multiply", a, body.constant(10, S32)), b)
    op = ops.Scatter(
        results=(value(S32, 4),), args=(x,), scatter_indices=i, updates=(u,),
        body=Graph((a, b), tuple(body.ops), (out,)), update_window_dims=(),
        inserted_window_dims=(0,), input_batching_dims=(), scatter_indices_batching_dims=(),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    got, = evaluate(Graph((x, i, u), (op,), op.results), [
        np.zeros(4, np.int32), np.array([[1], [3], [1], [4], [-2], [1]], np.int32),
        np.array([1, 2, 3, 4, 9, 5], np.int32)])
    assert got.tolist() == [0, 135, 0, 2]  # 4 and -2 are out of range: dropped


def test_total_order_comparison() -> None:
    x, y, b = value(F32, 5), value(F32, 5), Builder()
    out = b.compare("LT", x, y, "TOTALORDER")
    graph = Graph((x, y), tuple(b.ops), (out,))
    nan = np.float32(np.nan)
    left = np.array([-0.0, 0.0, -nan, nan, np.inf], np.float32)
    right = np.array([0.0, -0.0, -np.inf, np.inf, nan], np.float32)
    assert evaluate(graph, [left, right])[0].tolist() == [True, False, True, False, True]
    wide = evaluate(graph, [left, right], accumulate="f64")[0]
    assert wide.tolist() == [True, False, True, False, True]


@np.errstate(divide="ignore")
def test_special_functions() -> None:
    x = np.linspace(-0.999999, 0.999999, 1001)
    np.testing.assert_allclose(erf(erf_inv(x)), x, rtol=1e-14, atol=1e-16)
    z = np.array([0.3, 1.7, 9.0, -0.7, -3.2])
    np.testing.assert_allclose(digamma(z + 1) - digamma(z), 1 / z, rtol=1e-12)
    np.testing.assert_allclose(lgamma(np.array([5.0, 0.5])),
                               [np.log(24), np.log(np.pi) / 2], rtol=1e-15)
    step = 1e-5
    slope = (lgamma(z + step) - lgamma(z - step)) / (2 * step)
    np.testing.assert_allclose(slope, digamma(z), rtol=1e-7)

"""The micro-graphs at their tiny sizes against NumPy in f64, and their full sizes against Bolt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
import pytest
from thinned import thinned

from benchmarks.workloads import Workload, micro

Array: TypeAlias = np.ndarray[Any, Any]

WORKLOADS = {w.name: w for w in micro.WORKLOADS}


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    return (x - x.mean(-1)[:, None]) / np.sqrt(x.var(-1)[:, None] + 1e-5) * scale + bias


def rms_norm(x: Array, scale: Array) -> Array:
    return np.array([row / math.sqrt(row @ row / len(row) + 1e-5) for row in x]) * scale


def softmax(x: Array) -> Array:
    return np.array([np.exp(row) / np.sum(np.exp(row)) for row in x])


def gelu_chain(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def bias_activation(x: Array, bias: Array) -> Array:
    return relu(x + bias)


def mlp(x: Array, up: Array, up_bias: Array, down: Array, down_bias: Array) -> Array:
    y = x @ up + up_bias
    return y / 2 * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) @ down + down_bias


def gemm(x: Array, w: Array) -> Array:
    return x @ w


def b2b_gemm(x: Array, w1: Array, w2: Array) -> Array:
    return relu(relu(x @ w1) @ w2)


def conv(x: Array, w: Array, stride: int, padding: tuple[int, int]) -> Array:
    x = np.pad(x, ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], axis=(1, 2))
    return np.tensordot(windows[:, ::stride, ::stride], np.moveaxis(w, 2, 0), 3)


def b2b_conv(row: int) -> Callable[..., Array]:
    stride = (2, 2, 1, 2, 2, 1)[row - 1]

    def fn(x: Array, w1: Array, bias1: Array, w2: Array, bias2: Array) -> Array:
        return relu(relu(conv(x, w1, stride, (1, 1)) + bias1) @ w2[0, 0] + bias2)

    return fn


def padded(row: int) -> Callable[..., Array]:
    padding = ((1, 1), (2, 2), (0, 0), (0, 0), (1, 1), (2, 2))[row - 1]
    return lambda x, w: conv(x, w, 1, padding)


REFERENCES: dict[str, Callable[..., Array]] = {
    **{f.__name__: f for f in (layer_norm, rms_norm, softmax, gelu_chain, bias_activation, mlp)},
    **{name: gemm for name in WORKLOADS if name.startswith("gemm_")},
    **{f"b2b_gemm_{row}": b2b_gemm for row in range(1, 5)},
    **{f"b2b_conv_{row}": b2b_conv(row) for row in range(1, 7)},
    **{f"padding_{row}": padded(row) for row in range(1, 7)},
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", thinned(WORKLOADS, 5))
def test_is_its_formula(name: str) -> None:
    program = WORKLOADS[name].program(tiny=True, batch=2, dtype="f32")
    state, (x,) = program.state(), program.inputs(jax.random.key(0))
    got, carry = jax.jit(program.step)(state, (), x)
    assert carry == ()
    want = REFERENCES[name](np.asarray(x, np.float64),
                            **{k: np.asarray(v, np.float64) for k, v in state.items()})
    assert got.shape == want.shape and np.linalg.norm(want) > 0
    assert np.linalg.norm(np.asarray(got, np.float64) - want) <= 1e-5 * np.linalg.norm(want)


def _shapes(workload: Workload) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the input and the output, at the full size."""
    program = workload.program(batch=workload.batches[-1])
    arguments = program.abstract()
    y, _ = jax.eval_shape(program.step, *arguments)
    assert y.dtype == arguments[2].dtype
    return arguments[2].shape, y.shape


@pytest.mark.parametrize(("name", "x", "y"), [
    ("gemm_1280_3072_768", (1280, 768), (1280, 3072)),
    ("b2b_gemm_1", (2464, 4), (2464, 4)),
    ("b2b_gemm_2", (16384, 256), (16384, 16)),
    ("b2b_gemm_3", (32768, 576), (32768, 64)),
    ("b2b_gemm_4", (128320, 96), (128320, 96)),
    ("b2b_conv_1", (32, 224, 224, 3), (32, 112, 112, 48)),
    ("b2b_conv_2", (32, 112, 112, 48), (32, 56, 56, 48)),
    ("b2b_conv_3", (32, 56, 56, 48), (32, 56, 56, 48)),
    ("b2b_conv_4", (32, 224, 224, 3), (32, 112, 112, 64)),
    ("b2b_conv_5", (32, 112, 112, 64), (32, 56, 56, 64)),
    ("b2b_conv_6", (32, 56, 56, 64), (32, 56, 56, 64)),
    ("padding_1", (32, 20, 26, 46), (32, 20, 26, 32)),
    ("padding_2", (32, 20, 26, 46), (32, 20, 26, 32)),
    ("padding_3", (128, 14, 19, 46), (128, 10, 13, 32)),
    ("padding_4", (288, 11, 15, 46), (288, 7, 9, 32)),
    ("padding_5", (32, 20, 26, 174), (32, 20, 26, 64)),
    ("padding_6", (32, 20, 26, 174), (32, 20, 26, 64)),
])
def test_full_sizes_are_bolts(name: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    assert _shapes(WORKLOADS[name]) == (x, y)
    assert WORKLOADS[name].dtype == "f16"


def test_batch_multiplies_the_rows_of_a_product() -> None:
    program = WORKLOADS["mlp"].program(batch=2)
    assert program.abstract()[2].shape == (8192, 768)

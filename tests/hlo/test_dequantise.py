"""Scales of quantised operands go behind the products, which then are of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmono._build import OPTIONAL
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
S8, U8, BF16, F16, F32 = jnp.int8, jnp.uint8, jnp.bfloat16, jnp.float16, jnp.float32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
X, W = Spec((6, 32), BF16), Spec((32, 16), S8)
COLUMNS, ROWS = Spec((16,), F32), Spec((6, 1), F32)


def graph_of(fn: Any, *args: Any) -> Graph:
    """As imported."""
    lowered = jax.jit(fn, keep_unused=True).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def product(graph: Graph) -> tuple[ops.DotGeneral, tuple[str, str, str]]:
    """The only one after simplification; what its operands are made of, and its own type."""
    (dot,) = (o for o in graph.ops if isinstance(o, ops.DotGeneral))
    names = []
    for v in (dot.lhs, dot.rhs):
        made = graph.producer.get(v)
        while isinstance(made, (ops.Transpose, ops.Reshape)):
            v = made.operand
            made = graph.producer.get(v)
        source = made.operand.type.dtype.value + " as " if isinstance(made, ops.Convert) else ""
        names.append(source + v.type.dtype.value)
    return dot, (names[0], names[1], dot.result.type.dtype.value)


def dequantised(w: Any, scale: Any, t: Any) -> Any:
    return (w.astype(F32) * scale).astype(t)


TAKEN: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[str, str, str]]] = [
    (lambda x, w, s: x @ dequantised(w, s, BF16), (X, W, COLUMNS), ("bf16", "s8 as bf16", "f32")),
    (lambda x, w, s: x @ (w.astype(BF16) * s.astype(BF16)), (X, W, COLUMNS),
     ("bf16", "s8 as bf16", "f32")),
    (lambda x, w, s: x @ (s.astype(BF16)[None] * w.astype(BF16) * 0.5), (X, W, COLUMNS),
     ("bf16", "s8 as bf16", "f32")),
    (lambda x, w, s: x @ (w.astype(BF16) / s.astype(BF16)), (X, W, COLUMNS),
     ("bf16", "s8 as bf16", "f32")),
    (lambda x, w: x @ (w.astype(BF16) * 0.01).T, (X, Spec((16, 32), E4M3)),
     ("bf16", "f8e4m3fn as bf16", "f32")),
    (lambda x, w, s: jnp.einsum("bmk,bkn->bmn", x, w.astype(BF16) * s),
     (Spec((2, 6, 32), BF16), Spec((2, 32, 16), S8), Spec((2, 1, 16), BF16)),
     ("bf16", "s8 as bf16", "f32")),
    (lambda x, w, r, s: dequantised(x, r, F32) @ dequantised(w, s, F32),
     (Spec((6, 32), S8), W, ROWS, COLUMNS), ("s8", "s8", "s32")),
    (lambda x, w, r, s: dequantised(x, r, BF16) @ dequantised(w, s, BF16),
     (Spec((6, 32), E4M3), Spec((32, 16), E5M2), ROWS, COLUMNS), ("f8e4m3fn", "f8e5m2", "f32")),
    (lambda x, w, r, s: dequantised(x, r, F32) @ dequantised(w, s, F32),  # 14 bits are too few
     (Spec((6, 32), E4M3), Spec((32, 16), E5M2), ROWS, COLUMNS),
     ("f8e4m3fn as f32", "f8e5m2 as f32", "f32")),
    (lambda x, w: x.astype(F32) @ w.astype(F32), (Spec((6, 32), U8), W), ("u8", "s8", "s32")),
    (lambda x, w, r: dequantised(x, r, BF16) @ w, (Spec((6, 32), S8), Spec((32, 16), BF16), ROWS),
     ("s8 as bf16", "bf16", "f32")),
]
LEFT: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda x, w, s: x @ (w.astype(BF16) * s), (X, W, Spec((32, 1), BF16))),   # of summed elements
    (lambda x, w, s: x @ (w.astype(BF16) * s), (X, W, Spec((32, 16), BF16))),
    (lambda x, w: x @ (w.astype(BF16) + 1), (X, W)),
    (lambda x, w: x @ (3 / w.astype(BF16)), (X, W)),
    (lambda x, w: x @ w.astype(BF16), (X, W)),                                 # nothing to move
    (lambda x, w: x @ (w * BF16(0.5)), (X, Spec((32, 16), BF16))),
    (lambda x, w: x.astype(F32) @ w.astype(F32), (Spec((2, 1 << 17), S8), Spec((1 << 17, 4), S8))),
    (lambda x, w: jnp.matmul(x.astype(F32), w.astype(F32), precision="highest"),
     (Spec((6, 32), E4M3), Spec((32, 16), E4M3))),
    (lambda x, w: x.astype(F32) @ w.astype(F32), (Spec((6, 32), E4M3), W)),
    (lambda x, w: x.astype(F32) @ w.astype(F32), (Spec((6, 32), E4M3), Spec((32, 16), E4M3))),
]


def small(graph: Graph) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    out = []
    for v in graph.inputs:
        t, dims = v.type.dtype, v.type.dims
        whole = rng.integers(0 if t is DType.U8 else -7, 8, dims)
        scale = 2.0 ** rng.integers(-2, 3, dims)  # of the inputs beside the operands
        is_scale = t in (DType.F32, DType.BF16) and v not in graph.inputs[:2]
        out.append((scale if is_scale else whole).astype(t.numpy))
    return out


@pytest.mark.parametrize(("fn", "args", "wanted"), TAKEN)
def test_scales_go_behind(fn: Any, args: Any, wanted: tuple[str, str, str]) -> None:
    before = graph_of(fn, *args)
    after = simplify(before)
    assert product(after)[1] == wanted
    inputs = small(before)
    for a, b in zip(evaluate(before, inputs, accumulate="f64"),
                    evaluate(after, inputs, accumulate="f64"), strict=True):
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=2e-2)


@pytest.mark.parametrize(("fn", "args"), LEFT)
def test_what_stays(fn: Any, args: Any) -> None:
    graph = graph_of(fn, *args)
    whole, without = simplify(graph), simplify(graph, without=("dequantise",))
    assert product(whole)[1] == product(without)[1]
    assert len(whole.ops) == len(without.ops)


def test_what_is_left_out_is_rounding() -> None:
    """Of weights and scales with all digits the result is nearer to that of f64."""
    def fn(x: Any, w: Any, s: Any) -> Any:
        return jnp.dot(x, dequantised(w, s, BF16), preferred_element_type=F32)

    graph = graph_of(fn, Spec((64, 512), BF16), Spec((512, 64), S8), Spec((64,), F32))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 512)).astype(BF16)
    w = rng.integers(-127, 128, (512, 64)).astype(np.int8)
    s = rng.uniform(1e-3, 1e-2, 64).astype(np.float32)
    exact = x.astype(np.float64) @ (w * s.astype(np.float64))
    error = [np.abs(evaluate(g, [x, w, s])[0] - exact).mean()
             for g in (simplify(graph), simplify(graph, without=("dequantise",)))]
    assert error[0] < 0.01 * error[1]


@given(st.permutations([0, 1, 2]), st.booleans(), st.sampled_from([S8, E4M3]))
@settings(max_examples=30, deadline=None)
def test_dimensions_of_scales(order: list[int], left: bool, t: Any) -> None:
    """Batch, kept and summed dimensions in any order, a scale of those that are not summed."""
    names = "".join("bfk"[i] for i in order)
    sizes = {"b": 2, "f": 3, "k": 8, "g": 5}
    other = "bkg"
    spec = f"{names},{other}->bfg" if left else f"{other},{names}->bgf"

    def fn(w: Any, x: Any, s: Any) -> Any:
        scale = jnp.expand_dims(s, names.index("k")) if names.index("b") < names.index("f") \
            else jnp.expand_dims(s.T, names.index("k"))
        made = w.astype(F32) * scale
        return jnp.einsum(spec, *((made, x) if left else (x, made)))

    graph = graph_of(fn, Spec(tuple(sizes[c] for c in names), t),
                     Spec(tuple(sizes[c] for c in other), F32), Spec((2, 3), F32))
    after = simplify(graph)
    assert any("as" in x for x in product(after)[1])
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-7, 8, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    np.testing.assert_array_equal(evaluate(after, inputs, accumulate="f64")[0],
                                  evaluate(graph, inputs, accumulate="f64")[0])


def test_it_can_be_left_out() -> None:
    assert "dequantise" in OPTIONAL


# ---- types that have no common one -------------------------------------------------------------


def mixed(x: Any, w: Any, precision: Any = None) -> Any:
    """As JAX lowers it, both operands are widened to the type of the result."""
    return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), precision=precision,
                               preferred_element_type=F32)


@pytest.mark.parametrize(("rows", "weights", "wanted"), [
    (BF16, S8, ("bf16", "s8 as bf16", "f32")), (BF16, jnp.int4, ("bf16", "s4 as bf16", "f32")),
    (F16, U8, ("f16", "u8 as f16", "f32")), (BF16, E4M3, ("bf16", "f8e4m3fn as bf16", "f32")),
    (S8, BF16, ("s8 as bf16", "bf16", "f32")), (F16, E5M2, ("f16", "f8e5m2 as f16", "f32")),
    # What 16 bits do not hold, or are not asked for.
    (F32, S8, ("f32", "s8 as f32", "f32")), (BF16, F16, ("bf16 as f32", "f16 as f32", "f32")),
    (BF16, jnp.int16, ("bf16 as f32", "s16 as f32", "f32"))])
def test_16_bits_hold_both(rows: Any, weights: Any, wanted: tuple[str, str, str]) -> None:
    graph = simplify(graph_of(mixed, Spec((6, 32), rows), Spec((32, 16), weights)))
    assert product(graph)[1] == wanted
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 8, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    (found,) = evaluate(graph, given)
    np.testing.assert_array_equal(found, np.float32(given[0]) @ np.float32(given[1]))


def test_precision_keeps_f32() -> None:
    graph = simplify(graph_of(lambda x, w: mixed(x, w, "highest"), X, W))
    assert product(graph)[1] == ("bf16 as f32", "s8 as f32", "f32")

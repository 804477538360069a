"""Padded copies for convolutions whose features lie unaligned: where, what, and the same result."""

from __future__ import annotations

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
from jaxmono.hlo.passes import align, expand, simplify
from jaxmono.hlo.passes.rules import alignment

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NDHWC", "DHWIO", "NDHWC")}


def conv(x: Any, k: Any, strides: tuple[int, ...], padding: Any, **kw: Any) -> Any:
    layout = kw.pop("layout", LAYOUTS[len(x.shape)])
    return lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=layout, **kw)


def graph_of(x: tuple[int, ...], k: tuple[int, ...], strides: tuple[int, ...], padding: Any,
             dtype: Any = BF16, **kw: Any) -> Graph:
    lowered = jax.jit(lambda a, b: conv(a, b, strides, padding, **kw)).lower(
        Spec(x, dtype), Spec(k, dtype))
    return import_module(lowered.compiler_ir("stablehlo")).graph


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 0)


CASES = {
    "46 features": ((2, 6, 7, 46), (3, 3, 46, 8), (1, 1), "SAME"),
    "border cut off": ((2, 9, 9, 20), (2, 2, 20, 8), (3, 3), "VALID"),
    "uneven, negative padding": ((1, 9, 8, 12), (3, 2, 12, 8), (2, 1), [(2, -1), (-2, 3)]),
    "3 features, stride 2": ((2, 13, 14, 3), (7, 7, 3, 8), (2, 2), "SAME"),
    "3 features, stride 2, even taps": ((1, 12, 12, 3), (4, 4, 3, 8), (2, 2), [(1, 1), (1, 1)]),
    "3 features, stride 4": ((1, 19, 23, 3), (11, 11, 3, 8), (4, 4), "VALID"),
    "3 features, stride 1": ((1, 5, 6, 3), (3, 3, 3, 8), (1, 1), "SAME"),
    "1 feature": ((1, 400, 1), (10, 1, 8), (5,), "VALID"),
    "time": ((2, 30, 6), (5, 6, 8), (2,), "SAME"),
    "space and time": ((1, 4, 5, 6, 3), (2, 3, 3, 3, 8), (1, 2, 2), "SAME"),
}


F32_CASES = [name for name in CASES if name not in (
    "border cut off", "uneven, negative padding", "time")]  # 16 bytes lie there as it is


@pytest.mark.parametrize(("dtype", "name"), [
    *((dtype, name) for name in CASES for dtype in (BF16, F16)),
    *((F32, name) for name in F32_CASES)])
def test_the_result_is_the_same(name: str, dtype: Any) -> None:
    graph = graph_of(*CASES[name], dtype)
    made = simplify(graph)
    copies = [o for o in made.ops if isinstance(o, ops.Stored)]
    assert len(copies) == 2
    rng = np.random.default_rng(0)
    given = [np.asarray(rng.integers(-2, 3, v.type.dims)).astype(v.type.dtype.numpy)
             for v in graph.inputs]
    (want,), (got,) = (evaluate(g, given, accumulate="f64") for g in (graph, made))
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize(("dtype", "piece", "name"), [
    *((BF16, 8, name) for name in CASES), *((F32, 4, name) for name in F32_CASES)])
def test_16_bytes_along_k_are_aligned(dtype: Any, piece: int, name: str) -> None:
    x, k, strides, padding = CASES[name]
    once = align(graph_of(x, k, strides, padding, dtype))
    (made,) = [o for o in once.ops if isinstance(o, ops.Convolution)]
    features = made.lhs.type.dims[-1]
    places = (made.lhs.type.dims[-2], made.rhs.type.dims[-3], made.window_strides[-1])
    assert all(n * features % piece == 0 for n in places), (features, places)
    assert not any(map(any, made.padding))
    twice = expand(align(once))
    assert not any(isinstance(o, ops.Convolution) for o in twice.ops)  # and then it is expanded


@pytest.mark.parametrize(("why", "graph"), [
    ("aligned already", lambda: graph_of((1, 5, 5, 16), (3, 3, 16, 8), (1, 1), "SAME")),
    ("exact f32", lambda: graph_of((1, 5, 5, 3), (3, 3, 3, 8), (1, 1), "SAME", F32,
                                   precision="highest")),
    ("dilated", lambda: graph_of((1, 9, 9, 3), (3, 3, 3, 8), (1, 1), "SAME",
                                 rhs_dilation=(2, 2))),
    ("groups", lambda: graph_of((1, 5, 5, 12), (3, 3, 3, 8), (1, 1), "SAME",
                                feature_group_count=4))])
def test_what_stays(why: str, graph: Any) -> None:
    assert not any(isinstance(o, ops.Stored) for o in simplify(graph()).ops), why


def test_features_first() -> None:
    """`channels_last` turns them before."""
    graph = graph_of((1, 3, 5, 5), (8, 3, 3, 3), (1, 1), "SAME", layout=("NCHW", "OIHW", "NCHW"))
    for without, stored in (((), 2), (("channels_last",), 0)):
        made = simplify(graph, without)
        assert sum(isinstance(o, ops.Stored) for o in made.ops) == stored


def test_none_is_made_without_padding() -> None:
    graph = graph_of(*CASES["46 features"])
    made = simplify(graph, without=("padding",))
    assert not any(isinstance(o, ops.Stored | ops.Convolution) for o in made.ops)


def test_small_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MIN_ELEMENTS", 1 << 22)
    small = graph_of((1, 224, 224, 3), (7, 7, 3, 64), (2, 2), "SAME")
    large = graph_of((32, 224, 224, 3), (7, 7, 3, 64), (2, 2), "SAME")
    assert not any(isinstance(o, ops.Stored) for o in simplify(small).ops)
    assert any(isinstance(o, ops.Stored) for o in simplify(large).ops)


def product(fn: Any, *shapes: tuple[int, ...], dtype: Any = BF16) -> Graph:
    lowered = jax.jit(fn).lower(*(Spec(s, dtype) for s in shapes))
    return import_module(lowered.compiler_ir("stablehlo")).graph


@pytest.mark.parametrize(("fn", "shapes", "dtype", "copies"), [
    (lambda x, w: x @ w, ((4096, 768), (768, 3073)), BF16, [(768, 3080)]),
    (lambda x, w: x @ w.T, ((4096, 1023), (4096, 1023)), F16, [(4096, 1024), (4096, 1024)]),
    (lambda x, w: x.T @ w, ((1024, 4001), (1024, 1024)), BF16, [(1024, 4008)]),
    (lambda x, w: x @ w, ((8192, 770), (770, 3072)), F32, [(8192, 772)]),
    # What few tiles read, or reads of 8 bytes that cost little more.
    (lambda x, w: x @ w, ((128, 768), (768, 50257)), BF16, []),
    (lambda x, w: x @ w, ((2048, 479), (479, 1024)), BF16, []),
    (lambda x, w: x @ w, ((4096, 768), (768, 1000)), BF16, []),
    # Attention's probabilities are no copies; exact products have other tiles.
    (lambda p, v: jnp.einsum("bqk,bkd->bqd", p, v), ((64, 1025, 1025), (64, 1025, 64)), BF16, []),
    (lambda x, w: jnp.dot(x, w, precision="highest"), ((4096, 768), (768, 3073)), F32, []),
])
def test_products_with_many_tiles_read_padded_rows(fn: Any, shapes: Any, dtype: Any,
                                                    copies: list[tuple[int, ...]]) -> None:
    made = simplify(product(fn, *shapes, dtype=dtype))  # more than once, as passes are
    stored = [o.result.type.dims for o in made.ops if isinstance(o, ops.Stored)]
    assert sorted(stored) == sorted(copies)
    assert not any(isinstance(o, ops.Stored)
                   for o in simplify(product(fn, *shapes, dtype=dtype), without=("padding",)).ops)


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->nm"])
def test_products_of_padded_rows_are_the_same(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_COPY_US", -1.0)
    sizes = {"m": 19, "n": 23, "k": 37}
    shapes = [tuple(sizes[c] for c in x) for x in spec.split("->")[0].split(",")]
    graph = product(lambda x, w: jnp.einsum(spec, x, w), *shapes)
    made = simplify(graph)
    assert sum(isinstance(o, ops.Stored) for o in made.ops) == 2
    rng = np.random.default_rng(0)
    given = [np.asarray(rng.integers(-2, 3, v.type.dims)).astype(v.type.dtype.numpy)
             for v in graph.inputs]
    (want,), (got,) = (evaluate(g, given, accumulate="f64") for g in (graph, made))
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_windows_are_not_copied_as_products_read_them() -> None:
    """A convolution is one later: its operand ends in taps, which lie in no buffer."""
    graph = graph_of((32, 14, 14, 192), (3, 3, 192, 1280), (2, 2), "SAME")
    assert not any(isinstance(o, ops.Stored) for o in simplify(graph).ops)

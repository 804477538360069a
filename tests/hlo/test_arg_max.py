"""Where the largest and the smallest of a long line are: JAX's answer, and one op's reduce."""

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
from jaxmono.hlo.passes.rules.arg_max import FEW_LINES, MAX_LINES, MIN_LINE
from jaxmono.hlo.rewrite import binary_kind
from jaxmono.hlo.verify import verify


def simple(fn: Callable[..., Any], *args: Any) -> Graph:
    lowered = jax.jit(fn).lower(*args)
    graph = simplify(import_module(lowered.compiler_ir("stablehlo")).graph)
    verify(graph)
    return graph


def reduces(graph: Graph) -> list[str | None]:
    return [binary_kind(o.body) for o in graph.ops if isinstance(o, ops.Reduce)]


def both(x: Any) -> Any:
    return jnp.argmax(x, -1), jnp.argmin(x, -1)


LINES: dict[str, list[float]] = {
    "ties": [3, 7, 7, -2, -2], "zeros": [-0.0, 0.0, -0.0], "minus zero last": [-1, 0.0, -0.0],
    "a NaN": [1, np.nan, np.inf, np.nan], "infinite": [-np.inf, np.inf, np.inf, -np.inf],
    "nothing but -inf": [-np.inf], "nothing but inf": [np.inf], "nothing but NaN": [np.nan],
    "a NaN with its sign": [5, -np.nan, 9],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("places", [(0, 4097), (0, 4097, 5, 8191)], ids=["few", "many"])
def test_floats(dtype: Any, places: tuple[int, ...]) -> None:
    """Each kind of line, repeated up to the length; at other places in other lines. Those of many
    end inside a part."""
    many = len(places) * len(LINES) > FEW_LINES
    rows = [np.roll(np.resize(np.asarray(v), MIN_LINE + 5 * many), i)
            for v in LINES.values() for i in places]
    x = jnp.asarray(np.stack(rows), dtype)
    graph = simple(both, x)
    assert reduces(graph) == (["maximum", "minimum", "maximum"] if many else ["maximum"]) * 2
    for got, want in zip(evaluate(graph, [x]), both(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("lines", [3, FEW_LINES + 1])
def test_integers(dtype: Any, lines: int) -> None:
    info = np.iinfo(dtype)
    few = np.asarray([info.min, info.max, 0, 1, 5], dtype)
    x = np.random.default_rng(0).choice(few, (lines, MIN_LINE + lines))
    x[1] = info.min
    x[2] = info.max
    graph = simple(both, x)
    assert len(reduces(graph)) == (2 if lines == 3 else 6)
    for got, want in zip(evaluate(graph, [x]), both(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_place_that_is_repeated_and_another_order_stay() -> None:
    def known(a: Any, b: Any) -> Any:
        first = (a[0] > b[0]) | (a[0] == 5)
        return jnp.where(first, a[0], b[0]), jnp.where(
            first | ((a[0] == b[0]) & (a[1] < b[1])), a[1], b[1])

    def better(a: Any, b: Any) -> Any:
        first = a[0] > b[0]
        return jnp.where(first, a[0], b[0]), jnp.where(
            first | ((a[0] == b[0]) & (a[1] < b[1])), a[1], b[1])

    def fn(x: Any, at: Any, body: Any) -> Any:
        return lax.reduce((x, at), (jnp.iinfo(np.int32).min, np.int32(0)), body, (1,))

    x = np.random.default_rng(4).integers(0, 9, (1, MIN_LINE), np.int32)
    zeros = lambda x: lax.broadcast_in_dim(lax.iota(np.int32, 1), x.shape, (1,))  # noqa: E731
    places = lambda x: lax.broadcasted_iota(np.int32, x.shape, 1)  # noqa: E731
    assert reduces(simple(lambda x: fn(x, places(x), known), x)) == [None]
    assert reduces(simple(lambda x: fn(x, zeros(x), better), x)) == [None]
    assert reduces(simple(lambda x: fn(x, places(x), better), x)) == ["maximum", "maximum"]


def test_many_lines_are_split_here() -> None:
    x = np.random.default_rng(3).normal(size=(FEW_LINES + 1, MIN_LINE + 5)).astype(np.float32)
    x[3, -1], x[4, 0], x[5, 7] = 9, 9, np.nan
    graph = simple(both, x)
    assert reduces(graph) == ["maximum", "minimum", "maximum"] * 2
    for got, want in zip(evaluate(graph, [x]), both(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_value_beside_the_place() -> None:
    def largest(x: Any) -> Any:
        return lax.reduce((x, lax.iota(np.int32, x.shape[0])), (-np.float32(np.inf), np.int32(0)),
                          better, (0,))

    def better(a: Any, b: Any) -> Any:
        first = (a[0] > b[0]) | (a[0] != a[0])
        return jnp.where(first, a[0], b[0]), jnp.where(
            first | ((a[0] == b[0]) & (a[1] < b[1])), a[1], b[1])

    x = np.random.default_rng(1).normal(size=MIN_LINE).astype(np.float32)
    graph = simple(largest, x)
    assert reduces(graph) == ["maximum", "maximum"]
    value, place = evaluate(graph, [x])
    assert (value, place) == (x.max(), x.argmax())


@pytest.mark.parametrize("change", ["the last of equals", "a start that wins", "short", "many"])
def test_others_stay(change: str) -> None:
    """What is not JAX's argmax, and lines whose reduce is not split."""
    lines = MAX_LINES + 1 if change == "many" else 2
    x = np.random.default_rng(2).integers(0, 9, (lines, MIN_LINE - (change == "short")))
    x = x.astype(np.float32)
    start = np.float32(100) if change == "a start that wins" else -np.float32(np.inf)

    def better(a: Any, b: Any) -> Any:
        first = (a[0] > b[0]) | (a[0] != a[0])
        before = a[1] > b[1] if change == "the last of equals" else a[1] < b[1]
        also = first | ((a[0] == b[0]) & before)
        return jnp.where(first, a[0], b[0]), jnp.where(also, a[1], b[1])

    def fn(x: Any) -> Any:
        at = lax.broadcasted_iota(np.int32, x.shape, 1)
        return lax.reduce((x, at), (start, np.int32(0)), better, (1,))

    graph = simple(fn, x)
    assert reduces(graph) == [None]
    for got, want in zip(evaluate(graph, [x]), fn(x), strict=True):
        np.testing.assert_array_equal(got, want)

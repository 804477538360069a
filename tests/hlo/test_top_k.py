"""The k largest of a line: the same as JAX's, whatever the values, and in as many steps as said."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono
import jaxmono._trips
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.passes.rules.top_k import LINE, MOST, WHOLE, expanded
from jaxmono.hlo.passes.unroll import MAX_OPS
from jaxmono.hlo.verify import verify

SPECIAL = (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30)


def graph_of(x: Any, k: int) -> Graph:
    lowered = jax.jit(lambda x: lax.top_k(x, k)).lower(x)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def drawn(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Few values, so that many are equal, the special ones among them."""
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.choice(np.asarray([info.min, info.max, 0, 1, 5], dtype), shape)
    few = np.concatenate([np.asarray(SPECIAL), rng.normal(size=12)])
    return jnp.asarray(rng.choice(few, shape), dtype)


def same(got: Any, want: Any) -> None:
    """Equal, NaNs to NaNs; zeros with their sign."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16, np.int32, np.int8,
                                   np.uint16])
@pytest.mark.parametrize(("shape", "k"), [((9,), 9), ((3, 40), 4), ((2, 3, 70), MOST),
                                          ((2, WHOLE + 1), 5)])
def test_values_and_places_are_jaxs(dtype: Any, shape: tuple[int, ...], k: int) -> None:
    x = drawn(shape, dtype, k)
    graph = graph_of(x, k)
    simple = simplify(graph)
    verify(simple)
    assert not any(isinstance(o, ops.TopK) for o in simple.ops)
    got = evaluate(simple, [np.asarray(x)])
    same(got, evaluate(graph, [np.asarray(x)]))
    same(got, lax.top_k(x, k))


def test_a_line_that_is_all_lowest() -> None:
    """What a round takes away is behind a -inf that is still there, and behind the padding."""
    x = np.full((2, WHOLE + 7), -np.inf, np.float32)
    values, places = evaluate(simplify(graph_of(x, 6)), [x])
    assert np.all(values == -np.inf) and places.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_kernels() -> None:
    """In the interpreter: one kernel; a long line is taken apart."""
    for shape, k, stages in (((3, 50), 4, 2), ((1, WHOLE + 5), 3, 3)):
        x = drawn(shape, np.float32, 1)
        function = jaxmono.jit(lambda x, k=k: lax.top_k(x, k), interpret=True)
        report = function.lower(x).explain()
        assert (report.kernels, report.stages) == (1, stages)
        same(function(x), lax.top_k(x, k))


def test_what_is_not_taken() -> None:
    x = np.zeros((2, 100), np.float32)
    function = jaxmono.jit(lambda x: lax.top_k(jnp.exp(x), MOST + 1), interpret=True)
    report = function.lower(x).explain()
    assert "only up to 64 largest are generated; 65 are found by sorting" in str(report)


def test_a_line_is_longer_than_its_parts() -> None:
    assert WHOLE >= LINE * 2 and MOST * 2 < LINE


@pytest.mark.parametrize(("shape", "dtype"), [((2, 64), np.float32), ((2, 64), jnp.bfloat16),
                                              ((1, 251285), np.float32), ((2, 9), np.int8)])
def test_a_loop_counts_what_it_becomes(shape: tuple[int, ...], dtype: Any) -> None:
    """So that no loop is taken that is too large once it is expanded."""
    for k in (1, 5, min(MOST, shape[-1])):
        graph = graph_of(jnp.zeros(shape, dtype), k)
        (op,) = graph.ops
        assert isinstance(op, ops.TopK)
        made = sum(not isinstance(o, ops.Constant) for o in simplify(graph).ops)
        assert 0.5 * expanded(op) <= made <= expanded(op)


@pytest.mark.parametrize(("k", "shape", "reason"), [
    (16, (2, 64), "a kernel takes loops of up to"), (2000, (1, 5000), "are found by sorting")])
def test_a_loop_of_them_that_is_too_much(k: int, shape: tuple[int, ...], reason: str,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is planned; also where a part would find more than it has."""
    monkeypatch.setattr(jaxmono._trips, "MOST_US", -1.0)  # else it is a kernel that repeats a trip

    def fun(x: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c * 1.1) + lax.top_k(c, k)[0][:, :1], None), x,
                        length=MAX_OPS // 100)[0]

    lowered = jaxmono.jit(fun, interpret=True).lower(np.zeros(shape, np.float32))
    assert reason in str(lowered.explain())

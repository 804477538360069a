"""Long softmaxes of few rows (split_softmax.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from checked import kinds

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo.interp import evaluate

ROWS, LONG = 3, 40961  # a prime, padded to parts
INF, NAN = np.inf, np.nan


def run(fn: Callable[..., Any], x: np.ndarray[Any, Any]) -> Plan:
    """Plans ``fn`` of ``x``; its outputs are those of the graph, in f32 but for the sums' order."""
    graph = models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, x.dtype))
    made = make_plan(graph, Device())
    narrow = graph.outputs[0].type.dtype.itemsize == 2
    with np.errstate(all="ignore"):
        pairs = list(zip(run_plan(made, [x], seed=1), evaluate(graph, [x]), strict=True))
    for got, want in pairs:
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=1e-6,
                                   rtol=2 ** -5 if narrow else 2e-4)
    return made


def logits(rows: int = ROWS, long: int = LONG, scale: float = 4.0, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, long)).astype(np.float32) * scale


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def log_softmax(x: Any) -> Any:
    return jax.nn.log_softmax(x, axis=-1)


def log_sum(x: Any) -> Any:
    return jax.nn.logsumexp(x, axis=-1)


def widened(x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1)


@pytest.mark.parametrize("fn", [softmax, log_softmax, log_sum])
def test_a_row_waits_twice(fn: Callable[..., Any]) -> None:
    p = run(fn, logits())
    assert kinds(p) == [["row"], ["row"], ["loop"]][:len(p.stages)] and len(p.stages) in (2, 3)
    assert len(p.stages[0].groups[0].results) == 2  # a part's largest and its sum


@pytest.mark.parametrize("fn", [softmax, widened])
def test_values_of_16_bits(fn: Callable[..., Any]) -> None:
    assert len(run(fn, logits().astype(jnp.bfloat16)).stages) == 3


def test_columns() -> None:
    def columns(x: Any) -> Any:
        return jax.nn.softmax(x, axis=0)

    assert len(run(columns, np.ascontiguousarray(logits().T)).stages) == 3


PLACES = {
    "a part without any": [(0, slice(0, 20000), -INF)],
    "a row without any": [(1, slice(None), -INF)],
    "far below 0": [(slice(None), slice(None), -300.0), (0, slice(0, 20000), -INF)],
    "infinite": [(0, 7, INF)],
    "infinite in two parts": [(0, 7, INF), (0, 40000, INF)],
    "not a number": [(2, 40960, NAN)],
    "not a number beside infinite": [(2, 40960, NAN), (2, 5, INF), (2, 100, -INF)],
    "largest and least": [(0, 3, 3e38), (0, 30000, -3e38)],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", [softmax, log_softmax, log_sum])
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
def test_what_is_not_finite_is_as_without_parts(fn: Callable[..., Any],
                                                where: list[tuple[Any, Any, float]]) -> None:
    x = logits()
    for row, column, value in where:
        x[row, column] = value
    assert len(run(fn, x).stages) < 4


OTHERS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "another maximum": (lambda x: jnp.exp(x - (x * 2).max(-1, keepdims=True)).sum(-1), 3, 40960),
    "a square": (lambda x: jnp.square(x - x.max(-1, keepdims=True)).sum(-1), 3, 40960),
    "a minimum": (lambda x: jnp.exp(x - x.min(-1, keepdims=True)).sum(-1), 3, 40960),
    "all of it": (lambda x: jnp.exp(x - x.max(-1, keepdims=True)).sum(), 3, 40960),
}


@pytest.mark.parametrize(("fn", "rows", "long"), OTHERS.values(), ids=OTHERS)
def test_other_sums_are_split_as_ever(fn: Callable[..., Any], rows: int, long: int) -> None:
    p = run(fn, logits(rows, long, 0.25))
    assert len(p.stages[0].groups[0].results) == 1


def test_short_rows_and_many_are_whole() -> None:
    assert kinds(run(softmax, logits(2, 4096))) == [["row"]]
    assert kinds(run(softmax, logits(40, 1 << 15))) == [["row"]]

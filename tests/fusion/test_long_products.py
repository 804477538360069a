"""Products that sum over many rows into few tiles: by shares, and a reduce."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import f32, graph_of, random_inputs

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.long_products import long_products
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.verify import verify

X = Any


def dots(graph: Graph) -> list[tuple[int, ...]]:
    return [o.lhs.type.dims for o in graph.ops if isinstance(o, ops.DotGeneral)]


def taken(fn: Any, *args: Any) -> Graph:
    made = long_products(graph_of(fn, *args), Device())
    verify(made)
    return made


def gradient(x: X, g: X) -> X:
    return jnp.einsum("...i,...o->io", x, g)


@pytest.mark.parametrize(("rows", "m", "n", "shares"), [
    ((65536,), 64, 64, 128), ((65536,), 256, 64, 64), ((8192,), 128, 16, 16),
    ((1024, 64), 256, 256, 32), ((10000,), 64, 48, 16)])
def test_shares_fill_the_multiprocessors(rows: tuple[int, ...], m: int, n: int,
                                         shares: int) -> None:
    (lhs,) = dots(taken(gradient, f32(*rows, m), f32(*rows, n)))
    assert lhs[0] == shares


@pytest.mark.parametrize(("rows", "m", "n"), [
    (4096, 64, 64),  # short
    (65536, 768, 768),  # many tiles
    (65536, 8, 64),  # a stream
    (65521, 64, 64),  # a prime number
])
def test_others_stay(rows: int, m: int, n: int) -> None:
    graph = graph_of(gradient, f32(rows, m), f32(rows, n))
    assert long_products(graph, Device()) is graph


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_sum_is_the_same(dtype: Any) -> None:
    shapes = [jax.ShapeDtypeStruct(s, dtype) for s in ((8192, 32), (8192, 24))]
    graph = graph_of(gradient, *shapes)
    made = long_products(graph, Device())
    assert made.outputs[0].type == graph.outputs[0].type
    values = random_inputs(graph)
    want = np.asarray(values[0], np.float64).T @ np.asarray(values[1], np.float64)
    for got in (evaluate(made, values)[0], run_plan(make_plan(graph, Device()), values)[0]):
        error = np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
        assert error < (1e-5 if dtype == jnp.float32 else 3e-3)

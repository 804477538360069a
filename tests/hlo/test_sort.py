"""Short sorts: the same as JAX's, bit by bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from thinned import crossed

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.passes.rules import sort
from jaxmono.hlo.verify import verify

RNG = np.random.default_rng(0)
SPECIAL = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30], np.float32)
FEW = RNG.integers(0, 5, 60).astype(np.int32)
CASES: dict[str, tuple[Any, Any]] = {
    "argsort": (jnp.argsort, FEW),
    "argsort, falling": (lambda x: jnp.argsort(x, descending=True), FEW),
    "special values": (jnp.sort, RNG.choice(SPECIAL, 50)),
    "special values, falling": (lambda x: jnp.argsort(x, descending=True),
                                RNG.choice(SPECIAL, 50)),
    "first dimension": (lambda x: jnp.sort(x, 0), RNG.normal(size=(20, 3)).astype(np.float32)),
    "middle dimension": (lambda x: jnp.argsort(x, 1),
                         RNG.integers(0, 4, (2, 30, 3)).astype(np.int32)),
    "16 bits": (lambda x: jnp.sort(x.astype(jnp.bfloat16)).astype(jnp.float32),
                RNG.normal(size=40).astype(np.float32)),
    "bytes": (jnp.sort, RNG.integers(0, 255, 70).astype(np.uint8)),
    "two keys": (lambda x: lax.sort((x, -x % 3, jnp.arange(60)), num_keys=2), FEW),
    "one of three": (lambda x: lax.sort((x, x * 2.0, x > 2), num_keys=1), FEW),
    "lexsort": (lambda x: jnp.lexsort((x % 2, x)), FEW),
    "median": (jnp.median, RNG.normal(size=51).astype(np.float32)),
    "unique": (lambda x: jnp.unique(x, size=8), FEW),
    "one": (jnp.sort, np.ones(1, np.float32)),
}


def graph_of(fn: Any, x: Any) -> Graph:
    return import_module(jax.jit(fn).lower(x).compiler_ir("stablehlo")).graph


def bits(x: Any) -> Any:
    x = np.ascontiguousarray(x)
    return np.atleast_1d(x).view(np.uint8)


@crossed(("name", CASES), ("stored", [False, True]))
def test_short_sorts(name: str, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if stored:
        monkeypatch.setattr(sort, "STORED", 0)
    fn, x = CASES[name]
    graph = graph_of(fn, x)
    assert any(isinstance(o, ops.Sort) for o in graph.ops) or name == "one"
    made = simplify(graph)
    verify(made)
    assert not any(isinstance(o, ops.Sort) for o in made.ops)
    want = jax.tree.leaves(jax.jit(fn)(x))
    for got, w in zip(evaluate(made, [x]), want, strict=True):
        np.testing.assert_array_equal(bits(got), bits(w))
    for got, w in zip(run_plan(make_plan(made, Device()), [x]), want, strict=True):
        np.testing.assert_array_equal(bits(got), bits(w))


def test_long_sorts_are_left_to_xla() -> None:
    def reason(*shape: int) -> str | None:
        (op,) = [o for o in graph_of(lax.sort, np.zeros(shape, np.int32)).ops
                 if isinstance(o, ops.Sort)]
        return refusal(op)

    assert reason(4096) is None and reason(64, 512) is None and reason(8192) is None
    assert reason(50257) == "sorting 50257 elements is not generated: they are compared each " \
        "with each"
    assert reason(10000, 512) is not None

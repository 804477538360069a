"""A transformer's layers in a `jax.lax.scan`: one kernel that reads each layer's weights where they
lie in the arrays of all layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import DEVICE, check
from jax import lax
from models import graph_of

from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Place
from jaxmono.fusion.regions import find_regions
from jaxmono.hlo.passes import simplify

X = Any


def norm(x: X, scale: X) -> X:
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def layer(x: X, weights: dict[str, X], *, heads: int) -> X:
    """x: [s, n]; causal attention and a gated feed-forward network."""
    s, n = x.shape
    y = norm(x, weights["first"])
    q, k, v = (jnp.moveaxis((y @ weights[w]).reshape(s, heads, n // heads), 1, 0) for w in "qkv")
    scores = jnp.einsum("hsd,htd->hst", q, k) * (n // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    y = jnp.einsum("hst,htd->hsd", jax.nn.softmax(scores, -1), v)
    x = x + jnp.moveaxis(y, 0, 1).reshape(s, n) @ weights["o"]
    y = norm(x, weights["second"])
    return x + (jax.nn.silu(y @ weights["gate"]) * (y @ weights["up"])) @ weights["down"]


def layers(x: X, weights: dict[str, X], heads: int = 2) -> X:
    return lax.scan(lambda x, w: (layer(x, w, heads=heads), None), x, weights)[0]


def inputs(count: int, rows: int, wide: int, dtype: Any) -> tuple[X, dict[str, X]]:
    rng = np.random.default_rng(0)

    def matrix(m: int, n: int) -> X:
        return jnp.asarray(rng.standard_normal((count, m, n)) / m ** 0.5, dtype)

    weights = {name: matrix(wide, wide) for name in "qkvo"}
    weights |= {"gate": matrix(wide, 4 * wide), "up": matrix(wide, 4 * wide),
                "down": matrix(4 * wide, wide)}
    weights |= {name: jnp.asarray(1 + rng.standard_normal((count, wide)) / 8, dtype)
                for name in ("first", "second")}
    return jnp.asarray(rng.standard_normal((rows, wide)), dtype), weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 16])
def test_as_the_reference_in_any_order_of_threads(rows: int) -> None:
    x, weights = inputs(3, rows, 32, jnp.float32)
    graph = graph_of(layers, x, weights)
    check(graph, [np.asarray(v) for v in jax.tree.leaves((x, weights))], seeds=(0, 1), rtol=1e-2)


def test_each_layer_reads_its_weights_where_they_lie() -> None:
    x, weights = inputs(6, 16, 512, jnp.bfloat16)
    graph = simplify(graph_of(lambda x, w: layers(x, w, 8), x, weights))
    (region,), refused = find_regions(graph)
    assert not refused
    plan = make_plan(region.subgraph(graph), DEVICE)
    pieces = [b for b in plan.buffers if b.place is Place.PART]
    assert {plan.buffers[b.index].place for b in pieces} == {Place.INPUT}
    assert len(pieces) == 6 * len(weights)
    assert sum(x.period * x.trips for x in plan.loops) >= len(plan.stages) - 12

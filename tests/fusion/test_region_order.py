"""Updates belong to the kernel that makes their gradients (region_order.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from models import f32
from test_region_size import WIDTHS, arguments, checked, tower
from test_regions import raw

from jaxmono.fusion import region_size
from jaxmono.fusion.region_order import when_ready
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph

X = Any


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_size, "MOST_LINES", 1200)
    monkeypatch.setattr(region_size, "LEAST_US", 0.0)


def trained(x: X, count: X, *weights: X) -> X:
    """A step of gradient descent whose length is a power."""
    grads = jax.grad(lambda w: jnp.sum(tower(x, *w) ** 2))(weights)
    return [w * 0.9 - g / (1 - 0.9 ** count) for w, g in zip(weights, grads, strict=True)]


def step(widths: tuple[int, ...]) -> Graph:
    x, *weights = arguments(widths)
    return raw(trained, x, f32(), *weights)


def gradients_that_cross() -> int:
    """What goes from kernel to kernel and is not of the rows that are propagated, or a number."""
    regions = checked(step(WIDTHS))
    assert len(regions) > 3
    given = {v for r in regions for v in r.inputs}
    return sum(v.type.dims[:1] not in ((), (16,)) for r in regions for v in r.outputs if v in given)


def test_few_gradients_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a sum of two products here, of which one may be in front of a cut."""
    assert gradients_that_cross() <= 4
    monkeypatch.setattr(region_size, "when_ready", lambda _, members: list(members))
    assert gradients_that_cross() > 12


def test_each_op_is_behind_what_it_needs() -> None:
    graph = step(WIDTHS[:6])
    order = when_ready(graph, range(len(graph.ops)))
    assert sorted(order) == list(range(len(graph.ops)))
    made = set(graph.inputs)
    for i in order:
        assert made.issuperset(graph.ops[i].uses)
        made.update(graph.ops[i].results)


def test_an_update_follows_its_gradient() -> None:
    graph = step(WIDTHS[:6])
    order = [graph.ops[i] for i in when_ready(graph, range(len(graph.ops)))]
    updates = [o for o in order if o.results[0] in graph.outputs]
    dots = [order.index(o) for o in order if isinstance(o, ops.DotGeneral)]
    behind = {sum(d < order.index(o) for d in dots) for o in updates}
    assert len(behind) == len(updates)  # no two of them have the same products in front


def test_other_ops_stay_where_they_are() -> None:
    def fn(x: X, w: X) -> X:
        mask = jnp.sin(w)  # a product needs it, later
        return (jnp.cos(x) @ w) @ mask

    graph = raw(fn, f32(8, 8), f32(8, 8))
    assert when_ready(graph, range(len(graph.ops))) == list(range(len(graph.ops)))

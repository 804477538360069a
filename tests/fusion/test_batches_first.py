"""Operands of contractions, of whose batches the elements were neighbours (batches_first.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest

from jaxmono.fusion import make_plan
from jaxmono.fusion.batches_first import batches_first
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def check(fn: Callable[..., Any], *args: Any) -> tuple[Graph, Plan]:
    """The graph behind the pass, whose values are those of before, and the plan."""
    graph = models.graph_of(fn, *args)
    turned, plan = batches_first(graph), make_plan(graph, Device())
    inputs = models.random_inputs(graph)
    wanted = evaluate(graph, inputs)
    for found in (evaluate(turned, inputs), run_plan(plan, inputs, seed=1)):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return turned, plan


def batches(plan: Plan) -> list[tuple[bool, bool]]:
    """Of each contraction with a batch, whether neighbours of its operands are of one batch."""
    forms = [g.sig.form for g in plan.groups if isinstance(g.sig.form, DotForm)]
    return [(not f.lhs_index[-1].depends_on(f.batch), not f.rhs_index[-1].depends_on(f.batch))
            for f in forms if f.batch.size > 1]


def experts(x: Any, up: Any, down: Any, share: Any) -> Any:
    hidden = jnp.tanh(jnp.einsum("td,edf->etf", x, up))
    y = jnp.einsum("etf,efd,te->td", hidden, down, share)
    return ((y - x) ** 2).sum()


def test_gradients_of_experts() -> None:
    _, plan = check(jax.grad(experts, argnums=(1, 2)), f32(24, 16), f32(4, 16, 32), f32(4, 32, 16),
                    f32(24, 4))
    found = batches(plan)
    assert len(found) >= 3 and all(a and b for a, b in found)


def outer(a: Any, b: Any, w: Any) -> Any:
    return jnp.einsum("tde,edf->etf", a[:, :, None] * b[:, None, :], w)


def test_others_read_a_transpose() -> None:
    def fn(a: Any, b: Any, w: Any) -> Any:
        y = jnp.sin(a[:, :, None] * b[:, None, :])
        return jnp.einsum("tde,edf->etf", y, w), y

    turned, plan = check(fn, f32(24, 16), f32(24, 4), f32(4, 16, 8))
    (made,) = [o for o in turned.ops if isinstance(o, ops.Elementwise) and o.kind == "sine"]
    assert made.results[0].type.dims == (4, 24, 16)
    assert plan.outputs[1].type.dims == (24, 16, 4)


def test_through_transposes() -> None:
    def fn(a: Any, b: Any, w: Any) -> Any:
        y = jnp.cos(a[:, :, None] * b[:, None, :]).transpose(1, 2, 0)  # d, e, t
        return jnp.einsum("det,edf->etf", y, w)

    turned, plan = check(fn, f32(24, 16), f32(24, 4), f32(4, 16, 8))
    (dot,) = [o for o in turned.ops if isinstance(o, ops.DotGeneral)]
    assert {dot.lhs.type.dims, dot.rhs.type.dims} == {(4, 24, 16), (4, 16, 8)}
    assert all(a and b for a, b in batches(plan))


def two_free(a: Any, b: Any, w: Any) -> Any:
    """The free dimensions come the other way in what the contraction reads."""
    y = jnp.cos(a[..., None] * b).transpose(1, 0, 2, 3)  # u, t, d, e of t, u, d, e
    return jnp.einsum("utde,edf->eutf", y, w)


LEFT: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "an input": (lambda y, w: jnp.einsum("tde,edf->etf", y, w), [f32(24, 16, 4), f32(4, 16, 8)]),
    "batches in front": (lambda a, w: jnp.einsum("etd,edf->etf", jnp.sin(a), w),
                         [f32(4, 24, 16), f32(4, 16, 8)]),
    "no batch": (lambda a, w: jnp.sin(a) @ w, [f32(24, 16), f32(16, 8)]),
    "a product's result": (lambda x, w, v: jnp.einsum("te,tef->ef", x @ w, v),
                           [f32(24, 16), f32(16, 4), f32(24, 4, 8)]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    fn, args = LEFT[name]
    graph = models.graph_of(fn, *args)
    assert batches_first(graph) is graph
    check(fn, *args)


def test_results_keep_the_order_of_free_dimensions() -> None:
    check(two_free, f32(5, 6, 16), f32(4), f32(4, 16, 8))
    check(outer, f32(24, 16), f32(24, 4), f32(4, 16, 8))

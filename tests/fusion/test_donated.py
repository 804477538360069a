"""Outputs in the places of donated inputs (donated.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from donated_programs import with_updates
from thinned import thinned

from jaxmono.fusion import donated, make_plan
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.order import dependences
from jaxmono.fusion.plan import Device, Plan
from jaxmono.fusion.verify import verify
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

Pairs = tuple[tuple[int, int], ...]


def check(graph: Graph, aliases: Pairs, seed: int = 0) -> Plan:
    """The plan with ``aliases`` computes what the graph does, whatever runs first in a stage."""
    made = make_plan(graph, Device(), aliases=aliases)
    assert len(made.stages) == len(make_plan(graph, Device()).stages)
    inputs = models.random_inputs(graph, seed)
    wanted = evaluate(graph, inputs)
    for order in range(3):
        for got, want in zip(run_plan(made, inputs, seed=order), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return made


def taken(p: Plan) -> Pairs:
    return tuple((b.index, b.alias) for b in p.outputs if b.alias is not None)


def plan(fn: Callable[..., Any], *shapes: tuple[int, ...], aliases: Pairs) -> Plan:
    specs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    return check(models.graph_of(fn, *specs), aliases)


def adamw(w: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 0.1 * (m / (jnp.sqrt(jnp.abs(v)) + 1e-3) + 0.01 * w), m, v


THREE = (0, 0), (1, 1), (2, 2)


@pytest.mark.parametrize("n", [48, 512])
def test_loops(n: int) -> None:
    assert taken(plan(adamw, *[(n, n)] * 4, aliases=THREE)) == THREE


def test_epilogues_and_reduces() -> None:
    def dense(w: Any, m: Any, v: Any, x: Any, g: Any) -> Any:
        return adamw(w, m, v, x.T @ g)

    def bias(w: Any, m: Any, v: Any, g: Any) -> Any:
        return adamw(w, m, v, g.sum(0))

    def scale(w: Any, m: Any, v: Any, x: Any, g: Any) -> Any:
        return adamw(w, m, v, (x * g).sum(1))

    p = plan(dense, *[(48, 80)] * 3, (32, 48), (32, 80), aliases=THREE)
    assert taken(p) == THREE and len(p.stages) == 1
    assert taken(plan(bias, *[(80,)] * 3, (32, 80), aliases=THREE)) == THREE
    assert taken(plan(scale, *[(32,)] * 3, *[(32, 80)] * 2, aliases=THREE)) == THREE


def test_any_donated_input_of_that_type_will_do() -> None:
    """JAX pairs by type: the order of results may be another than that of arguments."""
    turned = (0, 2), (1, 0), (2, 1)
    assert taken(plan(adamw, *[(512, 512)] * 4, aliases=turned)) == turned


def test_readers_come_first() -> None:
    """Gradients by a layer's own weights are made a stage before these are updated, at the latest.
    """
    def step(params: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for w, b in params:
                h = jnp.tanh(h @ w + b)
            return ((h - y) ** 2).sum()

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    spec = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    params = [(spec, jax.ShapeDtypeStruct((16,), jnp.float32))] * 4
    aliases = tuple((i, i) for i in range(8))
    p = check(models.graph_of(step, params, spec, spec), aliases)
    assert taken(p) == aliases
    assert any(e.hazard == "war" for e in p.edges)


def test_rows() -> None:
    """Elements that a row's sweeps read before it is written."""
    def whole(w: Any) -> Any:
        return w / (w * w).sum()

    def columns(w: Any) -> Any:
        return w - w.mean(0)

    for fn in (jax.nn.softmax, jax.nn.standardize, whole, columns):
        assert taken(plan(fn, (64, 300), aliases=((0, 0),))) == ((0, 0),), fn


def test_what_rows_sweep_is_no_place_for_one_value_of_each() -> None:
    def per_row(w: Any, b: Any) -> Any:
        return b - (w * b[:, None]).sum(-1)

    def beside(w: Any, b: Any) -> Any:
        return w * b[:, None] / (w * w).sum(-1, keepdims=True), b + (w * w).sum(-1)

    p = plan(per_row, (64, 300), (64,), aliases=((0, 1),))
    assert taken(p) == () and "reads other elements" in p.notes[-1]
    with pytest.raises(PlanError, match="overwrite"):
        verify(in_place_of(p, 0, 1))
    p = plan(beside, (64, 300), (64,), aliases=((0, 0), (1, 1)))
    assert taken(p) == ((0, 0),)
    with pytest.raises(PlanError, match=r"overwrite|barrier is missing"):
        verify(in_place_of(p, 1, 1))


REFUSED: dict[str, tuple[Callable[..., Any], Pairs, str]] = {
    "turned": (lambda w: w[::-1] + 1, ((0, 0),), "reads other elements"),
    "transposed": (lambda w: w.T + w, ((0, 0),), "reads other elements"),
    "normalised by another": (lambda w: w / (w * w[::-1]).sum(-1, keepdims=True), ((0, 0),),
                              "reads other elements"),
    "multiplied": (lambda w: w @ w + w, ((0, 0),), "reads other elements"),
    "returned": (lambda w: (w + 1, w), ((0, 0),), "is returned as well"),
    "an argument": (lambda w, x: (x, w + x), ((0, 0),), "no value of its own"),
    "twice": (lambda w: (y := w + 1, y), ((0, 0),), "no value of its own"),
    "read meanwhile": (lambda w, x: (w - x.T @ x, x @ w), ((0, 0),), "more stages"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_told(name: str) -> None:
    fn, aliases, why = REFUSED[name]
    count = fn.__code__.co_argcount
    p = plan(fn, *[(64, 64)] * count, aliases=aliases)
    assert taken(p) == ()
    (note,) = [n for n in p.notes if "donated" in n]
    assert why in note and "XLA copies the kernel's output 0 into donated input 0" in note


def test_one_that_is_late_keeps_none_from_its_place() -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return a * 2, b * (a + 1).sum(0), c + 1  # a is read while it would be written

    p = plan(fn, *[(64, 64)] * 3, aliases=THREE)
    assert taken(p) == ((1, 1), (2, 2)) and "more stages" in p.notes[-1]


def test_two_that_exclude_each_other() -> None:
    """Each may be read a stage before it is written, but not both."""
    def fn(a: Any, b: Any, c: Any, x: Any) -> Any:
        return a + b, b + a[0], c + 1, (x @ x) @ x

    p = plan(fn, (64, 64), (64,), (48, 8), (64, 64), aliases=THREE)
    assert len(taken(p)) == 2 and (2, 2) in taken(p) and "more stages" in p.notes[-1]


def test_what_lies_in_parts() -> None:
    """A scan's results lie one behind the other, and its steps read parts of what it goes over."""
    def scanned(h: Any, w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(h @ w + x)
            return h, h

        last, all_ = jax.lax.scan(step, h, xs)
        return last, all_, xs + last

    p = plan(scanned, (4, 32), (32, 32), (6, 4, 32), aliases=((0, 0), (1, 2)))
    assert taken(p) == ((0, 0),)
    assert "its parts are written apart" in p.notes[-1]
    p = plan(scanned, (4, 32), (32, 32), (6, 4, 32), aliases=((0, 0), (2, 2)))
    assert taken(p) == ((0, 0), (2, 2))


def test_who_reads_a_part_of_it() -> None:
    t = TensorType((2, 4, 32), DType.F32)
    xs, y, b = Value(t, "xs"), Value(t, "y"), Builder()
    part = b.emit1(ops.Piece, TensorType((1, 4, 32), DType.F32), operand=xs, index=1)
    out = b.elementwise("add", y, b.broadcast_in_dim(b.reshape(part, (4, 32)), t.dims, (1, 2)))
    p = check(Graph((xs, y), tuple(b.ops), (out,), "part"), ((0, 0),))
    assert taken(p) == () and "reads other elements" in p.notes[-1]


def test_beside_rows_that_a_product_makes_and_stores() -> None:
    """A norm folded into the product behind it, whose rows are returned."""
    def step(u: Any, x: Any, w: Any) -> Any:
        h = jax.nn.standardize(x)
        return h @ w + u, h

    p = plan(step, (8, 64), (8, 64), (64, 64), aliases=((0, 0),))
    assert taken(p) == ((0, 0),) and len(p.groups) == 1
    p = plan(step, (8, 64), (8, 64), (64, 64), aliases=((0, 1),))
    assert taken(p) == () and "reads other elements" in p.notes[-1]


def test_many_that_are_late_take_no_time_to_tell() -> None:
    """All weights are read in the last stage: no pair is tried, alone or with others."""
    def step(ws: Any, x: Any) -> Any:
        last = (x @ x) @ x
        return [w - 0.1 * x for w in ws], [last @ w for w in ws]

    spec = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    graph = models.graph_of(step, [spec] * 40, spec)
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return dependences(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(donated, "dependences", counted)
        p = make_plan(graph, Device(), aliases=tuple((i, i) for i in range(40)))
    assert not calls and taken(p) == () and "(and 39 more)" in p.notes[-1]


def test_reduces_that_begin_behind_the_stores() -> None:
    def summed(w: Any, x: Any, g: Any) -> Any:
        w = w - 0.1 * (x.T @ g)
        return w, w.sum(0)

    specs = [jax.ShapeDtypeStruct(s, t) for s, t in (
        ((2048, 1024), jnp.float32), ((512, 2048), jnp.bfloat16), ((512, 1024), jnp.bfloat16))]
    p = make_plan(models.graph_of(summed, *specs), Device(), aliases=((0, 0),))
    assert "1 contractions begin in their epilogues what reduces their results" in p.notes
    assert taken(p) == () and "reads other elements" in p.notes[-1]


def test_equal_reasons_are_one_note() -> None:
    def fn(*ws: Any) -> Any:
        return [w[::-1] + 1 for w in ws]

    p = plan(fn, *[(8, 8)] * 3, aliases=THREE)
    assert [n for n in p.notes if "donated" in n] == [
        "XLA copies the kernel's output 0 (and 2 more) into donated input 0: who writes it reads "
        "other elements of the input"]


def in_place_of(p: Plan, output: int, input: int) -> Plan:
    buffers = [dataclasses.replace(b, alias=input) if b is p.outputs[output] else b
               for b in p.buffers]
    return dataclasses.replace(p, buffers=tuple(buffers))


@pytest.mark.parametrize("name", ["turned", "transposed", "normalised by another",
                                  "multiplied", "read meanwhile"])
def test_the_verifier_sees_it(name: str) -> None:
    fn, _, _ = REFUSED[name]
    p = plan(fn, *[(64, 64)] * fn.__code__.co_argcount, aliases=())
    with pytest.raises(PlanError, match=r"overwrite|barrier is missing"):
        verify(in_place_of(p, 0, 0))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", thinned(range(8)))
def test_random_programs(block: int) -> None:
    found = 0
    for seed in range(block * 20, block * 20 + 20):
        graph, aliases = with_updates(seed, 6 + seed % 20)
        found += len(taken(check(graph, aliases, seed)))
    assert found > 10

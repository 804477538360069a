"""Loops and branches inside of loops that are taken apart, and branches that are selected: JAX's
results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.fusion import support
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import branches, simplify
from jaxmono.hlo.passes.unroll import MAX_INNER, MAX_OPS, MAX_WAITS, unroll
from jaxmono.hlo.verify import verify

X = Any
RNG = np.random.default_rng(0)


def graph_of(fn: Callable[..., X], *args: Any) -> Graph:
    """As JAX lowers it."""
    return import_module(jax.jit(fn).lower(*args).compiler_ir("stablehlo")).graph


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def steps(x: X) -> X:
    """Frames of three steps; the number of a step counts."""
    def frame(c: X, now: X) -> X:
        c = lax.fori_loop(0, 3, lambda i, v: jnp.sin(v) * i + now, c)
        return c, c.sum()

    return lax.scan(frame, jnp.zeros(8), x)


def layers(x: X, w: X) -> X:
    """Each trip has a loop over weights, whose states the trip returns."""
    def frame(h: X, now: X) -> X:
        return lax.scan(lambda a, m: (jnp.tanh(a @ m + now), a), h, w)

    return lax.scan(frame, jnp.zeros((4, 8)), x)


def three_deep(x: X) -> X:
    def inner(i: X, v: X) -> X:
        return lax.fori_loop(1, 3, lambda j, u: jnp.cos(u) + i * 0.5 + j, v)

    return lax.scan(lambda c, now: (lax.fori_loop(0, 2, inner, c) + now, c), jnp.zeros(8), x)


def two_beside(x: X) -> X:
    """Two inner loops, the second of which begins where the first ends; one ends at once."""
    def frame(c: X, now: X) -> X:
        a = lax.fori_loop(0, 2, lambda i, v: v * 0.5 + i, c)
        b = lax.fori_loop(2, 5, lambda i, v: v + now * i, a)
        return b - a, (a, b)

    return lax.scan(frame, jnp.ones(8), x)


def branch(x: X) -> X:
    def frame(c: X, now: X) -> X:
        return lax.cond(now.sum() > 0, jnp.sin, lambda v: v * 2, c) + now, c

    return lax.scan(frame, jnp.zeros(8), x)


def gradient(x: X) -> X:
    return jax.grad(lambda x: jnp.sum(steps(x)[1] ** 2))(x)


NESTED: dict[str, tuple[Callable[..., X], tuple[Any, ...]]] = {
    "steps": (steps, (f32(5, 8),)), "layers": (layers, (f32(5, 4, 8), f32(3, 8, 8))),
    "three deep": (three_deep, (f32(4, 8),)), "two beside": (two_beside, (f32(4, 8),)),
    "branch": (branch, (f32(6, 8),)), "gradient": (gradient, (f32(5, 8),)),
}


def flat(fn: Callable[..., X], *args: Any) -> Graph:
    graph = graph_of(fn, *args)
    inside = graph.producer
    assert [support.refusal(o, inside) for o in graph.ops] == [None] * len(graph.ops)
    made = unroll(simplify(graph))
    verify(made)
    assert not any(isinstance(o, ops.While | ops.Case) for o in made.walk())
    return made


def same(graph: Graph, args: tuple[Any, ...], want: Any) -> None:
    for a, b in zip(evaluate(graph, args), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", NESTED)
def test_loops_in_loops(name: str) -> None:
    fn, args = NESTED[name]
    with jax.default_matmul_precision("highest"):
        want = jax.jit(fn)(*args)
    same(flat(fn, *args), args, want)


@pytest.mark.parametrize(("inner", "reason"), [
    (lambda c: lax.while_loop(lambda d: d.sum() < 9, lambda d: d + 1, c),
     "how often the loop runs is only known when it does"),
    (lambda c: lax.fori_loop(0, MAX_INNER, lambda _, d: jnp.sin(d), c),
     f"the {MAX_INNER} trips of a loop in it are {2 * MAX_INNER} ops; a kernel takes loops of up "
     f"to {MAX_INNER} in others"),
    (lambda c: lax.fori_loop(0, 600, lambda _, d: jnp.sin(d), c),
     f"its 40 trips are 48040 ops; a kernel takes loops of up to {MAX_OPS}")])
def test_what_is_too_much(inner: Callable[[X], X], reason: str) -> None:
    graph = graph_of(lambda x: lax.fori_loop(0, 40, lambda _, c: inner(c), x), f32(4))
    (loop,) = (o for o in graph.ops if isinstance(o, ops.While))
    assert support.refusal(loop, graph.producer) == reason


def made_layers(x: X, w: X) -> X:
    """The weights of a trip, which an inner loop multiplies by, lie in no array that is given."""
    def layer(h: X, m: X) -> X:
        return lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ m), h), None

    return lax.scan(layer, x, w * 2)[0]


@pytest.mark.parametrize(("fn", "args", "reason"), [
    (made_layers, (f32(4, 256), f32(4, 256, 256)), "takes other weights in each trip"),
    (lambda x: lax.fori_loop(0, 20, lambda _, x: lax.fori_loop(
        0, 100, lambda _, v: jnp.sort(v) * 0.5 + 1, x), x), (f32(64),), "its 20 trips are "),
    (lambda x, w: lax.fori_loop(0, 40, lambda _, x: lax.fori_loop(
        0, 13, lambda _, v: jnp.tanh(v @ w), x), x), (f32(4, 8), f32(8, 8)),
     f"are 520 products and reductions; a kernel takes up to {MAX_WAITS}"),
    (lambda x: lax.fori_loop(0, 2000, lambda _, v: jnp.sort(v) * 0.5 + 1, x), (f32(64),),
     "its 2000 trips are ")])
def test_what_is_refused_once_inner_loops_are_taken_apart(fn: Callable[..., X], args: Any,
                                                          reason: str) -> None:
    graph = graph_of(fn, *args)
    (loop,) = (o for o in graph.ops if isinstance(o, ops.While))
    assert reason in (support.refusal(loop, graph.producer) or "")


def test_branches_are_selected_as_they_were_found_little() -> None:
    """What is in them has many more ops when it is expanded."""
    def powers(v: X) -> X:
        for _ in range(12):
            v = abs(v) ** -2.5 + v
        return v

    args = np.bool_(True), np.abs(f32(8)) + 1
    fn = lambda p, x: lax.cond(p, powers, jnp.cos, x)  # noqa: E731
    same(flat(fn, *args), args, jax.jit(fn)(*args))


def test_small_counters_begin_anew() -> None:
    def fn(x: X) -> X:
        def frame(c: X, now: X) -> X:
            i, c = lax.fori_loop(0, 10, lambda _, s: (s[0] + jnp.uint8(1), s[1] + s[0]),
                                 (jnp.uint8(250), c))
            return c + now, i

        return lax.scan(frame, jnp.zeros(8), x)

    args = (f32(3, 8),)
    same(flat(fn, *args), args, jax.jit(fn)(*args))


def test_trips_that_only_the_data_know_stay() -> None:
    def fn(x: X) -> X:
        return lax.fori_loop(0, 3, lambda _, c: lax.while_loop(
            lambda d: d.sum() < 9, lambda d: d + 1, c), x)

    graph = graph_of(fn, f32(4))
    (loop,) = (o for o in simplify(graph).ops if isinstance(o, ops.While))
    assert any(isinstance(o, ops.While) for o in loop.body.ops)


def switched(i: X, x: X) -> X:
    return lax.switch(i, [jnp.sin, lambda v: v.sum() + v, lambda v: jnp.zeros_like(v) / 0], x)


@pytest.mark.parametrize("i", [-3, 0, 1, 2, 7])
def test_the_branch_of_an_index(i: int) -> None:
    """NaNs of the others do no harm; an index outside means the first or the last one."""
    args = np.int32(i), f32(4, 8)
    same(flat(switched, *args), args, switched(*args))


@pytest.mark.parametrize("p", [False, True])
def test_the_branch_of_a_predicate(p: bool) -> None:
    """Several results, one alike in both; values from outside; a branch in a branch."""
    def fn(p: X, x: X, y: X) -> X:
        z = jnp.exp(y)
        return lax.cond(p, lambda: (x, z, lax.cond(x[0] > 0, jnp.sin, jnp.cos, y)),
                        lambda: (y * 2, z, x))

    args = np.bool_(p), f32(8), f32(8)
    same(flat(fn, *args), args, jax.jit(fn)(*args))


@pytest.mark.parametrize(("fn", "size"), [
    (lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), branches.MOST_ELEMENTS + 1),
    (lambda p, x: lax.cond(p, lambda v: sum(jnp.sin(v * i) for i in range(branches.MOST_OPS)),
                           jnp.cos, x), 8),
    (lambda p, x: lax.cond(p, lambda v: jnp.outer(v, v) @ v, jnp.cos, x), 8),
    (lambda p, x: lax.cond(p, lambda v: lax.while_loop(lambda u: u[0] < 3, lambda u: u + 1, v),
                           jnp.cos, x), 8)],
    ids=["large", "many ops", "a product", "a loop"])
def test_branches_that_are_much_are_xlas(fn: Callable[..., X], size: int) -> None:
    graph = graph_of(fn, np.bool_(False), f32(size))
    (case,) = (o for o in graph.ops if isinstance(o, ops.Case))
    assert support.refusal(case, graph.producer) == "XLA chooses the branch; kernels may be in it"


def test_what_no_kernel_takes_is_named_in_a_branch() -> None:
    def fn(p: X, x: X) -> X:
        return lax.cond(p, lambda v: jnp.abs(jnp.arctan(v + 1j)), jnp.cos, x)

    graph = graph_of(fn, np.bool_(False), f32(8))
    (case,) = (o for o in graph.ops if isinstance(o, ops.Case))
    assert "atan of complex numbers is not generated yet" in (
        support.refusal(case, graph.producer) or "")

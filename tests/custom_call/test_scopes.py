"""Kernels in the loops and branches that XLA runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono
import jaxmono._trips
from jaxmono._scopes import find_scopes
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module

UNROLL = importlib.import_module("jaxmono.hlo.passes.unroll")  # the package has its function
N = 8
X = np.random.default_rng(0).normal(size=(2, N)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(6, N, N)).astype(np.float32) / N**0.5


@pytest.fixture(autouse=True)
def loops_that_xla_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if trips were long: others are kernels of their own (test_whole_loops.py)."""
    monkeypatch.setattr(jaxmono._trips, "MOST_US", -1.0)


def layers(x: jax.Array, w: jax.Array, rows: slice = slice(None)) -> jax.Array:
    """A product and a norm for each matrix: worth a launch in a loop's body."""
    for m in w[rows]:
        x = jnp.tanh(x @ m)
        x = x / (1 + jnp.sum(jnp.abs(x), axis=-1, keepdims=True))
    return x


def until(x: jax.Array, w: jax.Array) -> jax.Array:
    """Ends when the data says so, after some trips."""
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, i = state
        return layers(x, w) + 0.1 * i, i + 1

    return lax.while_loop(lambda s: (s[1] < 9) & (jnp.sum(s[0]) < 4), step, (x, 0))[0]


def check(fun: Callable[..., Any], *args: Any) -> tuple[str, jaxmono.Report]:
    """That jaxmono's results are JAX's; the text of the program, and the report."""
    function = jaxmono.jit(fun, interpret=True)
    lowered = function.lower(*args)
    got, want = function(*args), jax.jit(fun)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)
    return lowered.as_text(), lowered.explain()


def kernels(text: str) -> int:
    return text.count("@jaxmono_interpret")


def inside(text: str, op: str = "stablehlo.while", end: str = "}\n") -> str:
    """The regions of the first such op."""
    start = text.index(op)
    indent = text[text.rindex("\n", 0, start) + 1:start].split("%")[0]
    return text[start:text.index(f"\n{indent}{end}", start)]


def test_a_loop_whose_trips_only_the_data_know() -> None:
    text, report = check(until, X, W)
    loop = inside(text)
    assert kernels(loop) == 1 and "dot_general" not in loop
    assert "stablehlo.add" in loop  # of the trips, which XLA counts
    assert report.coverage.flops > 0.99 and 0.8 < report.coverage.ops < 1
    assert any("in the while at" in n for k in report.planned for n in k.notes)


def test_a_loop_of_more_trips_than_a_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of what comes and places of what goes are the kernel's; XLA still knows the trips."""
    def fun(xs: jax.Array, x: jax.Array, w: jax.Array) -> Any:
        def step(x: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = layers(x, w) + now
            return x, jnp.sum(x, axis=-1)

        return lax.scan(step, x, xs)

    monkeypatch.setattr(UNROLL, "MAX_OPS", 100)
    xs = np.random.default_rng(2).normal(size=(30, 2, N)).astype(np.float32)
    text, report = check(fun, xs, X, W)
    loop = inside(text)
    assert kernels(loop) == 1 and "dynamic_update_slice" not in loop
    assert "dynamic_slice" not in loop and loop.count("stablehlo.add") == 1
    assert report.coverage.flops > 0.99


def test_too_little_for_a_launch() -> None:
    def fun(x: jax.Array) -> jax.Array:
        x = jnp.tanh(x @ x)
        x = lax.while_loop(lambda v: v[0, 0] < 3, lambda v: jnp.tanh(v @ v) + v + 0.5, x)
        return jnp.tanh(x @ x) * 2

    text, report = check(fun, np.full((4, 4), 0.1, np.float32))
    loop = inside(text)
    assert kernels(text) == 2 and kernels(loop) == 0 and "dot_general" in loop
    assert any("too little to make up for a launch" in r.reason for r in report.refused)


def test_branches() -> None:
    """What is in both of them, and outside; a branch that captures a kernel's result."""
    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        y = jnp.exp(x @ w[0])
        return lax.cond(jnp.sum(y) > 10, lambda: layers(y, w, slice(1, 4)),
                        lambda: layers(y * 2, w, slice(2, 6)) - x) * 3

    for x in (X, X - 9):
        text, report = check(fun, x, W)
        assert kernels(inside(text, "stablehlo.case", "})")) == 2
        assert report.coverage.flops <= 1 and report.coverage.ops <= 1


def test_loops_in_loops() -> None:
    """The outer one's trips have a kernel around the inner loop, and one in it."""
    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = state
            return until(layers(x, w), w) + i, i + 1

        return lax.while_loop(lambda s: s[1] < 3, step, (x, jnp.int32(0)))[0]

    text, _ = check(fun, X, W)
    loop = inside(text)
    assert kernels(loop) == 2 and kernels(inside(loop[10:])) == 1


def test_a_function_that_others_call_stays_as_it_is() -> None:
    """The same loop, called twice by a jaxmono function, and by one that XLA runs."""
    shared = jax.jit(until)
    mono = jaxmono.jit(lambda x, w: shared(shared(x, w) - 1, w), interpret=True)

    def both(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return mono(x, w), shared(x, w)

    text = jax.jit(both).lower(X, W).as_text()
    assert kernels(text) == 3 and "dot_general" in text  # one is between the loops
    got, want = jax.jit(both)(X, W), (until(until(X, W) - 1, W), until(X, W))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


def test_gradients_through_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX makes of a scan's gradient has its loops' bodies in kernels, too."""
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(lambda x, _: (layers(x, w), None), x, length=7)[0] ** 2)

    monkeypatch.setattr(UNROLL, "MAX_OPS", 100)
    got = jax.grad(jaxmono.jit(loss, interpret=True))(X * 30, W)
    np.testing.assert_allclose(got, jax.grad(loss)(X * 30, W), rtol=2e-3, atol=2e-3)


def test_batched() -> None:
    got = jax.vmap(jaxmono.jit(until, interpret=True), (0, None))(X[:, None], W)
    want = jax.vmap(until, (0, None))(X[:, None], W)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_callbacks_stay_where_they_are() -> None:
    """In a body, in a branch without results: as often as JAX makes them, between kernels."""
    seen: list[float] = []

    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, i = state
            jax.debug.callback(lambda v: seen.append(float(v)), jnp.sum(x))
            x = layers(x, w)
            lax.cond(jnp.sum(x) > 0, lambda: jax.debug.callback(lambda: None), lambda: None)
            return jnp.sort(layers(x, w), axis=-1) @ w[0], i + 1

        return lax.while_loop(lambda s: s[1] < 3, step, (x, jnp.int32(0)))[0]

    text, _ = check(fun, X, W)
    jax.effects_barrier()
    assert kernels(inside(text)) == 1 and len(seen) == 6
    np.testing.assert_allclose(seen[:3], seen[3:], rtol=2e-3, atol=2e-3)


def test_a_whole_loop_is_worth_a_launch() -> None:
    """In a branch, and in another loop's trips: by what all of its own trips do."""
    def six(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda x, m: (jnp.tanh(x @ m), None), x, w)[0]

    def branches(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.cond(jnp.sum(x) > 0, lambda: six(x, w), lambda: six(x + 1, w))

    def nested(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: (s[1] < 3) & (jnp.sum(s[0]) < 1e9),
                              lambda s: (six(s[0], w), s[1] + 1), (x, jnp.int32(0)))[0]

    for fun, op, end, count in ((branches, "stablehlo.case", "})", 2),
                                (nested, "stablehlo.while", "}\n", 1)):
        text, report = check(fun, X, W)
        assert kernels(inside(text, op, end)) == count and text.count("stablehlo.while") < 2
        assert report.coverage.flops > 0.9


def test_what_stays_in_a_loop_is_no_error_and_told_once() -> None:
    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(x: jax.Array, m: jax.Array) -> tuple[jax.Array, None]:
            a = x @ m * 2.5 + 1.5
            return jnp.tanh(jnp.sort(jnp.tanh(a), axis=-1) * 2.5) * a, None

        return lax.scan(step, x, w)[0]

    check(fun, X, W)
    imported = import_module(jax.jit(fun).lower(X, W).compiler_ir("stablehlo"))
    _, body = find_scopes(imported, "stitch", Device()).walk()
    told = [op for op, reason in body.refused if "too little" in reason]
    assert len(told) == len(set(told)) > 0
    assert not any(isinstance(op, ops.Constant) for op in told)
    plain = lambda x, w: lax.scan(lambda x, m: (jnp.tanh(x @ m), None), x, w)[0]  # noqa: E731
    made = jaxmono.jit(plain, interpret=True, mode="stitch", on_unsupported="error")(X, W)
    np.testing.assert_allclose(made, plain(X, W), rtol=2e-3, atol=2e-3)

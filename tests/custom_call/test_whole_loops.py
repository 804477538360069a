"""Loops that nobody can take apart are kernels of their own: `jaxmono.jit` to interpreter."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.sparse.linalg import cg

import jaxmono
import jaxmono._trips
from jaxmono._errors import CompileError
from jaxmono.fusion.plan import Plan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
V = RNG.normal(size=8).astype(np.float32)
W = (RNG.normal(size=(8, 8)) / 4).astype(np.float32)
Fun = Callable[..., Any]


def check(fun: Fun, *args: Any, kernels: int = 1, left: int = 0, tol: float = 2e-5,
          ) -> jaxmono.Report:
    function = jaxmono.jit(fun, interpret=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = function.lower(*args).explain()
        assert report.kernels == kernels and len(report.refused) == left, str(report)
        got, want = function(*args), jax.jit(fun)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)
    return report


def converges(x: Any, w: Any) -> Any:
    """A product a trip; the caller sees all that it carries."""
    return lax.while_loop(lambda s: s[1] > 1e-3, lambda s: (
        jnp.tanh(s[0] @ w), jnp.max(jnp.abs(jnp.tanh(s[0] @ w) - s[0])), s[2] + 1),
        (x, jnp.float32(1), 0))


def hands_over(x: Any, w: Any) -> Any:
    """What was the new value is the old one; nothing else is read of it."""
    return lax.while_loop(lambda s: jnp.sum(jnp.abs(s[0] - s[1])) > 1e-3,
                          lambda s: (jnp.sin(s[0]) * 0.7, s[0]), (x, x + 1))


def swaps(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda s: s[2] < 5, lambda s: (s[1], s[0] + 0.1, s[2] + 1),
                          (x, x * 2, 0))


def reads_neighbours(x: Any, w: Any) -> Any:
    """The next value is made where others still read the last one."""
    def step(s: Any) -> Any:
        y = jnp.roll(s[0], 1, 1) * 0.5 + jnp.roll(s[0], -1, 0) * 0.3
        return y, jnp.any(jnp.abs(y) > 0.01)

    return lax.while_loop(lambda s: s[1], step, (x, jnp.asarray(True)))[0]


def writes_places(x: Any, w: Any) -> Any:
    def step(s: Any) -> Any:
        text, i = s
        return lax.dynamic_update_slice(text, jnp.sum(text[:, :1] + i, keepdims=True)[:, :1],
                                        (i % 4, i)), i + 1

    return lax.while_loop(lambda s: (s[1] < 8) & (jnp.sum(s[0]) < 1e6), step, (x, 0))


def never_begins(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda s: jnp.sum(s) > 1e9, lambda s: s * 2, x)


def keeps_some(x: Any, w: Any) -> Any:
    """A carried value that no trip changes is read as it was, and by a branch behind the loop."""
    a, b, n = lax.while_loop(lambda s: jnp.max(s[0]) > 0.01, lambda s: (
        s[0] @ s[1] * 0.5, s[1], s[2] + 1), (x, w, 0))
    return lax.cond(jnp.sum(a) > 0, lambda: jnp.sort(b, 0) + n, lambda: b * 2), a


def begins_with_constants(x: Any, w: Any) -> Any:
    zero = jnp.zeros_like(x)
    return lax.while_loop(lambda s: s[3] < 6, lambda s: (s[0] + x, s[1] + s[0], s[2] | (s[3] > 2),
                                                         s[3] + 1),
                          (zero, zero, jnp.asarray(False), 0))


def reads_the_first(x: Any, w: Any) -> Any:
    """What it begins with is there in each trip."""
    return lax.while_loop(lambda s: jnp.max(s) < 50, lambda s: s + jnp.abs(x) + 0.5, x)


def two(x: Any, w: Any) -> Any:
    """One behind the other, and one beside it."""
    a = lax.while_loop(lambda s: jnp.max(s) < 50, lambda s: s + 1, x)
    b = lax.while_loop(lambda s: jnp.min(s) > -50, lambda s: s - 1, x)
    return lax.while_loop(lambda s: jnp.sum(s) > 0, lambda s: s - b[0] * 0 - 3, a), b


def goes_on_behind(x: Any, w: Any) -> Any:
    y = jnp.tanh(x @ w)
    y = lax.while_loop(lambda s: jnp.max(jnp.abs(s)) > 0.01, lambda s: s * 0.5, y)
    return jnp.tanh(y @ w) + x


def steps_inside(x: Any, w: Any) -> Any:
    """A loop of a constant trip count in each trip."""
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s)) > 0.1, lambda s: lax.fori_loop(
        0, 3, lambda i, y: jnp.sin(y) @ w * 0.5, s), x)


def rotates(x: Any, w: Any) -> Any:
    """Copies of old values, beside one that reads another place of one."""
    return lax.while_loop(lambda s: jnp.sum(s[4]) < 9, lambda s: (
        s[3], s[2], x[0, 0] + s[1][::-1] - 0.3 * s[0], jnp.roll(s[0], 1, 1), s[4] + 1),
        (x, x * 2, x + 1, x - 1, 0))


def carries_nothing(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda s: jnp.max(s[1]) < 9, lambda s: (s[0] * 2, s[1] + 1),
                          (jnp.zeros((0, 4)), x))


def updates_an_input(x: Any, w: Any) -> Any:
    """What is in front of the loop writes a part of what its trips read as it was."""
    a = lax.dynamic_update_slice(x, jnp.ones((1, 2)), (1, 3))
    return a, lax.while_loop(lambda s: jnp.max(s) < 50, lambda s: s + jnp.abs(x) + 0.5, x)


def gamma(x: Any, w: Any) -> Any:
    return jax.scipy.special.gammainc(jnp.abs(x) + 0.1, jnp.abs(x) + 0.6)


CASES: list[tuple[Fun, int]] = [
    (rotates, 1), (carries_nothing, 1), (updates_an_input, 1),
    (converges, 1), (hands_over, 1), (swaps, 1), (reads_neighbours, 1), (writes_places, 1),
    (never_begins, 1), (begins_with_constants, 1), (reads_the_first, 1), (two, 3),
    (goes_on_behind, 2), (steps_inside, 1)]


@pytest.mark.parametrize(("fun", "kernels"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_a_loop_is_a_kernel(fun: Fun, kernels: int) -> None:
    text = jaxmono.jit(fun, interpret=True).lower(X, W).as_text()
    assert "stablehlo.while" not in text
    check(fun, X, W, kernels=kernels)


def test_loops_that_carry_many_old_values_are_planned() -> None:
    report = jaxmono.jit(gamma).explain(X, W)
    assert len(report.planned) == 3 and not report.refused


def test_what_no_trip_changes_stays_where_it_is() -> None:
    function = jaxmono.jit(keeps_some, interpret=True)
    assert function.lower(X, W).explain().kernels >= 1
    for a, b in zip(jax.tree.leaves(function(X, W)), jax.tree.leaves(keeps_some(X, W)),
                    strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_batch_of_loops_takes_several_trips_in_registers() -> None:
    def root(c: Any) -> Any:
        return lax.while_loop(lambda s: (jnp.abs(s[0] * s[0] - c) > 1e-4) & (s[1] < 99),
                              lambda s: (0.5 * (s[0] + c / s[0]), s[1] + 1), (c + 1, 0))

    c = np.abs(RNG.normal(size=300)).astype(np.float32) * 100
    report = check(jax.vmap(root), c)
    assert "trips of the loop" in str(report)
    # Of another condition the trips do not leave alone what is done: each one asks.
    check(lambda c: lax.while_loop(lambda s: jnp.any(s > 1), lambda s: s * 0.5, c), c)


def test_a_loop_of_more_trips_than_kernels_have_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("jaxmono.hlo.passes.unroll"), "MAX_OPS", 100)

    def states(x: Any, w: Any) -> Any:
        return lax.scan(lambda h, i: ((h := jnp.tanh(h @ w + i)), jnp.sum(h, 1)), x,
                        jnp.arange(60, dtype=jnp.float32) / 60)

    check(states, X, W)
    check(jax.grad(lambda x: jnp.sum(states(x, W)[1])), X, kernels=2)


def test_random_numbers_are_those_of_jax() -> None:
    key = jax.random.key_data(jax.random.key(1))
    draw = jax.jit(lambda k: jax.random.poisson(jax.random.wrap_key_data(k), 3.0, (50,)))
    drawn = jaxmono.jit(lambda k: jax.random.poisson(jax.random.wrap_key_data(k), 3.0, (50,)),
                        interpret=True)
    np.testing.assert_array_equal(drawn(key), draw(key))


def test_nan_and_inf_end_a_loop_where_they_do_in_jax() -> None:
    x = X.copy()
    x[0, 0], x[1, 1] = np.nan, np.inf
    fun = lambda x, w: lax.while_loop(  # noqa: E731
        lambda s: (jnp.max(s[0]) < 100) & (s[1] < 9), lambda s: (s[0] * 2, s[1] + 1), (x, 0))
    check(fun, x, W)
    check(fun, X, W)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(4))
def test_blocks_wait_for_each_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more tasks than one block takes, in any order of threads."""
    monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(seed))
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", "7")
    x = RNG.normal(size=(40, 96)).astype(np.float32)
    w = (RNG.normal(size=(96, 96)) / 20).astype(np.float32)
    for fun in (converges, reads_neighbours):
        text = jaxmono.jit(fun, interpret=True).lower(x, w).as_text("cuda")
        assert "grid_barrier(&barrier_state);\n  }" in text
        check(fun, x, w, tol=1e-3)


def solves(b: Any, w: Any) -> Any:
    return cg(lambda x: w.T @ (w @ x) + x, b, tol=1e-4, maxiter=20)[0]


def halves(x: Any, w: Any) -> Any:
    """Values of 16 bits, and calls whose loop makes no trip."""
    def step(s: Any) -> Any:
        return jnp.tanh(jnp.tanh(s[0] @ w) @ w.T) * 0.9 + s[0] * 0.5, s[1] + 1

    return lax.while_loop(lambda s: (jnp.sum(jnp.abs(s[0])) > 0.5) & (s[1] < 7), step, (x, 0))


@pytest.mark.parametrize(("fun", "dtype", "seed"), [
    (solves, np.float32, 0), (solves, np.float32, 1), (halves, jnp.bfloat16, 2)])
def test_values_of_a_trip_have_flags(fun: Fun, dtype: Any, seed: int,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call goes on with the numbers of the one before."""
    monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(seed))
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", "7")
    w = (RNG.normal(size=(96, 96)) / 20).astype(dtype)
    x = RNG.normal(size=96 if fun is solves else (1, 96)).astype(dtype)
    function = jaxmono.jit(fun, interpret=True)
    text = function.lower(x, w).as_text("cuda")
    assert "const uint32_t epoch = ++trips;" in text and "// open border" in text
    for scale in (1, 0, 2, 0.5):
        got, want = function(x * dtype(scale), w), jax.jit(fun)(x * dtype(scale), w)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32),
                                       rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("large", [True, False])
def test_code_on_both_sides_of_a_loops_begin(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values have flags on both sides, though what is large keeps the barriers in front."""
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", "5")
    w, u = RNG.normal(size=(256, 256)) * 0.05, RNG.normal(size=256)
    x, big = RNG.normal(size=(1, 256)), RNG.normal(size=(8, 2000) if large else (1, 20))

    def dot(a: Any, b: Any) -> Any:
        return lax.dot(a, b, precision=lax.Precision.HIGHEST)

    def fun(w: Any, u: Any, x: Any, big: Any, n: Any) -> Any:
        def first(h: Any) -> Any:
            return jnp.tanh(dot(h, w) + u)

        def second(h: Any) -> Any:
            return jnp.tanh(dot(h, w) * 0.5)

        trip = lambda h: jnp.tanh(dot(second(first(h)), w) * 0.25)  # noqa: E731
        summed = jnp.cumsum(jnp.cumsum(big, -1) * 1e-3, -1)
        return lax.while_loop(lambda s: (s[1] < n) & (jnp.max(jnp.abs(s[0])) < 1),
                              lambda s: (trip(s[0]), s[1] + 1), (second(first(x)), 0)), summed

    args = [np.asarray(a, np.float32) for a in (w, u, x, big)]
    function = jaxmono.jit(fun, interpret=True)
    text = function.lower(*args, 3).as_text("cuda")
    assert "= this_launch(&flags)" in text and "= ++trips;" in text
    for n in (3, 0, 2):
        got, want = function(*args, n), jax.jit(fun)(*args, n)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_without_the_barrier_in_front_of_a_trip_blocks_part(monkeypatch: pytest.MonkeyPatch,
                                                            ) -> None:
    """Who is ahead writes that the loop ends where others still read that it goes on."""
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", "7")
    x = RNG.normal(size=(41, 96)).astype(np.float32)

    def counts(x: Any, w: Any) -> Any:
        return lax.while_loop(lambda s: s[2], lambda s: (s[0] * 0.9, s[1] + 1, s[1] < 5),
                              (x, 0, jnp.asarray(True)))[0]

    check(counts, x, W)
    monkeypatch.setattr(Plan, "meets_first", False)
    wrong = 0
    for seed in range(8):
        monkeypatch.setenv("JAXMONO_INTERPRET_SEED", str(seed))
        try:
            got = jaxmono.jit(counts, interpret=True)(x[:40], W)
            wrong += not np.allclose(got, counts(x[:40], W), rtol=1e-5, atol=1e-5)
        except jax.errors.JaxRuntimeError as error:
            assert "deadlock" in str(error) or "wait" in str(error)
            wrong += 1
    assert wrong


def test_a_small_loop_is_one_block() -> None:
    text = jaxmono.jit(converges, interpret=True).lower(X, W).as_text("cuda")
    assert "while (still_going(" in text and "barrier_state" not in text


def test_a_kernel_that_fails_leaves_the_loop_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kw: Any) -> Any:
        raise CompileError("no compiler today")

    build = importlib.import_module("jaxmono._build")
    monkeypatch.setattr(build, "generate", fail)
    for fun in (converges, swaps, keeps_some, never_begins):
        with pytest.warns(jaxmono.JaxmonoWarning, match="no compiler today"):
            got = jaxmono.jit(fun, interpret=True)(X[:3], W)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(fun)(X[:3], W)),
                        strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_why_a_loop_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nested(x: Any, w: Any) -> Any:
        return lax.while_loop(lambda s: jnp.max(s) < 9, lambda s: lax.while_loop(
            lambda t: jnp.sum(t) < 4, lambda t: t + 1, s) + 1, x)

    report = check(nested, X, W, left=3)
    assert "while in it: how often the loop runs" in report.refused[0].reason
    assert report.coverage.ops <= 1
    monkeypatch.setattr(jaxmono._trips, "MOST_US", 1e-9)
    report = jaxmono.jit(converges, interpret=True).lower(X, W).explain()
    assert "a trip takes 0 us at least" in str(report)


def test_donated_and_repeated_calls() -> None:
    function = jaxmono.jit(lambda x, w: converges(x, w)[0], interpret=True, donate_argnums=0)
    want = converges(X, W)[0]
    for _ in range(3):
        np.testing.assert_allclose(function(jnp.asarray(X), W), want, rtol=2e-5, atol=2e-5)

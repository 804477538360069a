"""Loops of which a thread takes its elements through several trips (hlo/passes/in_turn.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import plan_of
from harness import check
from jax import lax
from models import graph_of

from jaxmono.fusion.plan import LoopForm, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.passes import in_turn
from jaxmono.hlo.passes.pipeline import simplify
from jaxmono.hlo.passes.unroll import told

X = Any
F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32


def mean(x: X) -> X:
    return lax.scan(lambda m, now: (m := 0.9 * m + 0.1 * now, m), jnp.zeros_like(x[0]), x)


def returns(x: X) -> X:
    """From the last step to the first, with what the step behind gives; slices of one array."""
    def step(a: X, given: tuple[X, X]) -> tuple[X, X]:
        reward, value = given
        a = reward + 0.9 * value + 0.8 * a
        return a, a - value

    return lax.scan(step, jnp.ones_like(x[0]), (x[:-1], x[1:]), reverse=True)


def weighted(x: X) -> X:
    """RWKV's sums: three values go on, and a fourth is written."""
    def step(c: tuple[X, X, X], k: X) -> tuple[tuple[X, X, X], X]:
        a, b, p = c
        q = jnp.maximum(p, k)
        e, f = jnp.exp(p - q), jnp.exp(k - q)
        return (e * a + f * k, e * b + f, q), (e * a + f * k) / (e * b + f)

    zeros = jnp.zeros_like(x[0])
    return lax.scan(step, (zeros, zeros, zeros - 1e30), x)


def state_space(x: X) -> X:
    """Mamba's: what it writes is made of whole rows of a state, which nobody else needs."""
    a, c = jnp.exp(-jnp.abs(x)), x * 0.5
    def step(h: X, now: tuple[X, X, X]) -> tuple[X, tuple[X, X]]:
        decay, b, c = now
        h = decay * h + b
        return h, (jnp.einsum("bn,bn->b", h, c), (h @ jnp.ones((16, 8), h.dtype)) * 0.1)

    return lax.scan(step, x[0], (a, x, c))


def looked_back(x: X) -> X:
    """Sums of what a trip begins with."""
    return lax.scan(lambda h, now: (h * 0.5 + now, h.sum(-1)), x[0], x)


def old_and_new(x: X) -> X:
    """Writes what a trip begins with, what it ends with, and both in other types."""
    def step(c: tuple[X, X], now: X) -> tuple[tuple[X, X], tuple[X, X, X]]:
        a, b = c
        return (b, a + now), (a, b, (a > b))

    return lax.scan(step, (x[0], x[1]), x)


def iterated(x: X) -> X:
    """Nothing is written but at the end; a count of trips, and one that is a mask."""
    def step(i: X, c: tuple[X, X, X]) -> tuple[X, X, X]:
        z, n, on = c
        on = on & (jnp.abs(z) < 4)
        return jnp.where(on, z * z * 0.5 + x[0], z), n + on, on

    zero = jnp.zeros_like(x[0])
    return lax.fori_loop(0, 70, step, (zero, zero.astype(S32), zero == 0))


def timed(x: X) -> X:
    """Of the time, a number that goes from trip to trip, and of the trip's own."""
    def step(c: tuple[X, X], now: X) -> tuple[tuple[X, X], X]:
        y, t = c
        y = y + 0.1 * (now * t - y)
        return (y, t * 0.5 + 1), y

    y, t = lax.scan(step, (x[0], jnp.asarray(0.5, x.dtype)), x)[0]
    return lax.fori_loop(0, 9, lambda i, y: y * 0.5 + i.astype(y.dtype), y), t


def of_a_product(x: X) -> X:
    """What each trip reads is one product; what it writes, another's operand."""
    w = jnp.full((x.shape[-1], x.shape[-1]), 0.125, x.dtype)
    return mean(x @ w)[1].reshape(-1, x.shape[-1]) @ w


def one_row(x: X) -> X:
    return mean(x[:, :1])


def odd(x: X) -> X:
    """Pieces of 12 bytes, which cannot lie one behind the other."""
    return mean(x[:, 0, :3])


def heads(x: X) -> X:
    """What a trip writes has another shape than what goes on: a part of a row to each head."""
    def step(c: X, now: X) -> tuple[X, tuple[X, X]]:
        turned = now.reshape(8, 8)
        return c * 0.5 + turned, (turned, jnp.sin(now).reshape(8, 8))

    return lax.scan(step, jnp.ones((8, 8), x.dtype), x.reshape(-1, 64))


def delayed(x: X) -> X:
    return lax.scan(lambda c, now: (now.reshape(8, 8), c), jnp.ones((8, 8), x.dtype),
                    x.reshape(-1, 64))


def beside_a_sum(x: X) -> X:
    """Products with what a row's sum gives, which is no part of the sum's group."""
    def step(c: X, now: X) -> tuple[X, X]:
        return c * 0.5 + now, c * now.sum(-1, keepdims=True)

    return lax.scan(step, x[0], x)


def jumps(x: X) -> X:
    """Of what a trip begins with, to the last bit that memory would have; of the first, too."""
    def step(c: tuple[X, X], now: X) -> tuple[tuple[X, X], None]:
        value, bits = c
        bit = jnp.floor(value.astype(F32) * 256) % 2
        return (jnp.sin(now), bits * 0.5 + bit.astype(bits.dtype)), None

    return lax.scan(step, (jnp.sin(x[0]), jnp.zeros_like(x[0])), x[:4])[0][1]


def of_columns(x: X) -> X:
    """Transposed, as of batches of sequences."""
    return jnp.moveaxis(mean(jnp.moveaxis(x, 1, 0))[1], 0, 1)


PROGRAMS: dict[str, Callable[..., X]] = {
    f.__name__: f for f in (mean, returns, weighted, state_space, looked_back, old_and_new,
                            iterated, timed, of_a_product, one_row, odd, heads, delayed,
                            beside_a_sum, jumps, of_columns)}


def planned(fn: Callable[..., X], trips: int, rows: int = 4) -> Plan:
    return plan_of(fn, jax.ShapeDtypeStruct((trips, rows, 16), F32))


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("name", "dtype"), [
    (name, dtype) for name in PROGRAMS for dtype in (F32, BF16)
    if (name, dtype) != ("iterated", BF16)])  # |z| < 4 to the last bit, of unrounded squares
@pytest.mark.parametrize("trips", [5, 20, 37])
def test_as_the_reference(name: str, trips: int, dtype: Any) -> None:
    x = np.abs(np.random.default_rng(trips).standard_normal((trips, 4, 16)))
    graph = graph_of(PROGRAMS[name], x := jnp.asarray(x, dtype))
    check(graph, [np.asarray(x)], seeds=(0, 1),
          rtol=2e-2 if dtype == BF16 else 4e-3 if name in ("of_a_product", "state_space") else 1e-4)


@pytest.mark.parametrize(("name", "trips", "most"), [
    ("mean", 64, 6), ("returns", 65, 8), ("weighted", 64, 7), ("iterated", 8, 5), ("timed", 32, 8),
    ("of_columns", 64, 6), ("old_and_new", 20, 7)])
def test_a_stage_for_several_trips(name: str, trips: int, most: int) -> None:
    plan = planned(PROGRAMS[name], trips)
    assert len(plan.stages) <= most


def test_what_sums_of_trips_read_is_brought_into_their_order() -> None:
    """Else each trip's has a function of its own, which reads at its place: batches come first."""
    def fn(x: X, c: X) -> X:
        def step(h: X, now: tuple[X, X]) -> tuple[X, X]:
            h = h * 0.5 + now[0]
            return h, jnp.einsum("bn,bn->b", h, now[1])

        return lax.scan(step, x[:, 0], (jnp.moveaxis(x, 1, 0), jnp.moveaxis(c, 1, 0)))[1]

    spec = jax.ShapeDtypeStruct((4, 60, 16), F32)
    plan = plan_of(fn, spec, spec)
    assert len(plan.sigs) <= 6, plan.sigs
    x, c = (np.random.default_rng(i).standard_normal(spec.shape).astype(np.float32)
            for i in (0, 1))
    check(graph_of(fn, x, c), [x, c], seeds=(0,), rtol=1e-4)


def test_a_turn_is_one_group_and_reads_first() -> None:
    """No value of a trip is read from memory in the turn that has made it."""
    plan = planned(mean, 64, 4096)
    turns = [g for g in plan.groups if sum(isinstance(o, ops.Stored) for o in g.sig.body.ops) > 4]
    assert len(turns) == 64 / in_turn.PIECES and len({g.sig.key for g in turns}) == 1
    for g in turns:
        assert isinstance(g.sig.form, LoopForm) and len(g.results) == in_turn.PIECES
        assert not set(g.params) & set(g.results)


def test_rows_beside_a_turn_do_not_repeat_it() -> None:
    """Of 16 trips a turn, each with a sum of rows in front of it."""
    plan = planned(beside_a_sum, 64, 4096)
    rows = {g.sig.key for g in plan.groups if g.sig.kind == "row"}
    assert len(rows) == 1 and len(plan.sigs) <= 5


@pytest.mark.parametrize("fn", [
    lambda x: lax.scan(lambda c, now: (c := jnp.roll(c, 1, -1) + now, c), x[0], x),
    lambda x: lax.scan(lambda c, now: (c := c + now - c.mean(-1, keepdims=True), c), x[0], x),
    lambda x: lax.scan(lambda c, now: (c := c + now[:1], c), x[0], x[..., ::-1])[0][:, ::-1].T,
    lambda x: lax.scan(lambda c, now: ((c[0] + now, c[1] + now.sum(-1)), c[1]),
                       (x[0], x[0, :, 0]), x),
    lambda x: lax.map(jnp.tanh, x),
    lambda x: lax.scan(lambda c, now: (jnp.tanh(c + now) * now, c), x[0, :1, :1], x[:, :1, :1]),
], ids=["neighbours", "a mean", "all alike", "two spaces", "no state", "one element"])
def test_what_is_right_either_way(fn: Callable[..., X]) -> None:
    x = np.asarray(np.random.default_rng(3).standard_normal((8, 4, 16)), np.float32)
    check(graph_of(fn, x), [x], seeds=(0, 1), rtol=1e-4)


@pytest.mark.parametrize(("fn", "line"), [
    (lambda x: lax.scan(lambda c, now: (c := c * 0.5 + now, c), x[0], x), "20 of 20 trips of"),
    (lambda x: lax.fori_loop(0, 60, lambda _, c: c * c * 0.5 + x[0] * c, x[0]), "60 of 60 trips"),
    (lambda x: lax.scan(lambda c, now: (c := jnp.flip(c, -1) + now, c), x[0], x),
     "reverse at .* makes elements of what it carries of several of them"),
    (lambda x: lax.scan(lambda c, now: (c := c + c.sum(), c), x[0], x), "reduce at .* makes"),
    (lambda x: lax.scan(lambda c, now: (c := c + c[:1], c), x[0], x), "slice at .* makes"),
    (lambda x: lax.scan(lambda c, now: ((c[0] + now, c[1] + now[0]), now), (x[0], x[0, 0]), x),
     "it carries arrays of several shapes"),
    (lambda x: lax.map(jnp.tanh, x), "it carries no arrays"),
    (lambda x: lax.scan(lambda c, now: (c + now, now[:2]), x[0], x), "another shape"),
    (lambda x: lax.scan(lambda c, now: (c + now, (c,) * 40), x[0], x), None)],
    ids=["a recurrence", "nothing written", "neighbours", "a sum", "a row for all", "two shapes",
         "no state", "parts", "many arrays"])
def test_how_many_trips_a_stage_takes(fn: Callable[..., X], line: str | None) -> None:
    """Or why each has its own, for the user."""
    graph = simplify(graph_of(fn, jax.ShapeDtypeStruct((20, 4, 16), F32)))
    (said,) = told(graph)
    assert line is None or re.search(line, said), said
    assert any(said in note for note in plan_of(
        fn, jax.ShapeDtypeStruct((20, 4, 16), F32)).notes)

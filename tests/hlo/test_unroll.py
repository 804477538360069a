"""Loops of a constant trip count, trip by trip: the same values, and trips that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from models import graph_of

from jaxmono.fusion.flags import MOST_ELEMENTS
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify, unroll
from jaxmono.hlo.passes.unroll import MAX_OPS, SMALL, refusal
from jaxmono.hlo.verify import verify

X = Any
F32 = jnp.float32
Spec = jax.ShapeDtypeStruct


def rnn(x: X, w: X, *, reverse: bool = False) -> X:
    def step(h: X, now: X) -> tuple[X, X]:
        h = jnp.tanh(now + h @ w)
        return h, h * 2

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=reverse)


def lstm(x: X, w: X) -> X:
    def step(carry: tuple[X, X], now: X) -> tuple[tuple[X, X], X]:
        h, cell = carry
        a, b = jnp.split(jnp.concatenate([now, now], -1) + h @ jnp.concatenate([w, w], 1), 2, -1)
        cell = jax.nn.sigmoid(a) * cell + jnp.tanh(b)
        h = jnp.tanh(cell)
        return (h, cell), h

    zeros = jnp.zeros(x.shape[1:], x.dtype)
    return lax.scan(step, (zeros, zeros), x)


def every_other(x: X, w: X) -> X:
    """Writes places in another order, and reads them by the counter."""
    def body(i: X, out: X) -> X:
        row = jnp.tanh(lax.dynamic_index_in_dim(x, i, 0) @ w)
        return lax.dynamic_update_slice_in_dim(out, row, (i * 3) % 5, 0)

    return lax.fori_loop(0, 5, body, jnp.zeros_like(x))


def some_places(x: X, w: X) -> X:
    """Keeps what it begins with where no trip writes."""
    def body(i: X, out: X) -> X:
        return lax.dynamic_update_slice_in_dim(out, out[i][None] @ w, i + 1, 0)

    return lax.fori_loop(0, 3, body, x)


def counter_is_used(x: X, w: X) -> X:
    return lax.fori_loop(2, 6, lambda i, c: c @ w + i.astype(c.dtype), x[0])


def unchanged_and_swapped(x: X, w: X) -> X:
    return lax.fori_loop(0, 3, lambda _, c: (c[1], c[0], c[2]), (x, x + 1, w))


def root(x: X, w: X) -> X:
    """Each element by itself, with the counter."""
    return lax.fori_loop(0, 4, lambda i, y: 0.5 * (y + jnp.abs(x) / y) + i, jnp.ones_like(x)), w


def before_and_after(x: X, w: X) -> X:
    return lax.scan(lambda c, now: (d := jnp.tanh(c @ w + now), (c, d)), x[0], x)


def twice(x: X, w: X) -> X:
    last, out = lax.scan(lambda c, now: (d := jnp.tanh(c @ w + now), (d, d)), x[0], x)
    return last, *out, out[0]


PROGRAMS: dict[str, Callable[..., X]] = {
    "rnn": rnn, "reverse": lambda x, w: rnn(x, w, reverse=True), "lstm": lstm,
    "two": lambda x, w: rnn(rnn(x, w)[1], w, reverse=True)[1], "every_other": every_other,
    "some_places": some_places, "counter_is_used": counter_is_used,
    "before_and_after": before_and_after,
    "twice": twice, "unchanged_and_swapped": unchanged_and_swapped, "root": root}
SHAPES = Spec((5, 4, 8), F32), Spec((8, 8), F32)


def unrolled(fn: Callable[..., X], *shapes: Spec) -> Graph:
    return unroll(simplify(graph_of(fn, *(shapes or SHAPES))))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_values(name: str) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s.shape).astype(np.float32) for s in SHAPES]
    graph = unrolled(PROGRAMS[name])
    verify(graph)
    assert not any(isinstance(o, ops.While) for o in graph.ops)
    found = evaluate(graph, given)
    for a, b in zip(found, jax.tree.leaves(PROGRAMS[name](*map(jnp.asarray, given))), strict=True):
        # Of five trips of a tanh; where XLA has other threads its sums differ by 6e-6.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "order"), [("rnn", [0, 1, 2, 3, 4]), ("reverse", [4, 3, 2, 1, 0]),
                                             ("every_other", [0, 3, 1, 4, 2])])
def test_what_trips_write_to_places_of_their_own_lies_together(name: str,
                                                              order: list[int]) -> None:
    graph = unrolled(PROGRAMS[name])
    assert not any(isinstance(o, ops.DynamicUpdateSlice | ops.Concatenate) for o in graph.ops)
    stacked, = (o for o in graph.ops if isinstance(o, ops.Stacked))
    assert all(isinstance(graph.producer[v], ops.Stored) for v in stacked.args)
    made = [graph.ops.index(graph.producer[graph.producer[v].inputs[0]]) for v in stacked.args]
    assert [sorted(made).index(i) for i in made] == [order.index(p) for p in range(5)]


def test_small_pieces_are_put_together_behind_the_last_trip() -> None:
    graph = unrolled(rnn, Spec((5, 1, 3), F32), Spec((3, 3), F32))  # of 12 bytes
    assert not any(isinstance(o, ops.Stacked) for o in graph.ops)
    assert sum(isinstance(o, ops.Concatenate) for o in graph.ops) == 1


@pytest.mark.parametrize("name", ["before_and_after", "twice"])
@pytest.mark.parametrize(("rows", "copies"), [(4, 0), (4096, 5)])
def test_what_lies_together_lies_there_alone(name: str, rows: int, copies: int) -> None:
    """Small values are stored twice by who makes them, of others there is a copy."""
    graph = unrolled(PROGRAMS[name], Spec((5, rows, 8), F32), SHAPES[1])
    producer = graph.producer
    pieces = [v for o in graph.ops if isinstance(o, ops.Stacked) for v in o.args]
    assert len({*pieces, *graph.outputs}) == len(pieces) + len(graph.outputs)
    copied = [v for v in pieces if isinstance(producer.get(producer[v].inputs[0]), ops.Stored)]
    assert len(copied) == copies + (copies > 0 and name == "twice")


def test_a_small_result_does_not_take_the_flags_of_the_trips_before() -> None:
    graph = unrolled(lambda x, w: lax.fori_loop(0, 5, lambda _, c: jnp.tanh(c @ w), x[0]))
    result = graph.producer[graph.outputs[0]]
    assert isinstance(result, ops.Stored)
    assert isinstance(graph.producer[result.operand], ops.Stored)


def test_what_trips_before_have_left_is_read_where_it_lies() -> None:
    """The second loop's pieces are those of the first."""
    graph = unrolled(PROGRAMS["two"])
    read = [o.operand for o in graph.ops if isinstance(o, ops.Piece)]
    assert set(read) == {graph.inputs[0]}


@pytest.mark.parametrize(("trips", "products"), [(5, 1), (3, 3)])
def test_what_all_trips_multiply_is_one_product(trips: int, products: int) -> None:
    """But if they do not read all of it."""
    def fn(x: X, w: X) -> X:
        return lax.fori_loop(0, trips, lambda i, c: jnp.tanh(
            c + lax.dynamic_index_in_dim(x, i, 0, keepdims=False) @ w), x[0])

    graph = unrolled(fn)
    assert sum(isinstance(o, ops.DotGeneral) for o in graph.ops) == products
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s.shape).astype(np.float32) for s in SHAPES]
    np.testing.assert_allclose(evaluate(graph, given)[0], fn(*map(jnp.asarray, given)),
                               rtol=1e-5, atol=1e-6)


def test_what_is_computed_is_stored_first() -> None:
    graph = unrolled(lambda x, w: rnn(jnp.flip(x, 0) * 2, w))
    read = {o.operand for o in graph.ops if isinstance(o, ops.Piece)}
    assert [type(graph.producer[v]) for v in read] == [ops.Stored]
    turned = unrolled(lambda x, w: rnn(jnp.swapaxes(x, 0, 1), w))  # as it lies
    assert not any(isinstance(o, ops.Piece) for o in turned.ops)


def test_what_is_read_in_the_loop_is_updated_there() -> None:
    graph = unrolled(some_places)
    assert sum(isinstance(o, ops.DynamicUpdateSlice) for o in graph.ops) == 3


@pytest.mark.parametrize("rows", [4, 2])
def test_trips_are_alike(rows: int) -> None:
    """What one hands to the next lies in memory, its number too, unless nobody needs it: what is
    read of pieces of whole 16 bytes is a piece."""
    wide = 8 if rows == 4 else 3
    graph = unrolled(rnn, Spec((5, rows, wide), F32), Spec((wide, wide), F32))
    reads = [o for o in graph.ops if isinstance(o, ops.DynamicSlice)]
    places = [o.index for o in graph.ops if isinstance(o, ops.Piece)]
    assert (len(reads), places) == ((0, [0, 1, 2, 3, 4]) if rows == 4 else (5, []))
    assert all(isinstance(graph.producer[o.start_indices[0]], ops.Stored) for o in reads)
    dots = [o for o in graph.ops if isinstance(o, ops.DotGeneral)]
    assert len(dots) == 5
    assert all(isinstance(graph.producer[o.lhs], ops.Stored) for o in dots)


def nested(x: X, w: X) -> X:
    return lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 2, lambda _, d: d @ w, c), x)


def layers(x: X, w: X) -> X:
    return lax.scan(lambda c, v: (c @ v, None), x[0], jnp.broadcast_to(w * 1.5, (6, 256, 256)))


def given_layers(x: X, w: X) -> X:
    """Their weights lie in one array."""
    return lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]


def stacked(x: X, w: X) -> X:
    return lax.scan(lambda c, now: (c @ w, (now * 2, c, c + now)), x[0], x)


@pytest.mark.parametrize(("fn", "shapes", "reason"), [
    (lambda x, w: lax.while_loop(lambda c: c[0, 0] < 3, lambda c: c @ w, x[0]), SHAPES,
     "how often the loop runs is only known when it does"),
    (lambda x, w: lax.fori_loop(0, x[0, 0, 0].astype(int), lambda _, c: c @ w, x[0]), SHAPES,
     "how often the loop runs is only known when it does"),
    (nested, SHAPES, None),
    (rnn, (Spec((MAX_OPS, 1, 8), F32), SHAPES[1]), f"a kernel takes loops of up to {MAX_OPS}"),
    (stacked, (Spec((100, 1, 3), F32), Spec((3, 3), F32)), "its 100 trips write 300 pieces"),
    (stacked, (Spec((100, 4, 8), F32), SHAPES[1]), None),
    (layers, (Spec((2, 4, 256), F32), Spec((256, 256), F32)), "takes other weights in each trip"),
    (given_layers, (Spec((4, 256), F32), Spec((6, 256, 256), F32)), None),
    (rnn, SHAPES, None), (counter_is_used, SHAPES, None)])
def test_what_is_not_taken_apart(fn: Callable[..., X], shapes: tuple[Spec, ...],
                                 reason: str | None) -> None:
    graph = graph_of(fn, *shapes)
    loop = next(o for o in graph.ops if isinstance(o, ops.While))
    why = refusal(loop, graph.producer)
    assert why is None if reason is None else reason in (why or "")


def test_small_states_are_those_that_may_have_flags() -> None:
    """The pass is below the planner, whose number this is."""
    assert SMALL == MOST_ELEMENTS

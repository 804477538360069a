"""Which operand of a contraction the planner puts left, and so how its result is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Spec
from models import f32, graph_of

from jaxmono.fusion.orient import orient
from jaxmono.hlo import ops

X, W, V = f32(32, 48), f32(48, 48), f32(48, 40)


def later(x: Any, w: Any) -> Any:
    """A value behind a contraction, which makes it later than what is an input."""
    return jnp.tanh(x @ w)


@pytest.mark.parametrize(("fn", "swapped"), [
    # What is later keeps its rows: it goes left.
    (lambda x, w, v: jnp.einsum("nk,mk->nm", v.T, later(x, w)), True),
    (lambda x, w, v: later(x, w) @ v, False),
    # The gradient of weights keeps the features of both: as it is, it is written row by row.
    (lambda x, w, v: jnp.einsum("mk,mn->kn", x, later(x, w)), False),
    (lambda x, w, v: jnp.einsum("mk,mn->kn", later(x, w), x), False),
], ids=["rows right", "rows left", "gradient", "gradient of the first"])
def test_what_goes_left(fn: Callable[..., Any], swapped: bool) -> None:
    before = graph_of(fn, X, W, V)
    after = orient(before)
    assert any(isinstance(o, ops.Transpose) for o in after.ops[-2:]) == swapped
    assert [v.type for v in after.outputs] == [v.type for v in before.outputs]


@pytest.mark.parametrize(("n", "swapped"), [(1, True), (8, True), (9, False)])
@pytest.mark.parametrize("stored", [jnp.float32, jnp.int8, jnp.bfloat16])
def test_a_matrix_times_few_columns(n: int, swapped: bool, stored: Any) -> None:
    """``w @ x``: the weights are streamed, in whichever type they are stored."""
    graph = graph_of(lambda w, x: w.astype(x.dtype) @ x, Spec((64, 48), stored),
                     Spec((48, n), jnp.bfloat16))
    (dot,) = [o for o in orient(graph).ops if isinstance(o, ops.DotGeneral)]
    assert (dot.rhs.type.dims[0] == 64) == swapped


@pytest.mark.parametrize(("fn", "swapped"), [
    (lambda x, w: jnp.einsum("td,edf->etf", x, w.astype(x.dtype)), True),
    (lambda x, w: jnp.einsum("td,edf->etf", x, (w * 2).astype(x.dtype)), True),
    (lambda x, w: jnp.einsum("td,edf->etf", x[:, :32], w[:, :32].astype(x.dtype)), True),
    (lambda x, w: jnp.einsum("dt,edf->etf", x[:48], w.astype(x.dtype)), False),
    (lambda x, w: jnp.einsum("df,td->ft", w[0, :, :32].astype(x.dtype), x), True),
    (lambda x, w: jnp.einsum("fd,ed->fe", w[0, :32, :48].astype(x.dtype),
                             w[0, :, :48].astype(x.dtype)), False),
], ids=["experts", "computed", "parts", "rows whose k are no neighbours", "fewer", "both"])
@pytest.mark.parametrize("stored", [jnp.float32, jnp.int8])
def test_weights_that_products_convert_go_right(fn: Callable[..., Any], swapped: bool,
                                                stored: Any) -> None:
    """Although they are as late, and were on the left."""
    graph = graph_of(fn, Spec((64, 48), jnp.bfloat16), Spec((4, 48, 64), stored))
    before, after = ([o for o in g.ops if isinstance(o, ops.DotGeneral)][-1]
                     for g in (graph, orient(graph)))
    assert (after.rhs is before.lhs) == swapped


@pytest.mark.parametrize(("fn", "swapped"), [
    (lambda p, o: jnp.einsum("bqhd,bhqk->bhdk", later(o, o), p).transpose(0, 3, 1, 2), True),
    (lambda p, o: jnp.einsum("bqhd,bhqk->bhdk", later(o, o), p), False),
    (lambda p, o: jnp.einsum("bqhd,bhqk->bhdk", o, later(p, p)).transpose(0, 3, 1, 2), False),
], ids=["features next to each other", "an output as it is", "keys of what is later"])
def test_how_a_gradient_of_values_is_written(fn: Callable[..., Any], swapped: bool) -> None:
    """As its readers read it: row by row of the features of a head."""
    graph = graph_of(fn, f32(2, 3, 6, 6), f32(2, 6, 3, 3))
    (dot,) = [o for o in orient(graph).ops if isinstance(o, ops.DotGeneral)][-1:]
    assert (dot.result.type.dims[-2:] == (6, 3)) == swapped


@pytest.mark.parametrize(("fn", "swapped"), [
    # A Mixer's tokens: what they give is added to images as they lie.
    (lambda x, w, b: x + (later_tokens(x) @ w + b).swapaxes(1, 2), True),
    (lambda x, w, b: jnp.tanh(later_tokens(x) @ w + b).swapaxes(1, 2), True),
    (lambda x, w, b: later_tokens(x) @ w + b, False),
    (lambda x, w, b: (y := later_tokens(x) @ w, y.swapaxes(1, 2) + x)[1:], True),
    (lambda x, w, b: (y := later_tokens(x) @ w, y.swapaxes(1, 2) + x), False),
], ids=["added", "behind ops", "not turned", "alone", "an output"])
def test_tokens_are_written_as_images_lie(fn: Callable[..., Any], swapped: bool) -> None:
    graph = graph_of(fn, f32(2, 6, 24), f32(8, 6), f32(6))
    dot = [o for o in orient(graph).ops if isinstance(o, ops.DotGeneral)][-1]
    assert (dot.result.type.dims[0] == 6) == swapped


def later_tokens(x: Any) -> Any:
    """Behind a contraction of tokens [batch, tokens, features]: [batch, features, 8]."""
    return jnp.tanh(x.swapaxes(1, 2) @ jnp.ones((6, 8)))


@pytest.mark.parametrize(("fn", "left"), [
    (lambda c, s: jnp.einsum("cln,chpn->clhp", c, later_states(s)), False),
    (lambda c, s: jnp.einsum("cln,chpn->clhp", c, later_states(s)).reshape(8, 6) * 2, False),
    (lambda c, s: jnp.einsum("cln,chpn->chpl", c, later_states(s)), True),
    (lambda c, s: jnp.einsum("cln,chpn->clhp", c[:, :1], later_states(s)), True),
], ids=["as it lies", "behind ops", "turned", "a single row"])
def test_states_that_are_read_as_they_lie(fn: Callable[..., Any], left: bool) -> None:
    """What the chunks of a text find in states, which are later than they."""
    graph = orient(graph_of(fn, f32(2, 4, 5), f32(2, 2, 3, 5)))
    (dot,) = [o for o in graph.ops if isinstance(o, ops.DotGeneral)][-1:]
    assert (dot.lhs.type.dims == (2, 2, 3, 5)) == left


def later_states(s: Any) -> Any:
    return jnp.tanh(s @ jnp.ones((5, 5)))

"""Parts of buffers that are joined: an element's place is chosen, and loaded once
(joined_views.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of
from harness import DEVICE, check
from harness_graphs import data
from models import graph_of

from jaxmono.codegen.generate import emit
from jaxmono.codegen.target import cuda_target

Spec = jax.ShapeDtypeStruct
F32, BF16, S8 = jnp.float32, jnp.bfloat16, jnp.int8
X = Any


def rolled(x: X) -> X:
    return x + jnp.roll(x, 1, 1) * 2 - jnp.roll(x, -3, 0)


def rolled_twice(x: X) -> X:
    return jnp.tanh(jnp.roll(x, (2, -1), (0, 1)) + x)


def halves(x: X, y: X) -> X:
    """Of two buffers, turned."""
    return jnp.concatenate([x[:, 3:].T, y[:, :2].T]) * 2 + 1


def reversed_ends(x: X) -> X:
    return jnp.concatenate([x[::-1, :1], x[:, 1:]], 1) - x


def text(fn: Callable[..., X], *args: Any) -> str:
    return emit(plan_of(fn, *args, device=DEVICE), cuda_target("sm_90a"), DEVICE, "f").source


@pytest.mark.parametrize("dtype", [F32, BF16, S8])
@pytest.mark.parametrize(("fn", "shapes"), [
    (rolled, [(7, 9)]), (rolled_twice, [(6, 5)]), (halves, [(5, 8), (5, 3)]),
    (reversed_ends, [(7, 5)])])
def test_the_elements(fn: Callable[..., X], shapes: list[tuple[int, ...]], dtype: Any) -> None:
    graph = graph_of(fn, *(Spec(s, F32 if fn is rolled_twice else dtype) for s in shapes))
    inputs = [data(v, i) for i, v in enumerate(graph.inputs)]
    program = check(graph, inputs, rtol=2e-2, seeds=(0, 1))
    assert " ? p" in program.source


@pytest.mark.parametrize("fn", [rolled, rolled_twice, reversed_ends])
def test_no_branches(fn: Callable[..., X]) -> None:
    source = text(fn, Spec((31, 33), F32))
    assert "else {" not in source and " ? p0 + " in source


def test_places_that_are_the_same_are_not_chosen() -> None:
    """Of rows that a roll takes from either end: both are (row + n) modulo rows."""
    source = text(lambda x: jnp.roll(x[1], 1, 0) + x[0], Spec((3, 64, 64), F32))
    assert " ? " not in source and "else {" not in source


@pytest.mark.parametrize(("fn", "why"), [
    (lambda x: jnp.concatenate([jnp.tanh(x[:, 3:]), x[:, :3]], 1) + x, "a part is computed"),
    (lambda x: jnp.concatenate([x[:, i:i + 1] for i in (5, 3, 8, 1, 0, 2, 7, 4, 6)], 1) * 2 + x,
     "many places")])
def test_others_have_branches(fn: Callable[..., X], why: str) -> None:
    assert "else {" in text(fn, Spec((31, 9), F32)), why

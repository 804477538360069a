"""Which operand of a contraction the planner puts left, and so how its result is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
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

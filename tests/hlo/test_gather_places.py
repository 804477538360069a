"""Rows that are looked up by their own places are read where they lie."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.passes import simplify

INSIDE = [
    lambda x: x[jnp.arange(6)],
    lambda x: x[jnp.arange(9)] * 2,
    lambda x: jnp.take(x, jnp.arange(4)[None], axis=1),
    lambda x: x[:, :, jnp.arange(3)],
    lambda x: x[:, jnp.arange(4)[:, None]],
    lambda x: jnp.take(x, jnp.arange(5) % 8, axis=0) + 1,
]
OUTSIDE = [
    lambda x: jnp.take(x, jnp.arange(12), axis=0, mode="clip"),
    lambda x: jnp.take(x, jnp.arange(12), axis=0),
    lambda x: x[jnp.arange(6) * 2 % 9],
    lambda x: x[jnp.arange(4), jnp.arange(4)],
]


def gathers(fun: Any) -> int:
    x = np.random.default_rng(0).normal(size=(9, 4, 5)).astype(np.float32)
    simple = simplify(import_module(jax.jit(fun).lower(x).compiler_ir("stablehlo")).graph)
    np.testing.assert_array_equal(evaluate(simple, (x,))[0], jax.jit(fun)(x))
    return sum(isinstance(o, ops.Gather) for o in simple.ops)


@pytest.mark.parametrize("fun", INSIDE)
def test_places_that_are_there(fun: Any) -> None:
    assert not gathers(fun)


@pytest.mark.parametrize("fun", OUTSIDE)
def test_others_are_looked_up(fun: Any) -> None:
    assert gathers(fun) == 1

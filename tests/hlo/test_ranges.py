"""Comparisons that a range answers, and those that it must not."""

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

ANSWERED = [
    lambda x: jnp.arange(32) % 2 + 0 * x,
    lambda x: jnp.where(jnp.minimum(jnp.arange(32) * 3, 7) < 0, 1, x),
    lambda x: jnp.where(jnp.clip(x, 2, 5) > 5, 1, x),
    lambda x: jnp.where(lax_rem(x, 8) >= 8, 1, x),
    lambda x: jnp.where(jax.lax.div(x & 15, jnp.asarray(3, x.dtype)) < 0, 1, x),
    lambda x: jnp.where(x.astype(jnp.uint32) < 0, 1, x),
    lambda x: jnp.where(jnp.minimum(jnp.where(x == 0, 3, jnp.arange(32)), 40) > 31, 1, x),
]
OPEN = [
    lambda x: jnp.where(x + 1 < -(1 << 30), 1, x),  # wraps around
    lambda x: jnp.where(jnp.clip(x, 2, 5) > 4, 1, x),
    lambda x: jnp.where(lax_rem(x, 8) < 0, 1, x),
    lambda x: jnp.where((x.astype(jnp.uint32) - 5 > 1 << 30), 1, x),
    lambda x: jnp.where(x.astype(jnp.int8) < 0, 1, x),
    lambda x: jnp.where(x.astype(jnp.float32) * 2 < 0, 1, x),
]


def lax_rem(x: Any, n: int) -> Any:
    return jax.lax.rem(x, jnp.asarray(n, x.dtype))


def checked(fun: Any) -> list[Any]:
    x = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 32).astype(np.int32)
    x[:4] = 0, -1, (1 << 31) - 1, -(1 << 31)
    graph = import_module(jax.jit(fun).lower(x).compiler_ir("stablehlo")).graph
    simple = simplify(graph)
    np.testing.assert_array_equal(evaluate(simple, (x,))[0], jax.jit(fun)(x))
    return [o for o in simple.ops if isinstance(o, ops.Compare)
            and o.direction in ("LT", "GE", "GT") and o.lhs.type.dims]


@pytest.mark.parametrize("fun", ANSWERED)
def test_it_is_answered(fun: Any) -> None:
    assert not checked(fun)


@pytest.mark.parametrize("fun", OPEN)
def test_it_stays(fun: Any) -> None:
    assert checked(fun)


def test_powers_of_two_are_bits_of_what_is_not_negative() -> None:
    def kinds(fun: Any) -> set[str]:
        x = np.arange(-16, 16, dtype=np.int32)
        graph = import_module(jax.jit(fun).lower(x).compiler_ir("stablehlo")).graph
        simple = simplify(graph)
        np.testing.assert_array_equal(evaluate(simple, (x,))[0], jax.jit(fun)(x))
        return {o.kind for o in simple.ops if isinstance(o, ops.Elementwise)}

    assert kinds(lambda x: lax_rem(x & 31, 8)) == {"and"}
    assert kinds(lambda x: jax.lax.div(x & 31, jnp.int32(4))) == {"and", "shift_right_logical"}
    assert kinds(lambda x: lax_rem(x & 7, 9) + 1) == {"and", "add"}
    assert "remainder" in kinds(lambda x: lax_rem(x, 8))
    assert "remainder" in kinds(lambda x: lax_rem(x & 31, 7))
    assert "divide" in kinds(lambda x: jax.lax.div(x, jnp.int32(4)))

"""Constants that a function closes over: small ones are literals of its kernels, none is shared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmono


def scaled(c: Any) -> Any:
    def f(x: jax.Array) -> jax.Array:
        return x * c

    return jaxmono.jit(f, interpret=True, on_unsupported="error")


def plan(fun: Any, x: jax.Array) -> str:
    return fun.lower(x).as_text("plan")


def test_small_ones_are_literals_and_weights_are_operands() -> None:
    x = jnp.arange(12.0).reshape(2, 6)
    assert " input 1 " not in plan(scaled(jnp.arange(6.0)), x)
    assert " input 1 " not in plan(scaled(np.full((2, 6), 2.5, np.float32)), x)
    wide = jnp.ones((4, 1024))
    assert " input 1 " in plan(scaled(jnp.arange(4096.0).reshape(4, 1024)), wide)
    assert " input 1 " not in plan(scaled(jnp.full((4, 1024), 3.0)), wide)  # one element, repeated


def test_what_they_decide_is_decided() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.where(jnp.array([0, 1, 1, 1]), x, 1 / x)

    text = plan(jaxmono.jit(f, interpret=True), jnp.ones((4,)))
    assert "compare" not in text
    assert "pred[4]<false, true, true, true>" in text


def test_functions_that_differ_in_them_alone_are_not_shared() -> None:
    x = jnp.arange(6.0)
    first, second = jnp.arange(6.0), jnp.arange(6.0) + 1

    def both(x: jax.Array) -> jax.Array:
        return scaled(first)(x) + 10 * scaled(second)(x) + 100 * scaled(first)(x)

    np.testing.assert_allclose(jax.jit(both)(x), x * (101 * first + 10 * second), rtol=1e-6)


def test_transformations_see_operands() -> None:
    c = jnp.arange(1.0, 7.0)
    f = scaled(c)
    x = jnp.arange(12.0).reshape(2, 6)
    np.testing.assert_allclose(jax.vmap(f)(x), x * c, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(x[0]), c, rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda c: scaled(c)(x[0]).sum())(c), x[0], rtol=1e-6)


def test_complex_ones_are_left_alone() -> None:
    c = jnp.array([1 + 2j, 3 - 1j])

    @jaxmono.jit
    def f(x: jax.Array) -> jax.Array:
        return (x * c).imag * 2

    np.testing.assert_allclose(f(jnp.ones(2)), [4, -2], rtol=1e-6)


def test_names_do_not_tell_them() -> None:
    x = jnp.arange(6.0)
    assert "_with_" not in str(scaled(jnp.arange(6.0)).explain(x))

"""Donated arguments of `jaxmono.jit`: results in their buffers, without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxmono
from jaxmono.custom_call.options import Options
from jaxmono.custom_call.primitive import mono_call

pytestmark = pytest.mark.usefixtures("sorts_left_to_xla")

F32 = jnp.float32


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def aliased(lowered: Any) -> list[tuple[int, int]]:
    """(result, operand) pairs of the program's kernels."""
    return [(int(o or 0), int(i)) for o, i in re.findall(
        r"output_tuple_indices = \[(\d*)\], operand_index = (\d+)", lowered.as_text())]


def sgd(params: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        return (jnp.tanh(x @ params["w"] + params["b"]) ** 2).sum()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_a_step_stays_in_its_buffers() -> None:
    params = {"w": normal(0, 16, 8), "b": normal(1, 8)}
    x = normal(2, 4, 16)
    step = jaxmono.jit(sgd, donate_argnums=0, interpret=True)
    wanted = params
    lowered = step.lower(params, x)
    assert len(aliased(lowered)) == 2
    assert "2 outputs take the place of donated inputs" in str(lowered.compile().explain())
    for _ in range(3):
        wanted = jax.jit(sgd)(wanted, x)
        before = {k: v.unsafe_buffer_pointer() for k, v in params.items()}
        old = params
        params = step(params, x)
        assert {k: v.unsafe_buffer_pointer() for k, v in params.items()} == before
        assert all(v.is_deleted() for v in old.values())
        for k, v in params.items():
            np.testing.assert_allclose(v, wanted[k], rtol=1e-2, atol=1e-2)


def test_what_is_not_donated_is_left_alone() -> None:
    params, x = {"w": normal(0, 16, 8), "b": normal(1, 8)}, normal(2, 4, 16)
    step = jaxmono.jit(sgd, interpret=True)
    assert aliased(step.lower(params, x)) == []
    kept = jax.tree.map(np.array, params)
    step(params, x)
    jax.tree.map(np.testing.assert_array_equal, params, kept)


def test_by_name_and_beside_other_results() -> None:
    def step(params: Any, x: Any) -> Any:
        return (x ** 2).sum(), sgd(params, x), x.sum(0)

    params, x = {"w": normal(0, 16, 8), "b": normal(1, 8)}, normal(2, 4, 16)
    f = jaxmono.jit(step, donate_argnames="params", interpret=True)
    assert len(aliased(f.lower(params=params, x=x))) == 2
    wanted = jax.jit(step)(params, x)
    for got, want in zip(jax.tree.leaves(f(params=params, x=x)), jax.tree.leaves(wanted),
                         strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_adamw_and_its_count() -> None:
    optimiser = optax.adamw(1e-2)

    def step(w: Any, state: Any, g: Any) -> Any:
        updates, state = optimiser.update(g, state, w)
        return state, optax.apply_updates(w, updates)  # JAX pairs results of one type by order

    f = jaxmono.jit(step, donate_argnums=(0, 1), interpret=True)
    w = normal(0, 12, 20)
    state = optimiser.init(w)
    a, b = (state, w), jax.tree.map(jnp.copy, (state, w))
    for i in range(3):
        g = normal(i + 1, 12, 20)
        a, b = f(a[1], a[0], g), jax.jit(step)(b[1], b[0], g)
        for got, want in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


ELSEWHERE: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "inside jax.jit": lambda f: jax.jit(lambda w, x: f(w, x), donate_argnums=0),
    "vmap": lambda f: jax.vmap(f, in_axes=(0, None)),
    "grad": lambda f: jax.grad(lambda w, x: f(w, x).sum()),
    "scan": lambda f: lambda w, x: jax.lax.scan(lambda c, _: (f(c, x), None), w, None, length=3)[0],
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_in_other_programs(where: str) -> None:
    """Where nobody donates the operands of the call, it gives the same results."""
    def f(w: Any, x: Any) -> Any:
        return w - 0.1 * jnp.sin(x + w)

    w, x = normal(0, 5, 6), normal(1, 6)
    wanted = ELSEWHERE[where](f)(jnp.copy(w), x)
    mine = ELSEWHERE[where](jaxmono.jit(f, donate_argnums=0, interpret=True))
    np.testing.assert_allclose(mine(jnp.copy(w), x), wanted, rtol=1e-5, atol=1e-6)


def test_used_again_by_the_caller_of_an_inner_function() -> None:
    inner = jaxmono.jit(lambda w: w * 2 + 1, donate_argnums=0, interpret=True)

    @jax.jit
    def outer(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return inner(w), w + 1

    w = normal(0, 33)
    doubled, one_more = outer(w)
    np.testing.assert_allclose(doubled, w * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(one_more, w + 1, rtol=1e-6)


def test_a_call_that_is_a_part_of_the_program() -> None:
    """JAX's numbers of results are the program's, not the call's."""
    x, w = normal(0, 12), normal(1, 7)
    closed = jax.make_jaxpr(lambda w: w * 2 + 1)(w)
    options = Options(mode="auto", on_unsupported="error", interpret=True)

    def outer_fn(x: Any, w: Any) -> Any:
        return jnp.sin(x), x * 2, mono_call(closed, [w], options=options)[0]

    outer = jax.jit(outer_fn, donate_argnums=1)
    wanted = np.array(w * 2 + 1)
    assert "jaxmono_interpret" in outer.lower(x, w).as_text()
    assert aliased(outer.lower(x, w)) == []
    np.testing.assert_allclose(outer(x, w)[2], wanted, rtol=1e-6)


def test_kernels_that_share_a_function() -> None:
    """A sort stays with XLA; the weights that the first kernel reads, the second one updates."""
    def step(w: Any, x: Any) -> Any:
        y = jnp.sort(jnp.tanh(x @ w), -1)
        return w - 0.1 * (x.T @ y)

    w, x = normal(0, 32, 32), normal(1, 64, 32)
    f = jaxmono.jit(step, donate_argnums=0, interpret=True)
    lowered = f.lower(w, x)
    assert lowered.compile().explain().kernels == 2
    assert len(aliased(lowered)) == 1
    wanted, place = jax.jit(step)(w, x), w.unsafe_buffer_pointer()
    got = f(w, x)
    assert got.unsafe_buffer_pointer() == place
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)

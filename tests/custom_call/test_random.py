"""Programs that draw at random, through the whole of jaxmono: the bits that JAX gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

KEY = np.asarray([0x12345678, 0xFEDCBA98], np.uint32)


def dropped(key: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return jnp.where(jax.random.bernoulli(key, 0.75, y.shape), y / 0.75, 0)


def drawn(key: Any, x: Any, w: Any) -> Any:
    key, now = jax.random.split(key)
    return jax.random.categorical(now, x @ w), key


def noisy(key: Any, x: Any, w: Any) -> Any:
    return x @ w + jax.random.normal(key, (3, 40))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", [dropped, drawn, noisy])
def test_one_kernel_gives_jaxs_bits(fn: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, s).astype(np.float32) for s in ((3, 16), (16, 40)))
    compiled = jaxmono.jit(fn, interpret=True).lower(KEY, x, w).compile()
    assert compiled.explain().kernels == 1
    for i in range(3):
        for got, want in zip(jax.tree.leaves(compiled(KEY + i, x, w)),
                             jax.tree.leaves(jax.jit(fn)(KEY + i, x, w)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_keys_of_the_new_kind_and_a_vmapped_one() -> None:
    def fn(keys: Any, x: Any) -> Any:
        return jax.vmap(lambda k, x: x + jax.random.uniform(k, x.shape))(keys, x)

    keys, x = jax.random.split(jax.random.key(1), 5), np.ones((5, 33), np.float32)
    np.testing.assert_array_equal(jaxmono.jit(fn, interpret=True)(keys, x), jax.jit(fn)(keys, x))


def test_what_xla_runs_calls_the_generator() -> None:
    """Around a sort, which is no kernel's, and in the condition of a loop."""
    def fn(key: Any, x: Any) -> Any:
        def going(state: Any) -> Any:
            return jax.random.uniform(jax.random.fold_in(key, state[0])) < 0.9

        def trip(state: Any) -> Any:
            i, x = state
            return i + 1, jnp.tanh(x @ x + jax.random.uniform(jax.random.fold_in(key, i), x.shape))

        trips, x = lax.while_loop(going, trip, (0, x))
        return trips, jnp.sort(jax.random.permutation(key, x)), jax.random.permutation(key, 9)

    x = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    function = jaxmono.jit(fn, interpret=True)
    for i in range(3):
        trips, *arrays = function(KEY + i, x)
        want, *others = jax.jit(fn)(KEY + i, x)
        assert trips == want
        for got, other in zip(arrays, others, strict=True):
            np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-5)


def test_all_of_it_left_to_xla() -> None:
    """A region that is refused: its calls are in XLA's program as they were."""
    def fn(key: Any, x: Any) -> Any:
        return jnp.fft.fft(x + jax.random.uniform(key, x.shape)).real

    function = jaxmono.jit(fn, interpret=True, mode="stitch")
    x = np.ones(2053, np.float32)  # a prime
    np.testing.assert_allclose(function(KEY, x), jax.jit(fn)(KEY, x), rtol=1e-5, atol=1e-5)

"""What random programs have found once, each as the least program that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono


def kernel(fun: Callable[..., Any], *args: Any) -> Any:
    """``fun`` compiled as one kernel of the interpreter."""
    compiled = jaxmono.jit(fun, interpret=True).lower(*args).compile()
    told = compiled.explain()
    assert told.kernels == 1 and not told.refused, str(told)
    return compiled


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("blocks", [1, 3])
def test_split_k_has_the_blocks_that_wait_for_each_other(
        blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_INTERPRET_BLOCKS", str(blocks))
    x, w = normal(0, 16, 2048, dtype=jnp.bfloat16), normal(1, 2048, 64, dtype=jnp.bfloat16)
    compiled = kernel(lambda x, w: x @ w, x, w)
    assert "using S = SplitK<" in compiled.as_text("cuda")
    np.testing.assert_allclose(np.asarray(compiled(x, w), np.float32),
                               np.asarray(x, np.float32) @ np.asarray(w, np.float32),
                               rtol=2e-2, atol=0.5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", [40, 100, 104])
def test_attention_heads_of_any_width(width: int) -> None:
    q, k, v = (normal(i, 2, 24, width, dtype=jnp.bfloat16) for i in range(3))

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32)
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores / 8, -1).astype(v.dtype), v)

    compiled = kernel(attention, q, k, v)
    wanted = attention(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(np.asarray(compiled(q, k, v), np.float32), wanted, atol=5e-2)


def test_normalised_rows_whose_source_is_not_contiguous_along_them() -> None:
    x, a, b, w = normal(0, 3, 8, 12), normal(1, 1, 7), normal(2, 7), normal(3, 7, 5)

    def f(x: jax.Array, a: jax.Array, b: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.matmul(x.reshape(144, 2, 1), a) + b, axis=2) @ w

    np.testing.assert_allclose(kernel(f, x, a, b, w)(x, a, b, w), jax.jit(f)(x, a, b, w), atol=5e-3)


def test_subnormal_numbers_are_not_flushed_to_zero() -> None:
    x = np.array([0, 6e-8, 1e-7, -3e-5, -0.0, 1], np.float16)

    def f(x: jax.Array) -> Any:
        return x != 0, x + x, x.astype(jnp.float32)

    jax.tree.map(np.testing.assert_array_equal, kernel(f, x)(x), jax.jit(f)(x))

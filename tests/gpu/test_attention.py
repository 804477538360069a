"""Attention on a GPU against f32: every family, mask, layout and group that the generator knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
Fn = Callable[..., jax.Array]


def attend(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, small: float = -1e38,
           factor: Any = None, layout: str = "bmhd") -> Any:
    """softmax(q k^T / sqrt(d) + bias, masked) * factor v, in the dimension order ``layout``."""
    other = layout.replace("m", "n")
    heads = layout.index("h")
    k, v = (jnp.repeat(x, q.shape[heads] // x.shape[heads], axis=heads) for x in (k, v))
    s = jnp.einsum(f"{layout},{other}->bhmn", q, k, preferred_element_type=F32)
    s = s * q.shape[layout.index("d")] ** -0.5
    s = s if bias is None else s + bias
    s = s if mask is None else jnp.where(mask, s, small)
    p = jax.nn.softmax(s, -1)
    p = (p if factor is None else p * factor).astype(q.dtype)
    return jnp.einsum(f"bhmn,{other}->{layout}", p, v)


def causal(q: Any, k: Any, v: Any, **kw: Any) -> Any:
    rows, keys = q.shape[1], k.shape[1]
    return attend(q, k, v, mask=jnp.arange(rows)[:, None] + (keys - rows) >= jnp.arange(keys), **kw)


def filled(q: Any, k: Any, v: Any, length: Any) -> Any:
    return attend(q, k, v, mask=jnp.arange(k.shape[1]) < length[:, None, None, None])


def library(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=q.shape[1] > 1)


def heads_first(q: Any, k: Any, v: Any) -> Any:
    return attend(q, k, v, layout="bhmd")


def shape(b: int, m: int, n: int, h: int, d: int, kept: int = 0) -> list[tuple[int, ...]]:
    return [(b, m, h, d), *[(b, n, kept or h, d)] * 2]


CASES: dict[str, tuple[Fn, list[tuple[int, ...]], Any]] = {
    "few keys": (attend, shape(1, 128, 128, 12, 64), BF16),
    "batch": (attend, shape(16, 128, 128, 12, 64), BF16),
    "long": (attend, shape(1, 2048, 2048, 12, 64), BF16),
    "long, causal": (causal, shape(2, 2048, 2048, 8, 128), BF16),
    "f16": (causal, shape(2, 512, 512, 8, 64), F16),
    "longer than memory": (library, shape(1, 8192, 8192, 2, 128), BF16),
    "ragged": (attend, shape(3, 197, 333, 5, 80), BF16),
    "ragged, causal": (causal, shape(3, 333, 333, 5, 72), BF16),
    "narrow": (attend, shape(4, 300, 300, 4, 8), BF16),
    "wide": (causal, shape(2, 512, 512, 4, 256), BF16),
    "rows of the end": (causal, shape(1, 100, 900, 8, 64), BF16),
    "one query": (attend, shape(2, 1, 3000, 12, 64), BF16),
    "one query, grouped": (library, shape(2, 1, 4096, 32, 128, 8), BF16),
    "one query, repeated": (attend, shape(2, 1, 4096, 32, 64, 8), BF16),
    "grouped": (library, shape(2, 300, 300, 16, 64, 4), BF16),
    "repeated, causal": (causal, shape(2, 300, 300, 16, 64, 4), BF16),
    "heads first": (heads_first, [(2, 8, 300, 64)] * 3, BF16),
}


def given(shapes: list[tuple[int, ...]], dtype: Any, seed: int = 0) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [jax.random.normal(k, s, F32).astype(dtype) for k, s in zip(keys, shapes, strict=True)]


def check(fn: Fn, args: list[Any], *, exact: Fn | None = None, family: str = "Flash") -> None:
    """As near to f32 as XLA is, twice the same bits, in one kernel."""
    compiled = jaxmono.jit(fn, on_unsupported="error").lower(*args).compile()
    assert family in compiled.as_text("cuda")
    found, again = (np.asarray(compiled(*args).astype(F32)) for _ in range(2))
    np.testing.assert_array_equal(found, again)
    wide = [x.astype(F32) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in args]
    with jax.default_matmul_precision("highest"):
        wanted = np.asarray(jax.jit(exact or fn)(*wide))
    xla = np.asarray(jax.jit(fn)(*args).astype(F32))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(xla))
    there = np.isfinite(wanted) & np.isfinite(found)
    size = np.abs(wanted[there]).mean()
    errors = [np.linalg.norm((x - wanted)[there]) / np.linalg.norm(wanted[there])
              for x in (found, xla)]
    assert errors[0] <= max(1.3 * errors[1], 4e-3), errors
    unit = 2e-2 if args[0].dtype == BF16 else 4e-3
    np.testing.assert_allclose(found[there], wanted[there], rtol=unit, atol=3 * unit * size)


@pytest.mark.parametrize("name", list(CASES))
def test_as_in_f32(name: str) -> None:
    fn, shapes, dtype = CASES[name]
    check(fn, given(shapes, dtype))


def test_lengths_biases_and_factors() -> None:
    args = given(shape(3, 200, 260, 6, 64), BF16)
    check(filled, [*args, jnp.asarray([1, 130, 260], jnp.int32)])
    bias = jax.random.normal(jax.random.key(5), (6, 200, 260), F32)
    check(lambda q, k, v, x: attend(q, k, v, bias=x[None]), [*args, bias])
    keep = jax.random.bernoulli(jax.random.key(6), 0.9, (3, 6, 200, 260))
    check(lambda q, k, v, x: attend(q, k, v, factor=x / 0.9), [*args, keep], family="")


def test_rows_that_see_nothing() -> None:
    """NaN with an infinite mask, the mean of all values with a finite one."""
    args = given(shape(2, 256, 300, 4, 64), BF16)
    keep = jax.random.bernoulli(jax.random.key(7), 0.3, (256, 300)).at[jnp.asarray([3, 200])].set(
        False)
    for small in (-jnp.inf, -1e38):
        def fn(q: Any, k: Any, v: Any, mask: Any, small: float = small) -> Any:
            return attend(q, k, v, mask=mask, small=small)

        check(fn, [*args, keep])


def test_nan_and_infinity_stay_in_their_rows() -> None:
    q, k, v = given(shape(2, 300, 300, 4, 64), BF16)
    q = q.at[0, 17, 1, 3].set(jnp.nan).at[1, 250, 2, 0].set(jnp.inf)
    check(attend, [q, k, v])


@pytest.mark.parametrize(("slope", "dtype"), [(0.4, F16), (0.4, BF16), (40.0, BF16)])
def test_scores_that_grow(slope: float, dtype: Any) -> None:
    """Far past the first chunk's maximum, with causal rows and without; rows of a warp differ."""
    q, k, v = given(shape(4, 768, 768, 12, 64), dtype)
    q = q.at[..., 0].set(jnp.resize(jnp.asarray([1.0, 0.25, -1.0], dtype), (768,))[:, None])
    k = k.at[..., 0].set((slope * (jnp.arange(768) - 40)).astype(dtype)[:, None])
    for fn in (attend, causal):
        check(fn, [q, k, v])

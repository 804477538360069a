"""Reduces that begin in a contraction's epilogue, on a GPU, beside XLA and f32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from benchmarks.workloads import reduces

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
X = Any


def cross_entropy(x: X, w: X) -> X:
    """Its largest logit is known before the sum of a row that no block can keep."""
    logits = jnp.matmul(x, w, preferred_element_type=F32)
    return jax.nn.logsumexp(logits, axis=-1) - logits[:, 17]


def moments(x: X, w: X) -> X:
    y = jnp.matmul(x, w, preferred_element_type=F32)
    return y.sum(0), (y * y).sum(1), y.max(0), jnp.min(y, 1)


CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "gradient": (reduces.dense_gradient, ((2048, 768), (2048, 3072), (3072, 768))),
    "gradient of odd rows": (reduces.dense_gradient, ((1192, 512), (1192, 1000), (1000, 512))),
    "batch norm": (reduces.batch_norm, ((32, 56, 56, 32), (3, 3, 32, 192), (192,), (192,))),
    "batch norm of pixels": (reduces.batch_norm,
                             ((32, 56, 56, 64), (1, 1, 64, 256), (256,), (256,))),
    "best": (reduces.best_product, ((1024, 128), (65536, 128))),
    "best of 30522": (reduces.best_product, ((500, 72), (30522, 72))),
    "cross entropy": (cross_entropy, ((512, 256), (256, 32000))),
    "moments": (moments, ((1025, 64), (64, 2000))),
}


def arguments(shapes: tuple[tuple[int, ...], ...], dtype: Any, *, special: bool) -> list[X]:
    """Normal values of a product's size; some that are not finite in the first one's rows."""
    out: list[X] = []
    for i, shape in enumerate(shapes):
        a = np.array(jax.random.normal(jax.random.key(i), shape, F32))
        if i == len(shapes) - 1 and len(shape) > 1:
            a /= np.sqrt(shape[-1])
        if i == 0 and special:
            rows = a.reshape(-1, shape[-1])
            rows[5, 3], rows[-1, 0], rows[17, -1] = np.nan, np.inf, -np.inf
        out.append(jnp.asarray(a).astype(dtype))
    return out


@pytest.mark.parametrize("special", [False, True], ids=["numbers", "nan"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_as_right_as_xla(name: str, dtype: Any, special: bool) -> None:
    fn, shapes = CASES[name]
    args = arguments(shapes, dtype, special=special)
    mono = jaxmono.jit(fn, on_unsupported="error")
    assert "begin in their epilogues" in str(mono.explain(*args))
    with jax.default_matmul_precision("highest"):
        wanted = jax.tree.leaves(jax.jit(fn)(*(a.astype(F32) for a in args)))
    found, again, xla = (jax.tree.leaves(f(*args)) for f in (mono, mono, jax.jit(fn)))
    for ours, same, theirs, exact in zip(found, again, xla, wanted, strict=True):
        a, b, c, e = (np.asarray(x, np.float32) for x in (ours, same, theirs, exact))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(c))
        there = np.isfinite(e) & np.isfinite(c)
        np.testing.assert_array_equal(a[~there & ~np.isnan(c)], c[~there & ~np.isnan(c)])
        if there.any():
            mine, other = (np.sqrt(((x[there] - e[there]) ** 2).mean()) for x in (a, c))
            scale = np.sqrt((e[there] ** 2).mean())
            assert mine <= 1.1 * other + 1e-4 * scale, (mine, other, scale)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
@pytest.mark.parametrize("shapes", [((8192, 256), (8192, 256)), ((1000, 64), (5003, 64))], ids=str)
def test_the_nearest_word(shapes: tuple[tuple[int, int], ...], dtype: Any) -> None:
    """One that is as near as XLA's, and the first one of several."""
    x, words = arguments(shapes, dtype, special=False)
    words = words.at[7].set(words[3]).at[4000].set(words[3])
    x = x.at[2].set(words[3] * 4)
    found = np.asarray(jaxmono.jit(reduces.codebook, on_unsupported="error")(x, words))
    theirs = np.asarray(jax.jit(reduces.codebook)(x, words))
    wide = np.asarray(words, np.float64)
    d = (wide ** 2).sum(1) - 2 * np.asarray(x, np.float64) @ wide.T
    rows = np.arange(len(found))
    assert found[2] == 3
    slack = 1e-2 if dtype == F32 else 1e-4  # tf32 multiplies 10 bits
    assert (d[rows, found] <= np.maximum(d.min(1), d[rows, theirs]) + slack).all()

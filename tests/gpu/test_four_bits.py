"""Weights of 4 bits, two in a byte as XLA packs them, on a real GPU: streams of few rows, wgmma,
scales of groups, whole programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from product_errors import check

import jaxmono

S4, U4 = jnp.int4, jnp.uint4
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
SIZES = [(1, 768, 3072), (1, 8192, 2048), (2, 2048, 1056), (4, 2048, 1056), (7, 1024, 512),
         (16, 2048, 768), (33, 160, 288), (128, 768, 3072), (300, 1056, 288), (2048, 4096, 512)]
"""m, k, n; not all are multiples of a tile."""
LAYOUTS = ["mk,kn->mn", "mk,nk->mn"]


def mono(fn: Any) -> Any:
    return jaxmono.jit(fn, on_unsupported="error")


def fours(rng: np.random.Generator, shape: tuple[int, ...], t: Any) -> Any:
    low, high = (-8, 8) if t is S4 else (0, 16)
    return jnp.asarray(rng.integers(low, high, shape).astype(np.int8)).astype(t)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rows", "t"), [(BF16, S4), (F16, U4), (BF16, U4)])
@pytest.mark.parametrize("spec", LAYOUTS)
def test_products(spec: str, rows: Any, t: Any, size: tuple[int, int, int]) -> None:
    def product(x: Any, w: Any) -> Any:
        return jnp.einsum(spec, x, w.astype(rows), preferred_element_type=F32)

    m, k, n = size
    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k)).astype(rows)
    w = fours(rng, (k, n) if spec == LAYOUTS[0] else (n, k), t)
    check(product, spec, x, (w,), w.astype(F32))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("rows", "t", "group", "scales"), [
    (BF16, S4, 32, F32), (F16, U4, 32, F16), (BF16, jnp.int8, 32, BF16)])
@pytest.mark.parametrize("spec", LAYOUTS)
def test_scales_of_groups(spec: str, rows: Any, t: Any, group: int, scales: Any,
                          size: tuple[int, int, int]) -> None:
    """Beside the weights as the program rounds them; a stream's sums, whose weights are not
    rounded, may be as far from that as a rounding of each is."""
    m, k, n = size
    first = spec == LAYOUTS[0]
    group = group * 4 if k % 128 == 0 else group

    def widened(w: Any, s: Any) -> Any:
        parts = (-1, group, n) if first else (n, -1, group)
        return (w.reshape(parts).astype(rows) * jnp.expand_dims(s, 1 if first else 2).astype(rows)
                ).reshape(w.shape)

    def product(x: Any, w: Any, s: Any) -> Any:
        return jnp.einsum(spec, x, widened(w, s), preferred_element_type=F32)

    rng = np.random.default_rng(m)
    x = rng.standard_normal((m, k)).astype(rows)
    shape = (k, n) if first else (n, k)
    w = fours(rng, shape, t) if t is not jnp.int8 else rng.integers(-127, 128, shape).astype(t)
    s = rng.uniform(0.5, 1, (k // group, n) if first else (n, k // group)).astype(scales)
    step, wide = mono(product), np.asarray(jax.jit(widened)(w, s), np.float64)
    found = {np.asarray(step(x, w, s)).tobytes() for _ in range(4)}
    assert len(found) == 1
    exact = np.einsum(spec, x.astype(np.float64), wide)
    apart = np.sqrt(np.einsum(spec, x.astype(np.float64) ** 2, wide ** 2))
    unit = 2.0 ** -8 if rows is BF16 else 2.0 ** -11
    assert (np.abs(np.asarray(step(x, w, s)) - exact) <= 5 * unit * apart + 1e-4).all()


def test_what_nobody_could_multiply() -> None:
    """Of infinities and NaN of x and of scales NaN come where XLA's do."""
    rng = np.random.default_rng(0)
    for m in (1, 4, 16):
        x = rng.standard_normal((m, 512)).astype(BF16)
        x[0, 3], x[-1, 200] = np.inf, np.nan
        w, s = fours(rng, (512, 256), S4), rng.uniform(0.5, 1, (4, 256)).astype(np.float32)
        s[1, 7], s[2, 9] = np.inf, np.nan

        def product(x: Any, w: Any, s: Any) -> Any:
            return x @ (w.reshape(4, 128, 256).astype(BF16) * s[:, None].astype(BF16)
                        ).reshape(512, 256)

        found, wanted = (np.asarray(f(x, w, s), np.float32)
                         for f in (mono(product), jax.jit(product)))
        np.testing.assert_array_equal(np.isnan(found[1:]), np.isnan(wanted[1:]))
        np.testing.assert_array_equal(np.isnan(found[:1, 7:10]), np.isnan(wanted[:1, 7:10]))


def test_programs() -> None:
    """Elements, layers in a scan, a table of rows, and what is quantised and given back."""
    rng = np.random.default_rng(0)
    q, odd = fours(rng, (6, 256, 256), S4), fours(rng, (5, 13), U4)
    s = rng.uniform(0.01, 0.02, (6, 2, 256)).astype(np.float32)
    x = rng.standard_normal((1, 256)).astype(BF16)

    def layers(x: Any, q: Any, s: Any) -> Any:
        def step(c: Any, w: Any) -> Any:
            wide = w[0].reshape(2, 128, 256).astype(BF16) * w[1][:, None].astype(BF16)
            return jnp.tanh(c @ wide.reshape(256, 256)), None
        return lax.scan(step, x, (q, s))[0]

    np.testing.assert_allclose(np.asarray(mono(layers)(x, q, s), np.float32),
                               np.asarray(jax.jit(layers)(x, q, s), np.float32), atol=3e-2)
    for fn, args in ((lambda a: a[::-1].astype(F32) * 3, (odd,)),
                     (lambda a, i: jnp.take(a, i, axis=0).astype(F32),
                      (q[0], jnp.asarray([3, 255, 0])))):
        np.testing.assert_array_equal(np.asarray(mono(fn)(*args)), np.asarray(jax.jit(fn)(*args)))

    def quantised(x: Any) -> Any:
        scale = jnp.abs(x).max(-1, keepdims=True) / 7
        four = jnp.round(x / scale).astype(S4)
        return four, four.astype(F32) * scale

    wide = rng.standard_normal((64, 257)).astype(np.float32)
    for a, b in zip(jaxmono.jit(quantised)(wide), jax.jit(quantised)(wide), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=1e-5)

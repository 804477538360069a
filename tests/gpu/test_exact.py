"""Products of f32 at precision HIGHEST on a real GPU: as exact as XLA's, whatever the shape."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

F32 = jnp.float32
EXACT = re.compile("GemmFma<|GemmBf16x6<")


def random(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, F32)


def error(found: Any, wanted: Any) -> float:
    """Root of the mean square, relative to that of the results."""
    difference = np.asarray(found, np.float64) - wanted
    return float(np.sqrt(np.mean(difference ** 2) / np.mean(wanted ** 2)))


@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"])
@pytest.mark.parametrize(("m", "n", "k"), [
    (16, 768, 768), (128, 768, 768), (512, 768, 3072), (1000, 1000, 1000), (2048, 2048, 2048),
    (33, 1001, 2047), (4096, 64, 64), (130, 515, 77)])
def test_as_exact_as_xla(m: int, n: int, k: int, layout: str) -> None:
    """One sign, so that what is lost adds up; the same bits in each run."""
    size = {"m": m, "n": n, "k": k}
    x, y = (jnp.abs(random(i, *(size[c] for c in s)))
            for i, s in enumerate(layout.split("->")[0].split(",")))

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(layout, x, y, precision="highest")

    step = jaxmono.jit(fn, on_unsupported="error")
    assert EXACT.search(step.lower(x, y).as_text("cuda"))
    found, theirs = step(x, y), jax.jit(fn)(x, y)
    wanted = np.einsum(layout, np.asarray(x, np.float64), np.asarray(y, np.float64))
    assert error(found, wanted) <= max(1.5 * error(theirs, wanted), 2e-7)
    assert {np.asarray(step(x, y)).tobytes() for _ in range(10)} == {np.asarray(found).tobytes()}


def test_other_values_stay_in_their_rows() -> None:
    x, w = np.array(random(0, 640, 512)), random(1, 512, 768)
    x[5, 3], x[77, 500], x[639, 511], x[300, 0] = np.nan, np.inf, -np.inf, 3e38
    found = np.asarray(jaxmono.jit(lambda x, w: jnp.matmul(x, w, precision="highest"))(x, w))
    assert np.isnan(found[5]).all() and not np.isfinite(found[[77, 639]]).any()
    assert np.isfinite(np.delete(found, [5, 77, 300, 639], 0)).all()


@pytest.mark.parametrize("bits", [24, 17, 12, 7])
def test_products_that_f32_holds_are_exact(bits: int) -> None:
    """One k of each row is no zero: x of any size below 2^110, subnormal ones, too, by powers of
    two; and 17 bits by 7, 12 by 12, 7 by 17."""
    rng = np.random.default_rng(bits)
    m, n, k = 512, 384, 640

    def of(bits: int, low: int, high: int, shape: tuple[int, ...]) -> Any:
        whole = rng.integers(1 << (bits - 1), 1 << bits, shape) * rng.choice([-1, 1], shape)
        return np.ldexp(whole.astype(np.float64), rng.integers(low, high, shape) - bits)

    x = np.zeros((m, k))
    values = of(bits, -125, 110, (m,))
    if bits == 24:
        values[:32] = np.ldexp(rng.integers(-(1 << 23), 1 << 23, 32).astype(np.float64), -149)
    x[np.arange(m), rng.permutation(k)[:m]] = values
    w = of(max(24 - bits, 1), 1 if bits == 24 else -20, 16, (k, n))
    wanted = x @ w
    assert np.array_equal(x, x.astype(np.float32)) and np.array_equal(w, w.astype(np.float32))
    step = jaxmono.jit(lambda x, w: jnp.matmul(x, w, precision="highest"), on_unsupported="error")
    given = x.astype(np.float32), w.astype(np.float32)
    assert "GemmBf16x6<" in step.lower(*given).as_text("cuda")
    held = np.abs(wanted) >= np.ldexp(1.0, -126)  # smaller ones may lose bits
    held |= (bits == 24) | (wanted == 0)
    np.testing.assert_array_equal(np.asarray(step(*given))[held], wanted.astype(np.float32)[held])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_sums(sign: float) -> None:
    """Finite ones whose parts' sums overflow; of which some cancel."""
    x, w = np.full((512, 640), 2.0 ** 46, np.float32), np.full((640, 384), 2.0 ** 46, np.float32)
    x[:, ::2] *= sign
    x[1::2, 320:] *= -1  # sums of 32 k overflow, and those of all are 0
    x[2::4, 320:] = 1
    x[3::4, :32], x[3::4, 32:64], x[3::4, 64:] = 2.0 ** 46, -0.75 * 2 ** 46, 0  # 2^95: a quarter
    step = jaxmono.jit(lambda x, w: jnp.matmul(x, w, precision="highest"), on_unsupported="error")
    assert "GemmBf16x6<" in step.lower(x, w).as_text("cuda")
    wanted = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(step(x, w)), wanted)


@pytest.mark.parametrize("size", [1.0, 1e-19, 1e15, 1e-38])
def test_of_any_size(size: float) -> None:
    """Results as near to those in f64 as XLA's, where parts of bf16 would underflow."""
    x, w = random(0, 512, 640) * size, random(1, 640, 384)
    step = jaxmono.jit(lambda x, w: jnp.matmul(x, w, precision="highest"), on_unsupported="error")
    assert "GemmBf16x6<" in step.lower(x, w).as_text("cuda")
    theirs = jax.jit(lambda x, w: jnp.matmul(x, w, precision="highest"))(x, w)
    wanted = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert error(step(x, w), wanted) <= 1.1 * error(theirs, wanted)


@pytest.mark.parametrize(("m", "n", "k"), [(512, 768, 640), (2048, 2048, 512)])
def test_high_is_what_it_is_to_xla(m: int, n: int, k: int) -> None:
    """On a GPU, tf32 (`jax.lax.Precision`)."""
    x, w = random(0, m, k), random(1, k, n)
    step = jaxmono.jit(lambda x, w: jnp.matmul(x, w, precision="high"), on_unsupported="error")
    theirs = jax.jit(lambda x, w: jnp.matmul(x, w, precision="high"))(x, w)
    wanted = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    assert 1e-4 < error(step(x, w), wanted) <= 1.1 * error(theirs, wanted)


def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", precision="highest",
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_convolutions() -> None:
    x, w = random(0, 8, 56, 56, 64), random(1, 3, 3, 64, 96)
    step = jaxmono.jit(convolved, on_unsupported="error")
    text = step.lower(x, w).as_text("cuda")
    assert "GemmBf16x6<" in text and "gathered<" in text
    theirs, found = jax.jit(convolved)(x, w), step(x, w)
    with jax.enable_x64(True):
        wanted = np.asarray(jax.jit(convolved, backend="cpu")(
            np.asarray(x, np.float64), np.asarray(w, np.float64)))
    assert error(found, wanted) <= max(1.5 * error(theirs, wanted), 2e-7)


def layers(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    for w in weights:
        y = jax.nn.gelu(jnp.matmul(x, w, precision="highest"))
        x = x + y / jnp.sqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-3)
    return x


@pytest.mark.parametrize("m", [24, 128, 1024])
def test_many_products_in_one_kernel(m: int) -> None:
    """Weights are fetched before a grid barrier opens, rows behind it; blocks share k."""
    x, weights = random(0, m, 512), [random(i, 512, 512) / 22 for i in range(1, 13)]
    step = jaxmono.jit(layers, on_unsupported="error")
    assert step.explain(x, weights).kernels == 1
    theirs, found = np.asarray(jax.jit(layers)(x, weights)), np.asarray(step(x, weights))
    assert np.abs(found - theirs).max() <= 2e-5 * np.abs(theirs).max()
    assert {np.asarray(step(x, weights)).tobytes() for _ in range(20)} == {found.tobytes()}


def test_a_training_step_at_highest_precision() -> None:
    """Gradients turn both operands; `jax.default_matmul_precision` reaches the products."""
    def loss(w: list[jax.Array], x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(jax.nn.relu(x @ w[0]) @ w[1]))

    w, x = [random(1, 256, 512) / 16, random(2, 512, 128) / 22], random(0, 192, 256)
    with jax.default_matmul_precision("highest"):
        step = jaxmono.jit(jax.grad(loss), on_unsupported="error")
        assert EXACT.search(step.lower(w, x).as_text("cuda"))
        for mine, other in zip(step(w, x), jax.jit(jax.grad(loss))(w, x), strict=True):
            assert np.abs(mine - other).max() <= 2e-5 * np.abs(other).max()

"""Products of f32 as tf32 on a real GPU: rounded, wherever the operands are in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

F32 = jnp.float32


def random(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, F32)


def off(found: Any, x: Any, w: Any) -> Any:
    """The error, relative to the size of results."""
    wanted = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    return (np.asarray(found, np.float64) - wanted) / np.sqrt(np.mean(wanted ** 2))


@pytest.mark.parametrize("rows", [False, True], ids=["kn", "nk"])
@pytest.mark.parametrize(("m", "n", "k"), [
    (1280, 768, 768), (2048, 2048, 2048), (517, 1000, 772), (2048, 768, 3072)])
def test_both_operands_are_rounded(m: int, n: int, k: int, rows: bool) -> None:
    """wgmma alone would cut: of operands of one sign the results would be 5e-4 too small. What it
    cuts off its sums is less, by count 1e-5 with 1500 summands and more."""
    x, w = jnp.abs(random(0, m, k)), jnp.abs(random(1, n, k) if rows else random(1, k, n))
    step = jaxmono.jit(lambda x, w: x @ (w.T if rows else w), on_unsupported="error")
    assert "GemmTf32<" in step.lower(x, w).as_text("cuda")
    found = np.asarray(step(x, w))
    error = off(found, x, w.T if rows else w)
    assert abs(error.mean()) < 5e-5, error.mean()
    assert 1e-6 < np.sqrt(np.mean(error ** 2)) < 1e-4, np.sqrt(np.mean(error ** 2))
    assert {np.asarray(step(x, w)).tobytes() for _ in range(20)} == {found.tobytes()}


def test_addresses_change() -> None:
    """Tensor maps are of this launch's buffers: many, which all stay."""
    step = jaxmono.jit(lambda x, w: jax.nn.relu(x @ w))
    pairs = [(random(i, 640, 512), random(-i, 512, 768)) for i in range(12)]
    found = [step(x, w) for _ in range(3) for x, w in pairs]
    for i, y in enumerate(found):
        x, w = pairs[i % 12]
        wanted = np.maximum(np.asarray(x, np.float64) @ np.asarray(w, np.float64), 0)
        assert np.abs(np.asarray(y) - wanted).max() < 0.05 < np.abs(wanted).max()


def test_other_values_stay_in_their_rows() -> None:
    x, w = np.array(random(0, 640, 512)), random(1, 512, 768)
    x[5, 3], x[77, 500], x[639, 511], x[300, 0] = np.nan, np.inf, -np.inf, 3e38
    found = np.asarray(jaxmono.jit(lambda x, w: x @ w)(x, w))
    assert np.isnan(found[5]).all() and not np.isfinite(found[[77, 639]]).any()
    assert np.isfinite(np.delete(found, [5, 77, 300, 639], 0)).all()


def layers(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    """Rows that this launch wrote, in buffers that are used again: a norm, so that they stay."""
    for w in weights:
        y = jax.nn.gelu(x @ w)
        x = x + y / jnp.sqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-3)
    return x


@pytest.mark.parametrize("m", [512, 2048])
def test_many_products_in_one_kernel(m: int) -> None:
    x, weights = random(0, m, 768), [random(i, 768, 768) / 28 for i in range(1, 25)]
    step = jaxmono.jit(layers, on_unsupported="error")
    assert step.explain(x, weights).kernels == 1
    with jax.default_matmul_precision("highest"):
        wanted = np.asarray(jax.jit(layers)(x, weights))
    theirs = np.asarray(jax.jit(layers)(x, weights))
    found = np.asarray(step(x, weights))
    mine, other = (np.sqrt(np.mean((v - wanted) ** 2)) for v in (found, theirs))
    assert mine <= 1.1 * other
    with ThreadPoolExecutor(4) as pool:
        again = pool.map(lambda _: np.asarray(step(x, weights)).tobytes(), range(40))
        assert set(again) == {found.tobytes()}

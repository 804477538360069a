"""Scatters that kernels look up, on a GPU beside XLA and NumPy; the same on every run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono


def summed(x: Any, i: Any, u: Any) -> Any:
    return jnp.tanh(x).at[i].add(u)


def largest(x: Any, i: Any, u: Any) -> Any:
    return jnp.tanh(x).at[i].max(u)


def written(x: Any, i: Any, u: Any) -> Any:
    return jnp.tanh(x).at[i].set(u, unique_indices=True)


def in_f64(x: Any, i: Any, u: Any) -> Any:
    """Of `summed`, by NumPy."""
    x, u = (np.asarray(a.astype(jnp.float32), np.float64) for a in (x, u))
    out, i = np.tanh(x), np.asarray(i)
    inside = (i < len(x)) & (i >= 0)
    np.add.at(out, i[inside], u[inside])
    return out


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize(("lines", "updates", "width"), [
    (2, 2048, 768), (512, 128, 768), (30522, 2048, 768), (1000, 17, 265), (5000, 96, 16),
    (300, 30, 1), (7, 5, 8), (100, 4000, 300), (2000, 1500, 256)])
def test_sums(lines: int, updates: int, width: int, dtype: Any) -> None:
    """As near to f64 as XLA's; a third of the updates is for one line, some for none."""
    rng = np.random.default_rng(lines)
    x, u = (jnp.asarray(rng.normal(size=(n, width)), dtype) for n in (lines, updates))
    i = rng.integers(0, lines, updates).astype(np.int32)
    i[: updates // 3] = lines // 2
    i[-1] = lines
    function = jaxmono.jit(summed)
    assert function.lower(x, i, u).explain().kernels == 1
    got, want, exact = function(x, i, u), jax.jit(summed)(x, i, u), in_f64(x, i, u)
    errors = [np.linalg.norm(np.asarray(a.astype(jnp.float32), np.float64) - exact)
              for a in (got, want)]
    assert errors[0] <= 1.1 * errors[1] + 1e-6 * np.linalg.norm(exact)
    if function.lower(x, i, u).explain().refused:  # the scatter, as XLA does it, in any order
        assert dtype == jnp.float32
        return
    for _ in range(3):
        np.testing.assert_array_equal(function(x, i, u), got)


@pytest.mark.parametrize(("lines", "updates", "width"), [(2, 2048, 768), (30522, 2048, 768)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_what_is_not_finite_stays_in_its_line(lines: int, updates: int, width: int,
                                              dtype: Any) -> None:
    rng = np.random.default_rng(0)
    u = rng.normal(size=(updates, width))
    i = rng.integers(0, lines, updates).astype(np.int32)
    for t, value in ((5, np.inf), (6, -np.inf), (7, np.nan), (9, np.inf), (10, -np.inf)):
        u[t, t] = value
    u[9, 11] = np.inf
    i[10] = i[9]
    u[10, 9] = -np.inf
    args = (jnp.zeros((lines, width), dtype), i, jnp.asarray(u, dtype))
    got, want = (np.asarray(f(summed)(*args), np.float64) for f in (jaxmono.jit, jax.jit))
    for special in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(special(got), special(want))
    assert np.isnan(got).sum() >= 2 and np.isinf(got).sum() >= 3


@pytest.mark.parametrize(("fn", "lines", "updates", "width"), [
    (largest, 64, 128, 32), (largest, 64, 256, 32), (written, 512, 128, 64),
    (written, 4096, 256, 512)])
def test_others(fn: Any, lines: int, updates: int, width: int) -> None:
    rng = np.random.default_rng(1)
    x, u = (rng.normal(size=(n, width)).astype(np.float32) for n in (lines, updates))
    i = rng.integers(0, lines, updates) if fn is largest else rng.permutation(lines)[:updates]
    function = jaxmono.jit(fn)
    assert function.lower(x, i.astype(np.int32), u).explain().kernels == 1
    np.testing.assert_allclose(function(x, i.astype(np.int32), u),
                               jax.jit(fn)(x, i.astype(np.int32), u), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [8, 300])
def test_labels(rows: int) -> None:
    """The gradient of a cross-entropy: no matrix of ones and zeros."""
    def loss(x: Any, i: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1)
        return -chosen.mean()

    rng = np.random.default_rng(rows)
    x, i = rng.normal(size=(rows, 5000)).astype(np.float32), rng.integers(0, 5000, rows)
    function = jaxmono.jit(jax.grad(loss))
    assert function.lower(x, i.astype(np.int32)).explain().kernels == 1
    np.testing.assert_allclose(function(x, i.astype(np.int32)),
                               jax.jit(jax.grad(loss))(x, i.astype(np.int32)), rtol=1e-5, atol=1e-9)

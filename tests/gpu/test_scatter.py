"""Scatters that kernels look up, the same on every run, or add up in memory, on a GPU beside XLA
and NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from benchmarks import data
from benchmarks.workloads import further_tables


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
    if "= f32" in (text := function.lower(x, i, u).as_text("plan")) and "accumulate(" in text:
        return  # in any order, as XLA adds
    assert dtype != jnp.float32 or lines * updates * width <= 1 << 24
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
    (largest, 64, 128, 32), (largest, 64, 256, 32), (largest, 4000, 9000, 32),
    (written, 512, 128, 64), (written, 4096, 256, 512), (written, 40000, 30000, 16)])
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


@pytest.mark.parametrize("kind", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint32])
@pytest.mark.parametrize("width", [1, 3, 32])
def test_in_memory(kind: str, dtype: Any, width: int) -> None:
    """Small integers: any order gives the same. Some are not finite, some of no line."""
    rng = np.random.default_rng(width)
    lines, updates = 3000, 50_000
    low = 0 if dtype == jnp.uint32 else -4
    x, u = (rng.integers(low, 5, (n, width)).astype(np.float32) for n in (lines, updates))
    if dtype in (jnp.float32, jnp.bfloat16):
        u[5, 0], u[70, 0], u[90, 0], x[44, 0] = np.nan, np.inf, -np.inf, -np.nan
    i = rng.integers(-2, lines + 2, updates).astype(np.int32)
    args = jnp.asarray(x, dtype), i, jnp.asarray(u, dtype)

    def fn(x: Any, i: Any, u: Any) -> Any:
        return getattr(x.at[i], kind)(u)

    function = jaxmono.jit(fn)
    assert function.lower(*args).explain().kernels == 1
    with jax.default_device(jax.devices("cpu")[0]):
        want = np.asarray(jax.jit(fn)(*jax.device_put(args, jax.devices("cpu")[0])), np.float64)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(function(*args), np.float64), want)


def test_a_donated_input_is_added_to_where_it_lies() -> None:
    x, u = jnp.ones((50_000, 64)), jnp.ones((4096, 64))
    i = jnp.arange(4096) * 7
    function = jaxmono.jit(lambda x, i, u: x.at[i].add(u), donate_argnums=0)
    for _ in range(3):
        before = x.unsafe_buffer_pointer()
        x = function(x, i, u)
        assert x.unsafe_buffer_pointer() == before
    np.testing.assert_array_equal(np.asarray(x)[::7][:4096], np.full((4096, 64), 4.0))
    assert float(x.sum()) == 50_000 * 64 + 3 * 4096 * 64


@pytest.mark.parametrize("workload", further_tables()["graph_table"], ids=lambda w: w.name)
def test_graph_networks(workload: Any) -> None:
    """No farther from products of f32 than XLA is; a gradient's larger parts count most."""
    case = data.make(data.Case(workload, 1, "f32"), sets=1)
    args = case.arguments()
    function = jaxmono.jit(case.program.step)
    assert function.lower(*args).explain().kernels == 1
    with jax.default_matmul_precision("highest"):
        exact = jax.tree.leaves(jax.jit(case.program.step)(*args))
    errors = [sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(jax.tree.leaves(f(*args)), exact,
                                                               strict=True)) ** 0.5
              for f in (function, jax.jit(case.program.step))]
    size = sum(float(jnp.sum(b ** 2)) for b in exact) ** 0.5
    assert errors[0] <= 1.2 * errors[1] + 1e-6 * size

"""Rows that reduce to a few numbers, searches and conversions, on a GPU beside XLA and NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono
from benchmarks import data
from benchmarks.workloads import further_tables

EDGES = [np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, -1e20, 127.5, 128, -128.5, -129, 255.5, 254.5,
         -0.5, 0.5, 1.5, 65535.5, 32767.5, -32768.5, 2147483520, 2147483648, -2147483648,
         4294967040, -0.0, 0.49999997, 1e-40]


def numbers() -> jax.Array:
    rng = np.random.default_rng(0)
    size = (1 << 16) - len(EDGES)
    random = rng.normal(size=size) * np.exp(np.abs(rng.normal(size=size)) * 8)
    return jnp.asarray(np.concatenate([EDGES, random]).astype(np.float32))


def as_integers(x: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """What is out of range is the nearest there is, NaN is 0."""
    info = np.iinfo(dtype)
    whole = np.trunc(np.where(np.isnan(x), 0, x.astype(np.float64)))
    return np.clip(whole, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers(dtype: Any) -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        info = np.iinfo(dtype)
        low, high = max(info.min, -7), min(info.max, 11)
        return (x.astype(dtype), jnp.round(x).astype(dtype),
                jnp.clip(jnp.round(x), low, high).astype(dtype))

    x = numbers()
    function = jaxmono.jit(fn)
    assert function.lower(x).explain().kernels == 1
    cut, near, between = (np.asarray(y) for y in function(x))
    x64 = np.asarray(x, np.float64)
    np.testing.assert_array_equal(cut, as_integers(x64, dtype))
    np.testing.assert_array_equal(near, as_integers(np.rint(x64), dtype))
    np.testing.assert_array_equal(between, as_integers(np.clip(
        np.rint(x64), max(np.iinfo(dtype).min, -7), 11), dtype))


def test_quotients_by_a_rows_number_have_xlas_bits() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(512, 1000)) * np.exp(rng.normal(size=(512, 1000)) * 20)
    d = np.exp(rng.normal(size=(512, 1)) * 30)
    d[:6, 0] = [np.inf, 1e38, 3e38, 1e-38, 1e-40, 0]
    args = jnp.asarray(x.astype(np.float32)), jnp.asarray(d.astype(np.float32))

    def fn(x: jax.Array, d: jax.Array) -> jax.Array:
        return x / (d + 0 * jnp.sum(jnp.clip(x, -1, 1), -1, keepdims=True))

    got, want = (np.asarray(f(*args)) for f in (jaxmono.jit(fn), jax.jit(fn)))
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("most", [3.0, 1e3, 1e5, 1e38])
def test_sines_are_as_exact_as_xlas(most: float) -> None:
    """By the largest and the mean error, in units in the last place."""
    rng = np.random.default_rng(4)
    size = 1 << 20
    x = rng.uniform(-most, most, size) if most < 1e38 else np.exp(rng.uniform(0, 88, size))
    x = x.astype(np.float32)
    x[:5] = [0, -0.0, np.inf, np.nan, -1e30]

    def fn(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x), jnp.cos(x)

    there = np.isfinite(x)
    for got, want, exact in zip(jaxmono.jit(fn)(x), jax.jit(fn)(x), (np.sin, np.cos), strict=True):
        right = exact(x[there].astype(np.float64))
        unit = np.spacing(np.abs(right.astype(np.float32))).astype(np.float64)
        errors = [np.abs(np.asarray(y)[there].astype(np.float64) - right) / unit
                  for y in (got, want)]
        assert errors[0].max() < 1.6 and errors[0].mean() <= 1.05 * errors[1].mean()
        assert np.isnan(np.asarray(got)[~there]).all()
        np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(want[:2]))


@pytest.mark.parametrize(("name", "numpy"), [("argmax", np.argmax), ("argmin", np.argmin)])
@pytest.mark.parametrize(("shape", "axis"), [((4096, 1000), 1), ((6, 50257), 1), ((700, 64), 1),
                                             ((64, 8192), 0), ((33, 5), 1)])
def test_the_first_of_the_largest(name: str, numpy: Any, shape: tuple[int, int],
                                  axis: int) -> None:
    x = np.random.default_rng(2).integers(-5, 6, shape).astype(np.float32)
    x[0], x[1], x[2] = -np.inf, np.inf, 0
    x[3, shape[1] // 2:] = np.nan
    x[4, 0], x[4, -1] = np.nan, np.nan
    function = jaxmono.jit(lambda x: getattr(jnp, name)(x, axis))
    np.testing.assert_array_equal(function(jnp.asarray(x)), numpy(x, axis))


@pytest.mark.parametrize("name", [w.name for w in further_tables()["row_table"]])
def test_rows(name: str) -> None:
    """One kernel, as near to XLA in f32 as XLA is."""
    (workload,) = [w for w in further_tables()["row_table"] if w.name == name]
    case = data.Case(workload, 1, workload.dtype)
    program = case.program()
    state, inputs = program.state(), program.inputs(jax.random.key(3))
    fn = lambda *xs: program.step(state, None, *xs)[0]  # noqa: E731
    function = jaxmono.jit(fn)
    found = function.lower(*inputs).explain()
    assert found.kernels == 1
    exact = jax.jit(fn)(*(x.astype(jnp.float32) for x in inputs))
    got, want = function(*inputs), jax.jit(fn)(*inputs)
    for a, b, c in zip(*map(jax.tree.leaves, (got, want, exact)), strict=True):
        errors = [float(jnp.linalg.norm(x.astype(jnp.float32) - c)) for x in (a, b)]
        # The targets of C51 are 2e-6 off in XLA, too, by f64.
        assert errors[0] <= 1.1 * errors[1] + 4e-6 * float(jnp.linalg.norm(c)) + 1e-6, errors


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("columns", [3, 7, 10, 21, 31])
def test_very_many_short_rows(columns: int, dtype: Any) -> None:
    """That begin anywhere, with infinities and NaN in some."""
    def fn(x: jax.Array) -> tuple[jax.Array, ...]:
        y = x.astype(jnp.float32)
        return jax.nn.softmax(y, -1).astype(x.dtype), y.max(-1), (y * y).sum(-1)

    x = 4 * jax.random.normal(jax.random.key(columns), (1 << 18, columns)).astype(dtype)
    x = x.at[5, 1].set(jnp.nan).at[77, 2].set(-jnp.inf).at[1000].set(-jnp.inf)
    compiled = jaxmono.jit(fn).lower(x).compile()
    short = columns * x.dtype.itemsize % 8 != 0
    assert ("copy_words<" in compiled.as_text("cuda")) == short
    y = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(y - y.max(-1, keepdims=True))
        wanted = e / e.sum(-1, keepdims=True), y.max(-1), (y * y).sum(-1)
    for ours, theirs, want in zip(compiled(x), jax.jit(fn)(x), wanted, strict=True):
        a, b = (np.asarray(v, np.float64) for v in (ours, theirs))
        np.testing.assert_array_equal(np.isnan(a), np.isnan(want))
        finite = np.isfinite(want)
        np.testing.assert_array_equal(a[np.isinf(want)], want[np.isinf(want)])
        far = [np.abs(v[finite] - want[finite]).max() for v in (a, b)]
        assert far[0] <= 1.2 * far[1] + 1e-6 * np.abs(want[finite]).max(), far

"""8-bit integers and floats on a real GPU: products on the tensor cores, conversions, copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

S8, S32, BF16, F16, F32 = jnp.int8, jnp.int32, jnp.bfloat16, jnp.float16, jnp.float32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
SHAPES = [(1, 2048, 2048), (16, 768, 3072), (33, 100, 70), (128, 768, 768), (300, 1040, 272),
          (2048, 1024, 4096)]
"""m, k, n; some are no multiples of 16."""


def mono(fn: Any) -> Any:
    return jaxmono.jit(fn, on_unsupported="error")


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    a = np.random.default_rng(seed).integers(-128, 127, shape, np.int8, endpoint=True)
    a.flat[: a.size // 4] = -128
    return a


def same(a: Any, b: Any) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    bits = f"u{x.dtype.itemsize}"
    with np.errstate(all="ignore"):
        both = np.isnan(x.astype(np.float64)) & np.isnan(y.astype(np.float64))
    return bool(((x.view(bits) == y.view(bits)) | both).all())


def product(spec: str, out: Any) -> Any:
    return lambda x, w: jnp.einsum(spec, x, w, preferred_element_type=out)


def arguments(spec: str, m: int, k: int, n: int) -> list[tuple[int, ...]]:
    size = {"m": m, "k": k, "n": n}
    return [tuple(size[c] for c in s) for s in spec.split("->")[0].split(",")]


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_integers_are_exact(spec: str, m: int, k: int, n: int) -> None:
    a, b = arguments(spec, m, k, n)
    x, w = integers(a, 0), integers(b, 1)
    step = mono(product(spec, S32))
    found = {np.asarray(step(x, w)).tobytes() for _ in range(5)}
    wanted = np.asarray(jax.jit(product(spec, S32))(x, w))
    assert found == {wanted.tobytes()}
    rows = np.einsum(spec, x.astype(np.int64), w.astype(np.int64)) if m * k * n < 1 << 26 else None
    if rows is not None:
        np.testing.assert_array_equal(wanted, rows)


def test_integer_sums_wrap() -> None:
    k = 131072 + 64
    x, w = np.full((4, k), -128, np.int8), np.full((16, k), -128, np.int8)
    x[1, ::7] = 127
    wanted = (x.astype(np.int64) @ w.T.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(mono(product("mk,nk->mn", S32))(x, w), wanted)


def test_dequantising_epilogue() -> None:
    def layer(x: Any, w: Any, row: Any, column: Any, bias: Any) -> Any:
        y = jnp.dot(x, w, preferred_element_type=S32).astype(F32) * row[:, None] * column + bias
        return jax.nn.relu(y).astype(BF16)

    rng = np.random.default_rng(2)
    x, w = integers((200, 768), 0), integers((768, 1024), 1)
    scales = [rng.uniform(1e-3, 1e-2, n).astype(np.float32) for n in (200, 1024)]
    given = (x, w, *scales, rng.standard_normal(1024).astype(np.float32))
    found, wanted = (np.asarray(f(layer)(*given), np.float32) for f in (mono, jax.jit))
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).mean())


@pytest.mark.parametrize("pair", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
@pytest.mark.parametrize(("spec", "m", "k", "n"), [
    (spec, *sizes) for spec in ("mk,kn->mn", "mk,nk->mn", "km,kn->mn") for sizes in SHAPES
    if spec == "mk,nk->mn" or sizes != SHAPES[-1]])  # the largest of other layouts are XLA's
def test_floats(spec: str, m: int, k: int, n: int, pair: tuple[Any, Any]) -> None:
    """With sums in f32 at the highest precision; Hopper's own, as XLA's, keep some 14 bits."""
    rng = np.random.default_rng(m)
    x, w = (rng.standard_normal(s).astype(t)
            for s, t in zip(arguments(spec, m, k, n), pair, strict=True))
    exact = np.einsum(spec, x.astype(np.float64), w.astype(np.float64))
    size = np.abs(exact).mean()
    sharp = mono(lambda x, w: jnp.einsum(spec, x, w, preferred_element_type=F32,
                                         precision="highest"))
    np.testing.assert_allclose(np.asarray(sharp(x, w)), exact, rtol=1e-4, atol=1e-4 * size)
    found = np.asarray(mono(product(spec, F32))(x, w))
    np.testing.assert_allclose(found, exact, rtol=1e-2, atol=1e-2 * size)
    if pair != (E5M2, E5M2):  # XLA's library has no such product
        wanted = np.asarray(jax.jit(product(spec, F32))(x, w))
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2 * size)
    short = np.asarray(mono(product(spec, BF16))(x, w), np.float64)
    np.testing.assert_allclose(short, exact, rtol=1e-2, atol=1e-2 * size)


def test_not_a_number_stays_in_its_row() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (64, 96)).astype(E4M3), rng.integers(-2, 3, (96, 80)).astype(E5M2)
    x[3, 5], x[4, 0], w[63, 7], w[0, 9] = np.nan, 448, np.inf, np.nan
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_array_equal(mono(product("mk,kn->mn", F32))(x, w), wanted)


@pytest.mark.parametrize("t", [E4M3, E5M2])
def test_every_code_converts_as_in_xla(t: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(t)

    def fn(x: Any) -> Any:
        return tuple(x.astype(w) for w in (F32, BF16, F16, S32, E4M3, E5M2))

    for a, b in zip(mono(fn)(x), jax.jit(fn)(x), strict=True):
        assert same(a, b)
    assert same(mono(fn)(x)[0], x.astype(np.float32))


@pytest.mark.parametrize("t", [E4M3, E5M2])
def test_conversions_round_to_even_and_overflow_as_on_the_host(t: Any) -> None:
    rng = np.random.default_rng(0)
    corners = [0, -0.0, np.inf, -np.inf, np.nan, 448, 464, np.nextafter(464, 500), -464, 480, 57344,
               61440, np.nextafter(61440, 0), -61440, 65536, 1e30, 2.0 ** -9, 2.0 ** -10,
               2.0 ** -10 * 1.001, 2.0 ** -16, 2.0 ** -17, 2.0 ** -17 * 1.001, 1e-40]
    codes = np.sort(np.arange(256, dtype=np.uint8).view(t).astype(np.float64))
    middle = (codes[1:] + codes[:-1])[np.isfinite(codes[1:] + codes[:-1])] / 2
    every = rng.integers(0, 1 << 32, 1 << 20, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.array(corners), middle, every.astype(np.float64),
                        rng.standard_normal(1 << 20) * 10.0 ** rng.uniform(-9, 7, 1 << 20)])
    x = x.astype(np.float32)[: x.size // 16 * 16]
    halves = np.arange(1 << 16, dtype=np.uint16)
    given = (x, halves.view(np.float16), halves.view(BF16))
    with np.errstate(all="ignore"):
        for found, v in zip(mono(lambda *xs: tuple(v.astype(t) for v in xs))(*given), given,
                            strict=True):
            assert same(found, v.astype(np.float32).astype(t))


def test_scaled_rows_into_bytes() -> None:
    """Quantisation of activations, the product of bytes, scaled back: one kernel."""
    def layer(x: Any, w: Any, column: Any) -> Any:
        scale = jnp.abs(x.astype(F32)).max(-1, keepdims=True) / 448
        q = (x.astype(F32) / scale).astype(E4M3)
        return (jnp.dot(q, w, preferred_element_type=F32) * scale * column).astype(BF16)

    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 1024)).astype(BF16)
    w = rng.standard_normal((1024, 768)).astype(E4M3)
    column = rng.uniform(0.01, 0.1, 768).astype(np.float32)
    found, wanted = (np.asarray(f(layer)(x, w, column), np.float32) for f in (mono, jax.jit))
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()


BYTES = [S8, jnp.uint8, E4M3, E5M2]


def weights_of(t: Any, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if jnp.issubdtype(t, jnp.integer):
        low, high = np.iinfo(t).min, np.iinfo(t).max
        return rng.integers(low, high, shape, t, endpoint=True)
    return rng.standard_normal(shape).astype(t)


def widened(spec: str, out: Any = None) -> Any:
    """A product of activations with weights that are bytes in memory."""
    return lambda x, w: jnp.einsum(spec, x, w.astype(x.dtype), preferred_element_type=out,
                                   precision="highest")


@pytest.mark.parametrize("x_type", [BF16, F16, F32])
@pytest.mark.parametrize("t", BYTES)
@pytest.mark.parametrize("m", [1, 2, 8, 16])
def test_weights_of_bytes(m: int, t: Any, x_type: Any) -> None:
    """Few rows, of which the gemv family streams the bytes; shapes with tails and shares of k, and
    rows that are no whole pieces (1000 columns). The same bits every time."""
    for spec, k, n in (("mk,kn->mn", 8208, 528), ("mk,nk->mn", 8208, 520),
                       ("mk,kn->mn", 1040, 8208), ("mk,nk->mn", 1040, 8200),
                       ("mk,kn->mn", 1040, 1000)):
        a, b = arguments(spec, m, k, n)
        x = np.random.default_rng(k).standard_normal(a).astype(x_type)
        w = weights_of(t, b, n)
        exact = np.einsum(spec, x.astype(np.float64), w.astype(np.float64), optimize=True)
        step = mono(widened(spec, F32))
        found = [np.asarray(step(x, w)) for _ in range(3)]
        assert all(y.tobytes() == found[0].tobytes() for y in found)
        np.testing.assert_allclose(found[0], exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max(),
                                   err_msg=f"{spec} {m}x{n}x{k}")


@pytest.mark.parametrize("x_type", [BF16, F16, F32])
@pytest.mark.parametrize("t", BYTES)
def test_every_byte_of_weights_is_converted_exactly(t: Any, x_type: Any) -> None:
    """In every place of a word, by multiply-adds (1 row) and on tensor cores (8 rows of 16 bits).
    Only one row of weights is not zero: NaN and infinities reach the elements of their column."""
    codes = np.arange(256, dtype=np.uint8)
    for m, at in ((1, 0), (1, 5), (1, 130), (1, 255), (8, 0), (8, 5), (8, 130), (8, 255)):
        x = np.zeros((m, 512), x_type)
        x[:, at] = [1 << i for i in range(m)]
        w, v = np.zeros((512, 256), np.uint8), np.zeros((256, 512), np.uint8)
        w[at] = v[:, at] = codes + np.uint8(at)
        with np.errstate(all="ignore"):
            wanted = w[at].view(t).astype(np.float32) * x[:, at:at + 1].astype(np.float32)
        for spec, weights in (("mk,kn->mn", w), ("mk,nk->mn", v)):
            np.testing.assert_array_equal(mono(widened(spec, F32))(x, weights.view(t)), wanted)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("t", [S8, E4M3])
def test_layers_of_weights_of_bytes(t: Any, m: int) -> None:
    """A norm, scales of columns, a residual: stages whose weights are requested in front of their
    barriers, and are held in registers where a task's ring has all of them."""
    def step(x: Any, scale: Any, *weights: Any) -> Any:
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            y = x.astype(F32)
            y = (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)
            h = jax.nn.relu(widened("mk,kn->mn")(y, up) * scale)
            x = x + widened("mk,nk->mn")(h, down) * scale
        return x

    size = 64.0 if t == S8 else 1.0
    scale = np.asarray(1 / 32 / size, BF16)
    x = np.random.default_rng(0).standard_normal((m, 1024)).astype(BF16)
    weights = [weights_of(t, shape, i) for i, shape in enumerate([(1024, 4096), (1024, 4096)] * 4)]
    given = (x, scale, *weights)
    found, wanted = (np.asarray(f(step)(*given), np.float64) for f in (mono, jax.jit))
    np.testing.assert_allclose(found, wanted, rtol=5e-2, atol=1e-1 * np.abs(wanted).mean())
    again = np.asarray(mono(step)(*given), np.float64)
    np.testing.assert_array_equal(found, again)


def test_f32_values_that_are_rounded_later_keep_subnormal_results() -> None:
    """e^-88 is subnormal: a flushed one would make these infinite and NaN (codegen/narrowed.py)."""
    x = np.full((4, 64), -88, np.float32).astype(jnp.bfloat16)

    def reciprocal(x: jax.Array) -> jax.Array:
        return (1 / jnp.exp(x.astype(F32))).astype(BF16)

    def softmax(x: jax.Array) -> jax.Array:
        e = jnp.exp(x.astype(F32))
        return (e / jnp.sum(e, axis=1, keepdims=True)).astype(BF16)

    found = np.asarray(mono(reciprocal)(x), np.float64)
    np.testing.assert_allclose(found, np.exp(88.0), rtol=2 ** -7)
    np.testing.assert_allclose(np.asarray(mono(softmax)(x), np.float64), 1 / 64, rtol=2 ** -7)

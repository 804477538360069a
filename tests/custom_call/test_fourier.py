"""Fourier transforms as `jnp.fft` makes them: kernels that need no library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

_RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) + 1j * _RNG.standard_normal(shape)).astype(np.complex64)


def floats(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(np.float32)


def mono(fn: Any) -> Any:
    return jaxmono.jit(fn, interpret=True, on_unsupported="error")


def close(found: Any, wanted: Any) -> None:
    size = np.abs(wanted).max()
    np.testing.assert_allclose(np.asarray(found) / size, wanted / size, rtol=0, atol=2e-6)


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "fft": (lambda f, x: f.fft(x), numbers(5, 48)),
    "fft_of_an_axis": (lambda f, x: f.fft(x, axis=1), numbers(3, 20, 5)),
    "fft_padded": (lambda f, x: f.fft(x, n=64), numbers(3, 50)),
    "fft_of_one": (lambda f, x: f.fft(x), numbers(4, 1)),
    "ifft": (lambda f, x: f.ifft(x), numbers(5, 36)),
    "fft2": (lambda f, x: f.fft2(x), numbers(3, 12, 20)),
    "ifftn": (lambda f, x: f.ifftn(x), numbers(6, 10, 14)),
    "rfft": (lambda f, x: f.rfft(x), floats(7, 100)),
    "rfft_odd": (lambda f, x: f.rfft(x), floats(7, 45)),
    "irfft": (lambda f, x: f.irfft(x), numbers(7, 51)),
    "irfft_odd": (lambda f, x: f.irfft(x, n=45), numbers(3, 23)),
    "irfft_of_one": (lambda f, x: f.irfft(x, n=1), numbers(3, 1)),
    "rfft2": (lambda f, x: f.rfft2(x), floats(2, 18, 16)),
    "irfftn": (lambda f, x: f.irfftn(x), numbers(4, 6, 9)),
    "real_parts": (lambda f, x: f.fft2(x).real, floats(3, 16, 24)),
    "imaginary_parts": (lambda f, x: f.fft(x).imag, numbers(3, 24)),
    "there_and_back": (lambda f, x: f.irfft(f.rfft(x) * f.rfft(x[:1])), floats(4, 64)),
    "of_a_prime": (lambda f, x: f.fft(x), numbers(3, 349)),
    "back_of_a_prime": (lambda f, x: f.ifft(x, axis=0), numbers(23, 3)),
    "real_of_a_prime": (lambda f, x: f.irfft(f.rfft(x) * 2, n=101), floats(3, 101)),
    "of_two_primes": (lambda f, x: f.fft2(x).real, floats(2, 17, 38)),
    "long": (lambda f, x: f.fft(x), numbers(2, 16384)),
    "long_real": (lambda f, x: f.rfft(x), floats(1, 10000)),
    "long_there": (lambda f, x: f.irfft(x, axis=0), numbers(5001, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_as_numpy_has_it(name: str) -> None:
    """Of the digits of twice as long numbers."""
    fn, x = CASES[name]
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    found = mono(lambda x: fn(jnp.fft, x))(x)
    assert found.dtype == jax.eval_shape(lambda x: fn(jnp.fft, x), x).dtype
    close(found, fn(np.fft, wide))


def test_f64() -> None:
    with jax.enable_x64(True):
        z, x = numbers(3, 60).astype(np.complex128), floats(3, 60).astype(np.float64)
        found = mono(lambda z, x: (jnp.fft.fft(z), jnp.fft.rfft(x)))(z, x)
        for a, b in zip(found, (np.fft.fft(z), np.fft.rfft(x)), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=1e-13)


def test_gradients_and_maps() -> None:
    x, k = floats(3, 32), floats(32)

    def loss(x: Any, k: Any) -> Any:
        return (jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k)) ** 3).sum()

    def step(x: Any, k: Any) -> Any:
        return jax.vmap(jax.grad(loss, (0, 1)), (0, None))(x, k)

    for a, b in zip(mono(step)(x, k), jax.jit(step)(x, k), strict=True):
        close(a, np.asarray(b))


def test_one_kernel_with_what_is_around() -> None:
    """A bank of filters on the spectra of frames: a window in front, a product behind."""
    def bands(x: Any, w: Any) -> Any:
        return jnp.log(jnp.abs(jnp.fft.rfft(x * jnp.hanning(96).astype(x.dtype))) ** 2 @ w + 1e-3)

    run, x, w = mono(bands), floats(20, 96), np.abs(floats(49, 16))
    assert run.lower(x, w).explain().kernels == 1
    np.testing.assert_allclose(run(x, w), jax.jit(bands)(x, w), rtol=2e-3, atol=2e-3)


def test_parts_of_one_array_that_are_others_places() -> None:
    """Half the rows of pairs as real parts, of all the second ones."""
    w, z = floats(8, 2), floats(2, 6, 2)
    for fn, x in ((lambda w: jax.lax.complex(w[:4].reshape(8), w[:, 1]), w),
                  (lambda w: jax.lax.complex(w[::2].reshape(8), w[:, 1]), w),
                  (lambda z: jax.lax.complex(z[0].reshape(2, 6), z[..., 1]), z)):
        close(mono(lambda x, fn=fn: jnp.fft.fft(fn(x)))(x), np.fft.fft(np.asarray(fn(x))))


@pytest.mark.parametrize("n", [64, 102, 16464])
def test_imaginary_parts_that_real_numbers_do_not_have(n: int) -> None:
    """As XLA does, of the first element and of the middle one."""
    z = numbers(3, n // 2 + 1)
    z[0, 0] += 1e6j
    z[1, 0] += np.complex64(complex(0, np.nan))
    z[2, -1] = complex(1, np.inf)
    plain = z.copy()
    plain[:, 0].imag = plain[:, -1].imag = 0
    close(mono(lambda z: jnp.fft.irfft(z, n=n))(z), np.fft.irfft(plain.astype(np.complex128), n=n))


def test_sums_of_two_elements_may_be_too_large() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 3] = 2.5e38
    assert np.isfinite(np.asarray(mono(jnp.fft.rfft)(x))).all()


def test_what_is_in_front_is_computed_once() -> None:
    """In one stage: no element is read twice."""
    plan = mono(lambda x: jnp.fft.fft(jnp.tanh(x))).lower(floats(64, 1024)).as_text("plan")
    assert "1 stages" in plan


def test_lines_do_not_mix() -> None:
    x = floats(6, 64)
    x[2, 5], x[4, 7] = np.nan, np.inf
    found = np.asarray(mono(jnp.fft.rfft)(x))
    assert not np.isfinite(found[[2, 4]]).any()
    close(found[[0, 1, 3, 5]], np.fft.rfft(x[[0, 1, 3, 5]].astype(np.float64)))


def test_a_long_one_with_a_large_prime_is_xlas_and_says_so() -> None:
    def fn(z: Any) -> Any:
        return jnp.fft.fft(z + 1) * 2

    z = numbers(3, 2062)
    with pytest.raises(jaxmono.UnsupportedError, match=r"length 2062 is XLA's.*; pad to 2079"):
        mono(fn)(z)
    with pytest.raises(jaxmono.UnsupportedError, match="length 8388608"):
        mono(jnp.fft.fft)(np.zeros(1 << 23, np.complex64))
    kernel = jaxmono.jit(fn, interpret=True)
    close(kernel(z), np.fft.fft(z.astype(np.complex128) + 1) * 2)
    assert "length 2062" in str(kernel.lower(z).explain())


def test_another_shape_of_lines_is_no_copy() -> None:
    """A long transform, which is made in two dimensions, and sums; of both shapes one is copied."""
    z, x = numbers(2, 16384), floats(3, 64)
    for fn, v, stages in ((jnp.fft.fft, z, 2), (lambda x: jnp.cumsum(x, 1).reshape(-1), x, 1),
                          (lambda x: (jnp.cumsum(x, 1), jnp.cumsum(x, 1).reshape(-1)), x, 2)):
        run = mono(fn)
        assert f" {stages} stages" in run.lower(v).as_text("plan")
        for a, b in zip(jax.tree.leaves(run(v)), jax.tree.leaves(jax.jit(fn)(v)), strict=True):
            assert a.shape == b.shape
            close(a, np.asarray(b))

"""Fourier transforms on a real GPU, beside XLA's library and numpy's of twice the digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import jitted, relative_errors

import jaxmono
from benchmarks import data
from benchmarks.workloads import find, further_tables


def numbers(seed: int, *shape: int) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def check(fn: Callable[[Any], Any], x: Any, exact: Any) -> None:
    """The same bits each time, and no further from what is right than XLA's."""
    mono = jaxmono.jit(fn, on_unsupported="error")
    found = {np.asarray(mono(x)).tobytes() for _ in range(4)}
    assert len(found) == 1

    def off(y: Any) -> float:
        return float(np.linalg.norm(np.asarray(y) - exact) / np.linalg.norm(exact))

    ours, theirs = off(mono(x)), off(jax.jit(fn)(x))
    assert ours <= max(1.5 * theirs, 4e-7), (ours, theirs)


@pytest.mark.parametrize("lines", [1, 3, 700])
@pytest.mark.parametrize("n", [2, 7, 13, 16, 17, 60, 256, 349, 400, 1001, 1024, 2310, 4096, 6561,
                               8192, 16384, 100_000])
def test_lengths(n: int, lines: int) -> None:
    if n * lines > 1 << 23:
        lines = 70
    z = numbers(n, lines, n)
    wide = z.astype(np.complex128)
    check(jnp.fft.fft, z, np.fft.fft(wide))
    check(jnp.fft.ifft, z, np.fft.ifft(wide))
    check(jnp.fft.rfft, z.real.copy(), np.fft.rfft(wide.real))


@pytest.mark.parametrize("n", [2, 15, 101, 400, 1024, 9600])
def test_back_to_real_numbers(n: int) -> None:
    z = numbers(n, 50, n // 2 + 1)
    check(lambda z: jnp.fft.irfft(z, n=n), z, np.fft.irfft(z.astype(np.complex128), n=n))


@pytest.mark.parametrize("shape", [(64, 48), (5, 128, 200), (3, 30, 40, 50), (2, 10_000, 16)])
def test_several_dimensions(shape: tuple[int, ...]) -> None:
    z = numbers(1, *shape)
    wide = z.astype(np.complex128)
    check(jnp.fft.fftn, z, np.fft.fftn(wide))
    check(lambda z: jnp.fft.ifft(z, axis=-2), z, np.fft.ifft(wide, axis=-2))
    check(lambda x: jnp.fft.fft2(x).real, z.real.copy(), np.fft.fft2(wide.real).real)
    check(jnp.fft.rfftn, z.real.copy(), np.fft.rfftn(wide.real))


@pytest.mark.parametrize("name", [w.name for w in further_tables()["transforms_table"]])
def test_the_table_is_as_right_as_xla(name: str) -> None:
    case = data.make(data.Case(find(name), 1, "f32"))
    for _ in range(2):  # each time in other memory
        ours, xla = relative_errors(case, jitted(case), jitted(case, "xla"))
        assert ours <= 1.5 * xla + 1e-5, (ours, xla)


def test_lines_do_not_mix() -> None:
    x = numbers(2, 300, 1000)
    x[17, 5], x[200, 7] = np.nan, np.inf
    found = np.asarray(jaxmono.jit(jnp.fft.fft, on_unsupported="error")(x))
    apart = np.isin(np.arange(300), [17, 200])
    assert not np.isfinite(found[apart]).any() and np.isfinite(found[~apart]).all()

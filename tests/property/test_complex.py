"""Random programs with complex numbers, a kernel each, beside XLA's results in twice the digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

A = Any
M, N = 6, 8
"""All values are [M, N], complex or real, so that any step takes any of them."""


def _tame(z: A) -> A:
    """Of moderate size: what steps make stays comparable."""
    return z / (1 + jnp.abs(z))


_product = partial(jnp.matmul, precision="highest")


STEPS: dict[str, Callable[[A, A, A], A]] = {
    # of two complex values and a real one
    "product": lambda z, w, x: z * w,
    "quotient": lambda z, w, x: z / (w + 2.5 + 0.5j),
    "scaled": lambda z, w, x: z * x + w,
    "turned": lambda z, w, x: z * jnp.exp(1j * x),
    "functions": lambda z, w, x: jnp.exp(0.3 * z) + jnp.sin(w) * jnp.tanh(0.5 * z),
    "roots": lambda z, w, x: jnp.sqrt(z * z.conj() + 1 + 0.2j * x) + jnp.log(w + 3),
    "chosen": lambda z, w, x: jnp.where(x > 0, z, w.conj()),
    "parts": lambda z, w, x: lax.complex(z.real + w.imag, x),
    "matrices": lambda z, w, x: _product(z, _product(w.T, z)) * 0.05,
    "real matrices": lambda z, w, x: _product(x, _product(x.T, w)) * 0.05,
    "half a matrix": lambda z, w, x: _product(_product(z.conj(), w.T).real, x) * 0.02,
    "sums": lambda z, w, x: z - z.mean(0) + jnp.cumsum(w, 1) * 0.1,
    "moved": lambda z, w, x: jnp.concatenate([z[:, 3:], w[:, :3]], 1)[::-1],
    "padded": lambda z, w, x: jnp.pad(z, ((1, 0), (0, 2)))[:M, 2:] + w,
    "looked up": lambda z, w, x: z[jnp.argsort(x[:, 0])] + w,
    "updated": lambda z, w, x: z.at[1:3, 2].set(w[:2, 0]).at[jnp.array([0, 0])].add(w[:2]),
    "reshaped": lambda z, w, x: z.T.reshape(M, N) + w.reshape(N, M).T,
    "stacked": lambda z, w, x: jnp.stack([z.real, w.imag], -1).reshape(M, 2 * N)[:, ::2] * w,
    "scanned": lambda z, w, x: lax.scan(lambda c, v: ((0.5 * c * v[0] + v[1]),) * 2, z[0],
                                        (_tame(z), w))[1],
    "combined": lambda z, w, x: lax.associative_scan(
        lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (_tame(z).T, w.T))[1].T,
    "looped": lambda z, w, x: lax.fori_loop(0, 3, lambda i, c: _tame(c * w + x), z),
    "transformed": lambda z, w, x: jnp.fft.fft(z * w) * 0.3 + jnp.fft.ifft(w, axis=0),
    "a real spectrum": lambda z, w, x: jnp.fft.irfft(jnp.fft.rfft(x) * w[0, :5], n=N) * z,
    "transformed in a loop": lambda z, w, x: lax.fori_loop(
        0, 3, lambda i, c: jnp.fft.fft2(c).real * 0.1 + w, z),
    "of a prime": lambda z, w, x: jnp.fft.fft(z, n=17)[:, 3:3 + N] * 0.2 + w,
    "branch": lambda z, w, x: lax.cond(x[0, 0] > 0, lambda: z * w, lambda: z + w.conj()),
}


def program(seed: int) -> Callable[[A, A, A], tuple[A, ...]]:
    """Eight steps on what there is so far."""
    rng = np.random.default_rng(seed)
    names = [str(n) for n in rng.choice(list(STEPS), 8, replace=False)]
    places = rng.integers(0, 100, (8, 2))

    def run(z: A, w: A, x: A) -> tuple[A, ...]:
        values = [z, w]
        for name, (i, j) in zip(names, places, strict=True):
            made = STEPS[name](values[i % len(values)], values[j % len(values)], x)
            values.append(_tame(made.astype(z.dtype)))
        return (*values[-3:], jnp.abs(values[-1]).sum(), jnp.linalg.norm(values[-2]))

    run.__name__ = "_".join(names).replace(" ", "")[:80]
    return run


@pytest.mark.filterwarnings("error::jaxmono.JaxmonoWarning")
@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(24))
def test_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, w = ((rng.standard_normal((M, N)) + 1j * rng.standard_normal((M, N))).astype(np.complex64)
            for _ in range(2))
    x = rng.standard_normal((M, N)).astype(np.float32)
    fn = program(seed)
    mono = jaxmono.jit(fn, interpret=True)
    assert not mono.lower(z, w, x).explain().refused
    found = mono(z, w, x)
    with jax.enable_x64(True):
        wanted = jax.jit(fn)(z.astype(np.complex128), w.astype(np.complex128), x.astype(np.float64))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, err_msg=fn.__name__,
                                   atol=5e-5 * max(1.0, float(np.abs(b).max())))

"""Programs with complex numbers: kernels take and give them as XLA lays them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

C64, F32 = np.complex64, np.float32
_RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return (_RNG.standard_normal(shape) + 1j * _RNG.standard_normal(shape)).astype(C64)


def floats(*shape: int) -> Any:
    return _RNG.standard_normal(shape).astype(F32)


def _recurrence(a: Any, x: Any) -> Any:
    """A linear recurrent unit (Orvieto et al., 2023, section 3): h = a h + x."""
    def step(h: Any, x: Any) -> Any:
        h = a * h + x
        return h, h.real
    return lax.scan(step, jnp.zeros(x.shape[1:], C64), x)


def _in_parallel(a: Any, x: Any) -> Any:
    def join(p: Any, q: Any) -> Any:
        return p[0] * q[0], q[0] * p[1] + q[1]
    return lax.associative_scan(join, (jnp.broadcast_to(a, x.shape), x))[1].real


def _rotated(x: Any, turns: Any) -> Any:
    """Rotary embeddings as products of complex numbers."""
    z = lax.complex(x[..., 0::2], x[..., 1::2]) * turns[None, :, None]
    return jnp.stack([z.real, z.imag], -1).reshape(x.shape)


def _circuit(state: Any, gates: Any) -> Any:
    """Gates on every qubit of a state, and the chance of each outcome."""
    bits = int(state.size).bit_length() - 1
    s = state.reshape((2,) * bits)
    for i in range(bits):
        s = jnp.moveaxis(jnp.tensordot(gates[i], s, ((1,), (i,))), 0, i)
    return s.reshape(-1), jnp.abs(s.reshape(-1)) ** 2


def _converging(z: Any) -> Any:
    """How long |z| stays below 2 (Mandelbrot)."""
    def step(s: Any) -> Any:
        z_, c, n, i = s
        z_ = jnp.where(jnp.abs(z_) < 2, z_ * z_ + c, z_)
        return z_, c, n + (jnp.abs(z_) < 2), i + 1
    zero = jnp.zeros(z.shape, jnp.int32)
    return lax.while_loop(lambda s: (s[3] < 30) & (jnp.abs(s[0]) < 2).any(), step,
                          (z * 0, z, zero, 0))[2]


def _until(z: Any, w: Any) -> Any:
    """A loop whose results are complex: a kernel ends with it."""
    return lax.while_loop(lambda s: (jnp.abs(s[0]) < 40).any() & (s[2] < 20),
                          lambda s: (s[0] * (1.1 + 0.2j), s[1] + s[0], s[2] + 1), (z, w, 0))


Case = tuple[Callable[..., Any], tuple[Any, ...], set[str]]

CASES: dict[str, Case] = {
    "products": (lambda z, w: (z @ w, z.conj().T @ z), (numbers(9, 12), numbers(12, 7)), set()),
    "beside reals": (lambda x, z: x @ z + jnp.exp(1j * x).sum(), (floats(9, 12), numbers(12, 7)),
                     set()),
    "a norm": (lambda z: z / jnp.linalg.norm(z, axis=1, keepdims=True), (numbers(9, 33),), set()),
    "phases": (lambda z: (jnp.angle(z), jnp.abs(z), z ** 0.5, jnp.log(z)), (numbers(40),), set()),
    "a spectrum": (lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, (floats(3, 64),), set()),
    "a filter": (lambda x, h: jnp.fft.irfft(jnp.fft.rfft(x) * h), (floats(3, 64), numbers(33)),
                 set()),
    "sorted": (lambda z: jnp.sort(z, axis=1) * 2, (numbers(3, 8),), {"sort"}),
    "a recurrence": (_recurrence, (numbers(24) * F32(0.3), numbers(10, 24)), set()),
    "in parallel": (_in_parallel, (numbers(24) * F32(0.3), numbers(64, 24)), set()),
    "rotated": (_rotated, (floats(2, 6, 3, 8), numbers(6, 4)), set()),
    "a circuit": (_circuit, (numbers(64), numbers(6, 2, 2)), set()),
    "until it is done": (_converging, (numbers(50),), set()),
    "until it is large": (_until, (numbers(8, 3), numbers(8, 3)), set()),
    "as often as it is told": (lambda z, n: jnp.exp(lax.fori_loop(
        0, n, lambda i, s: s * (0.9 + 0.1j) + 0.1 * i, z)), (numbers(6), jnp.int32(7)), set()),
    "one number": (lambda z: lax.while_loop(lambda s: jnp.abs(s) < 4, lambda s: s * (1.3 + 0.1j),
                                            z), (numbers() + C64(0.1),), set()),
    "a gradient": (jax.grad(lambda x: (jnp.abs(jnp.tanh(x * (1 + 2j)) @ jnp.exp(1j * x)) ** 2)),
                   (floats(20),), set()),
    "by batches": (jax.vmap(lambda z, x: jnp.where(x > 0, z * x, z.conj()).sum()),
                   (numbers(5, 7), floats(5, 7)), set()),
    "scattered": (lambda z, w: z.at[jnp.array([1, 1, 3])].add(w), (numbers(5, 8), numbers(3, 8)),
                  set()),
}


TWO = ("as often as it is told",)
"""Of a loop that a kernel ends with and what is behind it."""


@pytest.mark.filterwarnings("error::jaxmono.JaxmonoWarning")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str) -> None:
    """Results are XLA's, and one kernel makes them, but for what is named."""
    fn, args, left = CASES[name]
    mono = jaxmono.jit(fn, interpret=True)
    found = jax.tree.leaves(mono(*args))
    wanted = jax.tree.leaves(jax.jit(fn)(*args))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        # Products are of tf32, as XLA's are on a GPU.
        size = float(np.abs(np.asarray(b)).max())
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=2e-3 * size)
    report = mono.lower(*args).explain()
    assert {r.op.removeprefix("stablehlo.") for r in report.refused} == left
    assert report.kernels == 1 or left or name in TWO


def test_what_products_of_a_loop_need_is_made_once() -> None:
    """Of weights that no trip changes, once more as floats."""
    def layers(h: Any, w: Any) -> Any:
        def step(h: Any, _: Any) -> tuple[Any, None]:
            h = h @ w
            return h / (1 + jnp.abs(h)), None
        return lax.scan(step, h, None, length=4)[0]

    mono, (h, w) = jaxmono.jit(layers, interpret=True), (numbers(16, 24), numbers(24, 24))
    plan = mono.lower(h, w).as_text("plan")
    whole = [line for line in plan.splitlines() if line.startswith("  b") and "[48,24,2]" in line]
    assert len(whole) == 1, plan
    np.testing.assert_allclose(np.asarray(mono(h, w)), np.asarray(jax.jit(layers)(h, w)), atol=2e-2)


def test_donated_arguments_are_written_over() -> None:
    """An evolution of a state in place."""
    def step(z: Any, h: Any) -> Any:
        return z * jnp.exp(-1j * h)

    z, h = numbers(48), floats(48)
    wanted = z * np.exp(-1j * h)
    mono = jaxmono.jit(step, interpret=True, donate_argnums=0)
    kept = jnp.array(z)
    text = mono.lower(kept, h).compile().as_text("plan")
    assert "f32[48,2]" in text
    np.testing.assert_allclose(np.asarray(mono(kept, h)), wanted, atol=1e-5)


def test_what_a_function_is_given_and_gives_stays_complex() -> None:
    """Types of the call are the user's, although the kernel's are of pairs."""
    mono = jaxmono.jit(lambda z: (z * 2, z), interpret=True)
    lowered = mono.lower(numbers(3, 4))
    assert "complex<f32>" in lowered.as_text("stablehlo")
    assert "f32[3,4,2]" in lowered.as_text("plan")
    with jax.enable_x64(True):
        wide = numbers(5).astype(np.complex128)
        found = jaxmono.jit(lambda z: z * z + 1, interpret=True)(wide)
        assert found.dtype == np.complex128
        np.testing.assert_allclose(np.asarray(found), wide * wide + 1, rtol=1e-14)

"""Programs with complex numbers on a real GPU: functions, products, recurrences, the yardstick's
table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import jitted, relative_errors

import jaxmono
from benchmarks import data
from benchmarks.workloads import find, further_tables

C64, F32 = np.complex64, np.float32


def mono(fn: Any, **how: Any) -> Any:
    return jaxmono.jit(fn, on_unsupported="error", **how)


def numbers(seed: int, *shape: int, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(seed)
    return ((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * scale).astype(C64)


def off(found: Any, exact: Any) -> float:
    """The largest error, of the size of a number itself."""
    return float((np.abs(np.asarray(found, np.complex128) - exact) / np.abs(exact)).max())


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "abs": (jnp.abs, np.abs), "angle": (jnp.angle, np.angle), "exp": (jnp.exp, np.exp),
    "log": (jnp.log, np.log), "sqrt": (jnp.sqrt, np.sqrt), "tanh": (jnp.tanh, np.tanh),
    "sin": (jnp.sin, np.sin), "cos": (jnp.cos, np.cos), "sinh": (jnp.sinh, np.sinh),
    "cosh": (jnp.cosh, np.cosh), "rsqrt": (lax.rsqrt, lambda z: 1 / np.sqrt(z)),
    "expm1": (jnp.expm1, np.expm1), "log1p": (jnp.log1p, np.log1p),
    "logistic": (jax.nn.sigmoid, lambda z: 1 / (1 + np.exp(-z)))}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """No further from numpy's of twice the digits than XLA's, or within some roundings."""
    fn, exact = FUNCTIONS[name]
    z = numbers(0, 4099, scale=2.0)
    wanted = exact(z.astype(np.complex128))
    assert off(mono(fn)(z), wanted) <= max(1.5 * off(jax.jit(fn)(z), wanted), 2e-6)


def test_quotients_and_powers() -> None:
    z, w = numbers(1, 4099), numbers(2, 4099)
    for fn, exact in ((lax.div, np.divide), (lax.pow, np.power), (lax.mul, np.multiply)):
        wanted = exact(z.astype(np.complex128), w.astype(np.complex128))
        assert off(mono(fn)(z, w), wanted) <= max(1.5 * off(jax.jit(fn)(z, w), wanted), 5e-6)
    large = np.array([3e38 + 3e38j, 1e-38 + 1e-38j, 1 + 0j], C64)
    np.testing.assert_allclose(np.asarray(mono(lax.div)(large, large)), 1, rtol=1e-6)


@pytest.mark.parametrize("precision", [None, "highest"])
@pytest.mark.parametrize("size", [(64, 64, 64), (300, 77, 130), (1, 512, 256), (512, 1024, 512)])
def test_products(size: tuple[int, int, int], precision: Any) -> None:
    """Of two complex matrices, of which one may be a conjugate, or real."""
    m, k, n = size
    z, w = numbers(3, m, k), numbers(4, k, n)
    for a, conjugated in ((z, False), (z, True), (z.real.copy(), False)):
        def product(a: Any, w: Any, conjugated: bool = conjugated) -> Any:
            a = a.conj() if conjugated else a.astype(C64)
            return jnp.matmul(a, w, precision=precision)

        exact = (a.conj() if conjugated else a).astype(np.complex128) @ w.astype(np.complex128)
        size_ = np.abs(exact).mean()
        ours = np.abs(np.asarray(mono(product)(a, w)) - exact).max() / size_
        theirs = np.abs(np.asarray(jax.jit(product)(a, w)) - exact).max() / size_
        assert ours <= max(1.5 * theirs, 2e-6), (ours, theirs)


def test_states_are_written_over() -> None:
    """A donated state, many steps."""
    def step(z: Any, h: Any) -> Any:
        return z * jnp.exp(-0.1j * h)

    z, h = numbers(6, 8192), numbers(7, 8192).real
    run, now = mono(step, donate_argnums=0), jnp.array(z)
    for _ in range(20):
        now = run(now, h)
    np.testing.assert_allclose(np.asarray(now), z * np.exp(-2j * h.astype(np.float64)), atol=2e-5)


@pytest.mark.parametrize("name", [w.name for w in further_tables()["complex_table"]])
def test_the_table_is_as_right_as_xla(name: str) -> None:
    case = data.make(data.Case(find(name), 1, "f32"))
    for _ in range(2):  # each time in other memory
        ours, xla = relative_errors(case, jitted(case), jitted(case, "xla"))
        assert ours <= 1.5 * xla + 5e-4, (ours, xla)


def test_what_is_not_finite_is_so_where_xla_has_it() -> None:
    """Of functions without a product of an infinity and nothing."""
    some = np.array([0.0, -0.0, 1.0, -2.0, 1e30, -3e38, np.inf, -np.inf, np.nan], F32)
    re, im = np.meshgrid(some, some)
    z = np.empty(re.size, C64)
    z.real, z.imag = re.ravel(), im.ravel()
    for fn in (jnp.abs, jnp.exp, jnp.log, jnp.sin, jnp.expm1):
        found, wanted = np.asarray(mono(fn)(z)), np.asarray(jax.jit(fn)(z))
        for a, b in ((found.real, wanted.real), (found.imag, wanted.imag)):
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=fn.__name__)
            np.testing.assert_array_equal(np.isinf(a), np.isinf(b), err_msg=fn.__name__)

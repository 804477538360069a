"""The reference interpreter agrees with XLA on everything that JAX lowers to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify
from jaxmono.hlo.verify import verify

R = np.random.default_rng(0)


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return R.normal(size=shape).astype(np.float32)


X, Y = rand(3, 5), rand(5, 4)
ROWS = np.array([0, 2, 2, 9], np.int32)
F = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, -1.5, 2.5, 300, -300, 3e9, 0.0, -0.0],
             np.float32)
P = np.array([-3.5, -1.2, -0.1, 0.3, 0.5, 0.99, -0.99999, 1e-6, 1e-12, 1, -1, 0, 2, 30, -2.0],
             np.float32)
IMAGE, KERNEL = rand(2, 8, 9, 4), rand(3, 2, 2, 6)
NHWC = ("NHWC", "HWIO", "NHWC")
KEY = np.array([0, 3], np.uint32)


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME")


def bits(shape: tuple[int, ...], dtype: str, algorithm: str) -> Callable[..., Any]:
    return lambda s: lax.rng_bit_generator(s, shape, dtype,
                                           algorithm=getattr(lax.RandomAlgorithm, algorithm))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: jax.nn.softmax(x @ Y), (X,)),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    "variance": (lambda x: (jnp.var(x, axis=1), jax.nn.logsumexp(x, axis=0)), (X,)),
    # order
    "sort": (lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1)), (X,)),
    "sort nan": (lambda f: (jnp.sort(f), lax.top_k(f, 4)), (F,)),
    "sort keys": (lambda a, b: lax.sort((a, b, a * 2), num_keys=2),
                  (R.integers(0, 3, (40, 2)).astype(np.int32), rand(40, 2))),
    "sort stable": (lambda i: (jnp.argsort(i, stable=True), jnp.argsort(-i, axis=0)),
                    (R.integers(0, 3, (5, 33)).astype(np.int32),)),
    "argmax": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (X,)),
    "argmax nan": (lambda f: (jnp.argmax(f), lax.argmin(f, 0, jnp.int32)), (F,)),
    "top_k": (lambda x, i: (lax.top_k(x, 3), lax.top_k(i, 2)), (X, ROWS)),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 0), jnp.cumprod(x, 0)), (X,)),
    "median": (lambda x: jnp.median(x), (X,)),
    # indices
    "take": (lambda x, i: (jnp.take(x, i, axis=0), jnp.take(x, i, axis=1, mode="clip")),
             (X, np.array([[0, 2], [7, -1]], np.int32))),
    "take along": (lambda x, i: jnp.take_along_axis(x, i, axis=1),
                   (X, np.array([[0, 2], [1, -1], [9, 0]], np.int32))),
    "gather batch": (jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (2,))),
                     (X, np.array([0, 9, -3], np.int32))),
    "dynamic": (lambda x, i: (lax.dynamic_update_slice(x, jnp.ones((2, 2)), (i, i)),
                              lax.dynamic_slice(x, (i, -i), (2, 2))), (X, np.int32(4))),
    "scatter add": (lambda x, i: x.at[i].add(2.0), (X, ROWS)),
    "scatter set": (lambda x, i: x.at[i, 1:3].set(jnp.arange(8.0).reshape(4, 2)), (X, ROWS)),
    "scatter columns": (lambda x, i: x.at[:, i].multiply(2.0), (X, ROWS)),
    "scatter min": (lambda x, i: x.at[i].min(0.0), (X, ROWS)),
    "scatter apply": (lambda x, i: x.at[:, i].apply(lambda v: v * v + 1), (X, ROWS[:2])),
    "scatter batch": (jax.vmap(lambda x, i: lax.dynamic_update_slice(x, x[:2] + 1, (i,))),
                      (X, np.array([0, 9, -3], np.int32))),
    # windows
    "pool": (lambda x: (pool(x), lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 2), "SAME")),
             (X,)),
    "pool gradient": (jax.grad(lambda x: (pool(x) ** 2).sum()), (X,)),
    "conv": (lambda a, k: lax.conv_general_dilated(
        a, k, (2, 1), [(1, 2), (0, 1)], lhs_dilation=(1, 2), rhs_dilation=(2, 1),
        dimension_numbers=NHWC, feature_group_count=2), (IMAGE, KERNEL)),
    "conv gradient": (jax.grad(lambda k, a: (lax.conv_general_dilated(
        a, k, (2, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2) ** 2).sum()),
        (KERNEL, IMAGE)),
    "conv transpose": (lambda a, k: lax.conv_transpose(a, k, (2, 1), "SAME",
                                                       dimension_numbers=NHWC),
                       (IMAGE, rand(3, 2, 4, 6))),
    # movement
    "pad": (lambda x: (lax.pad(x, 1.0, [(1, -2, 2), (-1, 3, 1)]),
                       lax.pad(x, 1.0, [(-4, 0, 2), (0, -9, 1)]), x[::-1, ::2]), (X,)),
    "bitcast": (lambda x: (lax.bitcast_convert_type(x, jnp.uint8), lax.bitcast_convert_type(
        lax.bitcast_convert_type(x, jnp.uint8), jnp.float32), lax.bitcast_convert_type(
            x[0, 0], jnp.int32)), (X,)),
    # contractions
    "einsum": (lambda a, b: jnp.einsum("bhqd,bkhd->bqhk", a, b), (rand(2, 3, 4, 5),
                                                                  rand(2, 6, 3, 5))),
    "dot s8": (lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())),
                                            preferred_element_type=jnp.int32),
               (R.integers(-128, 127, (3, 5)).astype(np.int8),
                R.integers(-128, 127, (5, 2)).astype(np.int8))),
    "dot scalar": (lambda a, b: (a @ b, jnp.outer(a, b)), (rand(4), rand(4))),
    "dot bf16": (lambda a, b: a @ b, (X.astype(jnp.bfloat16), Y.astype(jnp.bfloat16))),
    "empty": (lambda x: (x.sum(0), x.max(0, initial=1.0), x.T @ x, jnp.sort(x)),
              (np.zeros((0, 4), np.float32),)),
    # control
    "scan": (lambda x: lax.scan(lambda c, a: (c + a, c * a), x[0], x), (X,)),
    "fori": (lambda x: lax.fori_loop(0, 5, lambda i, a: a * 0.5 + i, x), (X,)),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x * 2, x), (X,)),
    "switch": (lambda i, x: lax.switch(i, [lambda x: x + 1, lambda x: x * 2], x),
               (np.int32(7), X)),
    # special functions
    "unary": (lambda f: (
        jnp.sign(f), lax.round(f, lax.RoundingMethod(0)), lax.round(f, lax.RoundingMethod(1)),
        lax.rsqrt(f), lax.cbrt(f), lax.erf(f), lax.erfc(f), lax.logistic(f), jnp.tanh(f),
        lax.is_finite(f), jnp.isinf(f), lax.reduce_precision(f, 5, 10),
        lax.reduce_precision(f, 8, 7), jnp.isneginf(f), jnp.isposinf(f)), (F,)),
    "binary": (lambda f, g: (
        lax.max(f, g), lax.min(f, g), lax.rem(f, g), lax.pow(f, g), lax.atan2(f, g),
        lax.nextafter(f, g), lax.clamp(-1.0, f, 1.0), f == g, f < g, f >= g), (F, F[::-1])),
    "special": (lambda p: (
        # digamma(0) is NaN up to JAX 0.10 and -inf from 0.11.
        lax.lgamma(p), lax.digamma(jnp.where(p == 0, 1, p)), lax.erf_inv(p),
        lax.bessel_i1e(p * 100), jnp.sinh(p), jnp.arcsinh(p),
        jnp.arccosh(p), jnp.arctanh(p), jnp.arcsin(p), jnp.tan(p)), (P,)),
    "zeta": (lambda a, b: (lax.zeta(a, b), lax.polygamma(jnp.round(a), b)),
             (np.array([2, 3.5, 1.5, 4], np.float32), np.array([0.5, 3, 20, 1], np.float32))),
    "complex": (lambda x: (jnp.abs(lax.complex(x, x)), jnp.exp(1j * x), jnp.conj(1j * x),
                           (x + 1j) @ (Y - 1j)), (X,)),
    "integer power": (lambda a: (a**3, a ** jnp.array([0, 1, 5, 40])),
                      (np.array([3, -2, 1, 7], np.int32),)),
    # random bits
    "threefry": (lambda k: (jax.random.bits(k, (7, 3)), jax.random.permutation(k, 9),
                            jax.random.split(k)), (KEY,)),
    "normal": (lambda k: jax.random.normal(k, (7,)), (KEY,)),
    "rbg": (lambda k: jax.random.bits(jax.random.wrap_key_data(k, impl="rbg"), (5, 3)),
            (np.arange(4, dtype=np.uint32),)),
    **{f"rng {a} {d} {list(s)}": (bits(s, d, a), (np.array([3, 2**32 - 2, 5, 2**32 - 1],
                                                         np.uint32),))
       for a in ("RNG_DEFAULT", "RNG_THREE_FRY") for d in ("uint32", "uint8")
       for s in ((), (5, 3), (7, 2))},
}


def graph_of(f: Callable[..., Any], *args: Any) -> Graph:
    lowered = jax.jit(f, keep_unused=True).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def check(f: Callable[..., Any], *args: Any, wide: bool = True) -> None:
    """XLA, both modes of the interpreter, and the simplified graph agree."""
    graph = graph_of(f, *args)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(f)(*args))]
    flat = [np.asarray(a) for a in jax.tree.leaves(args)]
    simple = simplify(graph)
    verify(simple)
    results = [evaluate(graph, flat), evaluate(simple, flat)]
    results += [evaluate(graph, flat, accumulate="f64")] if wide else []
    for result in results:
        for a, e in zip(result, expected, strict=True):
            assert a.shape == e.shape
            if e.dtype.kind in "iub":
                np.testing.assert_array_equal(a, e)
                assert a.dtype == e.dtype
                continue
            kind = np.complex128 if e.dtype.kind == "c" else np.float64
            tol = 2e-2 if e.dtype.itemsize == 2 else 2e-5
            np.testing.assert_allclose(a.astype(kind), e.astype(kind), rtol=tol, atol=tol)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_xla(name: str) -> None:
    f, args = PROGRAMS[name]
    check(f, *args)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", ["int32", "int8", "int16", "uint8", "uint32"])
def test_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    minus = -1 if info.min < 0 else info.max
    a = np.array([info.min, info.max, 5, 7, 0, 3, info.min, -7 if info.min < 0 else 9], dtype)
    b = np.array([minus, 0, 3, minus, 0, 40, 0, 2], dtype)
    check(lambda a, b: (
        lax.div(a, b), lax.rem(a, b), lax.shift_left(a, b), lax.shift_right_logical(a, b),
        lax.shift_right_arithmetic(a, b), a * b, a + b, a - b, lax.population_count(a),
        lax.clz(a), lax.sign(a), jnp.abs(a), -a, ~a, a ^ b, a & b, a | b, lax.max(a, b),
        lax.clamp(np.asarray(1, dtype), a, np.asarray(5, dtype))), a, b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "uint32", "int16", "bool",
                                   "float16", "bfloat16"])
def test_convert(dtype: str) -> None:
    # f64 mode keeps 1e20 where f16 overflows: that is what it is for.
    check(lambda f: lax.convert_element_type(f, dtype), F, wide=dtype != "float16")
    check(lambda i: (lax.convert_element_type(i, dtype), lax.convert_element_type(
        lax.convert_element_type(i, dtype), jnp.float32)), ROWS - 3)


def test_convert_64_bits() -> None:
    f = np.concatenate([F.astype(np.float64), [9.3e18, -9.3e18, 1.9e19, 2.0**53 + 1]])
    i = np.array([2**63 - 1, -2**63, 2**24 + 1, -5], np.int64)
    with jax.enable_x64(True):
        for dtype in ("int32", "int64", "uint32", "uint64", "float32"):
            check(lambda f, d=dtype: lax.convert_element_type(f, d), f)
        check(lambda i: (i.astype("float32"), i.astype("bfloat16"), i.astype("uint8"), i // 3),
              i)
        check(bits((5, 3), "uint64", "RNG_DEFAULT"), np.array([3, 2**64 - 2], np.uint64))
        check(bits((5, 3), "uint64", "RNG_THREE_FRY"), np.array([3, 2**64 - 2], np.uint64))

"""JAX programs that between them lower to everything JAX forward code contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.extend.mlir import ir

X = np.random.RandomState(0).rand(4, 8).astype(np.float32)
I3 = np.array([3, 5, 7], np.int32)


def lower(fun: Callable[..., Any], *args: Any) -> ir.Module:
    return jax.jit(fun).lower(*args).compiler_ir("stablehlo")


class Block(nnx.Module):
    """A transformer block."""

    def __init__(self, width: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(
            2, width, dtype=dtype, rngs=rngs, decode=False)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x))
        return x + self.down(jax.nn.gelu(self.up(x), approximate=False))


def block(dtype: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    graph, state = nnx.split(Block(8, dtype, nnx.Rngs(0)))
    return lambda s, x: nnx.merge(graph, s)(x), (state, X[None])


def _scan(x: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        return c * 2 + row + x.sum(), (c, row)

    return lax.scan(body, x[0], x)


def _index(x: Any) -> Any:
    cols = jnp.array([1, 2])
    return (x[jnp.array([0, 1])], jnp.take_along_axis(x, jnp.zeros((4, 1), int), 1),
            jnp.take(x, I3 - 3, axis=0), jnp.take(x, I3 - 3, axis=0, mode="clip"),
            x[::-1, ::2], jax.vmap(lambda a, i: a[i])(x, jnp.arange(4)),
            x.at[1].set(0), x.at[:, cols].add(1), x.at[cols, cols].max(3), x.at[1:3].multiply(2))


def _move(x: Any) -> Any:
    return (jnp.pad(x, ((1, 2), (0, 0))), lax.pad(x, 0.0, ((1, -1, 1), (0, 0, 2))),
            lax.dynamic_slice(x, (x.argmax() // 8, 0), (2, 3)), lax.rev(x, (0,)),
            lax.dynamic_update_slice(x, x[:2], (x.argmin(), 1)), jnp.concatenate([x, x], 1), x.T,
            lax.bitcast_convert_type(x, jnp.int32), lax.bitcast_convert_type(x, jnp.int8),
            lax.reduce_precision(x, 5, 10), lax.clamp(0.0, x, 1.0), jnp.where(x.sum() > 0, x, -x))


def _window(x: Any) -> Any:
    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()

    return lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 2), "SAME"), jax.grad(pool)(x)


def _conv(a: Any, w: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return (lax.conv_general_dilated(a, w, (2, 2), ((1, 1), (0, 2)), (1, 2), (2, 1), numbers),
            lax.conv_general_dilated(a, jnp.ones((3, 3, 1, 4)), (1, 1), "SAME",
                                     feature_group_count=2, dimension_numbers=numbers))


def _matmul(x: Any) -> Any:
    return (jnp.einsum("ij,kj->ik", x, x), jnp.einsum("bij,bjk->bik", x[None], x.T[None]),
            jnp.dot(x, x.T, precision="highest"),
            lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32,
                            precision=lax.DotAlgorithmPreset.BF16_BF16_F32))


def _integers(a: Any) -> Any:
    return (a & a, a | a, a ^ a, ~a, a << a, a >> a, lax.shift_right_logical(a, a), a // a, a % a,
            lax.population_count(a), lax.clz(a), a**3, a.astype(jnp.uint8), a.astype(bool))


_UNARY = (
    lax.abs, lax.acos, lax.acosh, lax.asin, lax.asinh, lax.atan, lax.atanh, lax.bessel_i1e,
    lax.cbrt, lax.ceil, lax.cos, lax.cosh, lax.digamma, lax.erf, lax.erf_inv, lax.erfc, lax.exp,
    lax.expm1, lax.floor, lax.is_finite, lax.lgamma, lax.log, lax.log1p, lax.logistic, lax.neg,
    lax.round, lax.rsqrt, lax.sign, lax.sin, lax.sinh, lax.sqrt, lax.square, lax.tan, lax.tanh)


def _special(x: Any) -> Any:
    return ([f(x) for f in _UNARY], lax.atan2(x, x), lax.nextafter(x, x),
            lax.rem(x, x), lax.zeta(x, x), lax.polygamma(x, x),
            lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST))


def _random(key: Any) -> Any:
    return (jax.random.normal(key, (3,)), jax.random.uniform(key, (2, 2)), jax.random.split(key),
            jax.random.permutation(key, 5), jax.random.categorical(key, jnp.ones(4)))


def _constants() -> Any:
    r = np.random.RandomState(1)
    return (jnp.asarray(r.rand(30, 30), jnp.bfloat16), jnp.asarray(r.rand(3), jnp.bfloat16),
            jnp.asarray(r.rand(3) + 1j, jnp.complex64), jnp.asarray(r.rand(3), jnp.float16),
            jnp.asarray(r.rand(3), jnp.float8_e4m3fn), jnp.asarray(np.arange(3), jnp.int4),
            jnp.asarray([True, False, True]), jnp.asarray(np.zeros((0, 3), np.float32)),
            jnp.full((3,), np.nan, jnp.bfloat16), jnp.full((2, 3), -0.0), jnp.asarray([True] * 2))


@jax.jit
def _twice(x: Any) -> Any:
    return jnp.where(x > 0, x * 2, 1.0)


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    key = jax.random.key(0)
    return {
        "block_f32": block(jnp.float32),
        "block_bf16": block(jnp.bfloat16),
        "attention": (lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True),
                      (np.ones((1, 4, 2, 8), np.float32),)),
        "softmax": (jax.nn.softmax, (X,)),
        "gelu_exact": (lambda x: jax.nn.gelu(x, approximate=False), (X,)),
        "gelu_tanh": (jax.nn.gelu, (X,)),
        "elementwise": (_special, (X,)),
        "integers": (_integers, (I3,)),
        "complex": (lambda z: (lax.conj(z), lax.real(z), lax.imag(z), lax.abs(z),
                               lax.complex(z.real, z.imag), z @ z.T), (X + 1j,)),
        "index": (_index, (X,)),
        "move": (_move, (X,)),
        "order": (lambda x: (jnp.argmax(x, -1), jnp.cumsum(x, 0), jnp.cumprod(x, 1),
                             jnp.argsort(x), lax.sort((x, x * 2), num_keys=2), lax.top_k(x, 2)),
                  (X,)),
        "reduce": (lambda x: (x.sum(), x.max(1), x.min(0), x.prod(), (x > 0).any(), x.var()),
                   (X,)),
        "window": (_window, (X,)),
        "conv": (_conv, (np.ones((2, 8, 8, 2), np.float32), np.ones((3, 3, 2, 4), np.float32))),
        "matmul": (_matmul, (X,)),
        "scan": (_scan, (X,)),
        "while": (lambda x: lax.while_loop(lambda c: c[0] < 3,
                                           lambda c: (c[0] + 1, c[1] * x), (0, x)), (X,)),
        "cond": (lambda x: lax.cond(x.sum() > 0, lambda: x * 2, lambda: jnp.where(x > 1, x, 0)),
                 (X,)),
        "switch": (lambda i, x: lax.switch(i, [lambda: x, lambda: x * 2, lambda: x @ x.T @ x]),
                   (1, X)),
        "remat": (jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
                  (X,)),
        "random": (_random, (key,)),
        "rbg": (lambda k: jax.random.bits(k, (3,)), (jax.random.key(0, impl="rbg"),)),
        "constants": (_constants, ()),
        "calls": (lambda x: _twice(_twice(x)) + _twice(x), (X,)),
        "composite": (lambda x: lax.composite(lambda y: y * 2, name="my.op")(x), (X,)),
        "empty": (lambda x: (x[:0], jnp.zeros((0, 3)) @ jnp.zeros((3, 2)), x[:0].sum(0)), (X,)),
        "unnamed_type": (lambda x: x.astype(jnp.float8_e4m3b11fnuz).astype(jnp.float32), (X,)),
        "unnamed_op": (lambda x: x + lax.rng_uniform(0.0, 1.0, x.shape), (X,)),
        "transforms": (lambda x: (jnp.fft.fft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), (X,)),
        "callback": (lambda x: (jax.debug.print("{}", x, ordered=True), x + 1)[1], (X,)),
        "linalg": (lambda x: (jnp.linalg.cholesky(x @ x.T), jnp.linalg.qr(x)), (X,)),
    }

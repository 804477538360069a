"""A table of programs whose rows each reduce to a few numbers, beside the standard table.

    python -m benchmarks.run --models=row_table

What a kernel's blocks have of them fits the GPU at once or a few times: loads, arithmetic and
stores have little time to hide behind each other. ``batch`` multiplies the number of rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import Function, of_function
from benchmarks.workloads.workload import Workload


def log_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(x, -1)


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, -1)


def masked_softmax(x: jax.Array) -> jax.Array:
    """Attention's, with a causal mask. x: [b, heads, queries, keys]."""
    shape = x.shape[-2:]
    seen = jnp.arange(shape[0])[:, None] >= jnp.arange(shape[1])
    return jax.nn.softmax(jnp.where(seen, x, -jnp.inf), -1)


def cross_entropy_gradient(x: jax.Array) -> jax.Array:
    """Of the mean over rows, whose labels are their numbers. x: [n, classes]."""
    def loss(x: jax.Array) -> jax.Array:
        labels = jnp.arange(x.shape[0]) % x.shape[1]
        of = jax.nn.log_softmax(x.astype(jnp.float32), -1)
        return -jnp.take_along_axis(of, labels[:, None], -1).mean()

    return jax.grad(loss)(x)


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    f = x.astype(jnp.float32)
    mean = f.mean(-1, keepdims=True)
    variance = jnp.square(f - mean).mean(-1, keepdims=True)
    return ((f - mean) * jax.lax.rsqrt(variance + 1e-6) * scale + offset).astype(x.dtype)


def rms_norm(x: jax.Array, residual: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Behind a residual addition, as decoders have it: the sum and its norm."""
    x = x + residual
    f = x.astype(jnp.float32)
    return x, (f * jax.lax.rsqrt(jnp.square(f).mean(-1, keepdims=True) + 1e-6)
               ).astype(x.dtype) * scale


def quantized(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of 8-bit integers, each with a scale."""
    scale = jnp.abs(x).max(-1, keepdims=True).astype(jnp.float32) / 127
    return jnp.round(x / scale).astype(jnp.int8), scale


def unit(x: jax.Array) -> jax.Array:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def log_sum(x: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(x, -1)


def entropy(x: jax.Array) -> jax.Array:
    """Of the distribution of each row's logits."""
    p = jax.nn.log_softmax(x, -1)
    return -(jnp.exp(p) * p).sum(-1)


def projected(p: jax.Array, x: jax.Array) -> jax.Array:
    """Bellemare et al. (2017), section 4: the distributional target of C51. p: [n, atoms] logits;
    x: [n, 2], reward and whether the episode goes on."""
    n = p.shape[-1]
    atoms = jnp.linspace(-10.0, 10.0, n)
    at = jnp.clip(x[:, :1] + 0.99 * (x[:, 1:] > 0) * atoms, -10, 10)
    near = jnp.clip(1 - jnp.abs(at[:, None, :] - atoms[:, None]) / (20 / (n - 1)), 0, 1)
    return (near * jax.nn.softmax(p, -1)[:, None, :]).sum(-1)


def _of(name: str, title: str, fn: Function, *inputs: tuple[int, ...], dtype: str = "f32",
        **weights: tuple[int, ...]) -> Workload:
    def tiny(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(d, most) for d, most in zip(shape, (8, 3, 8, 40)[-len(shape):],
                                                     strict=True))

    return of_function(name, title, fn, inputs, tuple(map(tiny, inputs)), weights,
                       {k: (min(v[0], 40),) for k, v in weights.items()}, table="row_table",
                       dtype=dtype)


WORKLOADS: tuple[Workload, ...] = (
    _of("softmax_4096_1000", "softmax of rows", softmax, (4096, 1000)),
    _of("softmax_8192_2048", "softmax of rows", softmax, (8192, 2048), dtype="bf16"),
    _of("softmax_65536_64", "softmax of short rows", softmax, (65536, 64)),
    _of("masked_softmax_16_12_128", "attention's softmax, causal", masked_softmax,
        (16, 12, 128, 128), dtype="bf16"),
    _of("masked_softmax_4_16_1024", "attention's softmax, causal", masked_softmax,
        (4, 16, 1024, 1024), dtype="bf16"),
    _of("log_softmax_4096_1000", "logarithms of a softmax", log_softmax, (4096, 1000)),
    _of("cross_entropy_gradient_4096_1000", "of classes", cross_entropy_gradient, (4096, 1000)),
    _of("cross_entropy_gradient_2048_32000", "of words", cross_entropy_gradient, (2048, 32000),
        dtype="bf16"),
    _of("layer_norm_8192_768", "a norm of rows", layer_norm, (8192, 768), dtype="bf16",
        scale=(768,), offset=(768,)),
    _of("layer_norm_4096_1024", "a norm of rows", layer_norm, (4096, 1024), scale=(1024,),
        offset=(1024,)),
    _of("layer_norm_50176_96", "a norm of short rows", layer_norm, (50176, 96), dtype="bf16",
        scale=(96,), offset=(96,)),
    _of("layer_norm_12544_192", "a norm of short rows", layer_norm, (12544, 192), dtype="bf16",
        scale=(192,), offset=(192,)),
    _of("rms_norm_8192_4096", "a residual and its norm", rms_norm, (8192, 4096), (8192, 4096),
        dtype="bf16", scale=(4096,)),
    _of("rms_norm_2048_2048", "a residual and its norm", rms_norm, (2048, 2048), (2048, 2048),
        dtype="bf16", scale=(2048,)),
    _of("quantized_4096_1024", "rows of bytes", quantized, (4096, 1024)),
    _of("quantized_8192_4096", "rows of bytes", quantized, (8192, 4096), dtype="bf16"),
    _of("unit_65536_128", "rows of length 1", unit, (65536, 128)),
    _of("log_sum_65536_256", "logarithms of sums", log_sum, (65536, 256)),
    _of("entropy_4096_1000", "entropies of rows", entropy, (4096, 1000)),
    _of("projected_1024_51", "targets of C51", projected, (1024, 51), (1024, 2)),
)

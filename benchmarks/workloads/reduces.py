"""A table of products whose results are reduced, and of reductions, beside the standard table.

    python -m benchmarks.run --models=reduce_table

A bias's gradient in front of a GELU's, a convolution with the batch's statistics, the nearest word
of a codebook, the best of many inner products, the likeliest of a vocabulary; and the largest of
lines as they are. ``batch`` multiplies the rows.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload
from examples.models import micro

_reducing = partial(of_function, table="reduce_table")


def dense_gradient(x: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of z and of its bias, of a layer whose GELU goes into a product by ``w``.

    x: [m, k], the gradient of what the product made; z: [m, n]; w: [n, k].
    """
    wide = z.astype(jnp.float32)
    _, back = jax.vjp(jax.nn.gelu, wide)
    (dz,) = back(jnp.matmul(x, w.T, preferred_element_type=jnp.float32))
    return dz.astype(x.dtype), jnp.sum(dz, axis=0).astype(x.dtype)


def rounded_gradient(x: jax.Array, z: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same, with the sum in f32 of what is rounded."""
    dz, _ = dense_gradient(x, z, w)
    return dz, jnp.sum(dz.astype(jnp.float32), axis=0).astype(x.dtype)


def mlp_gradients(x: jax.Array, back: jax.Array, up: jax.Array, up_bias: jax.Array,
                  down: jax.Array, down_bias: jax.Array) -> tuple[jax.Array, ...]:
    """All gradients of two layers with a GELU between them, in the type of their inputs: sums of
    biases' gradients, too, as Flax's are. Forward, then back.

    x and back, the gradient of what they make: [m, k]; up: [k, n]; down: [n, k].
    """
    def layers(*args: jax.Array) -> jax.Array:
        x, up, up_bias, down, down_bias = args
        return jax.nn.gelu(x @ up + up_bias) @ down + down_bias

    return jax.vjp(layers, x, up, up_bias, down, down_bias)[1](back)


def batch_norm(x: jax.Array, w: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """A convolution, normalised by the batch's own statistics, and a ReLU. x: NHWC; w: HWIO."""
    y = micro.conv(x, w, padding=(w.shape[0] // 2, w.shape[1] // 2))
    wide = y.astype(jnp.float32)
    mean = jnp.mean(wide, axis=(0, 1, 2))
    variance = jnp.mean(wide * wide, axis=(0, 1, 2)) - mean * mean
    y = (wide - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias
    return jax.nn.relu(y).astype(x.dtype)


def codebook(x: jax.Array, words: jax.Array) -> jax.Array:
    """The nearest word of each row. x: [m, k]; words: [n, k]; i32[m]."""
    sizes = jnp.sum(words.astype(jnp.float32) ** 2, axis=1)
    products = jnp.matmul(x, words.T, preferred_element_type=jnp.float32)
    return jnp.argmin(sizes - 2 * products, axis=1)


def best_product(x: jax.Array, words: jax.Array) -> jax.Array:
    """The largest inner product of each row with any word: f32[m]."""
    return jnp.max(jnp.matmul(x, words.T, preferred_element_type=jnp.float32), axis=1)


def likeliest(x: jax.Array, w: jax.Array) -> jax.Array:
    """The token of the largest logit at each place. x: [m, k]; w: [k, n]; i32[m]."""
    return jnp.argmax(jnp.matmul(x, w, preferred_element_type=jnp.float32), axis=-1)


def largest(x: jax.Array, k: int) -> list[jax.Array]:
    """The k largest of each line and their places. x: [m, n]."""
    return jax.lax.top_k(x, k)


def order(x: jax.Array) -> jax.Array:
    """The places of the elements of each line, the least first."""
    return jnp.argsort(x, -1)


def _order(m: int, n: int) -> Workload:
    return _reducing(f"order_{m}_{n}", f"{n} elements in order, {m} lines", order, ((m, n),),
                     ((2, 40),), {}, {}, search=True, dtype="f32")


def _top_k(m: int, n: int, k: int) -> Workload:
    return _reducing(f"top_k_{m}_{n}_{k}", f"the {k} largest of {n}, {m} lines",
                     partial(largest, k=k), ((m, n),), ((4, 64),), {}, {})


def _batch_norm(size: int, inner: int, outer: int, kernel: int) -> Workload:
    return _reducing(
        f"batch_norm_{size}_{inner}_{outer}_k{kernel}",
        f"convolution {kernel}x{kernel}, {inner} to {outer} channels, and the batch's norm",
        batch_norm, ((32, size, size, inner),), ((2, 16, 16, 8),),
        {"w": (kernel, kernel, inner, outer), "scale": (outer,), "bias": (outer,)},
        {"w": (kernel, kernel, 8, 32), "scale": (32,), "bias": (32,)})


WORKLOADS: tuple[Workload, ...] = (
    *(_reducing(f"dense_gradient_{m}_{n}_{k}", f"gradients of a layer, {m}x{n}x{k}", dense_gradient,
                ((m, k), (m, n)), ((256, 16), (256, 32)), {"w": (n, k)}, {"w": (32, 16)})
      for m, n, k in ((512, 3072, 768), (2048, 3072, 768), (8192, 3072, 768))),
    *(_reducing(f"rounded_gradient_{m}_{n}_{k}", f"gradients of a layer in bf16, {m}x{n}x{k}",
                rounded_gradient, ((m, k), (m, n)), ((256, 16), (256, 32)), {"w": (n, k)},
                {"w": (32, 16)}) for m, n, k in ((2048, 3072, 768), (8192, 3072, 768))),
    *(_reducing(f"mlp_gradients_{m}_{n}_{k}", f"all gradients of an MLP, {m}x{n}x{k}",
                mlp_gradients, ((m, k), (m, k)), ((256, 16), (256, 16)),
                {"up": (k, n), "up_bias": (n,), "down": (n, k), "down_bias": (k,)},
                {"up": (16, 64), "up_bias": (64,), "down": (64, 16), "down_bias": (16,)})
      for m, n, k in ((2048, 3072, 768), (8192, 3072, 768))),
    _batch_norm(56, 64, 256, 1), _batch_norm(56, 64, 64, 3), _batch_norm(28, 128, 128, 3),
    _batch_norm(14, 256, 256, 3),
    _reducing("codebook_8192_256", "nearest of 8192 words", codebook, ((8192, 256),), ((256, 16),),
              {"words": (8192, 256)}, {"words": (64, 16)}, search=True),
    _reducing("best_product_65536_128", "best of 65536 inner products", best_product,
              ((1024, 128),), ((256, 16),), {"words": (65536, 128)}, {"words": (64, 16)}),
    _reducing("likeliest_30528_768", "likeliest of 30528 tokens", likeliest, ((2048, 768),),
              ((256, 16),), {"w": (768, 30528)}, {"w": (16, 64)}, search=True),
    _top_k(1, 251285, 10), _top_k(16, 50257, 5), _top_k(1, 1000, 5), _top_k(512, 64, 2),
    _top_k(4096, 64, 6), _top_k(8192, 4096, 16),
    _order(1, 1024), _order(16, 1024), _order(1, 4096), _order(1, 8192),
    _order(1, 16384),
)

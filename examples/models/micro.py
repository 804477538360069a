"""Small graphs: parts of transformers, and the patterns that Bolt measures (its Tables 1 to 3).

Functions of arrays; images are NHWC and kernels HWIO. Statistics of norms and softmax are f32.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

Padding: TypeAlias = tuple[int, int]
"""Zeros on either side: (of the height, of the width)."""


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float = 1e-5) -> jax.Array:
    """LayerNorm over the last axis. x: [..., n]; scale, bias: [n]."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred ** 2, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + eps) * scale + bias).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float = 1e-5) -> jax.Array:
    """RMSNorm over the last axis. x: [..., n]; scale: [n]."""
    wide = x.astype(jnp.float32)
    square = jnp.mean(wide ** 2, axis=-1, keepdims=True)
    return (wide * jax.lax.rsqrt(square + eps) * scale).astype(x.dtype)


def softmax(x: jax.Array) -> jax.Array:
    """Softmax over the last axis."""
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def gelu_chain(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, operation by operation as BERT's first code has it."""
    cube = x * x * x
    inner = (2 / jnp.pi) ** 0.5 * (x + 0.044715 * cube)
    return x * (0.5 * (1.0 + jnp.tanh(inner)))


def bias_activation(x: jax.Array, bias: jax.Array) -> jax.Array:
    """ReLU of x plus a bias. x: [..., n]; bias: [n]."""
    return jax.nn.relu(x + bias)


def mlp(x: jax.Array, up: jax.Array, up_bias: jax.Array, down: jax.Array,
        down_bias: jax.Array) -> jax.Array:
    """A transformer's feed-forward: x [..., n]; up: [n, m]; down: [m, n]; exact GELU."""
    return jax.nn.gelu(x @ up + up_bias, approximate=False) @ down + down_bias


def gemm(x: jax.Array, w: jax.Array) -> jax.Array:
    """[M, K] times [K, N]."""
    return x @ w


def back_to_back_gemm(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    """Two products, each with a ReLU."""
    return jax.nn.relu(jax.nn.relu(x @ w1) @ w2)


def conv(x: jax.Array, w: jax.Array, stride: int = 1, padding: Padding = (0, 0)) -> jax.Array:
    """A convolution. x: [N, H, W, C]; w: [h, w, C, D]."""
    height, width = padding
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), ((height, height), (width, width)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"))


def depthwise(x: jax.Array, w: jax.Array, bias: jax.Array, stride: int = 1) -> jax.Array:
    """A depthwise convolution, "SAME" as PyTorch pads it, with a bias and ReLU6.

    x: [N, H, W, C]; w: [k, k, 1, C], k odd; bias: [C].
    """
    reach = w.shape[0] // 2
    y = jax.lax.conv_general_dilated(
        x, w, (stride, stride), ((reach, reach), (reach, reach)), feature_group_count=x.shape[-1],
        dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.clip(y + bias, 0, 6)


def back_to_back_conv(x: jax.Array, w1: jax.Array, bias1: jax.Array, w2: jax.Array,
                      bias2: jax.Array, stride: int) -> jax.Array:
    """A 3x3 convolution with padding 1, then a 1x1, each with bias and ReLU."""
    y = jax.nn.relu(conv(x, w1, stride, (1, 1)) + bias1)
    return jax.nn.relu(conv(y, w2) + bias2)

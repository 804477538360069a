"""Networks for images of stock flax.linen layers, for the table of such models.

    python -m benchmarks.run --models=stock_table
"""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads.linen import of_module
from benchmarks.workloads.workload import Workload


def _layers(dtype: Any) -> tuple[Any, Any]:
    """A convolution without biases, and the norm behind it, whose statistics are kept."""
    return (partial(nn.Conv, use_bias=False, dtype=dtype),
            partial(nn.BatchNorm, use_running_average=True, dtype=dtype))


class EfficientNet(nn.Module):
    """Tan and Le (2019), B0: inverted bottlenecks with squeeze and excitation."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv, norm = _layers(self.dtype)
        stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                  (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))
        x = nn.swish(norm()(conv(32, (3, 3), (2, 2))(x)))
        for grow, width, layers, stride, size in stages[:3] if self.tiny else stages:
            for layer in range(1 if self.tiny else layers):
                y, wide = x, x.shape[-1] * grow
                if grow > 1:
                    y = nn.swish(norm()(conv(wide, (1, 1))(y)))
                s = stride if layer == 0 else 1
                y = nn.swish(norm()(conv(wide, (size, size), (s, s), feature_group_count=wide)(y)))
                gate = nn.swish(nn.Conv(x.shape[-1] // 4, (1, 1), dtype=self.dtype)(
                    y.mean((1, 2), keepdims=True)))
                y = norm()(conv(width, (1, 1))(
                    y * nn.sigmoid(nn.Conv(wide, (1, 1), dtype=self.dtype)(gate))))
                x = x + y if x.shape == y.shape else y
        x = nn.swish(norm()(conv(1280, (1, 1))(x))).mean((1, 2))
        return nn.Dense(1000, dtype=self.dtype)(x)


class DenseNet(nn.Module):
    """Huang et al. (2017), DenseNet-121: each layer reads what all before it made."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv, norm = _layers(self.dtype)
        x = nn.relu(norm()(conv(64, (7, 7), (2, 2))(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        blocks = (2, 2) if self.tiny else (6, 12, 24, 16)
        for block, layers in enumerate(blocks):
            for _ in range(layers):
                y = conv(128, (1, 1))(nn.relu(norm()(x)))
                y = conv(32, (3, 3))(nn.relu(norm()(y)))
                x = jnp.concatenate([x, y], -1)
            x = nn.relu(norm()(x))
            if block < len(blocks) - 1:
                x = nn.avg_pool(conv(x.shape[-1] // 2, (1, 1))(x), (2, 2), (2, 2))
        return nn.Dense(1000, dtype=self.dtype)(x.mean((1, 2)))


class Swin(nn.Module):
    """Liu et al. (2021), Swin-T: attention in windows that are shifted every other layer."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, depths, heads = (32, (2, 1), 2) if self.tiny else (96, (2, 2, 6, 2), 3)
        norm = partial(nn.LayerNorm, dtype=self.dtype)
        x = norm()(nn.Conv(width, (4, 4), (4, 4), dtype=self.dtype)(x))
        for stage, depth in enumerate(depths):
            for layer in range(depth):
                x = x + Windows(self.dtype, heads << stage, 3 * (layer % 2))(norm()(x))
                y = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=self.dtype)(norm()(x)))
                x = x + nn.Dense(x.shape[-1], dtype=self.dtype)(y)
            if stage < len(depths) - 1:
                b, h, w, c = x.shape
                x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 4, 2, 5)
                x = norm()(x.reshape(b, h // 2, w // 2, 4 * c))
                x = nn.Dense(2 * c, use_bias=False, dtype=self.dtype)(x)
        return nn.Dense(1000, dtype=self.dtype)(norm()(x).mean((1, 2)))


class Windows(nn.Module):
    """Swin's attention within windows of 7 x 7, shifted where there are several."""

    dtype: Any
    heads: int
    shift: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        b, h, w, c = x.shape
        side, heads = 7, self.heads
        shift = 0 if h == side else self.shift
        x = jnp.roll(x, (-shift, -shift), (1, 2)) if shift else x
        x = x.reshape(b, h // side, side, w // side, side, c).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, side * side, c)
        q, k, v = jnp.moveaxis(nn.DenseGeneral((3, heads, c // heads), dtype=self.dtype)(x), 2, 0)
        table = self.param("places", nn.initializers.normal(0.02), ((2 * side - 1) ** 2, heads))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * (c // heads) ** -0.5
        places = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"))
        places = places.reshape(2, -1)
        apart = (places[:, :, None] - places[:, None] + side - 1)
        bias = table[apart[0] * (2 * side - 1) + apart[1]].transpose(2, 0, 1)
        scores = scores + bias.astype(scores.dtype)
        if shift:
            scores = scores.reshape(b, -1, *scores.shape[1:]) + _mask(h, side, shift)
            scores = scores.reshape(-1, *scores.shape[2:])
        y = jnp.einsum("nhqk,nkhd->nqhd", nn.softmax(scores), v).reshape(-1, side * side, c)
        y = nn.Dense(c, dtype=self.dtype)(y)
        y = y.reshape(b, h // side, w // side, side, side, c).transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(b, h, w, c)
        return jnp.roll(y, (shift, shift), (1, 2)) if shift else y


def _mask(size: int, side: int, shift: int) -> jax.Array:
    """[windows, 1, side^2, side^2]: -100 between parts that the shift has brought together."""
    part = np.zeros(size, np.int32)
    part[-side:-shift], part[-shift:] = 1, 2
    image = part[:, None] * 3 + part
    n = size // side
    rows = image.reshape(n, side, n, side).transpose(0, 2, 1, 3).reshape(n * n, side * side)
    return jnp.asarray(np.where(rows[:, None, :] == rows[:, :, None], 0, -100)[:, None],
                       jnp.bfloat16)


class Generator(nn.Module):
    """Radford et al. (2016), DCGAN: transposed convolutions from a vector to an image."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, z: jax.Array) -> jax.Array:
        norm = partial(nn.BatchNorm, use_running_average=True, dtype=self.dtype)
        x = z[:, None, None]
        widths = (32, 16) if self.tiny else (512, 256, 128, 64)
        x = nn.ConvTranspose(widths[0], (4, 4), padding="VALID", dtype=self.dtype)(x)
        for width in widths[1:]:
            x = nn.relu(norm()(x))
            x = nn.ConvTranspose(width, (4, 4), (2, 2), dtype=self.dtype)(x)
        x = nn.ConvTranspose(3, (4, 4), (2, 2), dtype=self.dtype)(nn.relu(norm()(x)))
        return jnp.tanh(x)


class Segmentation(nn.Module):
    """Ronneberger et al. (2015): down, and up again with what was there before beside it."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def twice(x: jax.Array, width: int) -> jax.Array:
            for _ in range(2):
                x = nn.relu(nn.GroupNorm(8, dtype=self.dtype)(
                    nn.Conv(width, (3, 3), dtype=self.dtype)(x)))
            return x

        kept = []
        widths = (16, 32) if self.tiny else (32, 64, 128, 256)
        for width in widths[:-1]:
            kept.append(twice(x, width))
            x = nn.max_pool(kept[-1], (2, 2), (2, 2))
        x = twice(x, widths[-1])
        for width in widths[-2::-1]:
            b, h, w, c = x.shape
            x = jax.image.resize(x, (b, 2 * h, 2 * w, c), "bilinear")
            x = twice(jnp.concatenate([kept.pop(), x], -1), width)
        return nn.Conv(2, (1, 1), dtype=self.dtype)(x)


def images(size: int, small: int, channels: int = 3) -> Any:
    def inputs(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
        side = small if tiny else size
        return (jax.random.normal(key, (batch, side, side, channels)),)
    return inputs


def latents(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (jax.random.normal(key, (batch, 8 if tiny else 100)),)


WORKLOADS: tuple[Workload, ...] = (
    of_module("efficientnet_b0", "EfficientNet-B0", EfficientNet, images(224, 32), (1, 32)),
    of_module("densenet121", "DenseNet-121", DenseNet, images(224, 32), (1, 32)),
    of_module("swin_t", "Swin-T", Swin, images(224, 56), (1, 16)),
    of_module("dcgan", "DCGAN's generator", Generator, latents, (1, 64), "f32"),
    of_module("segmentation", "U-Net for segmentation", Segmentation, images(256, 16), (1, 8)),
)

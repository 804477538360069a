"""GoogLeNet (Inception-v1) as a Flax NNX module, for inference on NHWC images.

Szegedy et al., "Going Deeper with Convolutions" (2014), as torchvision has it: batch norm behind
every convolution, and a 3x3 convolution in the branch that the paper gives a 5x5 one. The auxiliary
classifiers serve training only and are left out, as is dropout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Sizes: TypeAlias = tuple[int, int, int, int, int, int]
"""Channels in an inception block: 1x1; 1x1 before 3x3, 3x3; 1x1 before the second 3x3, that 3x3;
1x1 behind the maximum. A row of Table 1 of the paper."""


@dataclass(frozen=True)
class GoogLeNetConfig:
    """Sizes: channels of the stem's three convolutions, and the inception blocks of each stage; the
    stages are separated by a maximum that halves the image."""

    stem: tuple[int, int, int]
    stages: tuple[tuple[Sizes, ...], ...]
    classes: int = 1000
    image: int = 224
    norm_eps: float = 1e-3
    dtype: DTypeLike = jnp.bfloat16


def googlenet(*, dtype: DTypeLike = jnp.bfloat16) -> GoogLeNetConfig:
    """The network of the paper (5.6M parameters without the auxiliary classifiers)."""
    return GoogLeNetConfig((64, 64, 192), (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        ((192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
         (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128)),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))), dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> GoogLeNetConfig:
    """One small block in each stage, for tests."""
    return GoogLeNetConfig((8, 8, 16), (((8, 8, 12, 4, 8, 4),), ((12, 8, 16, 4, 8, 4),),
                                        ((16, 8, 16, 8, 8, 8),)),
                           classes=10, image=32, dtype=dtype)


class ConvNorm(nnx.Module):
    """Convolution without bias, BatchNorm on its running statistics, ReLU."""

    def __init__(self, n_in: int, n_out: int, kernel: tuple[int, int] = (1, 1), *, stride: int = 1,
                 padding: tuple[int, int] = (0, 0), norm_eps: float, dtype: DTypeLike,
                 rngs: nnx.Rngs) -> None:
        """``kernel``, and ``padding`` on either side: (height, width)."""
        self.conv = nnx.Conv(n_in, n_out, kernel, strides=stride,
                             padding=[(p, p) for p in padding], use_bias=False, dtype=dtype,
                             param_dtype=dtype, kernel_init=nnx.initializers.he_normal(),
                             rngs=rngs)
        self.norm = nnx.BatchNorm(n_out, use_running_average=True, momentum=0.9, epsilon=norm_eps,
                                  dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.norm(self.conv(x)))


class Inception(nnx.Module):
    """Four branches side by side, concatenated along the channels."""

    def __init__(self, config: GoogLeNetConfig, n_in: int, sizes: Sizes, *,
                 rngs: nnx.Rngs) -> None:
        one, reduce3, three, reduce5, five, pooled = sizes
        self.one = conv(config, n_in, one, rngs=rngs)
        self.three = nnx.List([conv(config, n_in, reduce3, rngs=rngs),
                               conv(config, reduce3, three, 3, rngs=rngs)])
        self.five = nnx.List([conv(config, n_in, reduce5, rngs=rngs),
                              conv(config, reduce5, five, 3, rngs=rngs)])
        self.pooled = conv(config, n_in, pooled, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        three = self.three[1](self.three[0](x))
        five = self.five[1](self.five[0](x))
        pooled = self.pooled(nnx.max_pool(x, (3, 3), padding=((1, 1), (1, 1))))
        return jnp.concatenate([self.one(x), three, five, pooled], axis=-1)


class GoogLeNet(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: GoogLeNetConfig, *, rngs: nnx.Rngs) -> None:
        a, b, c = config.stem
        self.stem = nnx.List([conv(config, 3, a, 7, stride=2, rngs=rngs),
                              conv(config, a, b, rngs=rngs), conv(config, b, c, 3, rngs=rngs)])
        n_in, stages = c, []
        for rows in config.stages:
            blocks = []
            for sizes in rows:
                blocks.append(Inception(config, n_in, sizes, rngs=rngs))
                n_in = sizes[0] + sizes[2] + sizes[4] + sizes[5]
            stages.append(nnx.List(blocks))
        self.stages = nnx.List(stages)
        self.out = nnx.Linear(n_in, config.classes, dtype=config.dtype, param_dtype=config.dtype,
                              rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        first, second, third = self.stem
        x = pool(first(images), 3)
        x = pool(third(second(x)), 3)
        for i, stage in enumerate(self.stages):
            if i:
                # torchvision: 3x3, but 2x2 before the last stage.
                x = pool(x, 2 if i == len(self.stages) - 1 else 3)
            for block in stage:
                x = block(x)
        return self.out(jnp.mean(x, axis=(1, 2)))


def conv(config: GoogLeNetConfig, n_in: int, n_out: int, kernel: int = 1, *, stride: int = 1,
         rngs: nnx.Rngs) -> ConvNorm:
    """A square convolution that keeps the image's size, or halves it."""
    half = kernel // 2
    return ConvNorm(n_in, n_out, (kernel, kernel), stride=stride, padding=(half, half),
                    norm_eps=config.norm_eps, dtype=config.dtype, rngs=rngs)


def pool(x: jax.Array, window: int) -> jax.Array:
    """Maximum over windows with stride 2; the last ones may reach over the edge, so that no pixel
    is left out (torch's ``ceil_mode``)."""
    over = [(0, (size - window) % 2) for size in x.shape[1:3]]
    return nnx.max_pool(x, (window, window), strides=(2, 2), padding=over)


def create(config: GoogLeNetConfig, *, seed: int = 0) -> GoogLeNet:
    """A GoogLeNet with random weights; the same seed gives the same weights."""
    return GoogLeNet(config, rngs=nnx.Rngs(seed))

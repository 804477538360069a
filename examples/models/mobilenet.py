"""MobileNetV2 as a Flax NNX module, for inference on NHWC images.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018), as in torchvision.
Dropout before the last layer does nothing at inference and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Stage: TypeAlias = tuple[int, int, int, int]
"""A row of the paper's Table 2: expansion, channels, blocks, stride of the first block."""


@dataclass(frozen=True)
class MobileNetConfig:
    """Sizes: channels of the ``stem``, the ``stages`` and the last 1x1 convolution, ``head``.
    ``image`` is the usual height and width; the network takes others."""

    stages: tuple[Stage, ...]
    stem: int = 32
    head: int = 1280
    classes: int = 1000
    image: int = 224
    norm_eps: float = 1e-5
    dtype: DTypeLike = jnp.bfloat16


def mobilenet_v2(*, dtype: DTypeLike = jnp.bfloat16) -> MobileNetConfig:
    """MobileNetV2 at width 1.0, Table 2 of the paper (3.50M parameters)."""
    return MobileNetConfig(((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
                            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)), dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> MobileNetConfig:
    """Three small blocks, with and without expansion and shortcut, for tests."""
    return MobileNetConfig(((1, 8, 1, 1), (6, 16, 2, 2)), stem=16, head=32, classes=10, image=32,
                           dtype=dtype)


class ConvNorm(nnx.Module):
    """Convolution without bias, symmetric padding, then BatchNorm on its running statistics."""

    def __init__(self, config: MobileNetConfig, n_in: int, n_out: int, kernel: int, *,
                 stride: int = 1, groups: int = 1, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(n_in, n_out, (kernel, kernel), strides=stride, padding=kernel // 2,
                             feature_group_count=groups, use_bias=False, dtype=config.dtype,
                             param_dtype=config.dtype, kernel_init=nnx.initializers.he_normal(),
                             rngs=rngs)
        self.norm = nnx.BatchNorm(n_out, use_running_average=True, momentum=0.9,
                                  epsilon=config.norm_eps, dtype=config.dtype,
                                  param_dtype=config.dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class InvertedResidual(nnx.Module):
    """Wide between narrow ends: a 1x1 convolution to ``expansion`` times the channels, a depthwise
    3x3, and a linear 1x1 to ``n_out``; a shortcut joins the ends where shapes agree."""

    def __init__(self, config: MobileNetConfig, n_in: int, n_out: int, expansion: int,
                 stride: int, *, rngs: nnx.Rngs) -> None:
        wide = n_in * expansion
        self.expand = None if expansion == 1 else ConvNorm(config, n_in, wide, 1, rngs=rngs)
        self.depthwise = ConvNorm(config, wide, wide, 3, stride=stride, groups=wide, rngs=rngs)
        self.project = ConvNorm(config, wide, n_out, 1, rngs=rngs)
        self.shortcut = stride == 1 and n_in == n_out

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x if self.expand is None else jax.nn.relu6(self.expand(x))
        y = self.project(jax.nn.relu6(self.depthwise(y)))
        return x + y if self.shortcut else y


class MobileNet(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: MobileNetConfig, *, rngs: nnx.Rngs) -> None:
        self.stem = ConvNorm(config, 3, config.stem, 3, stride=2, rngs=rngs)
        n_in, blocks = config.stem, []
        for expansion, n_out, count, stride in config.stages:
            for i in range(count):
                blocks.append(InvertedResidual(config, n_in, n_out, expansion,
                                               1 if i else stride, rngs=rngs))
                n_in = n_out
        self.blocks = nnx.List(blocks)
        self.head = ConvNorm(config, n_in, config.head, 1, rngs=rngs)
        self.out = nnx.Linear(config.head, config.classes, dtype=config.dtype,
                              param_dtype=config.dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        x = jax.nn.relu6(self.stem(images))
        for block in self.blocks:
            x = block(x)
        x = jax.nn.relu6(self.head(x))
        return self.out(jnp.mean(x, axis=(1, 2)))


def create(config: MobileNetConfig, *, seed: int = 0) -> MobileNet:
    """A MobileNetV2 with random weights; the same seed gives the same weights."""
    return MobileNet(config, rngs=nnx.Rngs(seed))

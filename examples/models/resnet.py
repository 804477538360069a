"""ResNet as a Flax NNX module, for inference on NHWC images.

He et al., "Deep Residual Learning for Image Recognition" (2015), in the variant that torchvision
has and calls v1.5: a bottleneck that halves the image does so in its 3x3 convolution, not in the
first 1x1.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes: ``blocks`` per stage; stage i has ``width * 2**i`` channels, four times as many at the
    end of a bottleneck. ``image`` is the usual height and width; the network takes others."""

    blocks: tuple[int, ...]
    bottleneck: bool
    width: int = 64
    classes: int = 1000
    image: int = 224
    norm_eps: float = 1e-5
    dtype: DTypeLike = jnp.bfloat16


def resnet18(*, dtype: DTypeLike = jnp.bfloat16) -> ResNetConfig:
    """ResNet-18 (11.7M parameters)."""
    return ResNetConfig((2, 2, 2, 2), bottleneck=False, dtype=dtype)


def resnet50(*, dtype: DTypeLike = jnp.bfloat16) -> ResNetConfig:
    """ResNet-50 (25.6M parameters)."""
    return ResNetConfig((3, 4, 6, 3), bottleneck=True, dtype=dtype)


def tiny(*, bottleneck: bool = False, dtype: DTypeLike = jnp.bfloat16) -> ResNetConfig:
    """Three small blocks, with and without a projection, for tests."""
    return ResNetConfig((2, 1), bottleneck=bottleneck, width=8, classes=10, image=32, dtype=dtype)


class ConvNorm(nnx.Module):
    """Convolution without bias, symmetric padding, then BatchNorm on its running statistics."""

    def __init__(self, config: ResNetConfig, n_in: int, n_out: int, kernel: int, *,
                 stride: int = 1, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(n_in, n_out, (kernel, kernel), strides=stride, padding=kernel // 2,
                             use_bias=False, dtype=config.dtype, param_dtype=config.dtype,
                             kernel_init=nnx.initializers.he_normal(), rngs=rngs)
        self.norm = nnx.BatchNorm(n_out, use_running_average=True, momentum=0.9,
                                  epsilon=config.norm_eps, dtype=config.dtype,
                                  param_dtype=config.dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x))


class Block(nnx.Module):
    """Convolutions with a shortcut around them, which projects where shapes differ."""

    def __init__(self, config: ResNetConfig, n_in: int, width: int, stride: int, *,
                 rngs: nnx.Rngs) -> None:
        n_out = width * expansion(config)
        if config.bottleneck:
            convs = [ConvNorm(config, n_in, width, 1, rngs=rngs),
                     ConvNorm(config, width, width, 3, stride=stride, rngs=rngs),
                     ConvNorm(config, width, n_out, 1, rngs=rngs)]
        else:
            convs = [ConvNorm(config, n_in, width, 3, stride=stride, rngs=rngs),
                     ConvNorm(config, width, n_out, 3, rngs=rngs)]
        self.convs = nnx.List(convs)
        self.projection = None if stride == 1 and n_in == n_out else \
            ConvNorm(config, n_in, n_out, 1, stride=stride, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = x if self.projection is None else self.projection(x)
        for conv in self.convs[:-1]:
            x = jax.nn.relu(conv(x))
        return jax.nn.relu(self.convs[-1](x) + shortcut)


class ResNet(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs) -> None:
        self.stem = ConvNorm(config, 3, config.width, 7, stride=2, rngs=rngs)
        n_in, blocks = config.width, []
        for stage, count in enumerate(config.blocks):
            width = config.width * 2**stage
            for i in range(count):
                stride = 2 if stage and i == 0 else 1
                blocks.append(Block(config, n_in, width, stride, rngs=rngs))
                n_in = width * expansion(config)
        self.blocks = nnx.List(blocks)
        self.out = nnx.Linear(n_in, config.classes, dtype=config.dtype, param_dtype=config.dtype,
                              rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        x = jax.nn.relu(self.stem(images))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x)
        return self.out(jnp.mean(x, axis=(1, 2)))


def create(config: ResNetConfig, *, seed: int = 0) -> ResNet:
    """A ResNet with random weights; the same seed gives the same weights."""
    return ResNet(config, rngs=nnx.Rngs(seed))


def expansion(config: ResNetConfig) -> int:
    """Channels that leave a block, as a multiple of its width."""
    return 4 if config.bottleneck else 1

"""ConvNeXt as a Flax NNX module, for inference on NHWC images.

Liu et al., "A ConvNet for the 2020s" (2022), as in torchvision: the stem's convolution and those
between the stages do not overlap, LayerNorm over the channels of each pixel, exact GELU. Stochastic
depth does nothing at inference and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class ConvNeXtConfig:
    """Sizes: ``blocks`` and channels (``widths``) of each stage. ``scale`` is what every block's
    layer scale starts from. ``image`` is the usual height and width; the network takes others."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    scale: float = 1e-6
    classes: int = 1000
    image: int = 224
    norm_eps: float = 1e-6
    dtype: DTypeLike = jnp.bfloat16


def convnext_tiny(*, dtype: DTypeLike = jnp.bfloat16) -> ConvNeXtConfig:
    """ConvNeXt-T (28.6M parameters)."""
    return ConvNeXtConfig((3, 3, 9, 3), (96, 192, 384, 768), dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> ConvNeXtConfig:
    """Three small blocks in two stages, for tests."""
    return ConvNeXtConfig((2, 1), (8, 16), classes=10, image=32, dtype=dtype)


class Block(nnx.Module):
    """A depthwise 7x7 convolution, LayerNorm and two dense layers over the channels, scaled per
    channel, around a residual."""

    def __init__(self, config: ConvNeXtConfig, width: int, *, rngs: nnx.Rngs) -> None:
        self.depthwise = conv(config, width, width, 7, padding=3, groups=width, rngs=rngs)
        self.norm = layer_norm(config, width, rngs=rngs)
        self.up = linear(config, width, 4 * width, rngs=rngs)
        self.down = linear(config, 4 * width, width, rngs=rngs)
        self.scale = nnx.Param(jnp.full(width, config.scale, config.dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.up(self.norm(self.depthwise(x)))
        return x + self.scale[...] * self.down(jax.nn.gelu(y, approximate=False))


class Downsample(nnx.Module):
    """LayerNorm, then a 2x2 convolution with stride 2."""

    def __init__(self, config: ConvNeXtConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> None:
        self.norm = layer_norm(config, n_in, rngs=rngs)
        self.conv = conv(config, n_in, n_out, 2, stride=2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.conv(self.norm(x))


class ConvNeXt(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: ConvNeXtConfig, *, rngs: nnx.Rngs) -> None:
        widths = config.widths
        self.stem = conv(config, 3, widths[0], 4, stride=4, rngs=rngs)
        self.stem_norm = layer_norm(config, widths[0], rngs=rngs)
        stages = []
        for i, (count, width) in enumerate(zip(config.blocks, widths, strict=True)):
            first = [Downsample(config, widths[i - 1], width, rngs=rngs)] if i else []
            stages.append(nnx.List([*first, *(Block(config, width, rngs=rngs)
                                              for _ in range(count))]))
        self.stages = nnx.List(stages)
        self.norm = layer_norm(config, widths[-1], rngs=rngs)
        self.out = linear(config, widths[-1], config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        x = self.stem_norm(self.stem(images))
        for stage in self.stages:
            for layer in stage:
                x = layer(x)
        return self.out(self.norm(jnp.mean(x, axis=(1, 2))))


def conv(config: ConvNeXtConfig, n_in: int, n_out: int, kernel: int, *, stride: int = 1,
         padding: int = 0, groups: int = 1, rngs: nnx.Rngs) -> nnx.Conv:
    """A square convolution with bias and symmetric padding."""
    return nnx.Conv(n_in, n_out, (kernel, kernel), strides=stride, padding=padding,
                    feature_group_count=groups, dtype=config.dtype, param_dtype=config.dtype,
                    kernel_init=nnx.initializers.truncated_normal(0.02), rngs=rngs)


def linear(config: ConvNeXtConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer in the configured dtype."""
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.truncated_normal(0.02), rngs=rngs)


def layer_norm(config: ConvNeXtConfig, size: int, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the last axis."""
    return nnx.LayerNorm(size, epsilon=config.norm_eps, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)


def create(config: ConvNeXtConfig, *, seed: int = 0) -> ConvNeXt:
    """A ConvNeXt with random weights; the same seed gives the same weights."""
    return ConvNeXt(config, rngs=nnx.Rngs(seed))

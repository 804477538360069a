"""VGG as a Flax NNX module, for inference on NHWC images.

Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2014),
without batch norm. Dropout between the dense layers does nothing at inference and is left out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class VggConfig:
    """Sizes: the output channels of each stage's 3x3 convolutions (a stage ends in a 2x2 maximum),
    of the two dense layers, and ``image``, the height and width, which the dense layers fix."""

    stages: tuple[tuple[int, ...], ...]
    hidden: int = 4096
    classes: int = 1000
    image: int = 224
    dtype: DTypeLike = jnp.bfloat16


def vgg16(*, dtype: DTypeLike = jnp.bfloat16) -> VggConfig:
    """VGG-16, configuration D of the paper (138M parameters)."""
    return VggConfig(((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3), dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> VggConfig:
    """Three small convolutions in two stages, for tests."""
    return VggConfig(((8,), (16, 16)), hidden=32, classes=10, image=16, dtype=dtype)


class Vgg(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: VggConfig, *, rngs: nnx.Rngs) -> None:
        n_in, stages = 3, []
        for widths in config.stages:
            convs = []
            for n_out in widths:
                convs.append(nnx.Conv(n_in, n_out, (3, 3), padding=1, dtype=config.dtype,
                                      param_dtype=config.dtype,
                                      kernel_init=nnx.initializers.he_normal(), rngs=rngs))
                n_in = n_out
            stages.append(nnx.List(convs))
        self.stages = nnx.List(stages)
        left = config.image // 2 ** len(config.stages)
        sizes = (left * left * n_in, config.hidden, config.hidden, config.classes)
        self.dense = nnx.List([
            nnx.Linear(a, b, dtype=config.dtype, param_dtype=config.dtype,
                       kernel_init=nnx.initializers.he_normal(), rngs=rngs)
            for a, b in itertools.pairwise(sizes)])

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, image, image, 3], normalised; returns logits [B, classes]."""
        x = images
        for stage in self.stages:
            for conv in stage:
                x = jax.nn.relu(conv(x))
            x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape(x.shape[0], -1)
        for layer in self.dense[:-1]:
            x = jax.nn.relu(layer(x))
        return self.dense[-1](x)


def create(config: VggConfig, *, seed: int = 0) -> Vgg:
    """A VGG with random weights; the same seed gives the same weights."""
    return Vgg(config, rngs=nnx.Rngs(seed))

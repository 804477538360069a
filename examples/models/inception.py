"""Inception-v3 as a Flax NNX module, for inference on NHWC images.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2015), as torchvision
has it. The auxiliary classifier serves training only and is left out, as is dropout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models.googlenet import ConvNorm


@dataclass(frozen=True)
class InceptionConfig:
    """Sizes: which blocks there are, by torchvision's letters.

    Attributes:
      a: channels behind the average, of each block A (35x35). c: channels between the 7x1 and 1x7
        convolutions, of each block C (17x17). e: number of blocks E (8x8). One block B stands
        between A and C, one D between C and E.
      divisor: of all channel counts, ``a`` and ``c`` included.
      image: the usual height and width; the network takes others, down to 75.
    """

    a: tuple[int, ...] = (32, 64, 64)
    c: tuple[int, ...] = (128, 160, 160, 192)
    e: int = 2
    divisor: int = 1
    classes: int = 1000
    image: int = 299
    norm_eps: float = 1e-3
    dtype: DTypeLike = jnp.bfloat16


def inception_v3(*, dtype: DTypeLike = jnp.bfloat16) -> InceptionConfig:
    """The network of the paper (23.8M parameters without the auxiliary classifier)."""
    return InceptionConfig(dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> InceptionConfig:
    """One narrow block of each kind, at the smallest image that leaves a pixel, for tests."""
    return InceptionConfig(a=(32,), c=(128,), e=1, divisor=8, classes=10, image=75, dtype=dtype)


class Convs:
    """Makes the convolutions; channels are those of the undivided network."""

    def __init__(self, config: InceptionConfig, rngs: nnx.Rngs) -> None:
        self.config, self.rngs = config, rngs

    def __call__(self, n_in: int, n_out: int, height: int = 1, width: int = 1, *, stride: int = 1,
                 valid: bool = False) -> ConvNorm:
        """``valid``: no padding; otherwise as much as keeps the image's size at stride 1."""
        divisor = self.config.divisor
        # The image's three channels are the only ones that are not divided.
        return ConvNorm(n_in // divisor if n_in > 3 else n_in, n_out // divisor, (height, width),
                        stride=stride, padding=(0, 0) if valid else (height // 2, width // 2),
                        norm_eps=self.config.norm_eps, dtype=self.config.dtype, rngs=self.rngs)


class BlockA(nnx.Module):
    """Branches 1x1, 5x5, two 3x3, average."""

    def __init__(self, conv: Convs, n_in: int, pooled: int) -> None:
        self.one = conv(n_in, 64)
        self.five = nnx.List([conv(n_in, 48), conv(48, 64, 5, 5)])
        self.double = nnx.List([conv(n_in, 64), conv(64, 96, 3, 3), conv(96, 96, 3, 3)])
        self.pooled = conv(n_in, pooled)

    def __call__(self, x: jax.Array) -> jax.Array:
        return join(self.one(x), chain(self.five, x), chain(self.double, x),
                    self.pooled(average(x)))


class BlockB(nnx.Module):
    """Halves the image: branches 3x3, two 3x3, maximum."""

    def __init__(self, conv: Convs, n_in: int) -> None:
        self.three = conv(n_in, 384, 3, 3, stride=2, valid=True)
        self.double = nnx.List([conv(n_in, 64), conv(64, 96, 3, 3),
                                conv(96, 96, 3, 3, stride=2, valid=True)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return join(self.three(x), chain(self.double, x), halved(x))


class BlockC(nnx.Module):
    """Branches 1x1, 7x7 in two steps, 7x7 twice in four steps, average."""

    def __init__(self, conv: Convs, n_in: int, between: int) -> None:
        c = between
        self.one = conv(n_in, 192)
        self.seven = nnx.List([conv(n_in, c), conv(c, c, 1, 7), conv(c, 192, 7, 1)])
        self.double = nnx.List([conv(n_in, c), conv(c, c, 7, 1), conv(c, c, 1, 7),
                                conv(c, c, 7, 1), conv(c, 192, 1, 7)])
        self.pooled = conv(n_in, 192)

    def __call__(self, x: jax.Array) -> jax.Array:
        return join(self.one(x), chain(self.seven, x), chain(self.double, x),
                    self.pooled(average(x)))


class BlockD(nnx.Module):
    """Halves the image: branches 3x3, 7x7 and 3x3, maximum."""

    def __init__(self, conv: Convs, n_in: int) -> None:
        self.three = nnx.List([conv(n_in, 192), conv(192, 320, 3, 3, stride=2, valid=True)])
        self.seven = nnx.List([conv(n_in, 192), conv(192, 192, 1, 7), conv(192, 192, 7, 1),
                               conv(192, 192, 3, 3, stride=2, valid=True)])

    def __call__(self, x: jax.Array) -> jax.Array:
        return join(chain(self.three, x), chain(self.seven, x), halved(x))


class BlockE(nnx.Module):
    """Branches 1x1, 3x3 and two 3x3 whose last steps fan out to 1x3 and 3x1, average."""

    def __init__(self, conv: Convs, n_in: int) -> None:
        self.one = conv(n_in, 320)
        self.three = conv(n_in, 384)
        self.three_fan = nnx.List([conv(384, 384, 1, 3), conv(384, 384, 3, 1)])
        self.double = nnx.List([conv(n_in, 448), conv(448, 384, 3, 3)])
        self.double_fan = nnx.List([conv(384, 384, 1, 3), conv(384, 384, 3, 1)])
        self.pooled = conv(n_in, 192)

    def __call__(self, x: jax.Array) -> jax.Array:
        three, double = self.three(x), chain(self.double, x)
        return join(self.one(x), *(conv(three) for conv in self.three_fan),
                    *(conv(double) for conv in self.double_fan), self.pooled(average(x)))


class Inception(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: InceptionConfig, *, rngs: nnx.Rngs) -> None:
        conv = Convs(config, rngs)
        self.stem = nnx.List([conv(3, 32, 3, 3, stride=2, valid=True),
                              conv(32, 32, 3, 3, valid=True), conv(32, 64, 3, 3)])
        self.stem2 = nnx.List([conv(64, 80), conv(80, 192, 3, 3, valid=True)])
        n_in, blocks = 192, []
        for pooled in config.a:
            blocks.append(BlockA(conv, n_in, pooled))
            n_in = 224 + pooled
        blocks.append(BlockB(conv, n_in))
        n_in += 480
        for between in config.c:
            blocks.append(BlockC(conv, n_in, between))
            n_in = 768
        blocks.append(BlockD(conv, n_in))
        n_in += 512
        for _ in range(config.e):
            blocks.append(BlockE(conv, n_in))
            n_in = 2048
        self.blocks = nnx.List(blocks)
        self.out = nnx.Linear(n_in // config.divisor, config.classes, dtype=config.dtype,
                              param_dtype=config.dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised, H and W at least 75; returns logits [B, classes]."""
        x = halved(chain(self.stem, images))
        x = halved(chain(self.stem2, x))
        for block in self.blocks:
            x = block(x)
        return self.out(jnp.mean(x, axis=(1, 2)))


def chain(convs: Iterable[ConvNorm], x: jax.Array) -> jax.Array:
    """One after the other."""
    for conv in convs:
        x = conv(x)
    return x


def join(*branches: jax.Array) -> jax.Array:
    """Side by side along the channels."""
    return jnp.concatenate(branches, axis=-1)


def average(x: jax.Array) -> jax.Array:
    """Mean over 3x3 windows; zeros beyond the edge count."""
    return nnx.avg_pool(x, (3, 3), padding=((1, 1), (1, 1)))


def halved(x: jax.Array) -> jax.Array:
    """Maximum over 3x3 windows with stride 2, none over the edge."""
    return nnx.max_pool(x, (3, 3), strides=(2, 2))


def create(config: InceptionConfig, *, seed: int = 0) -> Inception:
    """An Inception-v3 with random weights; the same seed gives the same weights."""
    return Inception(config, rngs=nnx.Rngs(seed))

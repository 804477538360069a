"""RepVGG and RepVGGAug in deploy form as Flax NNX modules, for inference on NHWC images.

Ding et al., "RepVGG: Making VGG-style ConvNets Great Again" (2021): trained with three branches a
block (3x3, 1x1, identity, each with batch norm), deployed as one 3x3 convolution with bias, which
`fuse` makes of them.

RepVGGAug: Xing et al., "Bolt: Bridging the Gap between Auto-tuners and Hardware-native Performance"
(2022), section 4.3, "Deepening the model with 1x1 Conv2Ds": behind each 3x3 convolution but the
last one a 1x1 convolution, as many channels out as in, stride 1, no padding; each has its own bias
and activation (Table 2). With 1x1 kernels RepVGGAug-A0 has 8.87M parameters; the 13.35M of Bolt's
Table 5 would need 3x3 kernels there (8.31M + 9 x 0.56M), against its text and its Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Activation = Literal["relu", "gelu", "hard_swish", "softplus"]
"""Names in `jax.nn`: those of Bolt's Table 4."""


@dataclass(frozen=True)
class RepVggConfig:
    """Sizes: blocks and channels of each stage behind the stem, which has as many channels as the
    first (64 at most); ``augmented`` adds Bolt's 1x1 convolutions."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    augmented: bool = False
    activation: Activation = "relu"
    classes: int = 1000
    image: int = 224
    dtype: DTypeLike = jnp.bfloat16


def repvgg_a0(*, dtype: DTypeLike = jnp.bfloat16) -> RepVggConfig:
    """RepVGG-A0: widths 64, 128, 256, 512 times 0.75, 0.75, 0.75, 2.5 (8.31M parameters)."""
    return RepVggConfig((2, 4, 14, 1), (48, 96, 192, 1280), dtype=dtype)


def repvggaug_a0(*, activation: Activation = "relu",
                 dtype: DTypeLike = jnp.bfloat16) -> RepVggConfig:
    """RepVGGAug-A0 as in Bolt's Table 5; with "hard_swish", as in its Table 6."""
    return RepVggConfig((2, 4, 14, 1), (48, 96, 192, 1280), augmented=True, activation=activation,
                        dtype=dtype)


def tiny(*, augmented: bool = False, dtype: DTypeLike = jnp.bfloat16) -> RepVggConfig:
    """Three small blocks, for tests."""
    return RepVggConfig((2, 1), (8, 24), augmented=augmented, classes=10, image=16, dtype=dtype)


class Block(nnx.Module):
    """A 3x3 convolution with bias and activation; augmented, a 1x1 one behind it."""

    def __init__(self, config: RepVggConfig, n_in: int, n_out: int, stride: int, *,
                 augmented: bool, rngs: nnx.Rngs) -> None:
        self.activation = config.activation

        def conv(n_in: int, kernel: int, stride: int) -> nnx.Conv:
            return nnx.Conv(n_in, n_out, (kernel, kernel), strides=stride, padding=kernel // 2,
                            dtype=config.dtype, param_dtype=config.dtype,
                            kernel_init=nnx.initializers.he_normal(), rngs=rngs)

        self.square = conv(n_in, 3, stride)
        self.point = conv(n_out, 1, 1) if augmented else None

    def __call__(self, x: jax.Array) -> jax.Array:
        activation = getattr(jax.nn, self.activation)
        x = activation(self.square(x))
        return x if self.point is None else activation(self.point(x))


class RepVgg(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: RepVggConfig, *, rngs: nnx.Rngs) -> None:
        plan = [(min(64, config.widths[0]), 2)]  # the stem
        for count, width in zip(config.blocks, config.widths, strict=True):
            plan += [(width, 2 if i == 0 else 1) for i in range(count)]
        blocks, n_in = [], 3
        for i, (n_out, stride) in enumerate(plan):
            augmented = config.augmented and i < len(plan) - 1
            blocks.append(Block(config, n_in, n_out, stride, augmented=augmented, rngs=rngs))
            n_in = n_out
        self.blocks = nnx.List(blocks)
        self.out = nnx.Linear(n_in, config.classes, dtype=config.dtype, param_dtype=config.dtype,
                              rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        x = images
        for block in self.blocks:
            x = block(x)
        return self.out(jnp.mean(x, axis=(1, 2)))


@dataclass(frozen=True)
class Norm:
    """A batch norm's values, [C] each."""

    scale: jax.Array
    bias: jax.Array
    mean: jax.Array
    var: jax.Array
    eps: float = 1e-5

    def slope(self) -> jax.Array:
        """What one unit of input adds to the output, [C]."""
        return self.scale * jax.lax.rsqrt(self.var + self.eps)


@dataclass(frozen=True)
class TrainingBlock:
    """A block's weights while it is trained: activation(norm(3x3) + norm(1x1) + norm(x)).

    ``square``: [3, 3, N, C]; ``point``: [1, 1, N, C]; ``identity`` only where N = C and stride 1.
    """

    square: jax.Array
    square_norm: Norm
    point: jax.Array
    point_norm: Norm
    identity_norm: Norm | None = None


def fuse(block: TrainingBlock) -> tuple[jax.Array, jax.Array]:
    """The kernel [3, 3, N, C] and bias [C] of the one convolution that computes all branches.

    Section 3.3 of the RepVGG paper: each batch norm is a scale and a shift per channel, a 1x1
    kernel and the identity are 3x3 kernels that are zero around their centre.

    Raises:
      ValueError: the block has an identity, and its input has other channels than its output.
    """
    branches = [(block.square, block.square_norm), (_widened(block.point), block.point_norm)]
    if block.identity_norm is not None:
        n_in, n_out = block.square.shape[2:]
        if n_in != n_out:
            raise ValueError(f"identity_norm: a block of {n_in} channels to {n_out} has no "
                             "identity branch; leave it None")
        eye = jnp.eye(n_in, dtype=block.square.dtype)[None, None]
        branches.append((_widened(eye), block.identity_norm))
    kernel = sum((k * n.slope() for k, n in branches), jnp.zeros_like(block.square))
    bias = sum((n.bias - n.mean * n.slope() for _, n in branches),
               jnp.zeros_like(block.square_norm.bias))
    return kernel, bias


def create(config: RepVggConfig, *, seed: int = 0) -> RepVgg:
    """A RepVGG with random weights; the same seed gives the same weights."""
    return RepVgg(config, rngs=nnx.Rngs(seed))


def _widened(kernel: jax.Array) -> jax.Array:
    return jnp.pad(kernel, ((1, 1), (1, 1), (0, 0), (0, 0)))

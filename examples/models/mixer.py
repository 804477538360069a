"""MLP-Mixer as a Flax NNX module, for inference on NHWC images.

Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision" (2021): dense layers over the
patches of each channel, then over the channels of each patch; LayerNorm before both, GELU. With 196
patches the rows of the first are no multiples of 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class MixerConfig:
    """Sizes: ``hidden`` channels of a patch, ``tokens`` and ``channels`` of the dense layers over
    patches and over channels. The network takes images of ``image`` x ``image`` only."""

    layers: int
    hidden: int
    tokens: int
    channels: int
    patch: int = 16
    image: int = 224
    classes: int = 1000
    norm_eps: float = 1e-6
    dtype: DTypeLike = jnp.bfloat16

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2


def b16(*, dtype: DTypeLike = jnp.bfloat16) -> MixerConfig:
    """Mixer-B/16 (59.9M parameters)."""
    return MixerConfig(12, 768, 384, 3072, dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> MixerConfig:
    """Two small layers of 9 patches, for tests."""
    return MixerConfig(2, 24, 16, 40, patch=4, image=12, classes=10, dtype=dtype)


class Mlp(nnx.Module):
    """Two dense layers over the last axis, GELU between them."""

    def __init__(self, config: MixerConfig, size: int, inner: int, *, rngs: nnx.Rngs) -> None:
        self.up = linear(config, size, inner, rngs=rngs)
        self.down = linear(config, inner, size, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x)))


class Layer(nnx.Module):
    """Patches are mixed, then channels, each around a residual."""

    def __init__(self, config: MixerConfig, *, rngs: nnx.Rngs) -> None:
        self.token_norm = layer_norm(config, rngs=rngs)
        self.tokens = Mlp(config, config.patches, config.tokens, rngs=rngs)
        self.channel_norm = layer_norm(config, rngs=rngs)
        self.channels = Mlp(config, config.hidden, config.channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [B, patches, hidden]."""
        x = x + self.tokens(self.token_norm(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.channels(self.channel_norm(x))


class Mixer(nnx.Module):
    """Images to the logits of the classes."""

    def __init__(self, config: MixerConfig, *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, config.hidden, (config.patch, config.patch), strides=config.patch,
                             padding="VALID", dtype=config.dtype, param_dtype=config.dtype,
                             rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = layer_norm(config, rngs=rngs)
        self.out = linear(config, config.hidden, config.classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """images: [B, H, W, 3], normalised; returns logits [B, classes]."""
        x = self.stem(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


def linear(config: MixerConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer in the configured dtype."""
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype, rngs=rngs)


def layer_norm(config: MixerConfig, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the channels."""
    return nnx.LayerNorm(config.hidden, epsilon=config.norm_eps, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)


def create(config: MixerConfig, *, seed: int = 0) -> Mixer:
    """A Mixer with random weights; the same seed gives the same weights."""
    return Mixer(config, rngs=nnx.Rngs(seed))

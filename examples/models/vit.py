"""The Vision Transformer as a Flax NNX module: an image to the logits of its class.

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2021): patches by a convolution whose stride is
its window, a class token, learned positions, pre-LayerNorm encoder, exact GELU.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import encoder


@dataclass(frozen=True, kw_only=True)
class ViTConfig(encoder.EncoderConfig):
    """Sizes; ``image`` (height and width) must be a multiple of ``patch``."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    layer_norm_eps: float = 1e-12
    image: int = 224
    patch: int = 16
    classes: int = 1000


def b16(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> ViTConfig:
    """ViT-B/16 (86.6M parameters) at 224 x 224, 1000 classes."""
    return ViTConfig(dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> ViTConfig:
    """Two small layers over 16 patches, for tests."""
    return ViTConfig(hidden=64, layers=2, heads=4, intermediate=128, image=32, patch=8, classes=10,
                     dtype=dtype, attention=attention)


class Patches(nnx.Module):
    """An image as a sequence: a class token and the patches, with their positions."""

    def __init__(self, config: encoder.EncoderConfig, image: int, patch: int, *, bias: bool,
                 rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, config.hidden, (patch, patch), (patch, patch), padding="VALID",
                                use_bias=bias, dtype=config.dtype, param_dtype=config.dtype,
                                rngs=rngs)
        self.token = encoder.weight(config, (config.hidden,), rngs=rngs)
        self.positions = encoder.weight(config, ((image // patch) ** 2 + 1, config.hidden),
                                        rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: [B, height, width, 3]; returns [B, 1 + patches, H], row by row."""
        x = self.patches(image)
        batch, hidden = x.shape[0], x.shape[-1]
        token = jnp.broadcast_to(self.token[...], (batch, 1, hidden))
        return jnp.concatenate([token, x.reshape(batch, -1, hidden)], axis=1) + self.positions[...]


class ViT(nnx.Module):
    """Image to logits."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Patches(config, config.image, config.patch, bias=True, rngs=rngs)
        self.layers = encoder.layers(config, rngs=rngs)
        self.norm = encoder.layer_norm(config, rngs=rngs)
        self.head = encoder.linear(config, config.hidden, config.classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: [B, height, width, 3], normalised; returns logits [B, classes]."""
        x = self.embeddings(image)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def create(config: ViTConfig, *, seed: int = 0) -> ViT:
    """A ViT with random weights; the same seed gives the same weights."""
    return ViT(config, rngs=nnx.Rngs(seed))

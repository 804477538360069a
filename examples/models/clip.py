"""CLIP as Flax NNX modules: an image tower, a text tower, and how alike the two find each pair.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (2021): two
pre-LayerNorm encoders with quick GELU, each with a projection into one space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import encoder
from examples.models.vit import Patches

_LOGIT_SCALE = 2.6592
"""ln(1 / 0.07): the temperature that training starts from."""


@dataclass(frozen=True, kw_only=True)
class ImageConfig(encoder.EncoderConfig):
    """Sizes of the image tower; ``image`` must be a multiple of ``patch``."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    layer_norm_eps: float = 1e-5
    activation: Callable[[jax.Array], jax.Array] = encoder.quick_gelu
    image: int = 224
    patch: int = 32
    projection: int = 512


@dataclass(frozen=True, kw_only=True)
class TextConfig(encoder.EncoderConfig):
    """Sizes of the text tower; the highest id of the vocabulary ends a text."""

    hidden: int = 512
    layers: int = 12
    heads: int = 8
    intermediate: int = 2048
    layer_norm_eps: float = 1e-5
    activation: Callable[[jax.Array], jax.Array] = encoder.quick_gelu
    vocabulary: int = 49408
    positions: int = 77
    projection: int = 512


@dataclass(frozen=True)
class ClipConfig:
    """Both towers; their projections and dtypes must be equal."""

    image: ImageConfig
    text: TextConfig


def b32(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> ClipConfig:
    """CLIP ViT-B/32 (151M parameters)."""
    return ClipConfig(ImageConfig(dtype=dtype, attention=attention),
                      TextConfig(dtype=dtype, attention=attention))


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> ClipConfig:
    """Two small layers in each tower, for tests."""
    return ClipConfig(
        ImageConfig(hidden=64, layers=2, heads=4, intermediate=128, image=32, patch=8,
                    projection=32, dtype=dtype, attention=attention),
        TextConfig(hidden=32, layers=2, heads=2, intermediate=64, vocabulary=128, positions=24,
                   projection=32, dtype=dtype, attention=attention))


class ImageTower(nnx.Module):
    """Image to its embedding, not normalised."""

    def __init__(self, config: ImageConfig, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Patches(config, config.image, config.patch, bias=False, rngs=rngs)
        self.first_norm = encoder.layer_norm(config, rngs=rngs)
        self.layers = encoder.layers(config, rngs=rngs)
        self.norm = encoder.layer_norm(config, rngs=rngs)
        self.projection = encoder.linear(config, config.hidden, config.projection, bias=False,
                                         rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: [B, height, width, 3], normalised; returns [B, projection]."""
        x = self.first_norm(self.embeddings(image))
        for layer in self.layers:
            x = layer(x)
        return self.projection(self.norm(x[:, 0]))


class TextTower(nnx.Module):
    """Text to its embedding, not normalised."""

    def __init__(self, config: TextConfig, *, rngs: nnx.Rngs) -> None:
        self.words = encoder.table(config, config.vocabulary, rngs=rngs)
        self.positions = encoder.table(config, config.positions, rngs=rngs)
        self.layers = encoder.layers(config, rngs=rngs)
        self.norm = encoder.layer_norm(config, rngs=rngs)
        self.projection = encoder.linear(config, config.hidden, config.projection, bias=False,
                                         rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """ids: i32[B, S], each row with the end of text (the highest id); returns [B, projection].

        The state at the first end of text is the result. What follows is padding, which it does not
        see, so that there is no mask for it.
        """
        batch, length = ids.shape
        place = jnp.arange(length)
        x = self.words(ids) + self.positions(place)
        for layer in self.layers:
            x = layer(x, place[:, None] >= place)
        return self.projection(self.norm(x[jnp.arange(batch), jnp.argmax(ids, axis=-1)]))


class Similarity(NamedTuple):
    """Normalised embeddings, [images, projection] and [texts, projection], and the scaled cosines
    of all pairs, [images, texts]."""

    images: jax.Array
    texts: jax.Array
    logits: jax.Array


class Clip(nnx.Module):
    """Both towers."""

    def __init__(self, config: ClipConfig, *, rngs: nnx.Rngs) -> None:
        self.image = ImageTower(config.image, rngs=rngs)
        self.text = TextTower(config.text, rngs=rngs)
        self.logit_scale = nnx.Param(jnp.asarray(_LOGIT_SCALE, config.text.dtype))

    def __call__(self, image: jax.Array, ids: jax.Array) -> Similarity:
        """image: [images, height, width, 3]; ids: i32[texts, S]; see the towers."""
        images, texts = normalised(self.image(image)), normalised(self.text(ids))
        return Similarity(images, texts, jnp.exp(self.logit_scale[...]) * images @ texts.T)


def normalised(x: jax.Array) -> jax.Array:
    """Rows of length 1."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def create(config: ClipConfig, *, seed: int = 0) -> Clip:
    """A CLIP with random weights; the same seed gives the same weights."""
    return Clip(config, rngs=nnx.Rngs(seed))

"""An encoder for speech recognition as a Flax NNX module: log-mel features to hidden states.

The Speech-Transformer in the form and size of Karita et al., "A Comparative Study on Transformer vs
RNN in Speech Applications" (2019): two convolutions of stride 2 over time and frequency, sinusoidal
positions, twelve pre-LayerNorm layers with ReLU. FusionStitching, which measures "ASR" at batch 8,
does not name its network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import encoder


@dataclass(frozen=True, kw_only=True)
class AsrConfig(encoder.EncoderConfig):
    """Sizes; ``mels`` features come in per frame of audio, one state goes out for four frames."""

    hidden: int = 256
    layers: int = 12
    heads: int = 4
    intermediate: int = 2048
    layer_norm_eps: float = 1e-12
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    mels: int = 80


def base(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> AsrConfig:
    """The encoder of the paper (17.6M parameters)."""
    return AsrConfig(dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> AsrConfig:
    """Two small layers, for tests."""
    return AsrConfig(hidden=32, layers=2, heads=2, intermediate=64, mels=12, dtype=dtype,
                     attention=attention)


class Subsampling(nnx.Module):
    """Every fourth frame, of what two convolutions see around it."""

    def __init__(self, config: AsrConfig, *, rngs: nnx.Rngs) -> None:
        def conv(n_in: int) -> nnx.Conv:
            return nnx.Conv(n_in, config.hidden, (3, 3), (2, 2), padding="VALID",
                            dtype=config.dtype, param_dtype=config.dtype,
                            kernel_init=nnx.initializers.he_normal(), rngs=rngs)

        self.first = conv(1)
        self.second = conv(config.hidden)
        rows = shorter(config.mels) * config.hidden
        self.out = nnx.Linear(rows, config.hidden, dtype=config.dtype, param_dtype=config.dtype,
                              rngs=rngs)

    def __call__(self, mels: jax.Array) -> jax.Array:
        """mels: [B, T, mels]; returns [B, shorter(T), H]."""
        x = jax.nn.relu(self.second(jax.nn.relu(self.first(mels[..., None]))))
        return self.out(x.reshape(*x.shape[:2], -1))


class AsrEncoder(nnx.Module):
    """Features to hidden states."""

    def __init__(self, config: AsrConfig, *, rngs: nnx.Rngs) -> None:
        self.subsampling = Subsampling(config, rngs=rngs)
        self.layers = encoder.layers(config, rngs=rngs)
        self.norm = encoder.layer_norm(config, rngs=rngs)

    def __call__(self, mels: jax.Array) -> jax.Array:
        """mels: [B, T, mels], normalised; returns [B, shorter(T), H]."""
        x = self.subsampling(mels)
        x = x * x.shape[-1] ** 0.5 + sinusoids(*x.shape[1:]).astype(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def shorter(length: int) -> int:
    """What two windows of 3 with stride 2 leave of a length, without padding."""
    return ((length - 1) // 2 - 1) // 2


def sinusoids(length: int, size: int) -> jax.Array:
    """f32[length, size]: sines of falling frequency in even columns, cosines in odd ones."""
    angles = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(0, size, 2) / size)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, size)


def create(config: AsrConfig, *, seed: int = 0) -> AsrEncoder:
    """An encoder with random weights; the same seed gives the same weights."""
    return AsrEncoder(config, rngs=nnx.Rngs(seed))

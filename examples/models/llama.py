"""Llama 3 as a Flax NNX module: forward pass (prefill) and decoding step with a cache.

Grattafiori et al., "The Llama 3 Herd of Models" (2024), and the 3.2 release with its tied output
weights: RMSNorm before each block, rotary positions with stretched low frequencies, grouped-query
attention, SwiGLU feed-forward, no biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from examples.models import cache as caches
from examples.models.attention import attend
from examples.models.cache import Cache, Pair
from examples.models.cache import functional as functional

Angles = tuple[jax.Array, jax.Array]
"""Sine and cosine, each f32[Q, 1, head size / 2]."""


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of a model trained on ``original`` positions are stretched to more.

    Wavelengths above ``original / low`` grow by ``factor``, those below ``original / high`` stay,
    the ones between are interpolated.
    """

    factor: float = 32.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a decoder; ``heads`` must be a multiple of ``key_heads``.

    ``attention`` is the implementation in `examples.models.attention.attend`.
    """

    vocabulary: int = 128256
    hidden: int = 2048
    layers: int = 16
    heads: int = 32
    key_heads: int = 8
    head_size: int = 64
    intermediate: int = 8192
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = RopeScaling()
    norm_eps: float = 1e-5
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


def llama_3_2_1b(*, layers: int = 16, dtype: DTypeLike = jnp.bfloat16,
                 attention: str | None = None) -> LlamaConfig:
    """Llama-3.2-1B: 2.47 GB of weights in bf16."""
    return LlamaConfig(layers=layers, dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> LlamaConfig:
    """Two small layers, for tests; four query heads share a key head, and of the frequencies some
    are stretched, some interpolated, some left."""
    return LlamaConfig(vocabulary=128, hidden=64, layers=2, heads=8, key_heads=2, head_size=16,
                       intermediate=128, rope_theta=1000.0,
                       rope_scaling=RopeScaling(factor=8.0, original=64), dtype=dtype,
                       attention=attention)


class Attention(nnx.Module):
    """Causal grouped-query attention of new tokens over the past and themselves."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        size = config.head_size
        self.size = size
        self.implementation = config.attention
        self.query = _linear(config, config.hidden, config.heads * size, rngs=rngs)
        self.key = _linear(config, config.hidden, config.key_heads * size, rngs=rngs)
        self.value = _linear(config, config.hidden, config.key_heads * size, rngs=rngs)
        self.out = _linear(config, config.heads * size, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        """x: [B, Q, hidden], from ``position`` on; returns as much, and the extended past."""
        batch, length, _ = x.shape

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(batch, length, -1, self.size)

        query = rotate(split(self.query(x)), angles)
        keys, values = caches.extend(past, rotate(split(self.key(x)), angles),
                                     split(self.value(x)), position)
        y = attend(query, keys, values, scale=self.size**-0.5,
                   mask=caches.visible(position, length, keys.shape[1]),
                   implementation=self.implementation)
        return self.out(y.reshape(batch, length, -1)), (keys, values)


class Layer(nnx.Module):
    """Attention and feed-forward, each behind an RMSNorm and around a residual."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = _norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.norm = _norm(config, rngs=rngs)
        self.gate = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.up = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = _linear(config, config.intermediate, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        y, pair = self.attention(self.attention_norm(x), angles, position, past)
        x = x + y
        y = self.norm(x)
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y)), pair


class Llama(nnx.Module):
    """Token ids to the logits of the next tokens."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.words = nnx.Embed(config.vocabulary, config.hidden, dtype=config.dtype,
                               param_dtype=config.dtype, rngs=rngs,
                               embedding_init=nnx.initializers.normal(0.02))
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _norm(config, rngs=rngs)

    def states(self, ids: jax.Array, position: jax.Array | int = 0, cache: Cache | None = None,
               ) -> tuple[jax.Array, Cache]:
        """Hidden states [B, Q, hidden] of ids i32[B, Q], and the cache with them.

        The ids are at ``position`` and after it; without a cache they are the whole text.
        """
        x = self.words(ids)
        turns = rotary_angles(position + jnp.arange(ids.shape[1]), self.config)
        extended: Cache = []
        for layer, past in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x, pair = layer(x, turns, position, past)
            extended.append(pair)
        return self.norm(x), extended

    def forward(self, ids: jax.Array) -> jax.Array:
        """Logits [B, S, vocabulary] of ids i32[B, S], without a cache."""
        return self.words.attend(self.states(ids)[0])

    def prefill(self, ids: jax.Array) -> tuple[jax.Array, Cache]:
        """Logits [B, vocabulary] of the token after ids i32[B, S], and a cache of S positions."""
        x, cache = self.states(ids)
        return self.words.attend(x[:, -1]), cache

    def __call__(self, token: jax.Array, position: jax.Array, cache: Cache,
                 ) -> tuple[jax.Array, Cache]:
        """One step. token: i32[B]; position: i32[]. Returns logits [B, vocabulary], cache."""
        x, cache = self.states(token[:, None], position, cache)
        return self.words.attend(x[:, 0]), cache


def rotary_frequencies(config: LlamaConfig) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Radians per position of each pair, f32[head size / 2]."""
    size = config.head_size
    plain = config.rope_theta ** (-np.arange(0, size, 2) / size)
    scaling = config.rope_scaling
    if scaling is None:
        return plain.astype(np.float32)
    # How often a wave fits into the original length: few times is stretched, many times is left.
    waves = scaling.original * plain / (2 * math.pi)
    left = np.clip((waves - scaling.low) / (scaling.high - scaling.low), 0, 1)
    return (plain * (left + (1 - left) / scaling.factor)).astype(np.float32)


def rotary_angles(positions: jax.Array, config: LlamaConfig) -> Angles:
    """Sine and cosine for positions i32[Q], each f32[Q, 1, head size / 2]."""
    angles = positions[:, None, None] * jnp.asarray(rotary_frequencies(config))
    return jnp.sin(angles), jnp.cos(angles)


def rotate(x: jax.Array, angles: Angles) -> jax.Array:
    """Rotates each head, element i with element i + D / 2; x: [B, Q, heads, D].

    In f32, the result in x's type.
    """
    sine, cosine = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine],
                           axis=-1).astype(x.dtype)


def empty_cache(config: LlamaConfig, *, batch: int, length: int) -> Cache:
    """A cache of zeros for ``length`` positions."""
    return caches.empty(layers=config.layers, batch=batch, length=length, heads=config.key_heads,
                        head_size=config.head_size, dtype=config.dtype)


def create(config: LlamaConfig, *, seed: int = 0) -> Llama:
    """A Llama with random weights; the same seed gives the same weights."""
    return Llama(config, rngs=nnx.Rngs(seed))


def _linear(config: LlamaConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(n_in, n_out, use_bias=False, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def _norm(config: LlamaConfig, *, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """RMSNorm over the last axis; Flax takes the statistics in f32 whatever the dtype."""
    return nnx.RMSNorm(config.hidden, epsilon=config.norm_eps, dtype=config.dtype,
                       param_dtype=config.dtype, rngs=rngs)

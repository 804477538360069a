"""GPT-J as a Flax NNX module: forward pass and decoding step with a cache.

Wang and Komatsuzaki, "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model" (2021):
attention and feed-forward side by side behind one LayerNorm, rotary positions on neighbouring pairs
of the first part of each head, GELU in its tanh form, output weights of their own with a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""Sine and cosine, each f32[Q, 1, rotary / 2]."""


@dataclass(frozen=True)
class GptjConfig:
    """Sizes of a decoder; ``hidden`` must be a multiple of ``heads``.

    ``rotary`` is how much of each head is rotated. ``attention`` is the implementation in
    `examples.models.attention.attend`.
    """

    vocabulary: int = 50400
    hidden: int = 4096
    layers: int = 28
    heads: int = 16
    intermediate: int = 16384
    rotary: int = 64
    layer_norm_eps: float = 1e-5
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


def gptj_6b(*, layers: int = 28, dtype: DTypeLike = jnp.bfloat16,
            attention: str | None = None) -> GptjConfig:
    """GPT-J 6B: 12.1 GB of weights in bf16."""
    return GptjConfig(layers=layers, dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> GptjConfig:
    """Two small layers, for tests; half of each head is rotated."""
    return GptjConfig(vocabulary=128, hidden=64, layers=2, heads=4, intermediate=128, rotary=8,
                      dtype=dtype, attention=attention)


class Attention(nnx.Module):
    """Causal multi-head attention of new tokens over the past and themselves."""

    def __init__(self, config: GptjConfig, *, rngs: nnx.Rngs) -> None:
        def project() -> nnx.Linear:
            return _linear(config, config.hidden, config.hidden, bias=False, rngs=rngs)

        self.heads = config.heads
        self.implementation = config.attention
        self.query, self.key, self.value, self.out = (project() for _ in range(4))

    def __call__(self, x: jax.Array, angles: Angles, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        """x: [B, Q, hidden], from ``position`` on; returns as much, and the extended past."""
        batch, length, hidden = x.shape

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(batch, length, self.heads, hidden // self.heads)

        query = rotate(split(self.query(x)), angles)
        keys, values = caches.extend(past, rotate(split(self.key(x)), angles),
                                     split(self.value(x)), position)
        y = attend(query, keys, values, scale=query.shape[-1] ** -0.5,
                   mask=caches.visible(position, length, keys.shape[1]),
                   implementation=self.implementation)
        return self.out(y.reshape(batch, length, hidden)), (keys, values)


class Layer(nnx.Module):
    """Attention and feed-forward on the same normalised input, both added to the residual."""

    def __init__(self, config: GptjConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = _layer_norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.up = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = _linear(config, config.intermediate, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        normed = self.norm(x)
        y, pair = self.attention(normed, angles, position, past)
        return x + y + self.down(jax.nn.gelu(self.up(normed), approximate=True)), pair


class Gptj(nnx.Module):
    """Token ids to the logits of the next tokens."""

    def __init__(self, config: GptjConfig, *, rngs: nnx.Rngs) -> None:
        self.rotary = config.rotary
        self.words = nnx.Embed(config.vocabulary, config.hidden, dtype=config.dtype,
                               param_dtype=config.dtype, rngs=rngs,
                               embedding_init=nnx.initializers.normal(0.02))
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _layer_norm(config, rngs=rngs)
        self.head = _linear(config, config.hidden, config.vocabulary, rngs=rngs)

    def states(self, ids: jax.Array, position: jax.Array | int = 0, cache: Cache | None = None,
               ) -> tuple[jax.Array, Cache]:
        """Hidden states [B, Q, hidden] of ids i32[B, Q], and the cache with them.

        The ids are at ``position`` and after it; without a cache they are the whole text.
        """
        x = self.words(ids)
        turns = rotary_angles(position + jnp.arange(ids.shape[1]), self.rotary)
        extended: Cache = []
        for layer, past in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x, pair = layer(x, turns, position, past)
            extended.append(pair)
        return self.norm(x), extended

    def forward(self, ids: jax.Array) -> jax.Array:
        """Logits [B, S, vocabulary] of ids i32[B, S], without a cache."""
        return self.head(self.states(ids)[0])

    def __call__(self, token: jax.Array, position: jax.Array, cache: Cache,
                 ) -> tuple[jax.Array, Cache]:
        """One step. token: i32[B]; position: i32[]. Returns logits [B, vocabulary], cache."""
        x, cache = self.states(token[:, None], position, cache)
        return self.head(x[:, 0]), cache


def rotary_angles(positions: jax.Array, size: int) -> Angles:
    """Sine and cosine of positions i32[Q] times ``size / 2`` frequencies, f32[Q, 1, size / 2]."""
    frequencies = (10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = positions[:, None, None] * jnp.asarray(frequencies)
    return jnp.sin(angles), jnp.cos(angles)


def rotate(x: jax.Array, angles: Angles) -> jax.Array:
    """Rotates the first elements of each head, taken as pairs of neighbours; x: [B, Q, heads, D].

    In f32, the result in x's type.
    """
    sine, cosine = angles
    size = 2 * sine.shape[-1]
    pairs = x[..., :size].astype(jnp.float32).reshape(*x.shape[:-1], size // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cosine - odd * sine, odd * cosine + even * sine], axis=-1)
    return jnp.concatenate([turned.reshape(*x.shape[:-1], size).astype(x.dtype), x[..., size:]],
                           axis=-1)


def empty_cache(config: GptjConfig, *, batch: int, length: int) -> Cache:
    """A cache of zeros for ``length`` positions."""
    return caches.empty(layers=config.layers, batch=batch, length=length, heads=config.heads,
                        head_size=config.hidden // config.heads, dtype=config.dtype)


def create(config: GptjConfig, *, seed: int = 0) -> Gptj:
    """A GPT-J with random weights, made one by one in the configured dtype."""
    return Gptj(config, rngs=nnx.Rngs(seed))


def _linear(config: GptjConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs,
            bias: bool = True) -> nnx.Linear:
    return nnx.Linear(n_in, n_out, use_bias=bias, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def _layer_norm(config: GptjConfig, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.hidden, epsilon=config.layer_norm_eps, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)

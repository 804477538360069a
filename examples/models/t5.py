"""T5 as Flax NNX modules: an encoder, and a decoder's step with a cache.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020), the original (1.0) form: ReLU feed-forward, RMSNorm before each block, no biases, attention
without scaling, one table of relative position biases for all layers of a stack, output weights
tied to the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from examples.models.attention import attend

Pairs: TypeAlias = list[tuple[jax.Array, jax.Array]]
"""One ``(keys, values)`` pair per layer, each [B, T, heads, head size]."""


@dataclass(frozen=True)
class T5Config:
    """Sizes of an encoder and of a decoder; ``heads * head_size`` need not be ``hidden``."""

    vocabulary: int = 32128
    hidden: int = 512
    layers: int = 6
    heads: int = 8
    head_size: int = 64
    intermediate: int = 2048
    buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


def small(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> T5Config:
    """T5-small (60M parameters)."""
    return T5Config(dtype=dtype, attention=attention)


def base(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> T5Config:
    """T5-base (220M parameters)."""
    return T5Config(hidden=768, layers=12, heads=12, intermediate=3072, dtype=dtype,
                    attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> T5Config:
    """Two small layers, for tests; the heads together are wider than the hidden states."""
    return T5Config(vocabulary=128, hidden=48, layers=2, heads=4, head_size=16, intermediate=128,
                    buckets=8, max_distance=16, dtype=dtype, attention=attention)


class RelativeBias(nnx.Module):
    """A bias on the attention scores per head and bucket of distance, shared by all layers."""

    def __init__(self, config: T5Config, *, bidirectional: bool, rngs: nnx.Rngs) -> None:
        self.bidirectional = bidirectional
        self.max_distance = config.max_distance
        self.table = nnx.Embed(config.buckets, config.heads, dtype=config.dtype,
                               param_dtype=config.dtype, rngs=rngs,
                               embedding_init=nnx.initializers.normal(config.hidden**-0.5))

    def __call__(self, length: int) -> jax.Array:
        """The bias of every position on every other, [1, heads, length, length]."""
        positions = np.arange(length)
        return self._lookup(self._buckets(positions[None, :] - positions[:, None]))

    def row(self, position: jax.Array, length: int) -> jax.Array:
        """The bias of ``position`` (i32[]) on those up to it, [1, heads, 1, length]."""
        by_distance = self._buckets(-np.arange(length))
        distance = jnp.maximum(position - jnp.arange(length), 0)
        return self._lookup(jnp.asarray(by_distance)[distance][None])

    def _lookup(self, buckets: jax.Array | np.ndarray[Any, Any]) -> jax.Array:
        return self.table(jnp.asarray(buckets)).transpose(2, 0, 1)[None]

    def _buckets(self, relative: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return relative_buckets(relative, bidirectional=self.bidirectional,
                                buckets=self.table.num_embeddings, max_distance=self.max_distance)


def relative_buckets(relative: np.ndarray[Any, Any], *, bidirectional: bool, buckets: int,
                     max_distance: int) -> np.ndarray[Any, Any]:
    """The bucket (i32) of ``relative``, a key's position less the query's.

    Half of the buckets are single distances, the others grow by a constant factor up to
    ``max_distance``. Taken on the host, since a logarithm that is one ulp off would put a distance
    at a boundary into another bucket.
    """
    first = np.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        first = np.where(relative > 0, buckets, 0)
        distance = np.abs(relative)
    else:
        distance = np.maximum(-relative, 0)
    exact = buckets // 2
    steps = (buckets - exact) * np.log(np.maximum(distance, 1) / exact) / math.log(
        max_distance / exact)
    far = np.minimum(exact + (steps + 1e-9).astype(np.int64), buckets - 1)
    return (first + np.where(distance < exact, distance, far)).astype(np.int32)


class Attention(nnx.Module):
    """Multi-head attention to keys and values that are made apart, so that they can be kept."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        inner = config.heads * config.head_size
        self.heads = config.heads
        self.implementation = config.attention
        self.query = _linear(config, config.hidden, inner, rngs=rngs,
                             deviation=(config.hidden * config.head_size) ** -0.5)
        self.key = _linear(config, config.hidden, inner, rngs=rngs)
        self.value = _linear(config, config.hidden, inner, rngs=rngs)
        self.out = _linear(config, inner, config.hidden, rngs=rngs)

    def keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x: [B, S, hidden]; keys and values, each [B, S, heads, head size]."""
        return self._split(self.key(x)), self._split(self.value(x))

    def __call__(self, x: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array,
                 bias: jax.Array | None = None) -> jax.Array:
        """x: [B, Q, hidden]; mask and bias: broadcastable to [B, heads, Q, S]."""
        y = attend(self._split(self.query(x)), keys, values, scale=1.0, mask=mask, bias=bias,
                   implementation=self.implementation)
        return self.out(y.reshape(*y.shape[:2], -1))

    def _split(self, y: jax.Array) -> jax.Array:
        return y.reshape(*y.shape[:2], self.heads, -1)


class FeedForward(nnx.Module):
    """Two dense layers with a ReLU between them, behind a norm and around a residual."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.norm = _norm(config, rngs=rngs)
        self.up = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = _linear(config, config.intermediate, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(jax.nn.relu(self.up(self.norm(x))))


class EncoderLayer(nnx.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.norm = _norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, bias: jax.Array) -> jax.Array:
        y = self.norm(x)
        return self.feed_forward(x + self.attention(y, *self.attention.keys_values(y), mask, bias))


class Encoder(nnx.Module):
    """Token ids to hidden states."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.words = _words(config, rngs=rngs)
        self.bias = RelativeBias(config, bidirectional=True, rngs=rngs)
        self.layers = nnx.List([EncoderLayer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _norm(config, rngs=rngs)

    def __call__(self, ids: jax.Array, mask: jax.Array) -> jax.Array:
        """ids: i32[B, S]; mask: [B, S], non-zero for real tokens; returns [B, S, hidden]."""
        x, bias = self.words(ids), self.bias(ids.shape[1])
        for layer in self.layers:
            x = layer(x, mask.astype(bool)[:, None, None, :], bias)
        return self.norm(x)


class DecoderLayer(nnx.Module):
    """Self-attention over the cache, attention to the encoder, feed-forward."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.norm = _norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.cross_norm = _norm(config, rngs=rngs)
        self.cross_attention = Attention(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array, position: jax.Array, own: tuple[jax.Array, jax.Array],
                 cross: tuple[jax.Array, jax.Array], mask: jax.Array, bias: jax.Array,
                 ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """x: [B, 1, hidden]; returns it and the pair ``own`` with this position written."""
        y = self.norm(x)
        key, value = self.attention.keys_values(y)
        keys = jax.lax.dynamic_update_slice(own[0], key, (0, position, 0, 0))
        values = jax.lax.dynamic_update_slice(own[1], value, (0, position, 0, 0))
        visible = jnp.arange(keys.shape[1]) <= position
        x = x + self.attention(y, keys, values, visible[None, None, None, :], bias)
        x = x + self.cross_attention(self.cross_norm(x), *cross, mask)
        return self.feed_forward(x), (keys, values)


class Decoder(nnx.Module):
    """One decoding step: a token at a position to the logits of the next token."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs, words: nnx.Embed | None = None) -> None:
        self.words = _words(config, rngs=rngs) if words is None else words
        self.bias = RelativeBias(config, bidirectional=False, rngs=rngs)
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _norm(config, rngs=rngs)

    def cross(self, states: jax.Array) -> Pairs:
        """The encoder's states [B, S, hidden] as keys and values of each layer, made once."""
        return [layer.cross_attention.keys_values(states) for layer in self.layers]

    def __call__(self, token: jax.Array, position: jax.Array, cache: Pairs, cross: Pairs,
                 mask: jax.Array) -> tuple[jax.Array, Pairs]:
        """Logits [B, vocabulary] and the new cache.

        Args:
          token: i32[B]. position: i32[], below the cache's length.
          cache: keys and values of the positions before this one.
          cross: of `Decoder.cross`. mask: [B, S], non-zero for the encoder's real tokens.
        """
        x = self.words(token)[:, None]
        bias = self.bias.row(position, cache[0][0].shape[1])
        updated: Pairs = []
        for layer, own, other in zip(self.layers, cache, cross, strict=True):
            x, pair = layer(x, position, own, other, mask.astype(bool)[:, None, None, :], bias)
            updated.append(pair)
        # The embedding's deviation is 1; the tied output weights need that of a dense layer.
        x = self.norm(x[:, 0]) * x.shape[-1] ** -0.5
        return self.words.attend(x), updated


class T5(nnx.Module):
    """Encoder and decoder with one embedding."""

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.decoder = Decoder(config, rngs=rngs, words=self.encoder.words)


def functional(decoder: Decoder) -> tuple[Callable[..., tuple[jax.Array, Pairs]],
                                          nnx.State[Any, Any]]:
    """``step(state, cache, token, position, cross, mask) -> (logits, cache)``, and the state.

    Donate ``cache`` (argument 1) to have it updated in place.
    """
    graphdef, state = nnx.split(decoder)

    def decode_step(state: nnx.State[Any, Any], cache: Pairs, token: jax.Array,
                    position: jax.Array, cross: Pairs, mask: jax.Array,
                    ) -> tuple[jax.Array, Pairs]:
        return nnx.merge(graphdef, state)(token, position, cache, cross, mask)

    return decode_step, state


def empty_cache(config: T5Config, *, batch: int, length: int) -> Pairs:
    """A cache of zeros for ``length`` positions."""
    shape = (batch, length, config.heads, config.head_size)
    return [(jnp.zeros(shape, config.dtype), jnp.zeros(shape, config.dtype))
            for _ in range(config.layers)]


def create(config: T5Config, *, seed: int = 0) -> T5:
    """A T5 with random weights; the same seed gives the same weights."""
    return T5(config, rngs=nnx.Rngs(seed))


def _words(config: T5Config, *, rngs: nnx.Rngs) -> nnx.Embed:
    return nnx.Embed(config.vocabulary, config.hidden, dtype=config.dtype,
                     param_dtype=config.dtype, embedding_init=nnx.initializers.normal(1.0),
                     rngs=rngs)


def _linear(config: T5Config, n_in: int, n_out: int, *, rngs: nnx.Rngs,
            deviation: float | None = None) -> nnx.Linear:
    return nnx.Linear(n_in, n_out, use_bias=False, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(deviation or n_in**-0.5), rngs=rngs)


def _norm(config: T5Config, *, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """RMSNorm over the last axis; Flax takes the statistics in f32 whatever the dtype."""
    return nnx.RMSNorm(config.hidden, epsilon=config.norm_eps, dtype=config.dtype,
                       param_dtype=config.dtype, rngs=rngs)

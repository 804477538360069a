"""OPT as a Flax NNX module: one decoding step with a cache of keys and values, and the forward
pass over a few tokens without one.

Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (2022): pre-LayerNorm decoder,
ReLU feed-forward, learned positions that start at row 2, output weights tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import cache as caches
from examples.models.attention import attend
from examples.models.cache import Cache
from examples.models.cache import functional as functional

_POSITION_OFFSET = 2


@dataclass(frozen=True)
class OptConfig:
    """Sizes of a decoder; ``hidden`` must be a multiple of ``heads``.

    ``attention`` is the implementation in `examples.models.attention.attend`; None in a decoding
    step is einsums of its own, without an axis of one query.
    """

    vocabulary: int = 50272
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 2048
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


def opt_125m(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> OptConfig:
    """OPT-125M."""
    return OptConfig(dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> OptConfig:
    """Two small layers, for tests."""
    return OptConfig(vocabulary=128, hidden=64, layers=2, heads=4, intermediate=128, positions=64,
                     dtype=dtype, attention=attention)


class CachedAttention(nnx.Module):
    """Attention of one new token over everything in the cache up to its position.

    `forward` is that of all tokens over those up to themselves, without a cache.
    """

    def __init__(self, config: OptConfig, *, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.implementation = config.attention
        self.query = _linear(config, config.hidden, config.hidden, rngs=rngs)
        self.key = _linear(config, config.hidden, config.hidden, rngs=rngs)
        self.value = _linear(config, config.hidden, config.hidden, rngs=rngs)
        self.out = _linear(config, config.hidden, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, keys: jax.Array, values: jax.Array, position: jax.Array,
                 ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """x: [B, H]; keys, values: [B, T, heads, head size]; position: i32[] below T."""
        batch, hidden = x.shape
        size = hidden // self.heads

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(batch, self.heads, size)

        query = split(self.query(x))
        start = (0, position, 0, 0)
        keys = jax.lax.dynamic_update_slice(keys, split(self.key(x))[:, None], start)
        values = jax.lax.dynamic_update_slice(values, split(self.value(x))[:, None], start)
        if self.implementation is not None:
            y = attend(query[:, None], keys, values, scale=size**-0.5,
                       mask=(jnp.arange(keys.shape[1]) <= position)[None, None, None],
                       implementation=self.implementation)
            return self.out(y.reshape(batch, hidden)), (keys, values)
        scores = jnp.einsum("bhd,bthd->bht", query, keys, preferred_element_type=jnp.float32)
        visible = jnp.arange(keys.shape[1]) <= position
        scores = jnp.where(visible, scores * size**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        y = jnp.einsum("bht,bthd->bhd", weights, values)
        return self.out(y.reshape(batch, hidden)), (keys, values)

    def forward(self, x: jax.Array) -> jax.Array:
        """x: [B, S, H]; returns as much."""
        batch, length, hidden = x.shape
        query, key, value = (y.reshape(batch, length, self.heads, hidden // self.heads)
                             for y in (self.query(x), self.key(x), self.value(x)))
        y = attend(query, key, value, scale=query.shape[-1] ** -0.5,
                   mask=jnp.tril(jnp.ones((1, 1, length, length), bool)),
                   implementation=self.implementation)
        return self.out(y.reshape(batch, length, hidden))


class DecoderLayer(nnx.Module):
    """Attention and feed-forward, each behind a LayerNorm and around a residual."""

    def __init__(self, config: OptConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = _layer_norm(config, rngs=rngs)
        self.attention = CachedAttention(config, rngs=rngs)
        self.norm = _layer_norm(config, rngs=rngs)
        self.up = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = _linear(config, config.intermediate, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, keys: jax.Array, values: jax.Array, position: jax.Array,
                 ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        y, updated = self.attention(self.attention_norm(x), keys, values, position)
        return self._feed_forward(x + y), updated

    def forward(self, x: jax.Array) -> jax.Array:
        """x: [B, S, H], without a cache."""
        return self._feed_forward(x + self.attention.forward(self.attention_norm(x)))

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        return x + self.down(jax.nn.relu(self.up(self.norm(x))))


class Opt(nnx.Module):
    """One decoding step: a token at a position to the logits of the next token.

    `forward` takes a whole text without a cache.
    """

    def __init__(self, config: OptConfig, *, rngs: nnx.Rngs) -> None:
        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, config.hidden, dtype=config.dtype, param_dtype=config.dtype,
                             embedding_init=nnx.initializers.normal(0.02), rngs=rngs)

        self.words = table(config.vocabulary)
        self.positions = table(config.positions + _POSITION_OFFSET)
        self.layers = nnx.List([DecoderLayer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _layer_norm(config, rngs=rngs)

    def __call__(self, token: jax.Array, position: jax.Array, cache: Cache,
                 ) -> tuple[jax.Array, Cache]:
        """token: i32[B]; position: i32[]. Returns logits [B, vocabulary] and the new cache."""
        x = self.words(token) + self.positions(position + _POSITION_OFFSET)
        updated: Cache = []
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            x, pair = layer(x, keys, values, position)
            updated.append(pair)
        return self.words.attend(self.norm(x)), updated

    def forward(self, ids: jax.Array) -> jax.Array:
        """Logits [B, S, vocabulary] of ids i32[B, S], without a cache."""
        x = self.words(ids) + self.positions(jnp.arange(ids.shape[1]) + _POSITION_OFFSET)
        for layer in self.layers:
            x = layer.forward(x)
        return self.words.attend(self.norm(x))


def empty_cache(config: OptConfig, *, batch: int, length: int) -> Cache:
    """A cache of zeros for ``length`` positions."""
    return caches.empty(layers=config.layers, batch=batch, length=length, heads=config.heads,
                        head_size=config.hidden // config.heads, dtype=config.dtype)


def create(config: OptConfig, *, seed: int = 0) -> Opt:
    """An OPT with random weights; the same seed gives the same weights."""
    return Opt(config, rngs=nnx.Rngs(seed))


def _linear(config: OptConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def _layer_norm(config: OptConfig, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.hidden, epsilon=1e-5, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)

"""GPT-2 as a Flax NNX module: forward pass, decoding step with a cache, beam search.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-LayerNorm
decoder, GELU in its tanh form, learned positions, one matrix for query, key and value, output
weights tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models import cache as caches
from examples.models import sampling
from examples.models.attention import attend
from examples.models.beam_search import beam_search
from examples.models.cache import Cache, Pair
from examples.models.cache import functional as functional


@dataclass(frozen=True)
class Gpt2Config:
    """Sizes of a decoder; ``hidden`` must be a multiple of ``heads``.

    ``end`` is the token that ends a text. ``attention`` is the implementation in
    `examples.models.attention.attend`.
    """

    vocabulary: int = 50257
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 1024
    end: int = 50256
    layer_norm_eps: float = 1e-5
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


def small(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> Gpt2Config:
    """GPT-2 small (124M parameters)."""
    return Gpt2Config(dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> Gpt2Config:
    """Two small layers, for tests."""
    return Gpt2Config(vocabulary=128, hidden=64, layers=2, heads=4, intermediate=128, positions=64,
                      end=127, dtype=dtype, attention=attention)


class Attention(nnx.Module):
    """Causal multi-head attention of new tokens over the past and themselves."""

    def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.implementation = config.attention
        self.qkv = _linear(config, config.hidden, 3 * config.hidden, rngs=rngs)
        self.out = _linear(config, config.hidden, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        """x: [B, Q, hidden], from ``position`` on; returns as much, and the extended past."""
        batch, length, hidden = x.shape
        query, key, value = (y.reshape(batch, length, self.heads, -1)
                             for y in jnp.split(self.qkv(x), 3, axis=-1))
        keys, values = caches.extend(past, key, value, position)
        y = attend(query, keys, values, scale=query.shape[-1] ** -0.5,
                   mask=caches.visible(position, length, keys.shape[1]),
                   implementation=self.implementation)
        return self.out(y.reshape(batch, length, hidden)), (keys, values)


class Layer(nnx.Module):
    """Attention and feed-forward, each behind a LayerNorm and around a residual."""

    def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = _layer_norm(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.norm = _layer_norm(config, rngs=rngs)
        self.up = _linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = _linear(config, config.intermediate, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, position: jax.Array | int, past: Pair | None,
                 ) -> tuple[jax.Array, Pair]:
        y, pair = self.attention(self.attention_norm(x), position, past)
        x = x + y
        return x + self.down(jax.nn.gelu(self.up(self.norm(x)), approximate=True)), pair


class Gpt2(nnx.Module):
    """Token ids to the logits of the next tokens."""

    def __init__(self, config: Gpt2Config, *, rngs: nnx.Rngs) -> None:
        def table(rows: int, deviation: float) -> nnx.Embed:
            return nnx.Embed(rows, config.hidden, dtype=config.dtype, param_dtype=config.dtype,
                             embedding_init=nnx.initializers.normal(deviation), rngs=rngs)

        self.end = config.end
        self.words = table(config.vocabulary, 0.02)
        self.positions = table(config.positions, 0.01)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        self.norm = _layer_norm(config, rngs=rngs)

    def states(self, ids: jax.Array, position: jax.Array | int = 0, cache: Cache | None = None,
               ) -> tuple[jax.Array, Cache]:
        """Hidden states [B, Q, hidden] of ids i32[B, Q], and the cache with them.

        The ids are at ``position`` and after it; without a cache they are the whole text.
        """
        x = self.words(ids) + self.positions(position + jnp.arange(ids.shape[1]))
        extended: Cache = []
        for layer, past in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            x, pair = layer(x, position, past)
            extended.append(pair)
        return self.norm(x), extended

    def forward(self, ids: jax.Array) -> jax.Array:
        """Logits [B, S, vocabulary] of ids i32[B, S], without a cache."""
        return self.words.attend(self.states(ids)[0])

    def __call__(self, token: jax.Array, position: jax.Array, cache: Cache,
                 ) -> tuple[jax.Array, Cache]:
        """One step. token: i32[B]; position: i32[]. Returns logits [B, vocabulary], cache."""
        x, cache = self.states(token[:, None], position, cache)
        return self.words.attend(x[:, 0]), cache

    def generate(self, prompt: jax.Array, *, new_tokens: int, width: int = 5,
                 length_penalty: float = 1.0) -> tuple[jax.Array, jax.Array]:
        """The continuation that beam search finds, and its score; see `beam_search`.

        Args:
          prompt: i32[B, P], without padding.
          new_tokens: at most this many are added.

        Returns:
          i32[B, P + new_tokens], filled up with the end token; f32[B].
        """
        length = prompt.shape[1] + new_tokens
        x, cache = self.states(prompt)
        return beam_search(self, self.words.attend(x[:, -1]), caches.grown(cache, length), prompt,
                           width=width, length=length, end=self.end,
                           length_penalty=length_penalty)

    def sample(self, prompt: jax.Array, key: jax.Array, *, new_tokens: int,
               temperature: float = 1.0, top_k: int | None = 50) -> jax.Array:
        """A continuation drawn at random; see `sampling.sample`.

        Args:
          prompt: i32[B, P], without padding. key: of `jax.random`.
          new_tokens: at most this many are added.

        Returns:
          i32[B, P + new_tokens], filled up with the end token.
        """
        length = prompt.shape[1] + new_tokens
        x, cache = self.states(prompt)
        return sampling.sample(self, self.words.attend(x[:, -1]), caches.grown(cache, length),
                               prompt, key, length=length, end=self.end, temperature=temperature,
                               top_k=top_k)


def empty_cache(config: Gpt2Config, *, batch: int, length: int) -> Cache:
    """A cache of zeros for ``length`` positions."""
    return caches.empty(layers=config.layers, batch=batch, length=length, heads=config.heads,
                        head_size=config.hidden // config.heads, dtype=config.dtype)


def create(config: Gpt2Config, *, seed: int = 0) -> Gpt2:
    """A GPT-2 with random weights; the same seed gives the same weights."""
    return Gpt2(config, rngs=nnx.Rngs(seed))


def _linear(config: Gpt2Config, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def _layer_norm(config: Gpt2Config, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.hidden, epsilon=config.layer_norm_eps, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)

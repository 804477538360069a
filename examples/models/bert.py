"""BERT as a Flax NNX module: encoder and pooler, and fine-tuning of a classifier.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2019): post-LayerNorm
encoder, learned positions, exact GELU. In training a tenth of what the embeddings, the attention
weights, both halves of a layer and the pooler give is dropped (appendix A.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models.attention import attend


@dataclass(frozen=True)
class BertConfig:
    """Sizes of an encoder; ``hidden`` must be a multiple of ``heads``.

    ``attention`` is the implementation in `examples.models.attention.attend`. ``dropout`` is for
    calls with ``rngs``. ``param_dtype`` is that of the weights, ``dtype`` if it is None.
    """

    vocabulary: int = 30522
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    positions: int = 512
    token_types: int = 2
    layer_norm_eps: float = 1e-12
    dtype: DTypeLike = jnp.float32
    attention: str | None = None
    dropout: float = 0.1
    param_dtype: DTypeLike | None = None


def base(*, layers: int = 12, dtype: DTypeLike = jnp.bfloat16,
         attention: str | None = None) -> BertConfig:
    """BERT-base (110M parameters), uncased vocabulary."""
    return BertConfig(layers=layers, dtype=dtype, attention=attention)


def large(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> BertConfig:
    """BERT-large (335M parameters), uncased vocabulary."""
    return BertConfig(hidden=1024, layers=24, heads=16, intermediate=4096, dtype=dtype,
                      attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> BertConfig:
    """Two small layers, for tests."""
    return BertConfig(vocabulary=128, hidden=64, layers=2, heads=4, intermediate=128, positions=64,
                      dtype=dtype, attention=attention)


class Embeddings(nnx.Module):
    """Sum of word, position and token type embeddings, normalised."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, config.hidden, dtype=config.dtype, param_dtype=_kept(config),
                             embedding_init=nnx.initializers.normal(0.02), rngs=rngs)

        self.words = table(config.vocabulary)
        self.positions = table(config.positions)
        self.token_types = table(config.token_types)
        self.norm = layer_norm(config, rngs=rngs)
        self.rate = config.dropout

    def __call__(self, ids: jax.Array, token_types: jax.Array,
                 rngs: nnx.Rngs | None = None) -> jax.Array:
        x = self.words(ids) + self.positions(jnp.arange(ids.shape[1]))
        return dropped(self.norm(x + self.token_types(token_types)), self.rate, rngs)


class SelfAttention(nnx.Module):
    """Multi-head attention over all positions that the mask allows."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.implementation, self.rate = config.attention, config.dropout
        self.query = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.key = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.value = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.out = linear(config, config.hidden, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        """x: [B, S, H]; mask: bool [B, S], true for the positions to attend to."""
        batch, length, hidden = x.shape

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(batch, length, self.heads, hidden // self.heads)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = attend(query, key, value, scale=query.shape[-1] ** -0.5, mask=mask[:, None, None, :],
                   implementation=self.implementation, dropout=None if rngs is None else
                   lambda weights: dropped(weights, self.rate, rngs))
        return self.out(y.reshape(batch, length, hidden))


class Layer(nnx.Module):
    """Attention and feed-forward, each with a residual and a LayerNorm after it."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.attention = SelfAttention(config, rngs=rngs)
        self.attention_norm = layer_norm(config, rngs=rngs)
        self.up = linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = linear(config, config.intermediate, config.hidden, rngs=rngs)
        self.norm = layer_norm(config, rngs=rngs)
        self.rate = config.dropout

    def __call__(self, x: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None = None) -> jax.Array:
        x = self.attention_norm(x + dropped(self.attention(x, mask, rngs), self.rate, rngs))
        y = self.down(jax.nn.gelu(self.up(x), approximate=False))
        return self.norm(x + dropped(y, self.rate, rngs))


class Encoder(nnx.Module):
    """Token ids to the last hidden states, without a pooler."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(config, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])

    def __call__(self, ids: jax.Array, mask: jax.Array, token_types: jax.Array | None = None,
                 rngs: nnx.Rngs | None = None) -> jax.Array:
        """ids: i32[B, S]; mask: [B, S], non-zero for real tokens; returns [B, S, H]. In training
        ``rngs`` have a stream for dropout."""
        x = self.embeddings(ids, jnp.zeros_like(ids) if token_types is None else token_types, rngs)
        for layer in self.layers:
            x = layer(x, mask.astype(bool), rngs)
        return x


class Bert(nnx.Module):
    """Encoder and pooler; the result is the pooled first token, [B, H]."""

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.pooler = linear(config, config.hidden, config.hidden, rngs=rngs)

    def __call__(self, ids: jax.Array, mask: jax.Array, token_types: jax.Array | None = None,
                 rngs: nnx.Rngs | None = None) -> jax.Array:
        return jnp.tanh(self.pooler(self.encoder(ids, mask, token_types, rngs)[:, 0]))


def dropped(x: jax.Array, rate: float, rngs: nnx.Rngs | None) -> jax.Array:
    """``x`` with a part of it, at random, 0 and the rest larger instead; as it is without
    ``rngs``."""
    return x if rngs is None else nnx.Dropout(rate)(x, deterministic=False, rngs=rngs)


def _kept(config: BertConfig) -> DTypeLike:
    return config.dtype if config.param_dtype is None else config.param_dtype


def linear(config: BertConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with BERT's initialisation, in the configured dtype."""
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=_kept(config),
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def layer_norm(config: BertConfig, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the last axis; Flax takes the statistics in f32 whatever the dtype."""
    return nnx.LayerNorm(config.hidden, epsilon=config.layer_norm_eps, dtype=config.dtype,
                         param_dtype=_kept(config), rngs=rngs)


def create(config: BertConfig, *, seed: int = 0) -> Bert:
    """A BERT with random weights; the same seed gives the same weights."""
    return Bert(config, rngs=nnx.Rngs(seed))

"""The transformer encoder layer of ViT, CLIP, Wav2Vec2 and the ASR encoder, as Flax NNX modules.

Vaswani et al., "Attention Is All You Need" (2017): attention and feed-forward, each around a
residual, with the LayerNorm after the sum (as published) or before the part (pre-LayerNorm).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models.attention import attend


def gelu(x: jax.Array) -> jax.Array:
    """The exact GELU."""
    return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: jax.Array) -> jax.Array:
    """The sigmoid approximation of GELU, as CLIP was trained with."""
    return x * jax.nn.sigmoid(1.702 * x)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of the layers; ``hidden`` must be a multiple of ``heads``.

    Attributes:
      norm_first: LayerNorm before attention and feed-forward, not after the residual's sum.
      activation: between the two products of the feed-forward.
      dtype: of parameters and computation; statistics of norms and softmax are f32.
      attention: the implementation in `examples.models.attention.attend`.
    """

    hidden: int
    layers: int
    heads: int
    intermediate: int
    layer_norm_eps: float
    norm_first: bool = True
    activation: Callable[[jax.Array], jax.Array] = gelu
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None


class SelfAttention(nnx.Module):
    """Multi-head attention of a sequence over itself."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.heads = config.heads
        self.implementation = config.attention
        self.query = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.key = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.value = linear(config, config.hidden, config.hidden, rngs=rngs)
        self.out = linear(config, config.hidden, config.hidden, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """x: [B, S, H]; mask: bool, broadcastable to [B, heads, S, S], or None for no mask."""
        batch, length, hidden = x.shape

        def split(y: jax.Array) -> jax.Array:
            return y.reshape(batch, length, self.heads, hidden // self.heads)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        y = attend(query, key, value, scale=query.shape[-1] ** -0.5, mask=mask,
                   implementation=self.implementation)
        return self.out(y.reshape(batch, length, hidden))


class Layer(nnx.Module):
    """Attention and feed-forward, each with a residual and a LayerNorm."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs) -> None:
        self.norm_first = config.norm_first
        self.activation = config.activation
        self.attention = SelfAttention(config, rngs=rngs)
        self.attention_norm = layer_norm(config, rngs=rngs)
        self.up = linear(config, config.hidden, config.intermediate, rngs=rngs)
        self.down = linear(config, config.intermediate, config.hidden, rngs=rngs)
        self.norm = layer_norm(config, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """x: [B, S, H]; mask as in SelfAttention; returns [B, S, H]."""
        if self.norm_first:
            x = x + self.attention(self.attention_norm(x), mask)
            return x + self.feed_forward(self.norm(x))
        x = self.attention_norm(x + self.attention(x, mask))
        return self.norm(x + self.feed_forward(x))

    def feed_forward(self, x: jax.Array) -> jax.Array:
        """[B, S, H] to [B, S, H], each position for itself."""
        return self.down(self.activation(self.up(x)))


def layers(config: EncoderConfig, *, rngs: nnx.Rngs) -> nnx.List[Layer]:
    """All layers of an encoder."""
    return nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])


def linear(config: EncoderConfig, n_in: int, n_out: int, *, bias: bool = True,
           rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer in the configured dtype."""
    return nnx.Linear(n_in, n_out, use_bias=bias, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def layer_norm(config: EncoderConfig, size: int | None = None, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the last axis, of ``size`` (default: hidden)."""
    return nnx.LayerNorm(config.hidden if size is None else size, epsilon=config.layer_norm_eps,
                         dtype=config.dtype, param_dtype=config.dtype, rngs=rngs)


def table(config: EncoderConfig, rows: int, *, rngs: nnx.Rngs) -> nnx.Embed:
    """An embedding table [rows, hidden]."""
    return nnx.Embed(rows, config.hidden, dtype=config.dtype, param_dtype=config.dtype,
                     embedding_init=nnx.initializers.normal(0.02), rngs=rngs)


def weight(config: EncoderConfig, shape: tuple[int, ...], *, rngs: nnx.Rngs,
           ) -> nnx.Param[jax.Array]:
    """A parameter outside of any layer: a class token, positions."""
    return nnx.Param(0.02 * jax.random.normal(rngs.params(), shape, config.dtype))

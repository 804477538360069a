"""DeepFM as a Flax NNX module: click prediction from categorical and dense features.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (2017): a
factorisation machine and a multilayer perceptron share the embeddings of the features.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class DeepFmConfig:
    """Sizes; every categorical feature has ``vocabulary`` values."""

    categorical: int = 32
    dense: int = 16
    vocabulary: int = 40_000
    embedding: int = 10
    mlp: tuple[int, ...] = (400, 400, 400)
    dtype: DTypeLike = jnp.bfloat16


def base(*, dtype: DTypeLike = jnp.bfloat16) -> DeepFmConfig:
    """The paper's network (embeddings of 10, three layers of 400), 32 and 16 features."""
    return DeepFmConfig(dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> DeepFmConfig:
    """Few features and small layers, for tests."""
    return DeepFmConfig(categorical=4, dense=3, vocabulary=16, embedding=4, mlp=(16, 16),
                        dtype=dtype)


class DeepFm(nnx.Module):
    """Features to the probability of a click."""

    def __init__(self, config: DeepFmConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        rows = config.categorical * config.vocabulary + config.dense
        # One row per value of a categorical feature, then one per dense feature.
        self.factors = nnx.Embed(rows, config.embedding, dtype=config.dtype,
                                 param_dtype=config.dtype, rngs=rngs,
                                 embedding_init=nnx.initializers.normal(0.1))
        self.weights = nnx.Embed(rows, 1, dtype=config.dtype, param_dtype=config.dtype, rngs=rngs,
                                 embedding_init=nnx.initializers.normal(0.1))
        widths = ((config.categorical + config.dense) * config.embedding, *config.mlp, 1)
        self.layers = nnx.List([
            nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype,
                       kernel_init=nnx.initializers.glorot_normal(), rngs=rngs)
            for n_in, n_out in itertools.pairwise(widths)])

    def __call__(self, ids: jax.Array, values: jax.Array) -> jax.Array:
        """Probability of a click.

        Args:
          ids: i32[B, categorical], each below ``vocabulary``.
          values: [B, dense], of the dense features.

        Returns:
          f32[B].
        """
        config = self.config
        starts = jnp.arange(config.categorical) * config.vocabulary
        dense = jnp.arange(config.dense) + config.categorical * config.vocabulary
        batch = ids.shape[0]
        rows = jnp.concatenate([ids + starts, jnp.broadcast_to(dense, (batch, config.dense))], 1)
        x = jnp.concatenate([jnp.ones(ids.shape, values.dtype), values], axis=1)[..., None]

        first = jnp.sum((self.weights(rows) * x).astype(jnp.float32), axis=(1, 2))
        embedded = self.factors(rows) * x
        # The sum over all pairs of features, in linear time: equation 2 of Rendle (2010).
        wide = embedded.astype(jnp.float32)
        pairs = jnp.sum(wide, axis=1) ** 2 - jnp.sum(wide ** 2, axis=1)
        y = embedded.reshape(batch, -1)
        for layer in self.layers[:-1]:
            y = jax.nn.relu(layer(y))
        deep = self.layers[-1](y)[:, 0].astype(jnp.float32)
        return jax.nn.sigmoid(first + 0.5 * jnp.sum(pairs, axis=1) + deep)


def create(config: DeepFmConfig, *, seed: int = 0) -> DeepFm:
    """A DeepFM with random weights; the same seed gives the same weights."""
    return DeepFm(config, rngs=nnx.Rngs(seed))

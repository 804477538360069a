"""A classifier of sentences on BERT, and its fine-tuning step.

Devlin et al. (2019), section 4.1 and appendix A.3: a layer on the pooled first token, all weights
trained by Adam, dropout 0.1. Weights and moments are f32; ``dtype`` is what layers compute in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.models.bert import Bert, BertConfig, dropped, linear

Weights = Any
"""The pytree of `flax.nnx.split`."""


class BertClassifier(nnx.Module):
    """The logits of each sentence's class, f32[B, C]."""

    def __init__(self, config: BertConfig, classes: int, *, rngs: nnx.Rngs) -> None:
        self.bert = Bert(config, rngs=rngs)
        self.head = linear(config, config.hidden, classes, rngs=rngs)
        self.rate = config.dropout

    def __call__(self, ids: jax.Array, mask: jax.Array,
                 rngs: nnx.Rngs | None = None) -> jax.Array:
        pooled = dropped(self.bert(ids, mask, rngs=rngs), self.rate, rngs)
        return self.head(pooled).astype(jnp.float32)


class Training(NamedTuple):
    """``step((weights, moments), key, ids, mask, labels) -> (loss, (weights, moments))``.

    ``moments`` start as ``optimiser.init(weights)``. Donate argument 0 to have them, and the
    weights, updated in place.
    """

    step: Callable[..., tuple[jax.Array, tuple[Weights, Any]]]
    weights: Weights
    optimiser: optax.GradientTransformation


def training(model: BertClassifier, *, learning_rate: float = 2e-5) -> Training:
    """One step of AdamW. ``key``, of `jax.random`, decides what is dropped in it."""
    graphdef, weights = nnx.split(model)
    optimiser = optax.adamw(learning_rate, weight_decay=0.01)

    def train_step(carry: tuple[Weights, Any], key: jax.Array, ids: jax.Array, mask: jax.Array,
                   labels: jax.Array) -> tuple[jax.Array, tuple[Weights, Any]]:
        weights, moments = carry

        def loss_of(weights: Weights) -> jax.Array:
            logits = nnx.merge(graphdef, weights)(ids, mask, nnx.Rngs(dropout=key))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, moments = optimiser.update(gradients, moments, weights)
        updated: Any = optax.apply_updates(weights, updates)
        return loss, (updated, moments)

    return Training(train_step, weights, optimiser)


def create(config: BertConfig, *, classes: int = 2, seed: int = 0) -> BertClassifier:
    """A classifier with random weights in f32; the same seed gives the same weights."""
    return BertClassifier(replace(config, param_dtype=jnp.float32), classes, rngs=nnx.Rngs(seed))

"""DIEN as a Flax NNX module: click prediction from a user's history, and its training step.

Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction" (2019): a GRU
extracts interests from the history, attention weighs them by the target item, and a GRU whose
update gate is scaled by that attention (AUGRU) follows their evolution. Sizes, the scoring network
of the attention and the auxiliary network are those of the authors' published code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

Weights: TypeAlias = nnx.State[Any, Any]


@dataclass(frozen=True)
class DienConfig:
    """Sizes; an item is the concatenation of its own and its category's embedding."""

    users: int = 543060
    items: int = 367983
    categories: int = 1601
    embedding: int = 18
    length: int = 100
    attention: tuple[int, int] = (80, 40)
    mlp: tuple[int, int] = (200, 80)
    auxiliary: tuple[int, int] = (100, 50)
    dtype: DTypeLike = jnp.bfloat16

    @property
    def item(self) -> int:
        """Width of an item's embedding, and of both GRUs."""
        return 2 * self.embedding


def books(*, dtype: DTypeLike = jnp.bfloat16) -> DienConfig:
    """Amazon Books, the larger data set of the paper; histories of 100."""
    return DienConfig(dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> DienConfig:
    """A few items and steps, for tests."""
    return DienConfig(users=16, items=32, categories=8, embedding=4, length=6, attention=(8, 4),
                      mlp=(16, 8), auxiliary=(8, 4), dtype=dtype)


class History(NamedTuple):
    """What one call knows of its users; padding is at the end of each history."""

    user: jax.Array
    """i32[B]"""
    item: jax.Array
    """i32[B], the target"""
    category: jax.Array
    """i32[B], of the target"""
    items: jax.Array
    """i32[B, T]"""
    categories: jax.Array
    """i32[B, T]"""
    lengths: jax.Array
    """i32[B], 1 to T"""


class Prelu(nnx.Module):
    """x where positive, else a learnt share of it per channel."""

    def __init__(self, size: int, config: DienConfig) -> None:
        self.slope = nnx.Param(jnp.full((size,), 0.1, config.dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, x, self.slope[...] * x)


class Dice(nnx.Module):
    """PReLU with a soft step at the mean of the data (Zhou et al., "Deep Interest Network")."""

    def __init__(self, size: int, config: DienConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(size, epsilon=1e-9, use_bias=False, use_scale=False,
                                  dtype=config.dtype, rngs=rngs)
        self.slope = nnx.Param(jnp.full((size,), 0.1, config.dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        gate = jax.nn.sigmoid(self.norm(x))
        return gate * x + (1 - gate) * self.slope[...] * x


class Gru(nnx.Module):
    """A GRU over time, equations 2 to 5 of the paper; with attention, the AUGRU of 16 and 17."""

    def __init__(self, config: DienConfig, *, rngs: nnx.Rngs) -> None:
        self.input = linear(config, config.item, 3 * config.item, rngs=rngs)
        self.state = nnx.Linear(config.item, 3 * config.item, use_bias=False, dtype=config.dtype,
                                param_dtype=config.dtype, rngs=rngs,
                                kernel_init=nnx.initializers.glorot_normal())

    def __call__(self, x: jax.Array, attention: jax.Array | None = None) -> jax.Array:
        """x: [B, T, n]; attention: [B, T] in x's dtype, or None; returns all states, [B, T, n]."""

        def step(h: jax.Array, now: tuple[jax.Array, jax.Array | None],
                 ) -> tuple[jax.Array, jax.Array]:
            gates, weight = now
            update_x, reset_x, new_x = jnp.split(gates, 3, axis=-1)
            update_h, reset_h, new_h = jnp.split(self.state(h), 3, axis=-1)
            update = jax.nn.sigmoid(update_x + update_h)
            if weight is not None:
                update = update * weight[:, None]
            new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
            h = (1 - update) * h + update * new
            return h, h

        steps = (jnp.moveaxis(self.input(x), 1, 0), None if attention is None else attention.T)
        _, states = jax.lax.scan(step, jnp.zeros_like(x[:, 0]), steps)
        return jnp.moveaxis(states, 0, 1)


class Attention(nnx.Module):
    """Softmax over the history of how well each interest fits the target item."""

    def __init__(self, config: DienConfig, *, rngs: nnx.Rngs) -> None:
        wide, narrow = config.attention
        self.query = linear(config, config.item, config.item, rngs=rngs)
        self.prelu = Prelu(config.item, config)
        self.first = linear(config, 4 * config.item, wide, rngs=rngs)
        self.second = linear(config, wide, narrow, rngs=rngs)
        self.score = linear(config, narrow, 1, rngs=rngs)

    def __call__(self, target: jax.Array, states: jax.Array, mask: jax.Array) -> jax.Array:
        """target: [B, n]; states: [B, T, n]; mask: bool[B, T]; returns [B, T]."""
        query = jnp.broadcast_to(self.prelu(self.query(target))[:, None], states.shape)
        x = jnp.concatenate([query, states, query - states, query * states], axis=-1)
        x = jax.nn.sigmoid(self.second(jax.nn.sigmoid(self.first(x))))
        scores = self.score(x)[..., 0].astype(jnp.float32)
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1)
        return weights.astype(states.dtype)


class Auxiliary(nnx.Module):
    """Whether an interest leads to an item: one logit, of a small network on both."""

    def __init__(self, config: DienConfig, *, rngs: nnx.Rngs) -> None:
        wide, narrow = config.auxiliary
        self.first = linear(config, 2 * config.item, wide, rngs=rngs)
        self.second = linear(config, wide, narrow, rngs=rngs)
        self.out = linear(config, narrow, 1, rngs=rngs)

    def __call__(self, states: jax.Array, items: jax.Array) -> jax.Array:
        """states, items: [B, T, n]; returns f32[B, T]."""
        x = jax.nn.sigmoid(self.first(jnp.concatenate([states, items], axis=-1)))
        return self.out(jax.nn.sigmoid(self.second(x)))[..., 0].astype(jnp.float32)


class Dien(nnx.Module):
    """History to the probability of a click."""

    def __init__(self, config: DienConfig, *, rngs: nnx.Rngs) -> None:
        wide, narrow = config.mlp
        self.users = table(config, config.users, rngs=rngs)
        self.items = table(config, config.items, rngs=rngs)
        self.categories = table(config, config.categories, rngs=rngs)
        self.extractor = Gru(config, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.evolution = Gru(config, rngs=rngs)
        features = config.embedding + 4 * config.item
        self.norm = nnx.BatchNorm(features, dtype=config.dtype, param_dtype=config.dtype, rngs=rngs)
        self.first = linear(config, features, wide, rngs=rngs)
        self.first_dice = Dice(wide, config, rngs=rngs)
        self.second = linear(config, wide, narrow, rngs=rngs)
        self.second_dice = Dice(narrow, config, rngs=rngs)
        self.out = linear(config, narrow, 1, rngs=rngs)
        self.auxiliary = Auxiliary(config, rngs=rngs)

    def __call__(self, history: History) -> jax.Array:
        """The probability that each user clicks the target, f32[B]."""
        return jax.nn.sigmoid(self.logits(history)[0])

    def loss(self, history: History, clicked: jax.Array, other_items: jax.Array,
             other_categories: jax.Array) -> jax.Array:
        """Log loss of the click plus that of the auxiliary network, equations 6 and 7.

        Args:
          history: see History.
          clicked: f32[B], 1 where the target was clicked.
          other_items, other_categories: i32[B, T], items that were not in the history.
        """
        logits, states, items = self.logits(history)
        clicks = log_loss(logits, clicked)
        others = self.embed(other_items, other_categories)
        # Each interest is to tell the next item of the history from one that was not chosen.
        right = log_loss(self.auxiliary(states[:, :-1], items[:, 1:]), 1.0)
        wrong = log_loss(self.auxiliary(states[:, :-1], others[:, 1:]), 0.0)
        known = jnp.arange(1, items.shape[1]) < history.lengths[:, None]
        return jnp.mean(clicks) + jnp.mean(jnp.where(known, right + wrong, 0.0))

    def logits(self, history: History) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The logits of a click, f32[B]; interests and embedded history, both [B, T, n]."""
        target = self.embed(history.item, history.category)
        items = self.embed(history.items, history.categories)
        mask = jnp.arange(items.shape[1]) < history.lengths[:, None]
        # Neither GRU needs the mask: padding comes last, and attention 0 keeps the AUGRU's state.
        states = self.extractor(items)
        evolved = self.evolution(states, self.attention(target, states, mask))[:, -1]
        total = jnp.sum(items * mask[..., None].astype(items.dtype), axis=1)
        x = jnp.concatenate([self.users(history.user), target, total, target * total, evolved], -1)
        x = self.first_dice(self.first(self.norm(x)))
        x = self.out(self.second_dice(self.second(x)))
        return x[:, 0].astype(jnp.float32), states, items

    def embed(self, items: jax.Array, categories: jax.Array) -> jax.Array:
        """i32[...] twice to [..., n]."""
        return jnp.concatenate([self.items(items), self.categories(categories)], axis=-1)


def log_loss(logits: jax.Array, truth: jax.Array | float) -> jax.Array:
    """Cross-entropy of a yes-or-no question, elementwise."""
    return jax.nn.softplus(logits) - truth * logits


def training(model: Dien, *, learning_rate: float = 0.1,
             ) -> tuple[Callable[..., tuple[jax.Array, Weights]], Weights]:
    """``train_step(weights, history, clicked, other_items, other_categories) -> (loss, weights)``
    by stochastic gradient descent, and the first weights, with the statistics of the norms.

    Donate ``weights`` (argument 0) to have them updated in place.
    """
    model.train()
    graphdef, weights = nnx.split(model)

    def train_step(weights: Weights, history: History, *batch: jax.Array,
                   ) -> tuple[jax.Array, Weights]:
        model = nnx.merge(graphdef, weights)
        loss, gradients = nnx.value_and_grad(Dien.loss)(model, history, *batch)
        nnx.update(model, jax.tree.map(lambda weight, gradient: weight - learning_rate * gradient,
                                       nnx.state(model, nnx.Param), gradients))
        return loss, nnx.state(model)

    return train_step, weights


def linear(config: DienConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer in the configured dtype."""
    return nnx.Linear(n_in, n_out, dtype=config.dtype, param_dtype=config.dtype,
                      kernel_init=nnx.initializers.glorot_normal(), rngs=rngs)


def table(config: DienConfig, rows: int, *, rngs: nnx.Rngs) -> nnx.Embed:
    """An embedding table in the configured dtype."""
    return nnx.Embed(rows, config.embedding, dtype=config.dtype, param_dtype=config.dtype,
                     embedding_init=nnx.initializers.normal(0.1), rngs=rngs)


def create(config: DienConfig, *, seed: int = 0) -> Dien:
    """A DIEN with random weights, for inference; the same seed gives the same weights."""
    model = Dien(config, rngs=nnx.Rngs(seed))
    model.eval()
    return model

"""A table of training steps as users write them (flax.linen, optax), beside the standard table.

    python -m benchmarks.run --models=training_table

Forward, backward and optimiser in one program, whose weights and optimiser's state are donated.
``batch`` multiplies the examples; ``dtype`` is what layers compute in, weights are f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.workloads.workload import (
    Program,
    Request,
    Workload,
    amid_training,
    token_ids,
)

Inputs = Callable[[jax.Array, int, bool], tuple[jax.Array, ...]]
"""(key, batch, tiny) -> what a step takes."""


_STEPS = 5
"""Before the one that is measured: in the midst of the schedule's warm-up."""


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels).mean()


class Residual(nn.Module):
    """He et al. (2016), table 6: three stages of two basic blocks, for images of 32 x 32."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, images: jax.Array, labels: jax.Array, *, train: bool = True) -> jax.Array:
        def conv(x: jax.Array, width: int, stride: int = 1) -> jax.Array:
            x = nn.Conv(width, (3, 3), (stride, stride), use_bias=False, dtype=self.dtype)(x)
            return nn.BatchNorm(not train, dtype=self.dtype)(x)

        x = nn.relu(conv(images, 16))
        for width, stride in ((16, 1),) if self.tiny else ((16, 1), (32, 2), (64, 2)):
            for s in (stride, 1):
                y = conv(nn.relu(conv(x, width, s)), width)
                if x.shape != y.shape:
                    x = nn.Conv(width, (1, 1), (s, s), dtype=self.dtype)(x)
                x = nn.relu(x + y)
        return cross_entropy(nn.Dense(10, dtype=self.dtype)(x.mean((1, 2))), labels)


class Decoder(nn.Module):
    """A decoder of layers with their norms in front; dropout where a rate is given."""

    dtype: Any
    tiny: bool
    dropout: float = 0.0

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        width, layers, heads, words = (32, 1, 2, 50) if self.tiny else (512, 4, 8, 8192)
        still = self.dropout == 0
        x = nn.Embed(words, width, dtype=self.dtype)(tokens)
        x = x + nn.Embed(tokens.shape[1], width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        for _ in range(layers):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=self.dtype)(
                y, y, mask=nn.make_causal_mask(tokens))
            y = nn.gelu(nn.Dense(4 * width, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
            x = x + nn.Dropout(self.dropout, deterministic=still)(
                nn.Dense(width, dtype=self.dtype)(y))
        logits = nn.Dense(words, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        return cross_entropy(logits[:, :-1], tokens[:, 1:])


class Autoencoder(nn.Module):
    """Kingma and Welling (2014): a variational autoencoder of digits."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        wide, latent = (16, 4) if self.tiny else (500, 20)
        hidden = nn.relu(nn.Dense(wide, dtype=self.dtype)(images))
        mean, log_variance = (nn.Dense(latent, dtype=self.dtype)(hidden).astype(jnp.float32)
                              for _ in range(2))
        noise = jax.random.normal(self.make_rng("dropout"), mean.shape)
        hidden = nn.Dense(wide, dtype=self.dtype)(mean + jnp.exp(log_variance / 2) * noise)
        logits = nn.Dense(images.shape[-1], dtype=self.dtype)(nn.relu(hidden)).astype(jnp.float32)
        divergence = -0.5 * (1 + log_variance - mean ** 2 - jnp.exp(log_variance)).sum(-1)
        return (optax.sigmoid_binary_cross_entropy(logits, images).sum(-1) + divergence).mean()


class Recurrent(nn.Module):
    """An LSTM that tells sequences apart."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        cell = nn.OptimizedLSTMCell(8 if self.tiny else 128, dtype=self.dtype)
        return cross_entropy(nn.Dense(5, dtype=self.dtype)(nn.RNN(cell)(x)[:, -1]), labels)


class Experts(nn.Module):
    """Shazeer et al. (2017): the two best of eight experts for each token, all computed."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, init = x.shape[-1], nn.initializers.normal(0.02)
        up, down = (self.param(name, init, shape).astype(self.dtype) for name, shape in (
            ("up", (8, width, 4 * width)), ("down", (8, 4 * width, width))))
        best, place = jax.lax.top_k(jax.nn.softmax(nn.Dense(8)(x)), 2)
        share = (jax.nn.one_hot(place, 8) * best[..., None]).sum(-2)
        hidden = nn.silu(jnp.einsum("td,edf->etf", x.astype(self.dtype), up))
        y = jnp.einsum("etf,efd,te->td", hidden, down, share.astype(self.dtype))
        return ((y.astype(jnp.float32) - x) ** 2).mean()


def digits(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (jax.random.bernoulli(key, 0.3, (batch, 16 if tiny else 784)).astype(jnp.float32),)


def images(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    size = 8 if tiny else 32
    return jax.random.normal(key, (batch, size, size, 3)), token_ids(key, (batch,), 10)


def tokens(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (token_ids(key, (batch, 8 if tiny else 256), 50 if tiny else 8192),)


def sequences(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    shape = (batch, 3, 4) if tiny else (batch, 60, 40)
    return jax.random.normal(key, shape), token_ids(key, (batch,), 5)


def rows(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (jax.random.normal(key, (8 * batch, 16) if tiny else (512 * batch, 256)),)


def _training(name: str, title: str, model: Callable[..., nn.Module], inputs: Inputs,
              optimiser: optax.GradientTransformation, batch: int) -> Workload:
    def build(request: Request) -> Program:
        module = model(dtype=request.jax_dtype, tiny=request.tiny)
        size = 2 if request.tiny else request.batch

        def fresh(key: jax.Array) -> tuple[jax.Array, ...]:
            return jax.random.key_data(key), *inputs(key, size, request.tiny)

        def carry(key: jax.Array) -> Any:
            variables = module.init({"params": key, "dropout": key}, *fresh(key)[1:])
            weights = variables.pop("params")
            return weights, variables, amid_training(optimiser.init(weights), key, _STEPS)

        def step(state: Any, carry: Any, key: jax.Array, *xs: jax.Array) -> tuple[Any, Any]:
            del state
            weights, rest, moments = carry
            dropout = jax.random.wrap_key_data(key)

            def loss(weights: Any) -> tuple[jax.Array, Any]:
                return module.apply({"params": weights, **rest}, *xs, rngs={"dropout": dropout},
                                    mutable=list(rest))

            (value, rest), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
            updates, moments = optimiser.update(gradients, moments, weights)
            return value, (optax.apply_updates(weights, updates), rest, moments)

        step.__name__ = name
        _, x, *_ = jax.eval_shape(fresh, jax.random.key(0))
        return Program(step, "x".join(map(str, x.shape)), state=lambda: (), inputs=fresh,
                       carry=carry)

    return Workload(name, title, "micro", build, batches=(batch,), table="training_table")


_ADAMW = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(
    optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 10, 100)))

WORKLOADS: tuple[Workload, ...] = (
    _training("vae_train", "VAE of digits, Adam", Autoencoder, digits, optax.adam(1e-3), 128),
    _training("residual_train", "ResNet-14 of 32 x 32 images, SGD with Nesterov's momentum",
              Residual, images, optax.sgd(0.1, momentum=0.9, nesterov=True), 128),
    _training("lstm_train", "LSTM over 60 steps, AdamW", Recurrent, sequences, _ADAMW, 64),
    _training("experts_train", "8 experts, Lion", Experts, rows, optax.lion(1e-4), 1),
    _training("decoder_train", "decoder of 4 layers, clipped AdamW", Decoder, tokens, _ADAMW, 8),
    _training("decoder_dropout_train", "decoder of 4 layers with dropout 0.1, Adafactor",
              lambda **kw: Decoder(dropout=0.1, **kw), tokens, optax.adafactor(1e-3), 8),
)

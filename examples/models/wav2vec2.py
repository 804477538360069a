"""Wav2Vec2 as a Flax NNX module with a CTC head: raw audio to letters; inference and fine-tuning.

Baevski et al., "wav2vec 2.0" (2020), in its base form: seven convolutions over the waveform, a
group norm of one channel each after the first, positions by a grouped convolution, post-LayerNorm
encoder, exact GELU. The base form was trained without a mask for padding and takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

from examples.models import encoder

BLANK = 0
"""CTC's blank: the padding token of the published vocabulary."""

Weights: TypeAlias = nnx.State[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Wav2Vec2Config(encoder.EncoderConfig):
    """Sizes; ``channels``, ``kernels`` and ``strides`` are of the convolutions over the waveform.

    ``weight_norm`` keeps the positions' kernel as direction and gain, as it is trained; without it
    the kernel is their product, worked out once.
    """

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    layer_norm_eps: float = 1e-5
    norm_first: bool = False
    vocabulary: int = 32
    channels: tuple[int, ...] = (512,) * 7
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    position_kernel: int = 128
    position_groups: int = 16
    weight_norm: bool = False

    def frames(self, samples: int) -> int:
        """Length of the output for that many samples."""
        for kernel, stride in zip(self.kernels, self.strides, strict=True):
            samples = (samples - kernel) // stride + 1
        return samples


def base(*, weight_norm: bool = False, dtype: DTypeLike = jnp.bfloat16,
         attention: str | None = None) -> Wav2Vec2Config:
    """Wav2Vec2-base (94.4M parameters): 49 frames for a second of 16 kHz, 32 letters."""
    return Wav2Vec2Config(weight_norm=weight_norm, dtype=dtype, attention=attention)


def tiny(*, weight_norm: bool = False, dtype: DTypeLike = jnp.bfloat16,
         attention: str | None = None) -> Wav2Vec2Config:
    """Three narrow convolutions and two small layers, for tests: 19 frames for 400 samples."""
    return Wav2Vec2Config(hidden=32, layers=2, heads=2, intermediate=64, vocabulary=8,
                          channels=(16,) * 3, kernels=(10, 3, 2), strides=(5, 2, 2),
                          position_kernel=8, position_groups=4, weight_norm=weight_norm,
                          dtype=dtype, attention=attention)


class Features(nnx.Module):
    """Convolutions over the waveform: the feature encoder, which fine-tuning leaves alone."""

    def __init__(self, config: Wav2Vec2Config, *, rngs: nnx.Rngs) -> None:
        self.convs = nnx.List([
            nnx.Conv(n_in, n_out, (kernel,), (stride,), padding="VALID", use_bias=False,
                     dtype=config.dtype, param_dtype=config.dtype,
                     kernel_init=nnx.initializers.he_normal(), rngs=rngs)
            for n_in, n_out, kernel, stride in zip((1, *config.channels[:-1]), config.channels,
                                                   config.kernels, config.strides, strict=True)])
        self.norm = nnx.GroupNorm(config.channels[0], config.channels[0], epsilon=1e-5,
                                  dtype=config.dtype, param_dtype=config.dtype, rngs=rngs)

    def __call__(self, audio: jax.Array) -> jax.Array:
        """audio: [B, samples]; returns [B, frames, channels]."""
        x = audio[..., None]
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = encoder.gelu(self.norm(x) if i == 0 else x)
        return x


class Positions(nnx.Module):
    """What each frame's neighbourhood tells of its position: a wide grouped convolution."""

    def __init__(self, config: Wav2Vec2Config, *, rngs: nnx.Rngs) -> None:
        width, hidden, groups = config.position_kernel, config.hidden, config.position_groups
        self.groups = groups
        self.kernel = nnx.Param(2 * (width * hidden) ** -0.5 * jax.random.normal(
            rngs.params(), (width, hidden // groups, hidden), config.dtype))
        self.bias = nnx.Param(jnp.zeros(hidden, config.dtype))
        norms = jnp.linalg.norm(self.kernel[...], axis=(1, 2))
        self.gain = nnx.Param(norms) if config.weight_norm else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, S, H] to [B, S, H]; an even window reaches one frame further back than ahead."""
        kernel = self.kernel[...]
        if self.gain is not None:
            kernel = weight_normed(kernel, self.gain[...])
        width = kernel.shape[0]
        y = jax.lax.conv_general_dilated(
            x, kernel, (1,), [(width // 2, (width - 1) // 2)],
            dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=self.groups)
        return encoder.gelu(y + self.bias[...])


def weight_normed(direction: jax.Array, gain: jax.Array) -> jax.Array:
    """The kernel [width, in, out] whose tap i has the norm ``gain[i]``, as in torch's weight_norm
    with dim=2."""
    norm = jnp.linalg.norm(direction, axis=(1, 2), keepdims=True)
    return direction * (gain[:, None, None] / norm)


class Wav2Vec2(nnx.Module):
    """Raw audio to the logits of each frame's letter."""

    def __init__(self, config: Wav2Vec2Config, *, rngs: nnx.Rngs) -> None:
        self.features = Features(config, rngs=rngs)
        self.feature_norm = encoder.layer_norm(config, config.channels[-1], rngs=rngs)
        self.projection = encoder.linear(config, config.channels[-1], config.hidden, rngs=rngs)
        self.positions = Positions(config, rngs=rngs)
        self.norm = encoder.layer_norm(config, rngs=rngs)
        self.layers = encoder.layers(config, rngs=rngs)
        self.head = encoder.linear(config, config.hidden, config.vocabulary, rngs=rngs)

    def __call__(self, audio: jax.Array) -> jax.Array:
        """audio: [B, samples] of mean 0 and variance 1; returns [B, frames, vocabulary]."""
        x = self.projection(self.feature_norm(self.features(audio)))
        x = self.norm(x + self.positions(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def ctc_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Minus the log likelihood per letter, mean over the batch, as torch's reduction "mean".

    logits: [B, frames, vocabulary]; labels: i32[B, N], negative after a text's end. Returns f32[].
    """
    padding = (labels < 0).astype(jnp.float32)
    losses = optax.ctc_loss(logits.astype(jnp.float32), jnp.zeros(logits.shape[:2]),
                            jnp.maximum(labels, 0), padding, blank_id=BLANK)
    return jnp.mean(losses / jnp.sum(1 - padding, axis=-1))


class Training(NamedTuple):
    """``step(frozen, (weights, moments), audio, labels) -> (loss, (weights, moments))``.

    ``moments`` start as ``optimiser.init(weights)``. Donate argument 1 to have them, and the
    weights, updated in place.
    """

    step: Callable[..., tuple[jax.Array, tuple[Weights, Any]]]
    frozen: Weights
    weights: Weights
    optimiser: optax.GradientTransformation


def training(model: Wav2Vec2, *, learning_rate: float = 1e-4, weight_decay: float = 0.005,
             ) -> Training:
    """Fine-tuning as in the paper: the feature encoder is frozen, Adam updates the rest.

    The learning rate is constant, weights decay as in AdamW, and there is no dropout, no layer drop
    and no masking of the input, so that a step is a function of its arguments. The model should
    have been created with ``weight_norm``, the parameters that are trained.
    """
    graphdef, frozen, weights = nnx.split(model, nnx.PathContains("features"), ...)
    optimiser = optax.adamw(learning_rate, weight_decay=weight_decay)

    def train_step(frozen: Weights, carry: tuple[Weights, Any], audio: jax.Array,
                   labels: jax.Array) -> tuple[jax.Array, tuple[Weights, Any]]:
        weights, moments = carry

        def loss_of(weights: Weights) -> jax.Array:
            return ctc_loss(nnx.merge(graphdef, frozen, weights)(audio), labels)

        loss, gradients = jax.value_and_grad(loss_of)(weights)
        updates, moments = optimiser.update(gradients, moments, weights)
        updated: Any = optax.apply_updates(weights, updates)
        return loss, (updated, moments)

    return Training(train_step, frozen, weights, optimiser)


def create(config: Wav2Vec2Config, *, seed: int = 0) -> Wav2Vec2:
    """A Wav2Vec2 with random weights; the same seed gives the same weights."""
    return Wav2Vec2(config, rngs=nnx.Rngs(seed))

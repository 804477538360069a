"""CRNN as a Flax NNX module: text recognition in a line of an image, for inference.

Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence Recognition" (2015):
a convolutional stack turns the image into a sequence of columns, two bidirectional LSTMs label
each. Pooling windows 3 and 4 are one column wide, as in Table 1 of the paper; the dense layer
between the LSTMs is from the authors' code, and in the 8.3M parameters that the paper counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike


@dataclass(frozen=True)
class CrnnConfig:
    """Sizes; the height of the image is 32, its width free."""

    channels: tuple[int, int, int, int] = (64, 128, 256, 512)
    hidden: int = 256
    classes: int = 37
    dtype: DTypeLike = jnp.bfloat16


def base(*, dtype: DTypeLike = jnp.bfloat16) -> CrnnConfig:
    """The network of the paper; 26 letters, 10 digits and CTC's blank."""
    return CrnnConfig(dtype=dtype)


def tiny(*, dtype: DTypeLike = jnp.bfloat16) -> CrnnConfig:
    """Few channels, for tests."""
    return CrnnConfig(channels=(4, 4, 8, 8), hidden=8, classes=5, dtype=dtype)


class Lstm(nnx.Module):
    """An LSTM over time in one direction."""

    def __init__(self, config: CrnnConfig, n_in: int, *, reverse: bool, rngs: nnx.Rngs) -> None:
        self.reverse = reverse
        self.hidden = config.hidden
        self.input = nnx.Linear(n_in, 4 * config.hidden, dtype=config.dtype,
                                param_dtype=config.dtype, rngs=rngs)
        self.state = nnx.Linear(config.hidden, 4 * config.hidden, use_bias=False,
                                dtype=config.dtype, param_dtype=config.dtype,
                                kernel_init=nnx.initializers.glorot_normal(), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x: [B, T, n]; returns all states, [B, T, hidden]."""

        def step(carry: tuple[jax.Array, jax.Array], now: jax.Array,
                 ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, cell = carry
            enter, forget, new, leave = jnp.split(now + self.state(h), 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            h = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (h, cell), h

        zeros = jnp.zeros((x.shape[0], self.hidden), x.dtype)
        _, states = jax.lax.scan(step, (zeros, zeros), jnp.moveaxis(self.input(x), 1, 0),
                                 reverse=self.reverse)
        return jnp.moveaxis(states, 0, 1)


class Bidirectional(nnx.Module):
    """Two LSTMs, forth and back, and a dense layer on both: [B, T, n_in] to [B, T, n_out]."""

    def __init__(self, config: CrnnConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> None:
        self.forth = Lstm(config, n_in, reverse=False, rngs=rngs)
        self.back = Lstm(config, n_in, reverse=True, rngs=rngs)
        self.out = nnx.Linear(2 * config.hidden, n_out, dtype=config.dtype,
                              param_dtype=config.dtype, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jnp.concatenate([self.forth(x), self.back(x)], axis=-1))


class Crnn(nnx.Module):
    """Grey image to the logarithm of each class's probability per frame."""

    def __init__(self, config: CrnnConfig, *, rngs: nnx.Rngs) -> None:
        a, b, c, d = config.channels
        self.conv1 = conv(config, 1, a, rngs=rngs)
        self.conv2 = conv(config, a, b, rngs=rngs)
        self.conv3 = conv(config, b, c, rngs=rngs)
        self.conv4 = conv(config, c, c, rngs=rngs)
        self.conv5 = conv(config, c, d, rngs=rngs)
        self.norm5 = batch_norm(config, d, rngs=rngs)
        self.conv6 = conv(config, d, d, rngs=rngs)
        self.norm6 = batch_norm(config, d, rngs=rngs)
        self.conv7 = conv(config, d, d, kernel=2, padding=0, rngs=rngs)
        self.first = Bidirectional(config, d, config.hidden, rngs=rngs)
        self.second = Bidirectional(config, config.hidden, config.classes, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        """image: [B, 32, W, 1]; returns f32[B, W // 4 - 1, classes]."""
        x = pool(jax.nn.relu(self.conv1(image)), (2, 2))
        x = pool(jax.nn.relu(self.conv2(x)), (2, 2))
        x = jax.nn.relu(self.conv3(x))
        x = pool(jax.nn.relu(self.conv4(x)), (2, 1))
        x = jax.nn.relu(self.norm5(self.conv5(x)))
        x = pool(jax.nn.relu(self.norm6(self.conv6(x))), (2, 1))
        x = jax.nn.relu(self.conv7(x))
        # The height is 1 by now: columns are the steps of the sequence.
        x = self.second(self.first(x[:, 0]))
        return jax.nn.log_softmax(x.astype(jnp.float32), axis=-1)


def conv(config: CrnnConfig, n_in: int, n_out: int, *, kernel: int = 3, padding: int = 1,
         rngs: nnx.Rngs) -> nnx.Conv:
    """A square convolution with bias, stride 1."""
    return nnx.Conv(n_in, n_out, (kernel, kernel), padding=padding, dtype=config.dtype,
                    param_dtype=config.dtype, kernel_init=nnx.initializers.he_normal(), rngs=rngs)


def batch_norm(config: CrnnConfig, channels: int, *, rngs: nnx.Rngs) -> nnx.BatchNorm:
    """BatchNorm on its running statistics."""
    return nnx.BatchNorm(channels, use_running_average=True, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)


def pool(x: jax.Array, window: tuple[int, int]) -> jax.Array:
    """Maximum over windows (height, width) side by side."""
    return nnx.max_pool(x, window, strides=window)


def create(config: CrnnConfig, *, seed: int = 0) -> Crnn:
    """A CRNN with random weights; the same seed gives the same weights."""
    return Crnn(config, rngs=nnx.Rngs(seed))

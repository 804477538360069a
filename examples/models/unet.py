"""The UNet of Stable Diffusion as Flax NNX modules: the noise in a latent image, for a text.

Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022), as in version
1 of the published weights: residual blocks of 3x3 convolutions behind GroupNorm, which the time is
added to, and transformers over the pixels, which look at each other and at the text. Half of the
blocks go down to an eighth of the height and width, half come up again, each with what went down at
its size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from examples.models.attention import attend


@dataclass(frozen=True)
class UNetConfig:
    """Sizes: channels (``widths``) of each level, of which all but the last have transformers.

    Attributes:
      blocks: residual blocks of a level on the way down; one more on the way up.
      groups: of GroupNorm; divides all widths. heads: of attention, likewise.
      channels, size: of the latents, ``size`` high and wide: a multiple of 2 ** (levels - 1).
      context, tokens: features and number of the text's states.
      attention: the implementation in `examples.models.attention.attend`.
    """

    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    blocks: int = 2
    groups: int = 32
    heads: int = 8
    channels: int = 4
    size: int = 64
    context: int = 768
    tokens: int = 77
    dtype: DTypeLike = jnp.bfloat16
    attention: str | None = None

    @property
    def time(self) -> int:
        """Features of the embedded time."""
        return 4 * self.widths[0]


def stable_diffusion(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None,
                     ) -> UNetConfig:
    """Stable Diffusion 1 (860M parameters), images of 512 x 512."""
    return UNetConfig(dtype=dtype, attention=attention)


def tiny(*, dtype: DTypeLike = jnp.bfloat16, attention: str | None = None) -> UNetConfig:
    """Two small levels, for tests."""
    return UNetConfig((16, 32), blocks=1, groups=4, heads=2, size=8, context=24, tokens=6,
                      dtype=dtype, attention=attention)


class Residual(nnx.Module):
    """Two convolutions behind GroupNorm and SiLU, the time added between them."""

    def __init__(self, config: UNetConfig, n_in: int, n_out: int, *, rngs: nnx.Rngs) -> None:
        self.first_norm = group_norm(config, n_in, rngs=rngs)
        self.first = conv(config, n_in, n_out, rngs=rngs)
        self.time = linear(config, config.time, n_out, rngs=rngs)
        self.second_norm = group_norm(config, n_out, rngs=rngs)
        self.second = conv(config, n_out, n_out, rngs=rngs)
        self.shortcut = None if n_in == n_out else conv(config, n_in, n_out, 1, rngs=rngs)

    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        """x: [B, H, W, n_in]; time: [B, 4 * widths[0]]."""
        y = self.first(jax.nn.silu(self.first_norm(x)))
        y = y + self.time(jax.nn.silu(time))[:, None, None]
        y = self.second(jax.nn.silu(self.second_norm(y)))
        return y + (x if self.shortcut is None else self.shortcut(x))


class Attention(nnx.Module):
    """Multi-head attention of one sequence over another one."""

    def __init__(self, config: UNetConfig, width: int, context: int, *, rngs: nnx.Rngs) -> None:
        self.heads, self.implementation = config.heads, config.attention
        self.query = linear(config, width, width, bias=False, rngs=rngs)
        self.key = linear(config, context, width, bias=False, rngs=rngs)
        self.value = linear(config, context, width, bias=False, rngs=rngs)
        self.out = linear(config, width, width, rngs=rngs)

    def __call__(self, x: jax.Array, context: jax.Array) -> jax.Array:
        """x: [B, S, width]; context: [B, T, features]."""
        def split(y: jax.Array) -> jax.Array:
            return y.reshape(*y.shape[:2], self.heads, -1)

        query = split(self.query(x))
        y = attend(query, split(self.key(context)), split(self.value(context)),
                   scale=1 / math.sqrt(query.shape[-1]), implementation=self.implementation)
        return self.out(y.reshape(x.shape))


class Transformer(nnx.Module):
    """The pixels look at each other, then at the text; a feed-forward with a gate (GEGLU)."""

    def __init__(self, config: UNetConfig, width: int, *, rngs: nnx.Rngs) -> None:
        self.norm = group_norm(config, width, 1e-6, rngs=rngs)
        self.first = linear(config, width, width, rngs=rngs)
        self.self_norm = layer_norm(config, width, rngs=rngs)
        self.self_attention = Attention(config, width, width, rngs=rngs)
        self.cross_norm = layer_norm(config, width, rngs=rngs)
        self.cross_attention = Attention(config, width, config.context, rngs=rngs)
        self.up_norm = layer_norm(config, width, rngs=rngs)
        self.up = linear(config, width, 8 * width, rngs=rngs)
        self.down = linear(config, 4 * width, width, rngs=rngs)
        self.last = linear(config, width, width, rngs=rngs)

    def __call__(self, x: jax.Array, text: jax.Array) -> jax.Array:
        """x: [B, H, W, width]; text: [B, T, context]."""
        batch, height, width, channels = x.shape
        y = self.first(self.norm(x)).reshape(batch, height * width, channels)
        normed = self.self_norm(y)
        y = y + self.self_attention(normed, normed)
        y = y + self.cross_attention(self.cross_norm(y), text)
        up, gate = jnp.split(self.up(self.up_norm(y)), 2, axis=-1)
        y = y + self.down(up * jax.nn.gelu(gate, approximate=False))
        return x + self.last(y.reshape(x.shape))


class Level(nnx.Module):
    """Residual blocks of one size, each with a transformer behind it if there are any, and what
    changes the size: ``resize`` is None at the end of the way."""

    def __init__(self, config: UNetConfig, inputs: list[int], width: int, resize: str | None, *,
                 transformers: bool, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([Residual(config, n, width, rngs=rngs) for n in inputs])
        self.transformers = nnx.List([Transformer(config, width, rngs=rngs) for _ in inputs]
                                     if transformers else [])
        self.resize = None if resize is None else conv(
            config, width, width, stride=2 if resize == "down" else 1, rngs=rngs)

    def step(self, i: int, x: jax.Array, time: jax.Array, text: jax.Array) -> jax.Array:
        """Block ``i`` and its transformer."""
        x = self.blocks[i](x, time)
        return self.transformers[i](x, text) if self.transformers else x


class UNet(nnx.Module):
    """Latents, a time and the states of a text to the noise in the latents."""

    def __init__(self, config: UNetConfig, *, rngs: nnx.Rngs) -> None:
        widths, last = config.widths, len(config.widths) - 1
        self.config = config
        self.time_up = linear(config, widths[0], config.time, rngs=rngs)
        self.time_down = linear(config, config.time, config.time, rngs=rngs)
        self.first = conv(config, config.channels, widths[0], rngs=rngs)
        down, skips = [], [widths[0]]
        for i, width in enumerate(widths):
            inputs = [widths[max(i - 1, 0)], *([width] * (config.blocks - 1))]
            down.append(Level(config, inputs, width, "down" if i < last else None,
                              transformers=i < last, rngs=rngs))
            skips += [width] * (config.blocks + (i < last))
        self.down = nnx.List(down)
        self.middle = Level(config, [widths[-1]] * 2, widths[-1], None, transformers=True,
                            rngs=rngs)
        del self.middle.transformers[1]
        up = []
        for i, width in reversed(list(enumerate(widths))):
            before = [widths[min(i + 1, last)], *([width] * config.blocks)]
            up.append(Level(config, [n + skips.pop() for n in before], width, "up" if i else None,
                            transformers=i < last, rngs=rngs))
        self.up = nnx.List(up)
        self.norm = group_norm(config, widths[0], rngs=rngs)
        self.last = conv(config, widths[0], config.channels, rngs=rngs)

    def __call__(self, latents: jax.Array, time: jax.Array, text: jax.Array) -> jax.Array:
        """latents: [B, H, W, channels]; time: f32[B], of 0 to 1000; text: [B, T, context]."""
        time = sinusoids(time, self.config.widths[0]).astype(latents.dtype)
        time = self.time_down(jax.nn.silu(self.time_up(time)))
        x = self.first(latents)
        skips = [x]
        for level in self.down:
            for i in range(len(level.blocks)):
                x = level.step(i, x, time, text)
                skips.append(x)
            if level.resize is not None:
                x = level.resize(x)
                skips.append(x)
        x = self.middle.step(0, x, time, text)
        x = self.middle.blocks[1](x, time)
        for level in self.up:
            for i in range(len(level.blocks)):
                x = level.step(i, jnp.concatenate([x, skips.pop()], axis=-1), time, text)
            if level.resize is not None:
                x = level.resize(doubled(x))
        return self.last(jax.nn.silu(self.norm(x)))


def sinusoids(time: jax.Array, size: int) -> jax.Array:
    """Cosines and sines of the time at ``size / 2`` frequencies from 1 to 1 / 10000; f32[B, size].
    """
    frequencies = jnp.exp(-math.log(10000) / (size // 2) * jnp.arange(size // 2))
    angles = time[:, None] * frequencies
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def doubled(x: jax.Array) -> jax.Array:
    """Each pixel four times: twice the height and width."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def conv(config: UNetConfig, n_in: int, n_out: int, kernel: int = 3, *, stride: int = 1,
         rngs: nnx.Rngs) -> nnx.Conv:
    """A square convolution that keeps the size, or halves it with a stride of 2."""
    return nnx.Conv(n_in, n_out, (kernel, kernel), strides=stride, padding=kernel // 2,
                    dtype=config.dtype, param_dtype=config.dtype, rngs=rngs)


def linear(config: UNetConfig, n_in: int, n_out: int, *, bias: bool = True, rngs: nnx.Rngs,
           ) -> nnx.Linear:
    """A dense layer over the channels in the configured dtype."""
    return nnx.Linear(n_in, n_out, use_bias=bias, dtype=config.dtype, param_dtype=config.dtype,
                      rngs=rngs)


def group_norm(config: UNetConfig, size: int, epsilon: float = 1e-5, *, rngs: nnx.Rngs,
               ) -> nnx.GroupNorm:
    """GroupNorm over height, width and the channels of a group."""
    return nnx.GroupNorm(size, config.groups, epsilon=epsilon, dtype=config.dtype,
                         param_dtype=config.dtype, rngs=rngs)


def layer_norm(config: UNetConfig, size: int, *, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the channels."""
    return nnx.LayerNorm(size, epsilon=1e-5, dtype=config.dtype, param_dtype=config.dtype,
                         rngs=rngs)


def create(config: UNetConfig, *, seed: int = 0) -> UNet:
    """A UNet with random weights; the same seed gives the same weights."""
    return UNet(config, rngs=nnx.Rngs(seed))

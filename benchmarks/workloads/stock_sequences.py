"""Networks for sequences of stock flax.linen layers, for the table of such models.

    python -m benchmarks.run --models=stock_table
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.workloads.linen import of_module
from benchmarks.workloads.workload import Workload


class Encoder(nn.Module):
    """Vaswani et al. (2017), of linen's own attention, norms in front."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers, heads = (1, 2) if self.tiny else (6, 12)
        for _ in range(layers):
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=self.dtype)(y, y)
            y = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=self.dtype)(
                nn.LayerNorm(dtype=self.dtype)(x)))
            x = x + nn.Dense(x.shape[-1], dtype=self.dtype)(y)
        return nn.LayerNorm(dtype=self.dtype)(x)


class Local(nn.Module):
    """A decoder's layers with `jax.nn.dot_product_attention` over a window of keys (Beltagy et
    al., 2020) and four queries a key head."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers, heads, size, window = (1, 4, 8, 4) if self.tiny else (4, 16, 64, 256)
        for _ in range(layers):
            y = nn.RMSNorm(dtype=self.dtype)(x)
            q, k, v = (nn.DenseGeneral((n, size), use_bias=False, dtype=self.dtype)(y)
                       for n in (heads, heads // 4, heads // 4))
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True,
                                             local_window_size=(window, 0))
            x = x + nn.DenseGeneral(x.shape[-1], (-2, -1), use_bias=False, dtype=self.dtype)(y)
            y = nn.RMSNorm(dtype=self.dtype)(x)
            gate, up = (nn.Dense(4 * x.shape[-1], use_bias=False, dtype=self.dtype)(y)
                        for _ in range(2))
            x = x + nn.Dense(x.shape[-1], use_bias=False, dtype=self.dtype)(nn.silu(gate) * up)
        return x


class Mamba(nn.Module):
    """Gu and Dao (2023): selective state spaces, scanned in parallel (`lax.associative_scan`)."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(1 if self.tiny else 4):
            x = x + Selective(self.dtype, self.tiny)(nn.RMSNorm(dtype=self.dtype)(x))
        return nn.RMSNorm(dtype=self.dtype)(x)


class Selective(nn.Module):
    """Mamba's mixer of one layer."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wide, (states, rank) = 2 * x.shape[-1], (4, 2) if self.tiny else (16, 48)
        u, gate = jnp.split(nn.Dense(2 * wide, use_bias=False, dtype=self.dtype)(x), 2, -1)
        u = nn.silu(nn.Conv(wide, (4,), padding=[(3, 0)], feature_group_count=wide,
                            dtype=self.dtype)(u))
        low, b, c = jnp.split(
            nn.Dense(rank + 2 * states, use_bias=False, dtype=self.dtype)(u).astype(jnp.float32),
            (rank, rank + states), -1)
        delta = nn.softplus(nn.Dense(wide, dtype=self.dtype)(low).astype(jnp.float32))
        a = -jnp.exp(self.param("a", nn.initializers.normal(0.1), (wide, states)))
        decay = jnp.exp(delta[..., None] * a)  # [b, t, wide, states]
        enters = (delta * u)[..., None] * b[:, :, None]

        def after(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        _, h = jax.lax.associative_scan(after, (decay, enters), axis=1)
        y = jnp.einsum("btws,bts->btw", h, c).astype(self.dtype) + u
        return nn.Dense(x.shape[-1], use_bias=False, dtype=self.dtype)(y * nn.silu(gate))


class Conformer(nn.Module):
    """Gulati et al. (2020): attention and a depthwise convolution between two half MLPs."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers, heads, reach = (1, 2, 3) if self.tiny else (4, 4, 31)
        width = x.shape[-1]
        for _ in range(layers):
            x = x + 0.5 * self.mlp(x)
            y = nn.LayerNorm(dtype=self.dtype)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=self.dtype)(y, y)
            y = nn.glu(nn.Dense(2 * width, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
            y = nn.Conv(width, (reach,), feature_group_count=width, dtype=self.dtype)(y)
            y = nn.swish(nn.BatchNorm(use_running_average=True, dtype=self.dtype)(y))
            x = x + nn.Dense(width, dtype=self.dtype)(y)
            x = nn.LayerNorm(dtype=self.dtype)(x + 0.5 * self.mlp(x))
        return x

    def mlp(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(4 * x.shape[-1], dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        return nn.Dense(x.shape[-1], dtype=self.dtype)(nn.swish(y))


class Linear(nn.Module):
    """Katharopoulos et al. (2020): attention without softmax, in chunks, causal."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers, heads, chunk = (1, 2, 4) if self.tiny else (4, 8, 64)
        b, t, width = x.shape
        for _ in range(layers):
            q, k, v = (nn.DenseGeneral((heads, width // heads), dtype=self.dtype)(
                nn.LayerNorm(dtype=self.dtype)(x)) for _ in range(3))
            q, k, v = (y.reshape(b, t // chunk, chunk, heads, -1)
                       for y in (nn.elu(q) + 1, nn.elu(k) + 1, v))
            states = jnp.cumsum(jnp.einsum("bnchd,bnche->bnhde", k, v).astype(jnp.float32), 1)
            before = jnp.pad(states, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1]
            scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k) * jnp.tri(chunk, dtype=self.dtype)
            y = jnp.einsum("bnhqk,bnkhd->bnqhd", scores, v) \
                + jnp.einsum("bnchd,bnhde->bnche", q, before.astype(self.dtype))
            sums = jnp.cumsum(k.reshape(b, t, heads, -1).astype(jnp.float32), 1)
            norm = jnp.einsum("bthd,bthd->bth", q.reshape(b, t, heads, -1).astype(jnp.float32),
                              sums)
            y = y.reshape(b, t, heads, -1) / norm[..., None].astype(self.dtype)
            x = x + nn.DenseGeneral(width, (-2, -1), dtype=self.dtype)(y)
            y = nn.Dense(4 * width, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
            x = x + nn.Dense(width, dtype=self.dtype)(nn.gelu(y))
        return x


class Mixtral(nn.Module):
    """Jiang et al. (2024): a layer whose rows go to the best two of eight experts. ``gathered``:
    the weights of these are looked up, as for few rows; else rows are sorted by expert and
    multiplied in groups (`lax.ragged_dot`)."""

    dtype: Any
    tiny: bool
    gathered: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers, wide = (1, 32) if self.tiny else (4, 3584)
        width, init = x.shape[-1], nn.initializers.normal(0.02)
        for layer in range(layers):
            y = nn.RMSNorm(dtype=self.dtype)(x)
            share, place = jax.lax.top_k(nn.softmax(nn.Dense(8, use_bias=False)(y)), 2)
            share = (share / share.sum(-1, keepdims=True)).astype(self.dtype)
            gate, up, down = (self.param(f"{n}_{layer}", init, shape, self.dtype)
                              for n, shape in (("gate", (8, width, wide)), ("up", (8, width, wide)),
                                               ("down", (8, wide, width))))
            if self.gathered:
                h = nn.silu(jnp.einsum("td,tkdf->tkf", y, gate[place])) \
                    * jnp.einsum("td,tkdf->tkf", y, up[place])
                y = jnp.einsum("tkf,tkfd,tk->td", h, down[place], share)
            else:
                order = jnp.argsort(place.reshape(-1), stable=True)
                sizes = jnp.bincount(place.reshape(-1), length=8)
                rows = y[order // 2]
                h = nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) \
                    * jax.lax.ragged_dot(rows, up, sizes)
                back = jax.lax.ragged_dot(h, down, sizes)[jnp.argsort(order)]
                y = jnp.einsum("tkd,tk->td", back.reshape(*place.shape, width), share)
            x = x + y
        return x


def of_shape(rows: int, width: int, small: tuple[int, int], dtype: Any = jnp.bfloat16) -> Any:
    def inputs(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
        return (jax.random.normal(key, (batch, *(small if tiny else (rows, width))), dtype),)
    return inputs


def few(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (jax.random.normal(key, (batch, 16 if tiny else 1024), jnp.bfloat16),)


WORKLOADS: tuple[Workload, ...] = (
    of_module("linen_encoder", "encoder of 6 layers", Encoder, of_shape(128, 768, (8, 16)),
              (1, 16)),
    of_module("linen_encoder_f32", "encoder of 6 layers, f32", Encoder,
              of_shape(128, 768, (8, 16), jnp.float32), (1, 16), "f32"),
    of_module("local_decoder", "4 layers, windows of 256 keys", Local,
              of_shape(1024, 1024, (8, 32)), (1, 4)),
    of_module("mamba", "Mamba, 4 layers", Mamba, of_shape(256, 768, (8, 16)), (1, 8)),
    of_module("conformer", "Conformer, 4 layers", Conformer, of_shape(200, 256, (8, 16)), (1, 16)),
    of_module("linear_attention", "linear attention, 4 layers", Linear,
              of_shape(1024, 512, (8, 16)), (1, 8)),
    of_module("mixtral_few", "experts' weights looked up, 4 layers", Mixtral, few, (1, 4)),
    of_module("mixtral_rows", "rows sorted by expert, 4 layers",
              lambda **kw: Mixtral(gathered=False, **kw), few, (512,)),
)

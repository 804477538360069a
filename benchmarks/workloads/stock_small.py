"""Small programs in f32 as research code has them, for the table of stock models.

    python -m benchmarks.run --models=stock_table
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.workloads.linen import of_module
from benchmarks.workloads.workload import Workload


class Policy(nn.Module):
    """A tanh-Gaussian policy and its value for reinforcement learning (Haarnoja et al., 2018)."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, noise: jax.Array) -> tuple[jax.Array, ...]:
        def mlp(x: jax.Array, out: int) -> jax.Array:
            for _ in range(2):
                x = nn.tanh(nn.Dense(16 if self.tiny else 256, dtype=self.dtype)(x))
            return nn.Dense(out, dtype=self.dtype)(x)

        x = jnp.clip((x - 0.1) / 1.3, -5, 5)
        mean, scale = jnp.split(mlp(x, 2 * noise.shape[-1]), 2, -1)
        scale = nn.softplus(scale) + 1e-3
        drawn = mean + scale * noise
        log = (-0.5 * noise ** 2 - jnp.log(scale) - 0.919 - 2 * (
            jnp.log(2.0) - drawn - nn.softplus(-2 * drawn))).sum(-1)
        return jnp.tanh(drawn), log, mlp(x, 1)[..., 0]


class Radiance(nn.Module):
    """Mildenhall et al. (2020): colours and densities along rays, summed."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, points: jax.Array) -> jax.Array:
        """points: [rays, samples, 3]."""
        width = 16 if self.tiny else 256
        waves = points[..., None] * 2.0 ** jnp.arange(10)
        known = jnp.concatenate([points, *(f(waves).reshape(*points.shape[:-1], -1)
                                           for f in (jnp.sin, jnp.cos))], -1)
        x = known
        for layer in range(8):
            if layer == 5:
                x = jnp.concatenate([x, known], -1)
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        density = nn.relu(nn.Dense(1, dtype=self.dtype)(x))[..., 0]
        colour = nn.sigmoid(nn.Dense(3, dtype=self.dtype)(
            nn.relu(nn.Dense(width // 2, dtype=self.dtype)(x))))
        alpha = 1 - jnp.exp(-density * 0.05)
        light = jnp.cumprod(jnp.pad(1 - alpha + 1e-10, ((0, 0), (1, 0)),
                                    constant_values=1.0)[:, :-1], -1)
        return ((alpha * light)[..., None] * colour).sum(-2)


class Graph(nn.Module):
    """Kipf and Welling (2017), two layers over a graph of Cora's size."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
        nodes = x.shape[0]
        degree = jax.ops.segment_sum(jnp.ones(source.shape, x.dtype), target, nodes)
        scale = jax.lax.rsqrt(jnp.maximum(degree, 1))
        for width, last in ((16, False), (7, True)):
            x = nn.Dense(width, dtype=self.dtype)(x) * scale[:, None]
            x = jax.ops.segment_sum(x[source], target, nodes) * scale[:, None]
            x = x if last else nn.relu(x)
        return nn.log_softmax(x)


class Recommender(nn.Module):
    """Naumov et al. (2019), DLRM: embeddings, their products in pairs, two MLPs."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, dense: jax.Array, places: jax.Array) -> jax.Array:
        lines, width, wide = (20, 8, 16) if self.tiny else (100_000, 64, 512)
        x = dense
        for w in (wide, wide // 2, width):
            x = nn.relu(nn.Dense(w, dtype=self.dtype)(x))
        tables = self.param("tables", nn.initializers.normal(0.1), (places.shape[1], lines, width))
        rows = jax.vmap(lambda table, at: table[at], (0, 1), 1)(tables, places)
        both = jnp.concatenate([x[:, None], rows], 1)
        pairs = jnp.einsum("bnd,bmd->bnm", both, both)
        left, right = jnp.tril_indices(both.shape[1], -1)
        x = jnp.concatenate([x, pairs[:, left, right]], -1)
        for w in (wide, wide // 2):
            x = nn.relu(nn.Dense(w, dtype=self.dtype)(x))
        return nn.sigmoid(nn.Dense(1, dtype=self.dtype)(x))[:, 0]


class Burgers(nn.Module):
    """Raissi et al. (2019): what is left of Burgers' equation for a network u(x, t), at points."""

    dtype: Any
    tiny: bool

    def setup(self) -> None:
        width = 8 if self.tiny else 64
        self.layers = [nn.Dense(width, dtype=self.dtype) for _ in range(4)]
        self.last = nn.Dense(1, dtype=self.dtype)

    def __call__(self, points: jax.Array) -> jax.Array:
        def u(p: jax.Array) -> jax.Array:
            for layer in self.layers:
                p = jnp.tanh(layer(p))
            return self.last(p)[0]

        if self.is_initializing():
            return jax.vmap(u)(points)

        def left(p: jax.Array) -> jax.Array:
            value, (by_x, by_t) = jax.value_and_grad(u)(p)
            along = jnp.array([1.0, 0.0], p.dtype)
            twice = jax.jvp(lambda p: jax.grad(u)(p)[0], (p,), (along,))[1]
            return by_t + value * by_x - 0.01 / jnp.pi * twice

        return jax.vmap(left)(points)


class Flow(nn.Module):
    """Dinh et al. (2017), RealNVP: the likelihood of vectors by eight coupling layers."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        total = jnp.zeros(x.shape[0], jnp.float32)
        for _ in range(2 if self.tiny else 8):
            kept, moved = jnp.split(x, 2, -1)
            y = kept
            for _ in range(2):
                y = nn.relu(nn.Dense(16 if self.tiny else 512, dtype=self.dtype)(y))
            scale, shift = jnp.split(nn.Dense(2 * moved.shape[-1], dtype=self.dtype)(y), 2, -1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([moved * jnp.exp(scale) + shift, kept], -1)
            total = total + scale.sum(-1)
        return total - 0.5 * (x ** 2).sum(-1)


class Ensemble(nn.Module):
    """Sixteen MLPs side by side (`nn.vmap`), their mean and variance."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        class Member(nn.Module):
            width: int
            dtype: Any

            @nn.compact
            def __call__(self, x: jax.Array) -> jax.Array:
                for _ in range(3):
                    x = nn.silu(nn.Dense(self.width, dtype=self.dtype)(x))
                return nn.Dense(x.shape[-1] // 8, dtype=self.dtype)(x)

        members = nn.vmap(Member, in_axes=None, axis_size=16, variable_axes={"params": 0},
                          split_rngs={"params": True})
        y = members(16 if self.tiny else 256, self.dtype)(x)
        return y.mean(0), y.var(0)


class Clusters(nn.Module):
    """A step of k-means: each row's nearest centre, and the centres' new places."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        centres = self.param("centres", nn.initializers.normal(1.0),
                             (4 if self.tiny else 256, x.shape[-1]))
        apart = (x ** 2).sum(-1)[:, None] - 2 * x @ centres.T + (centres ** 2).sum(-1)
        own = jnp.argmin(apart, -1)
        ones = jax.nn.one_hot(own, len(centres), dtype=x.dtype)
        return (ones.T @ x) / jnp.maximum(ones.sum(0), 1)[:, None]


class Contrast(nn.Module):
    """Radford et al. (2021): the loss of pairs of images and texts, from their features."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, image: jax.Array, text: jax.Array) -> jax.Array:
        def unit(x: jax.Array) -> jax.Array:
            x = nn.Dense(16 if self.tiny else 512, use_bias=False, dtype=self.dtype)(x)
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

        logits = 14.3 * unit(image) @ unit(text).T
        return -(jnp.diag(nn.log_softmax(logits, 0)) + jnp.diag(nn.log_softmax(logits, 1))).mean()


def _vectors(*widths: int) -> Any:
    """Inputs [batch, w] each."""
    def inputs(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, len(widths))
        return tuple(jax.random.normal(k, (batch, min(w, 16) if tiny else w))
                     for k, w in zip(keys, widths, strict=True))
    return inputs


def _rays(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    return (jax.random.normal(key, (batch, 4, 3) if tiny else (batch, 64, 3)),)


def _graph(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    nodes, edges, width = (10, 20, 8) if tiny else (2708 * batch, 10556 * batch, 1433)
    a, b, c = jax.random.split(key, 3)
    return (jax.random.bernoulli(a, 0.0127, (nodes, width)).astype(jnp.float32),
            jax.random.randint(b, (edges,), 0, nodes), jax.random.randint(c, (edges,), 0, nodes))


def _clicks(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    a, b = jax.random.split(key)
    return (jax.random.normal(a, (batch, 13)),
            jax.random.randint(b, (batch, 3 if tiny else 26), 0, 20 if tiny else 100_000))


WORKLOADS: tuple[Workload, ...] = (
    of_module("policy_mlp", "policy and value, MLPs of 256", Policy, _vectors(87, 8), (1, 64, 4096),
              "f32"),
    of_module("nerf", "NeRF, 64 samples a ray", Radiance, _rays, (16, 1024), "f32"),
    of_module("gcn", "GCN of Cora's size", Graph, _graph, (1,), "f32"),
    of_module("dlrm", "DLRM, 26 tables", Recommender, _clicks, (1, 2048), "f32"),
    of_module("pinn", "second derivatives of an MLP", Burgers, _vectors(2), (1024, 16384),
              "f32"),
    of_module("realnvp", "RealNVP, 8 layers", Flow, _vectors(64), (1, 512), "f32"),
    of_module("mlp_ensemble", "16 MLPs side by side", Ensemble, _vectors(32), (1, 256), "f32"),
    of_module("kmeans", "k-means, 256 centres", Clusters, _vectors(64), (65536,), "f32"),
    of_module("clip_loss", "CLIP's loss", Contrast, _vectors(768, 512), (4096,), "f32"),
)

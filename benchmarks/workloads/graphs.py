"""A table of networks on graphs in f32, as users write them with segment sums.

    python -m benchmarks.run --models=graph_table

Edges at random, all nodes as often; ``batch`` multiplies graphs, of which nodes and edges lie one
behind the other.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.workloads.linen import Apply, Inputs, of_module
from benchmarks.workloads.workload import Workload


class Messages(nn.Module):
    """Gilmer et al. (2017) as Battaglia et al. (2018): three rounds in which each edge, and then
    each node, has an MLP with a norm of what it and its neighbours know."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, edges: jax.Array, source: jax.Array,
                 target: jax.Array) -> jax.Array:
        width = 16 if self.tiny else 128

        def mlp(*xs: jax.Array) -> jax.Array:
            y = nn.relu(nn.Dense(width, dtype=self.dtype)(jnp.concatenate(xs, -1)))
            return nn.LayerNorm(dtype=self.dtype)(nn.Dense(width, dtype=self.dtype)(y))

        x, e = mlp(x), mlp(edges)
        for _ in range(3):
            e = e + mlp(e, x[source], x[target])
            x = x + mlp(x, jax.ops.segment_sum(e, target, x.shape[0]))
        return nn.Dense(3, dtype=self.dtype)(x)


class Attention(nn.Module):
    """Velickovic et al. (2018), GAT: 8 heads of 8, then one of 7, softmaxes over a node's edges."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
        nodes = x.shape[0]
        for layer, (heads, width) in enumerate(((8, 8), (1, 7))):
            y = nn.DenseGeneral((heads, width), use_bias=False, dtype=self.dtype)(x)
            left, right = (self.param(f"{side}{layer}", nn.initializers.normal(0.1),
                                      (heads, width)) for side in ("left", "right"))
            score = nn.leaky_relu((y * left).sum(-1)[source] + (y * right).sum(-1)[target], 0.2)
            most = jax.ops.segment_max(score, target, nodes)
            weight = jnp.exp(score - most[target])
            total = jax.ops.segment_sum(weight, target, nodes)
            weight = weight / total[target]
            x = jax.ops.segment_sum(weight[..., None] * y[source], target, nodes)
            x = x.reshape(nodes, -1)
            x = x if layer else nn.elu(x)
        return nn.log_softmax(x)


class Atoms(nn.Module):
    """Schuett et al. (2017), SchNet: three continuous-filter convolutions; the energy of all."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, places: jax.Array, kinds: jax.Array, source: jax.Array,
                 target: jax.Array) -> jax.Array:
        atoms, width = places.shape[0], 16 if self.tiny else 64
        apart = places[source] - places[target]
        distance = jnp.sqrt((apart ** 2).sum(-1) + 1e-6)
        waves = jnp.exp(-10.0 * (distance[:, None] - jnp.linspace(0.0, 5.0, 50)) ** 2)
        near = 0.5 * (jnp.cos(jnp.minimum(distance, 5.0) * jnp.pi / 5.0) + 1.0)

        def softplus(y: jax.Array) -> jax.Array:
            return nn.softplus(y) - jnp.log(2.0)

        def dense(y: jax.Array, n: int = width) -> jax.Array:
            return nn.Dense(n, dtype=self.dtype)(y)

        x = nn.Embed(100, width, dtype=self.dtype)(kinds)
        for _ in range(3):
            filters = dense(softplus(dense(waves))) * near[:, None]
            y = jax.ops.segment_sum(dense(x)[source] * filters, target, atoms)
            x = x + dense(softplus(dense(y)))
        return dense(softplus(dense(x, width // 2)), 1).sum()


class Molecules(nn.Module):
    """Xu et al. (2019), GIN: five layers, then a number for each graph."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, x: jax.Array, graph: jax.Array, source: jax.Array,
                 target: jax.Array) -> jax.Array:
        width, nodes = 16 if self.tiny else 64, x.shape[0]
        for _ in range(5):
            x = x + jax.ops.segment_sum(x[source], target, nodes, indices_are_sorted=True)
            for _ in range(2):
                x = nn.relu(nn.LayerNorm(dtype=self.dtype)(nn.Dense(width, dtype=self.dtype)(x)))
        pooled = jax.ops.segment_sum(x, graph, nodes // 24)
        return nn.Dense(1, dtype=self.dtype)(pooled)[:, 0]


class Pillars(nn.Module):
    """Lang et al. (2019), PointPillars: features of points, the largest of each cell's points."""

    dtype: Any
    tiny: bool

    @nn.compact
    def __call__(self, points: jax.Array, cell: jax.Array) -> jax.Array:
        width, cells = (16, 8) if self.tiny else (64, 64)
        x = nn.relu(nn.LayerNorm(dtype=self.dtype)(nn.Dense(width, dtype=self.dtype)(points)))
        most = jax.ops.segment_max(x, cell, cells * cells)
        return jnp.where(jnp.isfinite(most), most, 0).reshape(cells, cells, width)


def _edges(nodes: int, edges: int, *widths: int, of_edges: int = 0, ordered: bool = False,
           kinds: bool = False) -> Inputs:
    """Nodes' features (or places and kinds of atoms), edges' features, both ends of each edge."""
    def inputs(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
        n, m = (48, 96) if tiny else (nodes * batch, edges * batch)
        keys = jax.random.split(key, 4)
        x = jax.random.normal(keys[0], (n, *widths))
        more = (jax.random.normal(keys[1], (m, of_edges)),) if of_edges else ()
        if kinds:
            x, more = 2 * x, (jax.random.randint(keys[1], (n,), 0, 100),)
        if ordered:
            more = (jnp.arange(n) // 24,)
        source, target = (jax.random.randint(k, (m,), 0, n) for k in keys[2:])
        return x, *more, source, jnp.sort(target) if ordered else target
    return inputs


def _points(key: jax.Array, batch: int, tiny: bool) -> tuple[jax.Array, ...]:
    n = 64 if tiny else 16384 * batch
    keys = jax.random.split(key)
    return jax.random.normal(keys[0], (n, 9)), jax.random.randint(keys[1], (n,), 0,
                                                                  64 if tiny else 4096)


def _forces(apply: Apply, state: Any, places: jax.Array, *rest: jax.Array) -> tuple[Any, ...]:
    """The energy and its gradient by the places of the atoms."""
    return jax.value_and_grad(lambda x: apply(state, x, *rest))(places)


def _gradients(apply: Apply, state: Any, *xs: jax.Array) -> Any:
    """Of a loss, by the weights."""
    return jax.grad(lambda s: (apply(s, *xs) ** 2).mean())(state)


_MESH = _edges(4096, 16384, 16, of_edges=8)

WORKLOADS: tuple[Workload, ...] = tuple(
    of_module(name, title, module, inputs, (1,), "f32", table="graph_table", call=call)
    for name, title, module, inputs, call in (
        ("messages_4096_16384", "a graph network of a mesh", Messages, _MESH, None),
        ("messages_train_4096_16384", "its gradients", Messages, _MESH, _gradients),
        ("gat_2708_13264", "GAT of Cora's size", Attention, _edges(2708, 13264, 1433), None),
        ("schnet_512_16384", "SchNet's energy and forces", Atoms,
         _edges(512, 16384, 3, kinds=True), _forces),
        ("gin_768_1664", "GIN of 32 molecules", Molecules, _edges(768, 1664, 64, ordered=True),
         None),
        ("pillars_16384_4096", "points' features by cell", Pillars, _points, None),
    ))

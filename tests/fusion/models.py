"""Programs for planner tests: JAX functions with example arguments, and their Graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np

from jaxmono.hlo.importer import module as importer
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes import simplify


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    """The simplified Graph of ``fn`` at these arguments."""
    lowered = jax.jit(fn, keep_unused=True).lower(*args)
    return simplify(importer.import_module(lowered.compiler_ir("stablehlo")).graph)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Inputs of a graph: floats from a normal distribution, small non-negative integers."""
    rng = np.random.default_rng(seed)
    out: list[np.ndarray[Any, Any]] = []
    for v in graph.inputs:
        t = v.type.dtype
        if t.is_float:
            a = rng.standard_normal(v.type.dims).astype(t.numpy)
        elif t.is_integer:
            a = rng.integers(0, 4, v.type.dims).astype(t.numpy)
        else:
            a = rng.integers(0, 2, v.type.dims).astype(bool)
        out.append(np.asarray(a))
    return out


class EncoderLayer(nnx.Module):
    """A BERT encoder layer (norm after the residual) on flax's own attention."""

    def __init__(self, width: int, heads: int, inner: int, dtype: Any, rngs: nnx.Rngs) -> None:
        kw = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, **kw)
        self.norm1 = nnx.LayerNorm(width, **kw)
        self.up = nnx.Linear(width, inner, **kw)
        self.down = nnx.Linear(inner, width, **kw)
        self.norm2 = nnx.LayerNorm(width, **kw)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = self.norm1(x + self.attention(x, mask=mask))
        return self.norm2(x + self.down(jax.nn.gelu(self.up(x), approximate=False)))


class Encoder(nnx.Module):
    """Embeddings, layers, masked mean pooling and normalisation."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, vocabulary: int,
                 length: int, dtype: Any = jnp.float32) -> None:
        rngs = nnx.Rngs(0)
        kw = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.tokens = nnx.Embed(vocabulary, width, **kw)
        self.positions = nnx.Embed(length, width, **kw)
        self.norm = nnx.LayerNorm(width, **kw)
        self.layers = nnx.List([EncoderLayer(width, heads, inner, dtype, rngs)
                                for _ in range(layers)])

    def __call__(self, ids: jax.Array, mask: jax.Array) -> jax.Array:
        x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1])[None])
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :] > 0)
        weight = mask[:, :, None].astype(jnp.float32)
        pooled = (x.astype(jnp.float32) * weight).sum(1) / jnp.maximum(weight.sum(1), 1e-9)
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)


def encoder(layers: int = 2, batch: int = 2, length: int = 8, width: int = 32, heads: int = 4,
            inner: int = 64, dtype: Any = jnp.float32) -> tuple[Any, tuple[Any, ...]]:
    """A function of (state, ids, mask), and abstract arguments for it."""
    model = nnx.eval_shape(lambda: Encoder(layers, width, heads, inner, 50, length, dtype))
    definition, state = nnx.split(model)

    def fn(state: Any, ids: Any, mask: Any) -> Any:
        return nnx.merge(definition, state)(ids, mask)

    ids = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return fn, (state, ids, ids)


@functools.cache
def encoder_graph(layers: int = 2, batch: int = 2, length: int = 8, width: int = 32,
                  heads: int = 4, inner: int = 64, bf16: bool = False) -> Graph:
    fn, args = encoder(layers, batch, length, width, heads, inner,
                       jnp.bfloat16 if bf16 else jnp.float32)
    return graph_of(fn, *args)


def norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-6) * scale + bias


def decode_step(layers: int = 2, heads: int = 4, dim: int = 8, context: int = 16,
                inner: int = 64) -> tuple[Callable[..., Any], Sequence[Any]]:
    """One token of a decoder with key and value caches updated at a dynamic position."""
    width = heads * dim

    def step(params: Any, caches: Any, x: jax.Array, pos: jax.Array) -> Any:
        out = []
        for p, (ck, cv) in zip(params, caches, strict=True):
            h = norm(x, p["s1"], p["b1"])
            q = (h @ p["q"]).reshape(1, heads, dim)
            k = (h @ p["k"]).reshape(1, heads, dim)
            v = (h @ p["v"]).reshape(1, heads, dim)
            ck = jax.lax.dynamic_update_slice(ck, k, (pos, 0, 0))
            cv = jax.lax.dynamic_update_slice(cv, v, (pos, 0, 0))
            scores = jnp.einsum("qhd,khd->hqk", q, ck) / np.sqrt(dim).astype(np.float32)
            scores = jnp.where(jnp.arange(context)[None, None] <= pos, scores, -1e30)
            o = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1), cv)
            x = x + o.reshape(1, width) @ p["o"]
            h = norm(x, p["s2"], p["b2"])
            x = x + jax.nn.relu(h @ p["up"]) @ p["down"]
            out.append((ck, cv))
        return x, out

    def s(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    w = s(width, width)
    params = [{"s1": s(width), "b1": s(width), "s2": s(width), "b2": s(width), "q": w, "k": w,
               "v": w, "o": w, "up": s(width, inner), "down": s(inner, width)}
              for _ in range(layers)]
    cache = s(context, heads, dim)
    caches = [(cache, cache) for _ in range(layers)]
    return step, (params, caches, s(1, width), jax.ShapeDtypeStruct((), jnp.int32))

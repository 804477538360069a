"""A table of programs that draw at random, beside the standard table.

    python -m benchmarks.run --models=random_table

What `jax.random` gives alone, dropout in front of and behind products, and tokens drawn of logits;
and the likeliest token, as a search without chance finds it. ``batch`` multiplies the rows.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import Function, Shape, of_function
from benchmarks.workloads.workload import Program, Request, Workload
from examples.models.sampling import draw


def dropped(key: jax.Array, x: jax.Array, rate: float = 0.1) -> jax.Array:
    """Inverted dropout, as `flax.nnx.Dropout` has it."""
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros_like(x))


def bits(key: jax.Array, x: jax.Array) -> jax.Array:
    """Uniform numbers, added. x: [m, n]."""
    return x + jax.random.uniform(key, x.shape, x.dtype)


def noise(key: jax.Array, x: jax.Array) -> jax.Array:
    """Gaussian noise, added: a step of a diffusion model's sampler. x: [m, n]."""
    return x + 0.1 * jax.random.normal(key, x.shape, x.dtype)


def dropout(key: jax.Array, x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """A layer whose results are dropped. x: [m, k]; w: [k, n]; b: [n]."""
    return dropped(key, jax.nn.gelu(x @ w + b))


def dropout_gradients(key: jax.Array, x: jax.Array, back: jax.Array, up: jax.Array,
                      down: jax.Array) -> tuple[jax.Array, ...]:
    """All gradients of an MLP with dropout behind both layers; forward, then back.

    x and back, the gradient of what they make: [m, k]; up: [k, n]; down: [n, k].
    """
    def layers(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        return dropped(second, dropped(first, jax.nn.gelu(x @ up)) @ down)

    return jax.vjp(layers, x, up, down)[1](back)


def head(key: jax.Array, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The last layer of a decoder, whose weights are the words' embeddings; a token of each row,
    and the next key. x: [m, k]; w: [n, k]."""
    key, now = jax.random.split(key)
    return draw(now, x @ w.T), key


def likeliest(key: jax.Array, x: jax.Array) -> jax.Array:
    """The token of the largest logit, without chance. x: [m, n]; i32[m]."""
    return jnp.argmax(x, axis=-1)


def _random(name: str, title: str, fn: Function, inputs: tuple[Shape, ...],
            tiny: tuple[Shape, ...], weights: dict[str, Shape] | None = None,
            small: dict[str, Shape] | None = None, *, search: bool = False) -> Workload:
    """A function of a key and arrays: its first input is a key's words."""
    def keyed(words: jax.Array, *args: jax.Array, **more: jax.Array) -> Any:
        return fn(words, *args, **more)

    plain = of_function(name, title, keyed, inputs, tiny, weights or {}, small or {},
                        table="random_table", search=search)

    def build(request: Request) -> Program:
        program = plain.build(request)
        return dataclasses.replace(program, inputs=lambda key: (
            jax.random.key_data(jax.random.fold_in(key, 1)), *program.inputs(key)))

    return dataclasses.replace(plain, build=build)


_MLP = {"up": (768, 3072), "down": (3072, 768)}
_SMALL_MLP = {"up": (16, 64), "down": (64, 16)}

WORKLOADS: tuple[Workload, ...] = (
    _random("uniform_4096_4096", "uniform numbers, added", bits, ((4096, 4096),), ((32, 64),)),
    _random("noise_16384", "Gaussian noise, added, 4x64x64", noise, ((4, 4096),), ((4, 64),)),
    _random("noise_4096_1024", "Gaussian noise, added", noise, ((4096, 1024),), ((32, 64),)),
    _random("dropout_2048_3072_768", "a layer with dropout", dropout, ((2048, 768),), ((32, 16),),
            {"w": (768, 3072), "b": (3072,)}, {"w": (16, 64), "b": (64,)}),
    *(_random(f"dropout_gradients_{m}_3072_768", "all gradients of an MLP with dropout",
              dropout_gradients, ((m, 768), (m, 768)), ((32, 16), (32, 16)), _MLP, _SMALL_MLP)
      for m in (512, 4096)),
    *(_random(f"draw_{m}_{n}", f"a token of {n}, {m} rows", draw, ((m, n),), ((2, 40000),),
              search=True) for m, n in ((1, 50257), (16, 50257), (1, 128256))),
    *(_random(f"draw_{m}_50257_{k}", f"a token of the {k} likeliest of 50257, {m} rows",
              partial(draw, top_k=k), ((m, 50257),), ((2, 64),), search=True)
      for m, k in ((1, 50), (16, 40))),
    *(_random(f"head_{m}_50257_768", f"a last layer and a token, {m} rows", head, ((m, 768),),
              ((2, 16),), {"w": (50257, 768)}, {"w": (64, 16)}, search=True) for m in (1, 16)),
    *(_random(f"likeliest_{m}_{n}", f"the likeliest of {n}, {m} rows", likeliest, ((m, n),),
              ((2, 40000),), search=True) for m, n in ((1, 128256), (16, 50257), (64, 50257))),
)

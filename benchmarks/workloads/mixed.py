"""A table of layers and models as Flax makes them by default, beside the standard table.

    python -m benchmarks.run --models=mixed_table

Parameters are f32 and converted where they are used (``dtype=bf16``, ``param_dtype=f32``), so the
floor of a step at batch 1 are f32 weights: twice the bytes of the standard table's. ``batch``
multiplies the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads import bert, convnets, decoders, vision_transformers
from benchmarks.workloads.micro import weight
from benchmarks.workloads.workload import Program, Request, Workload

TABLE = "mixed_table"

LAYERS = ((768, 3072), (3072, 768), (2048, 8192))
"""(inputs, outputs) of dense layers: BERT's and one of Llama-1B's."""

ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048)

MODELS = (("bert_base", (1, 16)), ("vit_b16", (1, 16)), ("resnet50", (1, 32)),
          ("gpt2_decode", (1, 16)))
"""(workload of the standard table, batches)."""


def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """x: [m, k]; kernel: [k, n]; bias: [n]; [m, n]."""
    return jax.nn.gelu(x @ kernel + bias)


def normed(x: jax.Array, kernel: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """`dense` of rows that are normalised before; scale: [k]."""
    return dense(jax.nn.standardize(x.astype(jnp.float32)).astype(x.dtype) * scale, kernel, bias)


def head(x: jax.Array, table: jax.Array) -> jax.Array:
    """Logits by an embedding's table [n, k]."""
    return x @ table.T


def _layer(fn: Callable[..., jax.Array], m: int, k: int, n: int,
           sizes: Mapping[str, str]) -> Workload:
    """``sizes``: of each parameter, named by letters: "kn"."""
    name = f"{fn.__name__}_{m}_{k}_{n}_mixed"

    def build(request: Request) -> Program:
        size = dict(zip("mkn", (16, 24, 40) if request.tiny else (request.batch * m, k, n),
                        strict=True))

        def step(state: Any, carry: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            return fn(x, **jax.tree.map(lambda leaf: leaf.astype(x.dtype), state)), carry

        def state() -> dict[str, jax.Array]:
            keys = jax.random.split(jax.random.key(7), len(sizes))
            return {name: weight(key, name, tuple(size[d] for d in dims), jnp.float32)
                    for key, (name, dims) in zip(keys, sizes.items(), strict=True)}

        step.__name__ = name
        return Program(step, "x".join(map(str, size.values())), state=state, inputs=lambda key: (
            jax.random.normal(key, (size["m"], size["k"]), request.jax_dtype),))

    return Workload(name, f"{fn.__name__}, {m}x{k}x{n}, f32 parameters", "micro", build,
                    one_kernel=True, table=TABLE)


def _mixed(model: Workload, batches: tuple[int, ...]) -> Workload:
    """The model with parameters in f32, each converted before it is used."""
    def build(request: Request) -> Program:
        program = model.build(request)
        kept = model.build(dataclasses.replace(request, dtype="f32"))

        def step(state: Any, carry: Any, *inputs: jax.Array) -> tuple[Any, Any]:
            return program.step(jax.tree.map(converted, state), carry, *inputs)

        def converted(leaf: jax.Array) -> jax.Array:
            return leaf.astype(request.jax_dtype) if leaf.dtype == jnp.float32 else leaf

        step.__name__ = f"{model.name}_mixed"
        return dataclasses.replace(program, step=step, state=kept.state, weights=kept.weights)

    return dataclasses.replace(model, name=f"{model.name}_mixed", batches=batches, build=build,
                               title=f"{model.title}, f32 parameters", table=TABLE)


WORKLOADS: tuple[Workload, ...] = (
    *(_layer(dense, m, k, n, {"kernel": "kn", "bias": "n"}) for k, n in LAYERS for m in ROWS),
    *(_layer(normed, m, 768, 3072, {"kernel": "kn", "scale": "k", "bias": "n"}) for m in (1, 16)),
    *(_layer(head, m, 768, 50257, {"table": "nk"}) for m in (1, 16, 128)),
    *(_mixed(next(w for family in (bert, vision_transformers, convnets, decoders)
                  for w in family.WORKLOADS if w.name == name), batches)
      for name, batches in MODELS),
)

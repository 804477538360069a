"""A table of layers and models as Flax makes them by default, beside the standard table.

    python -m benchmarks.run --models=mixed_table

Parameters are f32 and converted where they are used (``dtype=bf16``, ``param_dtype=f32``), so the
floor of a step at batch 1 are f32 weights: twice the bytes of the standard table's. ``batch``
multiplies the rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads import bert, convnets, decoders, vision_transformers
from benchmarks.workloads.micro import weight
from benchmarks.workloads.workload import Program, Request, Workload

TABLE = "mixed_table"

LAYERS = ((768, 3072), (3072, 768), (2048, 8192))
"""(inputs, outputs): BERT's and one of Llama-1B's."""

ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048)

MODELS = (("bert_base", (1, 16)), ("vit_b16", (1, 16)), ("resnet50", (1, 32)),
          ("gpt2_decode", (1,)))
"""(workload of the standard table, batches)."""


def _dense(rows: int, k: int, n: int) -> Workload:
    name = f"dense_{rows}_{k}_{n}_mixed"

    def build(request: Request) -> Program:
        m, k_, n_ = (16, 24, 40) if request.tiny else (request.batch * rows, k, n)

        def step(state: Any, carry: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            kernel, bias = (p.astype(x.dtype) for p in state)
            return jax.nn.gelu(x @ kernel + bias), carry

        def state() -> tuple[jax.Array, ...]:
            keys = jax.random.split(jax.random.key(7))
            return (weight(keys[0], "kernel", (k_, n_), jnp.float32),
                    weight(keys[1], "bias", (n_,), jnp.float32))

        step.__name__ = name
        return Program(step, f"{m}x{k_}x{n_}", state=state, inputs=lambda key: (
            jax.random.normal(key, (m, k_), request.jax_dtype),))

    return Workload(name, f"Dense and GELU, {rows}x{k}x{n}, f32 parameters", "micro", build,
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
    *(_dense(rows, k, n) for k, n in LAYERS for rows in ROWS),
    *(_mixed(next(w for family in (bert, vision_transformers, convnets, decoders)
                  for w in family.WORKLOADS if w.name == name), batches)
      for name, batches in MODELS),
)

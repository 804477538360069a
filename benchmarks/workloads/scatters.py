"""A table of scatters, beside the standard table.

    python -m benchmarks.run --models=scatter_table

Gradients of embeddings, of a softmax's labels, sums of segments, counts, rows that are written.
``batch`` multiplies the updates.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import Function, Shape, of_function
from benchmarks.workloads.workload import Program, Request, Workload


def words(index: jax.Array, u: jax.Array, lines: int) -> jax.Array:
    """The gradient of an embedding in f32, and a step with it. index: i32[t]; u: [t, w]."""
    table = jnp.zeros((lines, u.shape[1]), u.dtype).at[index].add(u)
    return table.astype(jnp.float32) * -0.1


def labels(index: jax.Array, logits: jax.Array) -> jax.Array:
    """The gradient of the cross-entropy of logits [t, v]. index: i32[t]."""
    def loss(x: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(x.astype(jnp.float32)), index[:, None], 1)
        return -chosen.mean()

    return jax.grad(loss)(logits)


def segments(index: jax.Array, u: jax.Array, lines: int) -> jax.Array:
    """Sums of rows by segment: what a graph network's nodes receive. u: [t, w]; [lines, w]."""
    return jax.ops.segment_sum(u, index, lines)


def written(index: jax.Array, u: jax.Array, x: jax.Array) -> jax.Array:
    """Rows of a table that are written anew. u: [t, w]; x: [v, w]."""
    return jnp.tanh(x).at[index].set(u)


def counts(index: jax.Array, u: jax.Array, lines: int) -> jax.Array:
    """How often each of ``lines`` is chosen, weighted. u: [t]."""
    return jnp.zeros(lines, jnp.float32).at[index].add(u.astype(jnp.float32))


def _scatter(name: str, title: str, fn: Function, lines: int, updates: Shape,
             more: Shape | None = None, text: bool = False, alike: float = 0.0) -> Workload:
    """Indices at random, all as often; as words of a ``text`` the k-th as often as 1 / k (Zipf's
    law); a share of them ``alike`` (padding)."""
    tiny = (6, *(min(n, 16) for n in updates[1:]))
    rest = {"x": more} if more else {}
    small = {"x": (16, 16)} if more else {}
    plain = of_function(name, title, fn, (updates,), (tiny,), rest, small, table="scatter_table")

    def build(request: Request) -> Program:
        program = plain.build(request)
        most = 16 if request.tiny else lines

        def inputs(key: jax.Array) -> tuple[Any, ...]:
            (u,) = program.inputs(key)
            keys = jax.random.split(key)
            index = jax.random.randint(keys[0], u.shape[:1], 0, most)
            if text:
                rank = jnp.exp(jax.random.uniform(keys[0], u.shape[:1]) * jnp.log(most))
                index = jnp.clip(rank.astype(jnp.int32) - 1, 0, most - 1)
            return jnp.where(jax.random.uniform(keys[1], index.shape) < alike, 1, index), u

        def step(state: Any, carry: Any, index: jax.Array, u: jax.Array) -> tuple[Any, Any]:
            extra = {} if more or fn is labels else {"lines": most}
            return fn(index, u, **state, **extra), carry

        step.__name__ = name
        return dataclasses.replace(program, step=step, inputs=inputs)

    return dataclasses.replace(plain, build=build)


WORKLOADS: tuple[Workload, ...] = (
    *(_scatter(f"words_{v}_{w}_{t}", f"gradient of {v} words of {w}, {t} tokens of a text", words,
               v, (t, w), text=True)
      for v, w, t in ((30522, 768, 128), (30522, 768, 2048), (50257, 768, 1024),
                      (32000, 2048, 1024), (32000, 2048, 4096))),
    _scatter("words_uniform_30522_768_2048", "the same of tokens that are all as frequent", words,
             30522, (2048, 768)),
    _scatter("words_padded_30522_768_2048", "the same of a text, half of it padding", words, 30522,
             (2048, 768), text=True, alike=0.5),
    _scatter("types_2_768_2048", "gradient of two types of token", words, 2, (2048, 768)),
    *(_scatter(f"labels_{v}_{t}", f"cross-entropy of {t} labels of {v}", labels, v, (t, v))
      for v, t in ((1000, 256), (50257, 1024))),
    _scatter("segments_2708_64_8192", "8192 messages to 2708 nodes", segments, 2708, (8192, 64)),
    _scatter("written_4096_512_256", "256 rows of 4096", written, 4096, (256, 512), (4096, 512)),
    _scatter("counts_256_32768", "a histogram of 32768", counts, 256, (32768,)),
    _scatter("counts_256_1048576", "a histogram of 1048576", counts, 256, (1 << 20,)),
)

"""A module of flax.linen, as users write it, as a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads.workload import Program, Request, Workload

Inputs = Callable[[jax.Array, int, bool], tuple[jax.Array, ...]]
"""(key, batch, tiny) -> what a module takes."""

Apply = Callable[..., Any]
"""(parameters, *inputs) -> a module's results."""

TABLE = "stock_table"


def of_module(name: str, title: str, model: Callable[..., nn.Module], inputs: Inputs,
              batches: tuple[int, ...] = (1,), dtype: str = "bf16", *, table: str = TABLE,
              call: Callable[..., Any] | None = None) -> Workload:
    """The module's forward pass; its parameters are f32, as linen makes them.

    Args:
      model: makes the module from ``dtype``, what it computes in, and ``tiny``.
      inputs: fresh ones of a call.
      table: that it is part of.
      call: of the module's `Apply`, its parameters and inputs, in place of the forward pass.
    """
    def build(request: Request) -> Program:
        module = model(dtype=request.jax_dtype, tiny=request.tiny)
        size = min(request.batch, 2) if request.tiny else request.batch

        def fresh(key: jax.Array) -> tuple[jax.Array, ...]:
            return inputs(key, size, request.tiny)

        def shapes() -> Any:
            return jax.eval_shape(module.init, jax.random.key(0),
                                  *jax.eval_shape(fresh, jax.random.key(0)))

        def step(state: Any, carry: Any, *xs: jax.Array) -> tuple[Any, Any]:
            out = module.apply(state, *xs) if call is None else call(module.apply, state, *xs)
            return out, carry

        step.__name__ = name
        x, *_ = jax.eval_shape(fresh, jax.random.key(0))
        return Program(step, "x".join(map(str, x.shape)), inputs=fresh, weights=shapes,
                       state=lambda: jax.tree_util.tree_map_with_path(_values(), shapes()))

    return Workload(name, title, "micro", build, batches=batches, dtype=dtype, table=table)


def _values() -> Callable[[Any, jax.ShapeDtypeStruct], jax.Array]:
    """(path, leaf) -> values: kernels of the size that keeps the activations' (He et al.), scales
    and variances near 1, the rest noise of 0.1."""
    rng = np.random.default_rng(0)

    def value(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        last = str(path[-1].key)
        noise = rng.standard_normal(leaf.shape, np.float32)
        if last in ("scale", "var"):
            noise = np.abs(1 + 0.1 * noise)
        elif last == "kernel":
            noise *= np.sqrt(1 / np.prod(leaf.shape[:-1]))
        else:
            noise *= 0.1
        return jnp.asarray(noise, leaf.dtype)

    return value

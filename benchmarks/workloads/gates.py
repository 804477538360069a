"""A table of products of which one half gates the other, beside the standard table.

    python -m benchmarks.run --models=gate_table

Those of Stable Diffusion's UNet (GEGLU: one matrix, a bias) and of Llama's layers (SwiGLU: two
matrices). ``batch`` multiplies the rows.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_gated = partial(of_function, table="gate_table")


def geglu(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """x: [m, k]; w: [k, 2 f]; b: [2 f]; [m, f]."""
    y, gate = jnp.split(x @ w + b, 2, axis=-1)
    return y * jax.nn.gelu(gate, approximate=False)


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
    """x: [m, k]; gate and up: [k, f]; [m, f]."""
    return jax.nn.silu(x @ gate) * (x @ up)


WORKLOADS: tuple[Workload, ...] = (
    *(_gated(f"geglu_{m}_{f}_{k}", f"GEGLU, {m}x{f}x{k}", geglu, ((m, k),), ((256, 16),),
             {"w": (k, 2 * f), "b": (2 * f,)}, {"w": (16, 64), "b": (64,)})
      for m, f, k in ((8192, 1280, 320), (2048, 2560, 640), (512, 5120, 1280), (512, 2048, 768))),
    *(_gated(f"swiglu_{m}_{f}_{k}", f"SwiGLU, {m}x{f}x{k}", swiglu, ((m, k),), ((256, 16),),
             {"gate": (k, f), "up": (k, f)}, {"gate": (16, 32), "up": (16, 32)})
      for m, f, k in ((256, 8192, 2048), (512, 8192, 2048), (2048, 8192, 2048),
                      (4096, 14336, 4096))),
)

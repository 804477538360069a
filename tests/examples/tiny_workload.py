"""A workload that compiles at once, for the tests of the yardstick."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.workloads.workload import Program, Request


def doubling(request: Request) -> Program:
    """``out = 2 x``."""
    return Program(lambda state, carry, x: (x * state, carry), "8",
                   state=lambda: jnp.float32(2.0), carry=lambda key: jnp.int32(0),
                   inputs=lambda key: (jax.random.normal(key, (request.batch, 8)),))

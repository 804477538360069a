"""A table of loops and branches that XLA runs, around kernels.

    python -m benchmarks.run --models=control_table

Loops that end when the data says so, those of too many trips for one kernel, and branches.
``batch`` multiplies the rows (conjugate gradients are one system: batch 1).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_control = partial(of_function, table="control_table")


def conjugate_gradient(b: jax.Array, half: jax.Array) -> jax.Array:
    """Solves (half half^T + 1) x = b until the residual is a thousandth. b: [n]; half: [n, n]."""
    def apply(x: jax.Array) -> jax.Array:
        return half @ (half.T @ x) + x

    start = jnp.float32(1e-6) * jnp.vdot(b, b).astype(jnp.float32)

    def going(state: tuple[jax.Array, ...]) -> jax.Array:
        return (state[3] > start) & (state[4] < 100)

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, r, p, rr, i = state
        ap = apply(p).astype(jnp.float32)
        alpha = rr / jnp.vdot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = jnp.vdot(r, r)
        return x, r, r + new / rr * p, new, i + 1

    f = b.astype(jnp.float32)
    zeros = jnp.zeros_like(f)
    return lax.while_loop(going, step, (zeros, f, f, jnp.vdot(f, f), jnp.int32(0)))[0]


def newton(x: jax.Array) -> jax.Array:
    """Cube roots, until no step is larger than a thousandth; a few operations a trip. x: [n]."""
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, _ = state
        new = y - (y - x / (y * y)) / 3
        return new, jnp.max(jnp.abs(new - y)) > 1e-3

    x = jnp.abs(x.astype(jnp.float32)) + 0.1
    return lax.while_loop(lambda s: s[1], step, (jnp.ones_like(x), jnp.bool_(True)))[0]


def halving(x: jax.Array) -> jax.Array:
    """8000 steps of three operations each. x: [n]."""
    x = jax.nn.sigmoid(x.astype(jnp.float32))
    return lax.fori_loop(0, 8000, lambda _, x: 0.5 * x * (1.5 - x), x)


def chosen_experts(x: jax.Array, router: jax.Array, first: jax.Array, second: jax.Array,
                   ) -> jax.Array:
    """Four steps, each through the expert that most rows ask for. x: [b, n]; router: [n, e];
    first: [n, m]; second: [m, n]; experts differ in a factor."""
    experts = router.shape[1]

    def expert(factor: int, x: jax.Array) -> jax.Array:
        return x + jax.nn.gelu(x @ first * factor) @ second

    for _ in range(4):
        votes = jnp.argmax(x @ router, axis=-1)
        most = jnp.argmax(jnp.sum(jax.nn.one_hot(votes, experts), axis=0))
        x = lax.switch(most, [partial(expert, i + 1) for i in range(experts)], x)
        x = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x


WORKLOADS: tuple[Workload, ...] = (
    _control("conjugate_gradient_2048", "conjugate gradients, 2048 unknowns", conjugate_gradient,
             ((2048,),), ((16,),), {"half": (2048, 2048)}, {"half": (16, 16)}),
    _control("newton_65536", "Newton's method, 65536 roots", newton, ((65536,),), ((16,),), {}, {}),
    _control("halving_65536", "8000 steps of three operations", halving, ((65536,),), ((16,),), {},
             {}),
    _control("chosen_experts_128_1024", "one of four experts, 128 rows of 1024", chosen_experts,
             ((128, 1024),), ((4, 16),),
             {"router": (1024, 4), "first": (1024, 4096), "second": (4096, 1024)},
             {"router": (16, 4), "first": (16, 32), "second": (32, 16)}),
)

"""A table of programs of scientific computing, beside the standard table.

    python -m benchmarks.run --models=science_table

The six of some eighty that were furthest behind XLA when they were first timed. ``batch``
multiplies the first dimension of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_of = partial(of_function, table="science_table", dtype="f32")


def bodies(x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """20 steps of gravity between all bodies, by leapfrog. x, v: [n, 3]."""
    def force(x: jax.Array) -> jax.Array:
        d = x[:, None] - x[None]
        return -(d * (((d ** 2).sum(-1) + 1e-2) ** -1.5)[..., None]).sum(1)

    def step(carry: tuple[jax.Array, jax.Array], _: None,
             ) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, v = carry
        v = v + 0.005 * force(x)
        x = x + 0.01 * v
        return (x, v + 0.005 * force(x)), None

    return lax.scan(step, (x, v), None, length=20)[0]


def poses(angles: jax.Array) -> jax.Array:
    """Where an arm's hand is, for each arm: a product of its joints. angles: [n, joints]; the
    result: [n, 4, 4]."""
    def joint(pose: jax.Array, angle: jax.Array) -> tuple[jax.Array, None]:
        c, s = jnp.cos(angle), jnp.sin(angle)
        o, i = jnp.zeros_like(c), jnp.ones_like(c)
        rows = ((c, -s, o, 0.3 * i), (s, c, o, o), (o, o, i, o), (o, o, o, i))
        return pose @ jnp.stack([jnp.stack(r, -1) for r in rows], -2), None

    first = jnp.broadcast_to(jnp.eye(4, dtype=angles.dtype), (angles.shape[0], 4, 4))
    return lax.scan(joint, first, angles.T)[0]


def nucleus(logits: jax.Array) -> jax.Array:
    """Sampling among the likeliest words that make up nine tenths. logits: [b, v]; the result: [b].
    """
    order = jnp.argsort(-logits, -1)
    sorted_ = jnp.take_along_axis(logits, order, -1)
    p = jax.nn.softmax(sorted_)
    kept = jnp.where(jnp.cumsum(p, -1) - p > 0.9, -1e9, sorted_)
    drawn = jax.random.categorical(jax.random.key(0), kept)
    return jnp.take_along_axis(order, drawn[:, None], -1)[:, 0]


def bootstrap(x: jax.Array) -> jax.Array:
    """Means of 64 samples of as many values, drawn with replacement. x: [n]."""
    def mean(key: jax.Array) -> jax.Array:
        return x[jax.random.randint(key, x.shape, 0, x.size)].mean()

    return jax.vmap(mean)(jax.random.split(jax.random.key(0), 64))


def density(points: jax.Array, samples: jax.Array) -> jax.Array:
    """A Gaussian kernel's estimate at each point. points: [m, 2]; samples: [n, 2]."""
    squares = ((points[:, None] - samples[None]) ** 2).sum(-1)
    return jnp.exp(-0.5 * squares).mean(1)


def multigrid(f: jax.Array) -> jax.Array:
    """A V cycle for Poisson's equation on a torus (Brandt 1977). f: [n, n], a power of two."""
    def residual(u: jax.Array, f: jax.Array) -> jax.Array:
        return (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
                - 4 * u - f)

    def smooth(u: jax.Array, f: jax.Array, times: int) -> jax.Array:
        for _ in range(times):
            u = u + 0.2 * residual(u, f)
        return u

    def cycle(f: jax.Array) -> jax.Array:
        u, n = smooth(jnp.zeros_like(f), f, 2), f.shape[0] // 2
        if n < 16:
            return smooth(u, f, 8)
        coarse = cycle(-4 * residual(u, f).reshape(n, 2, n, 2).mean((1, 3)))
        return smooth(u + jnp.repeat(jnp.repeat(coarse, 2, 0), 2, 1), f, 2)

    return cycle(f)


WORKLOADS: tuple[Workload, ...] = (
    _of("bodies_1024", "20 steps of 1024 bodies", bodies, ((1024, 3),) * 2, ((24, 3),) * 2, {}, {}),
    _of("poses_4096_7", "4096 arms of 7 joints", poses, ((4096, 7),), ((8, 3),), {}, {}),
    _of("nucleus_4_1000", "nucleus sampling, 4 times 1000 words", nucleus, ((4, 1000),),
        ((2, 40),), {}, {}, search=True),
    _of("bootstrap_4096", "means of 64 samples of 4096 values", bootstrap, ((4096,),), ((32,),),
        {}, {}),
    _of("density_1024_8192", "kernel density, 1024 points, 8192 samples", density,
        ((1024, 2), (8192, 2)), ((16, 2), (32, 2)), {}, {}),
    _of("multigrid_256", "a V cycle of 256x256", multigrid, ((256, 256),), ((32, 32),), {}, {}),
)

"""Loops that end when they are done, or are long, a table of their own.

    python -m benchmarks.run --models=solver_table

Iterations until they converge, steps of a length that errors tell, text until its end: how often
these loops run depends on what they compute. And thousands of short trips: a simulation, a Markov
chain, a small network's training.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import cg

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_solver = partial(of_function, table="solver_table")


def least_squares(b: jax.Array, a: jax.Array) -> jax.Array:
    """(a' a + 1) x = b by conjugate gradients. b: [n]; a: [n, n]."""
    return cg(lambda x: a.T @ (a @ x) + x, b, tol=1e-5)[0]


def transport(cost: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cuturi (2013): scales of rows and columns until they stay. cost: [n, m]."""
    n, m = cost.shape
    kernel = jnp.exp(-jnp.abs(cost))

    def step(s: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, v, count, _ = s
        new = 1 / n / (kernel @ v)
        return new, 1 / m / (new @ kernel), count + 1, jnp.max(jnp.abs(new / u - 1))

    begin = (jnp.ones(n) / n, jnp.ones(m) / m, jnp.asarray(0), jnp.asarray(jnp.inf))
    u, v, count, _ = lax.while_loop(lambda s: (s[3] > 1e-5) & (s[2] < 200), step, begin)
    return u, v, count


def roots(c: jax.Array) -> jax.Array:
    """x**3 - x = c by Newton's method, each until it is found. c: [n]."""
    def one(c: jax.Array) -> jax.Array:
        def off(x: jax.Array) -> jax.Array:
            return x * x * x - x - c

        def step(s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return s[0] - off(s[0]) / (3 * s[0] * s[0] - 1), s[1] + 1

        begin = (2 + jnp.abs(c), jnp.asarray(0))
        return lax.while_loop(lambda s: (jnp.abs(off(s[0])) > 1e-4) & (s[1] < 50), step, begin)[0]

    return jax.vmap(one)(jnp.abs(c))


def integrated(y: jax.Array, field: jax.Array) -> jax.Array:
    """A neural vector field from 0 to 1, in steps of Heun's method as long as their errors allow.
    y: [b, n]; field: [n, n]."""
    def f(y: jax.Array) -> jax.Array:
        return jnp.tanh(y @ field) - y

    def step(s: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        y, t, h, count = s
        h = jnp.minimum(h, 1 - t)
        a = f(y)
        b = f(y + h * a)
        error = jnp.sqrt(jnp.mean((h / 2 * (b - a)) ** 2)) / 1e-3
        good = error < 1
        return (jnp.where(good, y + h / 2 * (a + b), y), jnp.where(good, t + h, t),
                h * jnp.clip(0.9 / jnp.sqrt(error + 1e-6), 0.2, 5.0), count + 1)

    zero = jnp.zeros((), y.dtype)
    return lax.while_loop(lambda s: (s[1] < 1 - 1e-5) & (s[3] < 500), step,
                          (y, zero, zero + 0.01, jnp.asarray(0)))[0]


def ranks(links: jax.Array) -> jax.Array:
    """Page et al. (1999), until ranks stay. links: [n, n]."""
    n = links.shape[0]
    links = jnp.abs(links) / jnp.sum(jnp.abs(links), 0)

    def step(s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        new = 0.85 * (links @ s[0]) + 0.15 / n
        return new, jnp.sum(jnp.abs(new - s[0]))

    return lax.while_loop(lambda s: s[1] > 1e-6, step, (jnp.ones(n) / n, jnp.ones(())))[0]


def values(gain: jax.Array, moves: jax.Array) -> jax.Array:
    """Values of states by Bellman's equation, until they stay. gain: [n, a]; moves: [a, n, n]."""
    moves = jax.nn.softmax(moves * 10, -1)

    def step(s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        new = jnp.max(gain.T + 0.9 * moves @ s[0], 0)
        return new, jnp.max(jnp.abs(new - s[0]))

    return lax.while_loop(lambda s: s[1] > 1e-3, step, (jnp.zeros(gain.shape[0]), jnp.ones(())))[0]


def escape_times(c: jax.Array) -> jax.Array:
    """Mandelbrot's set, until all points that leave it have. c: [2, n, n]."""
    def step(s: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        x, y, count, trip = s
        inside = x * x + y * y < 4
        return (jnp.where(inside, x * x - y * y + c[0], x), jnp.where(inside, 2 * x * y + c[1], y),
                count + inside, trip + 1)

    zero = jnp.zeros(c.shape[1:], c.dtype)
    return lax.while_loop(lambda s: jnp.any(s[0] * s[0] + s[1] * s[1] < 4) & (s[3] < 100), step,
                          (zero, zero, zero.astype(jnp.int32), jnp.asarray(0)))[2]


def components(image: jax.Array) -> jax.Array:
    """Pixels above a level, each with the largest number of those it is connected to.
    image: [h, w]."""
    h, w = image.shape
    inside = image > -0.3
    first = jnp.where(inside, jnp.arange(1, h * w + 1, dtype=jnp.int32).reshape(h, w), 0)

    def step(s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        padded = jnp.pad(s[0], 1)
        near = [padded[1 + i:1 + i + h, 1 + j:1 + j + w]
                for i, j in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))]
        new = jnp.where(inside, jnp.stack(near).max(0), 0)
        return new, jnp.any(new != s[0])

    return lax.while_loop(lambda s: s[1], step, (first, jnp.asarray(True)))[0]


def written(h: jax.Array, embed: jax.Array, w: jax.Array, u: jax.Array,
            head: jax.Array) -> jax.Array:
    """Tokens of a recurrent network until token 0, or 64 of them.

    h: [b, n]; embed: [v, n]; w, u: [n, n]; head: [n, v].
    """
    def step(s: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        h, token, text, at, ended = s
        h = jnp.tanh(embed[token] @ w + h @ u)
        token = jnp.where(ended, 0, jnp.argmax(h @ head, -1))
        text = lax.dynamic_update_slice(text, token[:, None], (0, at))
        return h, token, text, at + 1, ended | (token == 0)

    b = h.shape[0]
    none = jnp.zeros((b,), bool)
    begin = (h, none.astype(jnp.int32) + 1, jnp.zeros((b, 64), jnp.int32), jnp.asarray(0), none)
    return lax.while_loop(lambda s: (s[3] < 64) & ~jnp.all(s[4]), step, begin)[2]


def clustered(x: jax.Array) -> jax.Array:
    """Lloyd (1982): 32 centres, until none moves. x: [n, d]; the result: [32, d]."""
    def step(s: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        centres, _, count = s
        far = jnp.sum(x * x, 1)[:, None] - 2 * x @ centres.T + jnp.sum(centres * centres, 1)
        one = jax.nn.one_hot(jnp.argmin(far, 1), 32, dtype=x.dtype)
        new = (one.T @ x) / jnp.maximum(one.sum(0), 1)[:, None]
        return new, jnp.max(jnp.abs(new - centres)), count + 1

    return lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 100), step,
                          (x[:32], jnp.ones((), x.dtype), jnp.asarray(0)))[0]


def swung(y: jax.Array) -> jax.Array:
    """Pendulums at 20 times, by Dormand and Prince (1980). y: [2, n]; the result: [20, 2, n]."""
    return odeint(lambda y, _: jnp.stack([y[1], -jnp.sin(y[0])]), y, jnp.linspace(0.0, 5.0, 20))


def diffused(x: jax.Array) -> jax.Array:
    """5000 steps of heat on a plate. x: [h, w]."""
    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.pad(x, 1, mode="edge")
        return x + 0.1 * (y[2:, 1:-1] + y[:-2, 1:-1] + y[1:-1, 2:] + y[1:-1, :-2] - 4 * x)

    return lax.fori_loop(0, 5000, step, x)


def walked(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Metropolis et al. (1953): 2000 steps of n chains, and the mean of each step. x: [n, d]."""
    key = jax.random.key(3)

    def likely(x: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(x * x, -1)

    def step(state: tuple[jax.Array, jax.Array], i: jax.Array,
             ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        x, now = state
        first, second = jax.random.split(jax.random.fold_in(key, i))
        new = x + 0.3 * jax.random.normal(first, x.shape, x.dtype)
        then = likely(new)
        taken = jnp.log(jax.random.uniform(second, now.shape, x.dtype)) < then - now
        x = jnp.where(taken[:, None], new, x)
        return (x, jnp.where(taken, then, now)), x.mean(0)

    (x, _), means = lax.scan(step, (x, likely(x)), jnp.arange(2000))
    return x, means


def trained(x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    """2000 steps of Adam. x: [b, n]; y: [b, m]; w: [n, m]."""
    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w) - jnp.tanh(y)) ** 2)

    def step(_: jax.Array, s: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        w, mean, square = s
        g = jax.grad(loss)(w)
        mean, square = 0.9 * mean + 0.1 * g, 0.99 * square + 0.01 * g * g
        return w - 1e-3 * mean / (jnp.sqrt(square) + 1e-3), mean, square

    return lax.fori_loop(0, 2000, step, (w, jnp.zeros_like(w), jnp.zeros_like(w)))[0]


WORKLOADS: tuple[Workload, ...] = (
    _solver("least_squares_1024", "conjugate gradients, 1024 unknowns", least_squares,
            ((1024,),), ((16,),), {"a": (1024, 1024)}, {"a": (16, 16)}, dtype="f32"),
    _solver("transport_512", "optimal transport, 512 to 512", transport, ((512, 512),),
            ((16, 16),), {}, {}, dtype="f32"),
    _solver("roots_65536", "65536 roots by Newton's method", roots, ((65536,),), ((64,),), {}, {},
            dtype="f32"),
    _solver("integrated_256_64", "a neural vector field, 256 states of 64", integrated,
            ((256, 64),), ((8, 16),), {"field": (64, 64)}, {"field": (16, 16)}, dtype="f32"),
    _solver("ranks_2048", "ranks of 2048 pages", ranks, ((2048, 2048),), ((32, 32),), {}, {},
            dtype="f32"),
    _solver("values_1024_4", "values of 1024 states, 4 moves", values, ((1024, 4),), ((16, 4),),
            {"moves": (4, 1024, 1024)}, {"moves": (4, 16, 16)}, dtype="f32"),
    _solver("escape_times_512", "Mandelbrot's set, 512 x 512", escape_times, ((2, 512, 512),),
            ((2, 16, 16),), {}, {}, dtype="f32"),
    _solver("components_256", "connected pixels, 256 x 256", components, ((256, 256),),
            ((16, 16),), {}, {}, dtype="f32", search=True),
    _solver("written_1_1024_8192", "text of a recurrent network, 1024 states, 8192 tokens",
            written, ((1, 1024),), ((2, 16),),
            {"embed": (8192, 1024), "w": (1024, 1024), "u": (1024, 1024), "head": (1024, 8192)},
            {"embed": (32, 16), "w": (16, 16), "u": (16, 16), "head": (16, 32)}, search=True),
    _solver("clustered_4096_16", "32 centres of 4096 points", clustered, ((4096, 16),),
            ((64, 3),), {}, {}, dtype="f32"),
    _solver("swung_1024", "1024 pendulums, with error control", swung, ((2, 1024),), ((2, 8),), {},
            {}, dtype="f32"),
    _solver("diffused_256", "heat on a plate of 256 x 256, 5000 steps", diffused, ((256, 256),),
            ((8, 8),), {}, {}, dtype="f32"),
    _solver("walked_128_8", "128 Markov chains in 8 dimensions, 2000 steps", walked, ((128, 8),),
            ((4, 3),), {}, {}, dtype="f32"),
    _solver("trained_256_32_8", "2000 steps of Adam, 256 entries, 32 x 8 weights", trained,
            ((256, 32), (256, 8)), ((8, 4), (8, 2)), {"w": (32, 8)}, {"w": (4, 2)}, dtype="f32"),
)

"""Loops whose trips treat each element by itself, of the table of loops.

    python -m benchmarks.run --models=loop_table

State spaces, gates and returns that are written as a `jax.lax.scan`, maps and solvers of fixed
steps. ``batch`` multiplies the first dimension of the inputs.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_loop = partial(of_function, table="loop_table")


def selective(x: jax.Array, dt: jax.Array, b: jax.Array, c: jax.Array, a: jax.Array) -> jax.Array:
    """Mamba's state space, token by token (Gu and Dao 2023, Algorithm 2), as a scan of its steps.

    x, dt: [batch, t, d]; b, c: [batch, t, n]; a: [d, n]; the result: [batch, t, d].
    """
    dt = jax.nn.softplus(dt)
    decay = jnp.exp(-dt[..., None] * jnp.exp(a))
    entering = (dt * x)[..., None] * b[:, :, None]

    def step(h: jax.Array, now: tuple[jax.Array, jax.Array, jax.Array],
             ) -> tuple[jax.Array, jax.Array]:
        decay, entering, c = now
        h = decay * h + entering
        return h, jnp.einsum("bdn,bn->bd", h, c)

    steps = tuple(jnp.moveaxis(v, 1, 0) for v in (decay, entering, c))
    return jnp.moveaxis(lax.scan(step, jnp.zeros_like(decay[:, 0]), steps)[1], 0, 1)


def rwkv(k: jax.Array, v: jax.Array, r: jax.Array, decay: jax.Array, bonus: jax.Array,
         ) -> jax.Array:
    """RWKV-4's weighted sums (Peng et al. 2023, section 3.1.2), in its stable form.

    k, v, r: [t, batch, d]; decay, bonus: [d]; the result: [t, batch, d].
    """
    decay = -jnp.exp(decay)

    def step(carry: tuple[jax.Array, jax.Array, jax.Array],
             now: tuple[jax.Array, jax.Array, jax.Array],
             ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], jax.Array]:
        num, den, most = carry
        k, v, r = now
        q = jnp.maximum(most, bonus + k)
        e, f = jnp.exp(most - q), jnp.exp(bonus + k - q)
        out = jax.nn.sigmoid(r) * (e * num + f * v) / (e * den + f)
        q = jnp.maximum(most + decay, k)
        e, f = jnp.exp(most + decay - q), jnp.exp(k - q)
        return (e * num + f * v, e * den + f, q), out

    zeros = jnp.zeros_like(k[0])
    return lax.scan(step, (zeros, zeros, zeros - 1e30), (k, v, r))[1]


def min_lstm(x: jax.Array, f: jax.Array, i: jax.Array, h: jax.Array) -> jax.Array:
    """The minimal LSTM (Feng et al. 2024), whose gates do not read its state.

    x: [batch, t, n]; f, i, h: [n, hidden]; the result: [batch, t, hidden].
    """
    forget, enter, new = jax.nn.sigmoid(x @ f), jax.nn.sigmoid(x @ i), x @ h

    def step(h: jax.Array, now: tuple[jax.Array, jax.Array, jax.Array],
             ) -> tuple[jax.Array, jax.Array]:
        forget, enter, new = now
        h = (forget * h + enter * new) / (forget + enter)
        return h, h

    steps = tuple(jnp.moveaxis(v, 1, 0) for v in (forget, enter, new))
    return jnp.moveaxis(lax.scan(step, jnp.zeros_like(new[:, 0]), steps)[1], 0, 1)


def advantages(rewards: jax.Array, values: jax.Array, marks: jax.Array) -> jax.Array:
    """Generalised advantage estimates (Schulman et al. 2016) of rollouts. All: [t, actors]; an
    episode ends where a mark is above 2."""
    goes_on = (marks < 2).astype(values.dtype)

    def step(sum: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward, value, later, goes_on = now
        delta = reward + 0.99 * later * goes_on - value
        sum = delta + 0.99 * 0.95 * goes_on * sum
        return sum, sum

    given = (rewards[:-1], values[:-1], values[1:], goes_on[:-1])
    return lax.scan(step, jnp.zeros_like(values[0]), given, reverse=True)[1]


def mandelbrot(x: jax.Array, y: jax.Array) -> jax.Array:
    """How many of 100 steps each point stays within a circle. x, y: [m, n]."""
    def step(_: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array],
             ) -> tuple[jax.Array, jax.Array, jax.Array]:
        a, b, count = carry
        inside = a * a + b * b < 4
        return (jnp.where(inside, a * a - b * b + x, a), jnp.where(inside, 2 * a * b + y, b),
                count + inside)

    zeros = jnp.zeros_like(x)
    return lax.fori_loop(0, 100, step, (zeros, zeros, zeros))[2]


def random_walks(start: jax.Array, spread: jax.Array) -> jax.Array:
    """What an option is worth at the end of 100 steps of a geometric random walk.

    start: [paths]; spread: [1].
    """
    def step(price: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        z = jax.random.normal(key, price.shape, price.dtype)
        return price * jnp.exp(0.01 * spread * z), None

    keys = jax.random.split(jax.random.key(0), 100)
    end, _ = lax.scan(step, jnp.exp(0.1 * start), keys)
    return jnp.maximum(end - 1, 0).mean()


def predators(prey: jax.Array, hunters: jax.Array) -> tuple[jax.Array, jax.Array]:
    """200 steps of Runge and Kutta's method on Lotka and Volterra's equations, all kept. Both: [n];
    the results: [200, n]."""
    def field(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return a * (1.1 - 0.4 * b), b * (0.1 * a - 0.4)

    def step(carry: tuple[jax.Array, jax.Array], _: None,
             ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        a, b = carry
        p, q = field(a, b)
        r, s = field(a + 0.005 * p, b + 0.005 * q)
        t, u = field(a + 0.005 * r, b + 0.005 * s)
        v, w = field(a + 0.01 * t, b + 0.01 * u)
        a = a + 0.01 / 6 * (p + 2 * r + 2 * t + v)
        b = b + 0.01 / 6 * (q + 2 * s + 2 * u + w)
        return (a, b), (a, b)

    return lax.scan(step, (jnp.abs(prey), jnp.abs(hunters)), None, length=200)[1]


WORKLOADS: tuple[Workload, ...] = (
    _loop("selective_256_1536_16", "Mamba's state space by a scan, 256 tokens of 1536", selective,
          ((1, 256, 1536), (1, 256, 1536), (1, 256, 16), (1, 256, 16)),
          ((2, 24, 8), (2, 24, 8), (2, 24, 4), (2, 24, 4)), {"a": (1536, 16)}, {"a": (8, 4)}),
    _loop("rwkv_256_8_768", "RWKV's sums, 8 times 256 tokens of 768", rwkv,
          ((256, 8, 768),) * 3, ((24, 2, 8),) * 3, {"decay": (768,), "bonus": (768,)},
          {"decay": (8,), "bonus": (8,)}),
    _loop("min_lstm_8_256_512", "minimal LSTM, 8 times 256 tokens of 512", min_lstm,
          ((8, 256, 512),), ((2, 24, 8),), dict.fromkeys("fih", (512, 512)),
          dict.fromkeys("fih", (8, 8))),
    _loop("advantages_129_1024", "advantages of 1024 actors, 128 steps", advantages,
          ((129, 1024),) * 3, ((25, 8),) * 3, {}, {}),
    _loop("mandelbrot_1024", "Mandelbrot's set, 100 steps of 1024x1024", mandelbrot,
          ((1024, 1024),) * 2, ((16, 16),) * 2, {}, {}),
    _loop("random_walks_65536", "65536 random walks of 100 steps", random_walks,
          ((65536,),), ((64,),), {"spread": (1,)}, {"spread": (1,)}),
    _loop("predators_16384", "Lotka and Volterra's equations, 16384 times 200 steps", predators,
          ((16384,),) * 2, ((16,),) * 2, {}, {}),
)

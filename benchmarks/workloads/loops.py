"""A table of loops of a constant trip count, beside the standard table.

    python -m benchmarks.run --models=loop_table

Recurrent networks, layers in a loop, a running mean, solvers. ``batch`` multiplies the rows, or
sequences.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_loop = partial(of_function, table="loop_table")


def lstm(x: jax.Array, enter: jax.Array, state: jax.Array, bias: jax.Array) -> jax.Array:
    """An LSTM's states, as Flax's cells compute them.

    x: [b, t, n]; enter: [n, 4 h]; state: [h, 4 h]; bias: [4 h]; the result: [t, b, h].
    """
    def step(carry: tuple[jax.Array, jax.Array], now: jax.Array,
             ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, cell = carry
        i, f, n, o = jnp.split(now @ enter + h @ state + bias, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(n)
        h = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (h, cell), h

    zeros = jnp.zeros((x.shape[0], state.shape[0]), x.dtype)
    return lax.scan(step, (zeros, zeros), jnp.moveaxis(x, 1, 0))[1]


def rnn(x: jax.Array, state: jax.Array) -> jax.Array:
    """Elman's network. x: [b, t, h], already multiplied; state: [h, h]; the result: [t, b, h]."""
    def step(h: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(now + h @ state)
        return h, h

    return lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.moveaxis(x, 1, 0))[1]


def running_mean(x: jax.Array) -> jax.Array:
    """Exponentially weighted means. x: [b, t, n]; the result: [t, b, n]."""
    def step(mean: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = 0.9 * mean + 0.1 * now
        return mean, mean

    return lax.scan(step, jnp.zeros_like(x[:, 0]), jnp.moveaxis(x, 1, 0))[1]


def power_iteration(v: jax.Array, matrix: jax.Array) -> jax.Array:
    """The largest eigenvector, 20 steps. v: [b, n]; matrix: [n, n]."""
    def step(_: jax.Array, v: jax.Array) -> jax.Array:
        v = v @ matrix
        return v * lax.rsqrt(jnp.sum(v * v, axis=-1, keepdims=True))

    return lax.fori_loop(0, 20, step, v)


def least_squares(x: jax.Array, y: jax.Array, first: jax.Array) -> jax.Array:
    """50 steps of gradient descent. x: [m, n]; y: [m]; first: [n]."""
    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean((x @ w - y) ** 2)

    return lax.fori_loop(0, 50, lambda _, w: w - 0.1 * jax.grad(loss)(w), first)


def heat(x: jax.Array) -> jax.Array:
    """50 steps of Jacobi's method on a torus. x: [m, n]."""
    def step(_: jax.Array, x: jax.Array) -> jax.Array:
        return 0.25 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1)
                       + jnp.roll(x, -1, 1))

    return lax.fori_loop(0, 50, step, x)


def runge_kutta(y: jax.Array, field: jax.Array) -> jax.Array:
    """10 steps through a neural vector field, four evaluations each. y: [b, n]; field: [n, n]."""
    def f(y: jax.Array) -> jax.Array:
        return jnp.tanh(y @ field)

    def step(_: jax.Array, y: jax.Array) -> jax.Array:
        a = f(y)
        b = f(y + 0.05 * a)
        c = f(y + 0.05 * b)
        d = f(y + 0.1 * c)
        return y + (0.1 / 6) * (a + 2 * b + 2 * c + d)

    return lax.fori_loop(0, 10, step, y)


def ctc(logits: jax.Array, marks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A speech recogniser's loss, and its gradient: a loop over the frames and its way back.

    logits: [b, t, v]; marks: [b, n], any numbers, of which labels are made.
    """
    labels = (jnp.abs(marks.astype(jnp.float32)) * 1000).astype(jnp.int32) % (logits.shape[-1] - 1)

    def loss(logits: jax.Array) -> jax.Array:
        return jnp.mean(optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels + 1,
                                       jnp.zeros(labels.shape)))

    wide = jnp.promote_types(logits.dtype, jnp.float32)
    return jax.value_and_grad(loss)(logits.astype(wide))


def layers(x: jax.Array, heads: int, **weights: jax.Array) -> jax.Array:
    """A causal transformer whose layers are a loop's trips. x: [s, n]; weights: of all layers, a
    layer each place of dimension 0; the result: [s, n]."""
    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
        return y.astype(x.dtype) * (1 + scale)

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        y = norm(x, w["first"])
        q, k, v = ((y @ w[name]).reshape(1, x.shape[0], heads, -1) for name in "qkv")
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + y.reshape(x.shape) @ w["o"]
        y = norm(x, w["second"])
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    return lax.scan(layer, x, weights)[0]


def _lstm(batch: int, trips: int, entering: int, hidden: int) -> Workload:
    return _loop(f"lstm_{batch}_{trips}_{entering}_{hidden}",
                 f"LSTM, {batch} sequences of {trips}, {entering} to {hidden}", lstm,
                 ((batch, trips, entering),), ((2, 6, 8),),
                 {"enter": (entering, 4 * hidden), "state": (hidden, 4 * hidden),
                  "bias": (4 * hidden,)}, {"enter": (8, 32), "state": (8, 32), "bias": (32,)})


def _layers(count: int, rows: int, wide: int) -> Workload:
    def shapes(count: int, n: int) -> dict[str, tuple[int, ...]]:
        return {**dict.fromkeys("qkvo", (count, n, n)), "gate": (count, n, 4 * n),
                "up": (count, n, 4 * n), "down": (count, 4 * n, n), "first": (count, n),
                "second": (count, n)}

    return _loop(f"layers_{count}_{rows}_{wide}",
                 f"{count} layers in a loop, {rows} rows of {wide}",
                 partial(layers, heads=max(wide // 64, 1)), ((rows, wide),), ((4, 64),),
                 shapes(count, wide), shapes(2, 64))


def _rnn(batch: int, trips: int, hidden: int) -> Workload:
    return _loop(f"rnn_{batch}_{trips}_{hidden}",
                 f"RNN, {batch} sequences of {trips}, {hidden} states", rnn,
                 ((batch, trips, hidden),), ((2, 6, 8),), {"state": (hidden, hidden)},
                 {"state": (8, 8)})


WORKLOADS: tuple[Workload, ...] = (
    _lstm(1, 60, 512, 512), _lstm(16, 60, 64, 128), _lstm(64, 100, 128, 256),
    _lstm(1, 1000, 512, 512),
    _layers(12, 128, 768), _layers(12, 1, 1024),
    _rnn(1, 128, 256), _rnn(64, 32, 1024), _rnn(2048, 16, 1024),
    _loop("ctc_8_149_32", "CTC loss and gradient, 8 times 149 frames, 40 of 32 letters", ctc,
          ((8, 149, 32), (8, 40)), ((2, 12, 8), (2, 4)), {}, {}),
    _loop("running_mean_256_100_1024", "running mean, 256 sequences of 100", running_mean,
          ((256, 100, 1024),), ((2, 6, 8),), {}, {}),
    _loop("power_iteration_1024", "power iteration, 1024x1024", power_iteration, ((1, 1024),),
          ((1, 16),), {"matrix": (1024, 1024)}, {"matrix": (16, 16)}),
    _loop("least_squares_1024_64", "gradient descent, 1024x64", least_squares,
          ((1024, 64), (1024,)), ((16, 8), (16,)), {"first": (64,)}, {"first": (8,)}),
    _loop("heat_1024", "Jacobi's method, 1024x1024", heat, ((1024, 1024),), ((16, 16),), {}, {}),
    _loop("runge_kutta_256_256", "Runge and Kutta's method, 256x256", runge_kutta, ((256, 256),),
          ((4, 16),), {"field": (256, 256)}, {"field": (16, 16)}),
)

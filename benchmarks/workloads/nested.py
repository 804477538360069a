"""Loops in loops and branches in loops, in the table of loops.

    python -m benchmarks.run --models=loop_table

Frames of several steps, layers in a loop over time, epochs of minibatches, steps that are taken or
not.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.workloads.function import of_function
from benchmarks.workloads.workload import Workload

_loop = partial(of_function, table="loop_table")


def pendulums(angle: jax.Array, speed: jax.Array, push: jax.Array) -> jax.Array:
    """Frames of 20 steps each. angle, speed: [n]; push: [frames, n]; the result: [frames, n]."""
    def step(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        angle, speed = state
        return angle + 0.01 * speed, speed - 0.01 * (jnp.sin(angle) + speed)

    def frame(state: tuple[jax.Array, jax.Array], push: jax.Array,
              ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        angle, speed = lax.fori_loop(0, 20, step, (state[0], state[1] + push))
        return (angle, speed), jnp.cos(angle)

    return lax.scan(frame, (angle, speed), push)[1]


def deep_rnn(x: jax.Array, layers: jax.Array) -> jax.Array:
    """Elman's network of several layers. x: [t, b, h]; layers: [l, h, h]; the result: [t, b, h]."""
    def layer(below: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        state, w = now
        h = jnp.tanh(below + state @ w)
        return h, h

    def step(states: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        top, states = lax.scan(layer, x, (states, layers))
        return states, top

    return lax.scan(step, jnp.zeros((layers.shape[0], *x.shape[1:]), x.dtype), x)[1]


def policy_update(seen: jax.Array, gain: jax.Array, first: jax.Array, second: jax.Array,
                  last: jax.Array) -> list[jax.Array]:
    """4 epochs of a policy's gradient over minibatches, by Adam.

    seen: [minibatches, b, n]; gain: [minibatches, b], of actions that its signs tell; first:
    [n, h]; second: [h, h]; last: [h, actions].
    """
    def loss(params: list[jax.Array], seen: jax.Array, gain: jax.Array) -> jax.Array:
        h = jnp.tanh(jnp.tanh(seen @ params[0]) @ params[1])
        likely = jax.nn.log_softmax(h @ params[2])
        chosen = (gain > 0).astype(jnp.int32)
        return -jnp.mean(jnp.take_along_axis(likely, chosen[:, None], 1)[:, 0] * gain)

    def minibatch(state: list[list[jax.Array]], batch: tuple[jax.Array, jax.Array],
                  ) -> tuple[list[list[jax.Array]], None]:
        params, mean, square = state
        grads = jax.grad(loss)(params, *batch)
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, grads, strict=True)]
        square = [0.999 * s + 0.001 * g * g for s, g in zip(square, grads, strict=True)]
        params = [p - 1e-3 * m / (jnp.sqrt(s) + 1e-5)
                  for p, m, s in zip(params, mean, square, strict=True)]
        return [params, mean, square], None

    def epoch(state: list[list[jax.Array]], _: None) -> tuple[list[list[jax.Array]], None]:
        return lax.scan(minibatch, state, (seen, gain))[0], None

    begin = [first, second, last]
    zeros = [jnp.zeros_like(p) for p in begin]
    return lax.scan(epoch, [begin, zeros, zeros], None, length=4)[0][0]


def controlled_steps(y: jax.Array, field: jax.Array) -> tuple[jax.Array, jax.Array]:
    """16 tries of a step through a neural vector field, each taken if its error is small: else the
    next one is half as long. y: [b, n]; field: [n, n]; the results: [b, n], [] the last length."""
    def f(y: jax.Array) -> jax.Array:
        return jnp.tanh(y @ field)

    def attempt(state: tuple[jax.Array, jax.Array], _: None,
                ) -> tuple[tuple[jax.Array, jax.Array], None]:
        y, h = state
        a = f(y)
        b = f(y + h * a)
        error = jnp.max(jnp.abs(h / 2 * (b - a)))
        return lax.cond(error < 0.05, lambda: (y + h / 2 * (a + b), 1.5 * h),
                        lambda: (y, 0.5 * h)), None

    return lax.scan(attempt, (y, jnp.asarray(0.5, y.dtype)), None, length=16)[0]


WORKLOADS: tuple[Workload, ...] = (
    _loop("pendulums_50_20_4096", "4096 pendulums, 50 frames of 20 steps", pendulums,
          ((4096,), (4096,), (50, 4096)), ((8,), (8,), (3, 8)), {}, {}, dtype="f32"),
    _loop("deep_rnn_50_4_16_256", "RNN of 4 layers, 16 sequences of 50", deep_rnn,
          ((50, 16, 256),), ((4, 2, 8),), {"layers": (4, 256, 256)}, {"layers": (3, 8, 8)}),
    _loop("policy_4_4_512_64", "a policy's update: 4 epochs of 4 minibatches of 512",
          policy_update, ((4, 512, 17), (4, 512)), ((2, 16, 5), (2, 16)),
          {"first": (17, 64), "second": (64, 64), "last": (64, 6)},
          {"first": (5, 8), "second": (8, 8), "last": (8, 3)}, dtype="f32"),
    _loop("controlled_16_256_64", "16 steps with error control, 256 states of 64",
          controlled_steps, ((256, 64),), ((8, 16),), {"field": (64, 64)}, {"field": (16, 16)},
          dtype="f32"),
)

"""On a GPU beside XLA: trips that a thread takes in turn, and what else is made element by element:
many small matrices, sums of few terms, rows of few columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono
from benchmarks.workloads import recurrences
from benchmarks.workloads.loops import running_mean

F32 = jnp.float32
X = Any


def compared(fn: Callable[..., X], *args: jax.Array, noise: float = 1e-6) -> None:
    """As near to a f64 result as XLA's, three times, in one kernel."""
    with jax.enable_x64(True):
        exact = jax.jit(fn)(*(np.asarray(v, np.float64) for v in args))
    xla = jax.jit(fn)(*args)
    compiled = jaxmono.jit(fn).lower(*args).compile()
    told = compiled.explain()
    assert told.kernels == 1 and not told.refused, str(told)
    for _ in range(3):
        for a, b, c in zip(*map(jax.tree.leaves, (compiled(*args), xla, exact)), strict=True):
            ours, theirs, right = (np.asarray(v, np.float64) for v in (a, b, c))
            size = np.linalg.norm(right)
            error, allowed = (np.linalg.norm(v - right) / size for v in (ours, theirs))
            assert error <= 1.2 * allowed + noise, (error, allowed)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), F32)


LOOPS: dict[str, tuple[Callable[..., X], list[tuple[int, ...]]]] = {
    "selective": (recurrences.selective, [(2, 100, 512), (2, 100, 512), (2, 100, 16), (2, 100, 16),
                                          (512, 16)]),
    "rwkv": (recurrences.rwkv, [(130, 4, 512)] * 3 + [(512,)] * 2),
    "min_lstm": (recurrences.min_lstm, [(4, 75, 256)] + [(256, 256)] * 3),
    "advantages": (recurrences.advantages, [(129, 300)] * 3),
    "predators": (recurrences.predators, [(5000,)] * 2),
    "running_mean": (running_mean, [(64, 61, 1000)]),
    "one element": (lambda x: lax.scan(lambda c, v: (c := 0.5 * c + v, c), x[0], x), [(200, 1)]),
    "a million": (lambda x: lax.scan(lambda c, v: (c := jnp.sin(c) + v, c), x[0], x)[0],
                  [(20, 1 << 20)])}


@pytest.mark.parametrize("name", LOOPS)
def test_trips_in_turn(name: str) -> None:
    fn, shapes = LOOPS[name]
    args = [normal(*s, seed=i) * (0.3 if len(s) < 3 else 1.0) for i, s in enumerate(shapes)]
    if name == "min_lstm":  # products of f32 are rounded to tf32, as XLA's are
        args[1:] = [v / 16 for v in args[1:]]
    compared(fn, *args, noise=2e-6)


@pytest.mark.parametrize("shape", [(2, 1 << 20), (7, 300_000), (32, 1 << 19), (3, 5, 200_001)])
def test_rows_of_few_columns(shape: tuple[int, ...]) -> None:
    """A thread has some, and all of their columns."""
    x = normal(*shape)
    compared(lambda x: x.sum(0), x)
    compared(lambda x: jnp.exp(x - jax.nn.logsumexp(x, 0, keepdims=True)), x)


def test_bodies_in_space() -> None:
    def forces(x: X) -> X:
        d = x[:, None] - x[None]
        return (d * (((d ** 2).sum(-1) + 1e-2) ** -1.5)[..., None]).sum(1)

    compared(forces, normal(1000, 3), noise=3e-6)


@pytest.mark.parametrize(("spec", "left", "right"), [
    ("nij,njk->nik", (4096, 4, 4), (4096, 4, 4)), ("nij,nj->ni", (70_000, 3, 3), (70_000, 3)),
    ("nij,npj->npi", (999, 3, 3), (999, 8, 3))])
def test_many_small_matrices(spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    compared(lambda a, b: jnp.einsum(spec, a, b), normal(*left), normal(*right, seed=1))


def test_a_multigrid_cycle() -> None:
    """Stencils behind each other, stored every few steps."""
    def smooth(u: X) -> X:
        for _ in range(8):
            u = u + 0.2 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1)
                           + jnp.roll(u, -1, 1) - 4 * u)
        return u

    compared(lambda u: smooth(u[::8, ::8] + smooth(u)[::8, ::8]), normal(256, 256))


@pytest.mark.parametrize(("k", "n"), [(1152, 32), (520, 24), (2304, 48)])
def test_weights_that_are_rounded_on_the_way(k: int, n: int) -> None:
    """Of f32, for few columns, behind a stage that makes the rows."""
    def fn(x: X, v: X, w: X) -> X:
        y = jax.nn.relu(jnp.dot(x, v.astype(jnp.bfloat16), preferred_element_type=F32))
        return jnp.dot(y.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=F32)

    x, v, w = normal(200, 64).astype(jnp.bfloat16), normal(64, k, seed=1) / 8, normal(k, n, seed=2)
    with jax.default_matmul_precision("highest"):
        exact = np.asarray(jax.jit(fn)(x, v, w), np.float64)
    theirs, compiled = jax.jit(fn)(x, v, w), jaxmono.jit(fn).lower(x, v, w).compile()
    for _ in range(3):
        error, allowed = (np.linalg.norm(np.asarray(y, np.float64) - exact) / np.linalg.norm(exact)
                          for y in (compiled(x, v, w), theirs))
        assert error <= 1.2 * allowed + 2e-3

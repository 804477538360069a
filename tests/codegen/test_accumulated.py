"""Kernels that add to memory, in the emulator: against NumPy, in other orders of its threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import check
from models import graph_of

import jaxmono
from jaxmono.codegen import Program
from jaxmono.hlo.passes.rules import scatter

X = Any
LINES, UPDATES = 40, 150
RNG = np.random.default_rng(0)
PLACES = RNG.integers(-2, LINES + 2, UPDATES).astype(np.int32)  # some of no line
PLACES[:30] = 7


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "DENSE", 0)
    monkeypatch.setattr(scatter, "COMPARED", 0)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    """Small integers, whose sums are exact in any order."""
    return RNG.integers(-8, 9, shape).astype(dtype)


def run(fn: Callable[..., Any], *args: Any) -> Program:
    program = check(graph_of(fn, *args), args, seeds=(0, 1, 2))
    assert "accumulate_" in program.source
    return program


@pytest.mark.sampled(11)
@pytest.mark.parametrize("width", [1, 2, 3, 4, 12, 16])
@pytest.mark.parametrize("kind", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.float16])
def test_each_kind(kind: str, dtype: Any, width: int) -> None:
    low = 0 if dtype is np.uint32 else -8
    x, u = (RNG.integers(low, 9, (n, width)).astype(dtype) for n in (LINES, UPDATES))
    program = run(lambda x, i, u: getattr(x.at[i], kind)(u) * 2, x, PLACES, u)
    wide = kind == "add" and dtype in (np.float32, np.float16) and width % 4 == 0
    assert bool(re.search(r"accumulate_\w+<float, [48]>\(", program.source)) is wide


def test_what_is_not_finite() -> None:
    x, u = numbers(LINES, 8), numbers(UPDATES, 8)
    for t, value in enumerate((np.nan, np.inf, -np.inf, -np.nan)):
        u[40 + t, t] = value
    x[3, 0] = np.nan
    for kind in ("add", "max", "min"):
        run(lambda x, i, u: getattr(x.at[i], kind)(u), x, PLACES, u)  # noqa: B023


def test_a_negative_zero_that_nothing_is_added_to_stays() -> None:
    def fn(x: X, i: X, u: X) -> X:
        return jax.lax.bitcast_convert_type(x.at[i].add(u), jnp.int32)

    run(fn, np.full((LINES, 4), -0.0, np.float32), PLACES[:5], numbers(5, 4) + 9)


@pytest.mark.parametrize("fn", [
    lambda x, i, u: (x.at[i].add(u), x.at[i].add(u * 2), x * 3),
    lambda x, i, u: (s := x.at[i].add(u), s, s * 2),
    lambda x, i, u: x.at[i].add(u).at[i + 1].add(u),
    lambda x, i, u: x.at[i].add(u)[i],
    lambda x, i, u: jax.ops.segment_sum(x[i] * u, jnp.flip(i), LINES),
    lambda x, i, u: x.at[i].add(u @ jnp.ones((8, 8))),
    lambda x, i, u: jax.nn.relu(x.at[i].add(u)) @ jnp.ones((8, 8)),
    lambda x, i, u: x.at[i].add(u).sum(-1),
    lambda x, i, u: x.at[:, jnp.abs(i[:20]) % 8].add(u[:20, 0]),
    lambda x, i, u: x.at[i, jnp.abs(i) % 8].add(u[:, 0]),
    lambda x, i, u: x.at[i].set(u),
    lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(
        jnp.stack([x, x + 1]), jnp.stack([i, i + 1]), jnp.stack([u, -u])),
    lambda x, i, u: jax.lax.fori_loop(0, 3, lambda k, x: x.at[i + k].add(u), x),
    lambda x, i, u: jax.grad(lambda x: (x[jnp.abs(i)] * u).sum())(x),
])
def test_programs(fn: Callable[..., Any]) -> None:
    run(fn, numbers(LINES, 8), PLACES, numbers(UPDATES, 8))


def test_a_donated_input_is_added_to_in_place() -> None:
    function = jaxmono.jit(lambda x, i, u: x.at[i].add(u), interpret=True, donate_argnums=0)
    x, u = numbers(LINES, 8), numbers(UPDATES, 8)
    report = function.lower(x, PLACES, u).explain()
    assert report.kernels == 1 and report.stages == 1
    want = np.asarray(jax.jit(lambda x, i, u: x.at[i].add(u))(x, PLACES, u))
    np.testing.assert_array_equal(function(jnp.asarray(x), PLACES, u), want)


def test_the_same_bits_on_every_run_where_xla_is_asked_for_them(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: X, i: X, u: X) -> X:
        return jnp.tanh(x).at[i].add(u)

    x, u = numbers(LINES, 8), numbers(UPDATES, 8)
    assert jaxmono.jit(fn, interpret=True).lower(x, PLACES, u).explain().kernels == 1
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    refused = jaxmono.jit(fn, interpret=True).lower(x, PLACES, u).explain().refused
    assert any("same bits on every run" in r.reason for r in refused)
    # Integers have no order, nor have places that are all different.
    whole = [a.astype(np.int32) for a in (x, u)]
    assert not jaxmono.jit(lambda x, i, u: (x * 2).at[i].add(u), interpret=True).lower(
        whole[0], PLACES, whole[1]).explain().refused
    assert not jaxmono.jit(lambda x, i, u: (x * 2).at[i].add(u, unique_indices=True),
                           interpret=True).lower(x, PLACES, u).explain().refused

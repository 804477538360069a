"""Random programs around products that gate each other: planned, and run by the plans' interpreter.

Products of one matrix whose halves are read, and of several; what is made of them element by
element, reduced, turned, multiplied again; some of it returned.
"""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest

from jaxmono.fusion import make_plan, paired_columns
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm
from jaxmono.hlo.interp import evaluate

M, K, F = 64, 16, 64
SHAPES = ((M, K), (K, 2 * F), (2 * F,), (K, F), (K, F), (K, F), (F,), (F, K))
X = Any


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_columns, "MIN_ROWS", 32)
    monkeypatch.setattr(paired_columns, "MIN_SIZE", 0)
    monkeypatch.setattr(paired_columns, "_SEEN", 1e9)


def program(seed: int, x: X, w: X, b: X, u: X, v: X, t: X, c: X, down: X) -> tuple[X, ...]:
    """The program of that number, of inputs of `SHAPES`."""
    r, out = random.Random(seed), list[X]()
    y = x @ w
    if r.random() < 0.7:
        y = y + b
    if r.random() < 0.2:
        y = jnp.maximum(y, 0)
    if r.random() < 0.2:
        halves = y.reshape(M, 2, F)
        pool = [halves[:, 0], halves[:, 1]]
    else:
        pool = [y[:, :F], y[:, F:]]
        if r.random() < 0.1:
            out.append(jnp.sum(y, 0))
    for matrix in (u, v, t)[:r.randint(0, 3)]:
        pool.append((x if r.random() < 0.8 else x * 2) @ matrix)
    for _ in range(r.randint(1, 7)):
        p, q = r.choice(pool), r.choice(pool)
        made = r.choice([p * q, p * q, p + q, jnp.maximum(p, q), jnp.maximum(p, 0), p + c,
                         p - jnp.max(q, -1, keepdims=True), p[::-1] * q,
                         (p.astype(jnp.float32) + 1).astype(p.dtype)])
        pool.append(jnp.clip(made, -4, 4))
    out += r.choices(pool[2:], k=r.randint(1, 3))
    behind = r.choice(["", "product", "rows", "columns", "turned"])
    if behind == "product":
        out.append(pool[-1] @ down)
    elif behind in ("rows", "columns"):
        out.append(jnp.sum(pool[-1].astype(jnp.float32), behind == "columns"))
    elif behind == "turned":
        out.append(pool[-1].T)
    return tuple(out)


def check(seed: int) -> bool:
    """Plans and runs a program; whether a product of it has pairs of columns."""
    graph = models.graph_of(lambda *a: program(seed, *a),
                            *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in SHAPES))
    made = make_plan(graph, Device())
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-1, 2, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=seed), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32),
                                   rtol=2 ** -6, atol=1, err_msg=f"program {seed}")
    return any(isinstance(g.sig.form, DotForm) and g.sig.form.pairs for g in made.groups)


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_programs(first: int) -> None:
    paired = sum(map(check, range(first, first + 50)))
    assert paired >= 5, "few of them have pairs"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2100, 200))
def test_more_programs(first: int) -> None:
    assert sum(map(check, range(first, first + 200))) > 0

"""Vectors whose lanes are of several operands in turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, plan_of, smooth
from harness import run_program

from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct


def rotated(x: Any, c: Any, s: Any) -> Any:
    """Positions as GPT-J has them."""
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def joined(x: Any, c: Any, s: Any) -> Any:
    """Copies alone."""
    return jnp.stack([x[:, :32], x[:, 32:]], -1)


def four(x: Any, c: Any, s: Any) -> Any:
    y = x.reshape(-1, 16, 4)
    return jnp.stack([jnp.tanh(y[..., 3]), y[..., 0] + 1, y[..., 1] * 2, y[..., 2] - y[..., 3]], -1)


def uneven(x: Any, c: Any, s: Any) -> Any:
    y = x.reshape(-1, 8, 8)
    return jnp.concatenate([jnp.sin(y[..., 5:]), y[..., :5] * c[:, None, :5]], -1)


def three(x: Any, c: Any, s: Any) -> Any:
    """No number of lanes has them in turn."""
    return jnp.stack([c, s, c * s], -1)


def inner(x: Any, c: Any, s: Any) -> Any:
    """One of them is chosen by its place once more."""
    a = jnp.concatenate([c[:, :16] * 2, s[:, 16:]], 1)
    return jnp.stack([a, s + 1], -1)


@pytest.mark.parametrize(("f", "lanes"), [(rotated, True), (joined, True), (four, True),
                                          (uneven, True), (inner, True), (three, False)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_as_the_reference(f: Callable[..., Any], lanes: bool, dtype: Any) -> None:
    if dtype == jnp.float32 and f is uneven:
        lanes = False  # 4 lanes do not have 3 and 5 in turn
    plan = plan_of(f, Spec((24, 64), dtype), Spec((24, 32), dtype), Spec((24, 32), dtype))
    program = build(plan, {})
    made = re.findall(r"const Vec<float, \d> v\d+ = \{\{", program.source)
    assert bool(made) is lanes, program.source
    given = smooth(plan.graph, 1)
    for a, b in zip(run_program(program, given, blocks=3),
                    evaluate(plan.graph, given, accumulate="f64"), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64),
                                   rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5, atol=1e-5)


def test_what_lanes_share_is_loaded_once() -> None:
    plan = plan_of(rotated, Spec((24, 64), jnp.float32), *[Spec((24, 32), jnp.float32)] * 2)
    loads = re.findall(r"load_ro<float(?:, (\d))?>", build(plan, {}).source)
    assert loads == ["4", "2", "2"]

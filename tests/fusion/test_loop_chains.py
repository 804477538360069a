"""Loops that read each other's values where they compute (loop_chains.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from checked import checked, kinds

from benchmarks.workloads.everyday import prices
from jaxmono.fusion.plan import Plan

N = 512  # 1 MiB
X = jax.ShapeDtypeStruct((N, N), jnp.float32)


def stores(p: Plan) -> list[list[int]]:
    """How many values each group of each stage stores."""
    return [[len(g.results) for g in s.groups] for s in p.stages]


def apart(p: Plan) -> str:
    """Why loops were not made one."""
    return "\n".join(n for n in p.notes if "not made one" in n)


def test_what_an_optimiser_returns_is_at_hand_for_its_step() -> None:
    def adam(g: Any, w: Any, m: Any, v: Any) -> Any:
        m, v = 0.5 * m + 0.5 * g, 0.5 * v * v + g * g
        return w - m / (jnp.sqrt(v) + 1.0), m, v

    p = checked(adam, X, X, X, X)
    assert stores(p) == [[3]] and p.scratch_bytes == 0 and not apart(p)


def test_a_loop_comes_down_to_the_one_that_waits() -> None:
    def step(m: Any, g: Any, x: Any) -> Any:
        m = 0.5 * m + g
        return m, m / (jnp.abs(x).sum() + 1.0)

    p = checked(step, X, X, X)
    assert kinds(p)[-1] == ["loop"] and stores(p)[-1] == [2]
    assert sum(k == "loop" for stage in kinds(p) for k in stage) == 1


def test_a_loop_comes_up_to_the_one_that_a_product_waits_for() -> None:
    def step(m: Any, g: Any, x: Any) -> Any:
        m = jnp.tanh(0.5 * m + g)
        return m, m * 2 + x, m @ x

    p = checked(step, X, X, X)
    assert kinds(p) == [["loop"], ["dot"]] and stores(p)[0] == [2]


def test_values_that_both_readers_join_are_not_stored() -> None:
    def two(x: Any) -> Any:
        for _ in range(8):
            x = jnp.tanh(jnp.sin(x) * 2.0)
        return x + 1.0, x * 2.0

    big = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    p = checked(two, big)
    assert stores(p) == [[2]] and p.scratch_bytes == 0


def test_loops_of_other_elements_stay_apart() -> None:
    def step(m: Any, g: Any) -> Any:
        m = 0.5 * m + g
        return m, m[::-1] * 2.0 + m

    p = checked(step, X, X)
    assert stores(p) == [[1], [1]] and not apart(p)


def test_loops_with_a_product_between_them_stay_apart() -> None:
    def step(m: Any, g: Any) -> Any:
        m = jnp.tanh(0.5 * m + g)
        return m, m * (m @ g).sum()

    p = checked(step, X, X)
    assert stores(p)[0] == [1] and "one of them would come later" in apart(p)


def test_more_than_four_values_are_not_stored_by_a_loop() -> None:
    def step(a: Any, b: Any, c: Any, d: Any) -> Any:
        a, b, c, d = (x * 0.5 + 1.0 for x in (a, b, c, d))
        return a, b, c, d, a + b + c + d

    p = checked(step, X, X, X, X)
    assert max(n for s in stores(p) for n in s) == 4 and "it would store 5 values" in apart(p)


def test_small_loops_run_beside_others() -> None:
    def step(m: Any, g: Any) -> Any:
        m = 0.5 * m + g
        return m, m * 2.0

    small, least = (jax.ShapeDtypeStruct((n,), jnp.float32) for n in ((1 << 18) - 1, 1 << 18))
    assert stores(checked(step, small, small)) == [[1], [1]]
    assert stores(checked(step, least, least)) == [[2]]


def test_inputs_that_are_returned_beside_what_reads_them() -> None:
    """Each a copy, which nobody waits for."""
    def rotate(a: Any, b: Any, x: Any) -> Any:
        return b, a, b * x, x

    p = checked(rotate, X, X, X)
    assert len(p.stages) == 1


def test_loops_that_alone_would_store_too_much_are_one_as_a_whole() -> None:
    """Some of them leave more than four values to the others; all together three."""
    x = jax.ShapeDtypeStruct((N * N,), jnp.float32)
    p = checked(prices, x, x, x)
    assert stores(p) == [[3]] and p.scratch_bytes == 0

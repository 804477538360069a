"""Loops whose source lies turned, through tiles in shared memory (turned_loop.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import plan_of
from harness import assert_close, run_program
from harness_graphs import data
from models import graph_of

from jaxmono.codegen import cuda_target, generate, interpret_target
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph

Spec = jax.ShapeDtypeStruct
BF16, F16, F32, S8, S32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32
H200, SMALL = Device(), Device(sm_count=1)
"""On a whole GPU few tiles are not worth it."""


def channels_last(x: Any) -> Any:
    return x.transpose(0, 2, 3, 1) * 2


def channels_first(x: Any) -> Any:
    return jnp.maximum(x.transpose(0, 3, 1, 2), 0)


def with_others(x: Any, bias: Any, residual: Any) -> Any:
    """A bias of the columns, and what lies as the result does."""
    return jnp.tanh(x.transpose(0, 2, 3, 1) + bias) + residual


def two_sources(x: Any, y: Any) -> Any:
    return x.transpose(0, 2, 3, 1) * y.transpose(0, 2, 3, 1)


def two_results(x: Any) -> Any:
    y = jnp.swapaxes(x, 0, 1).astype(F32)
    return y * 2, (y + 1).astype(BF16)


def turned(fn: Callable[..., Any], *args: Any, device: Device = SMALL) -> bool:
    plan = plan_of(fn, *args, device=device)
    schedules = default_schedule(plan, cuda_target("sm_90a"), device).sigs.values()
    return any(isinstance(s, LoopSchedule) and s.turned for s in schedules)


def run(fn: Callable[..., Any], *args: Any, rtol: float = 2e-2) -> None:
    graph = graph_of(fn, *args)
    run_graph(graph, [data(v, i) for i, v in enumerate(graph.inputs)], rtol=rtol)


def run_graph(graph: Graph, inputs: list[Any], *, rtol: float | None = None) -> None:
    """In the emulator, with as many threads as on a GPU."""
    plan = make_plan(graph, SMALL)
    program = generate(plan, dataclasses.replace(interpret_target(), threads=256), SMALL, "turned")
    assert "tile0" in program.source
    wanted = evaluate(graph, inputs)
    for seed, blocks in ((0, 1), (1, 3)):
        found = run_program(program, inputs, seed=seed, blocks=blocks)
        for i, (x, want) in enumerate(zip(found, wanted, strict=True)):
            assert_close(x, want, rtol, f"output {i}, seed {seed}")


@pytest.mark.parametrize("dtype", [BF16, F16, F32, jnp.float64, S8, S32])
def test_element_types(dtype: Any) -> None:
    with jax.enable_x64(True):
        run(channels_last, Spec((2, 72, 8, 10), dtype))


@pytest.mark.parametrize("shape", [
    (1, 64, 8, 8), (2, 130, 5, 13), (2, 35, 7, 9), (1, 36, 3, 11), (3, 34, 67, 1), (1, 40, 1, 200)])
def test_sides_that_no_tile_divides(shape: tuple[int, ...]) -> None:
    run(channels_last, Spec(shape, BF16))
    run(channels_last, Spec(shape, F32))


def test_the_other_way_around() -> None:
    run(channels_first, Spec((2, 6, 12, 40), BF16))


def test_what_else_is_read() -> None:
    run(with_others, Spec((2, 48, 6, 8), BF16), Spec((48,), F32), Spec((2, 6, 8, 48), BF16))


def test_several_sources_and_results() -> None:
    run(two_sources, *[Spec((1, 48, 6, 8), BF16)] * 2)
    run(two_results, Spec((70, 36), BF16))


def test_behind_another_stage() -> None:
    """What is read was written by other blocks of the launch."""
    run(lambda x: jnp.maximum(jnp.cumsum(x, -1).T, 0), Spec((70, 40), S32))


@pytest.mark.parametrize(("fn", "args"), [
    (lambda x: x.transpose(0, 2, 1, 3) * 2, [(4, 64, 8, 64)]),  # rows stay whole
    (lambda x: x.transpose(0, 3, 1, 2) / 255, [(2, 64, 64, 3)]),  # three channels
    (lambda x: x.T * 2, [(16, 4096)]),
    (lambda x: x * 2, [(64, 4096)]),
    (lambda x: jnp.pad(x, ((0, 0), (1, 1))).T * 2, [(64, 126)]),  # borders inside of a tile
    (lambda x, y: x.T + y.transpose(2, 0, 1).reshape(128, 64),
     [(64, 128), (64, 64, 2)]),  # turned in different ways
])
def test_others_stay_as_they_are(fn: Any, args: Any) -> None:
    assert not turned(fn, *(Spec(s, F32) for s in args))


def test_few_tiles_are_not_worth_it() -> None:
    assert not turned(channels_last, Spec((1, 768, 14, 14), F32), device=H200)
    assert turned(channels_last, Spec((4, 768, 14, 14), F32), device=H200)


@pytest.mark.parametrize("n", [4, 128])
def test_in_kernels_that_multiply_only_large_ones(n: int) -> None:
    """Producers of the next stage wait for the shared memory of a tile."""
    def fn(x: Any, y: Any, w: Any) -> Any:
        return x.transpose(0, 2, 1) * (y @ w).max()

    args = Spec((n, 256, 256), BF16), Spec((256, 256), BF16), Spec((256, 256), BF16)
    assert turned(fn, *args, device=H200) == (n == 128)


def test_nothing_is_lost_of_infinities() -> None:
    x = np.full((1, 64, 8, 9), np.inf, np.float32)
    x[0, ::2] = np.nan
    run_graph(graph_of(channels_last, Spec(x.shape, F32)), [x])

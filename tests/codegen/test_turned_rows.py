"""Rows that lie turned and leave as rows, through tiles in shared memory (turned_rows.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of
from harness import assert_close, run_program
from harness_graphs import data
from models import graph_of

from jaxmono.codegen import cuda_target, generate, interpret_target
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.row_schedule import RowSchedule
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
BF16, F16, F32, S8 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8
H200, SMALL = Device(), Device(sm_count=1)


def norm(x: Any, g: Any, b: Any) -> Any:
    """Over channels, which come first in x and last in the result."""
    y = jnp.moveaxis(x, 1, -1).astype(F32)
    y = y - y.mean(-1, keepdims=True)
    return (y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * g + b


def softmax(x: Any) -> Any:
    """One result as it lies, one turned, and one for each row."""
    y = jnp.exp(x - x.max(1, keepdims=True))
    return y, y.transpose(0, 2, 1).astype(BF16), y.sum(1)


def tiles(fn: Callable[..., Any], *args: Any, device: Device = H200) -> str:
    target = cuda_target("sm_90a")
    plan = plan_of(fn, *args, device=device)
    return emit(plan, target, device, "f", default_schedule(plan, target, device)).source


def run(fn: Callable[..., Any], *args: Any, lanes: int, rtol: float = 2e-2) -> None:
    graph = graph_of(fn, *args)
    plan = make_plan(graph, SMALL)
    target = interpret_target()
    schedule = default_schedule(plan, target, SMALL)
    own = {k: RowSchedule("slice", 32, lanes, tiled=True) if isinstance(s, RowSchedule) else s
           for k, s in schedule.sigs.items()}
    program = generate(plan, target, SMALL, "f", type(schedule)(64, 1, own))
    assert "RowTile<" in program.source
    xs = [data(v, i, special=False) for i, v in enumerate(graph.inputs)]
    for seed, blocks in ((0, 1), (1, 3)):
        found = run_program(program, xs, seed=seed, blocks=blocks)
        for i, (x, want) in enumerate(zip(found, evaluate(graph, xs), strict=True)):
            assert_close(x, want, rtol, f"output {i}, seed {seed}")


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize(("shape", "dtype"), [
    ((2, 24, 8, 9), F32), ((1, 40, 100), BF16), ((3, 12, 44), F16)])
def test_norms_over_channels(shape: tuple[int, ...], dtype: Any, lanes: int) -> None:
    """Tasks whole and in part, rows of an odd and an even number of words."""
    run(norm, Spec(shape, dtype), Spec(shape[1:2], dtype), Spec(shape[1:2], dtype), lanes=lanes)


@pytest.mark.parametrize("lanes", [1, 4])
def test_of_several_results_only_what_would_be_scattered(lanes: int) -> None:
    run(softmax, Spec((2, 24, 36), F32), lanes=lanes)
    text = tiles(softmax, Spec((64, 24, 3136), F32))
    assert text.count("::put(") == text.count("::copy<") == 1


def test_where_lanes_have_rows_of_their_own() -> None:
    args = Spec((32, 96, 56, 56), BF16), Spec((96,), BF16), Spec((96,), BF16)
    text = tiles(norm, *args)
    assert "RowTile<bf16, 96, 2>" in text and "store<" not in text


@pytest.mark.parametrize("shape", [(3, 768, 29, 31), (32, 768, 7, 7), (9, 130, 999)])
def test_where_a_vector_would_cross_images(shape: tuple[int, ...]) -> None:
    """Most neighbours are of one image all the same."""
    args = Spec(shape, BF16), Spec(shape[1:2], BF16), Spec(shape[1:2], BF16)
    assert f"RowTile<bf16, {shape[1]}, 1>" in tiles(norm, *args)


@pytest.mark.parametrize(("shape", "why"), [
    ((32, 97, 56, 56), "rows of half words"), ((32, 4, 56, 56), "few columns"),
    ((8, 1600, 56, 56), "too large"), ((8, 49, 96), "few rows: lanes have columns")])
def test_where_there_are_none(shape: tuple[int, ...], why: str) -> None:
    args = Spec(shape, BF16), Spec(shape[1:2], BF16), Spec(shape[1:2], BF16)
    assert "RowTile<" not in tiles(norm, *args), why


def test_places_that_no_int_can_count() -> None:
    args = Spec((128, 96, 512, 512), BF16), Spec((96,), BF16), Spec((96,), BF16)
    assert "r0 + (long long)task * 6144, " in tiles(norm, *args)


@pytest.mark.parametrize(("channels", "there"), [(1536, False), (768, True)])
def test_devices_with_less_shared_memory(channels: int, there: bool) -> None:
    device = Device(shared_bytes=99 * 1024)
    plan = plan_of(norm, Spec((32, channels, 28, 28), BF16), *[Spec((channels,), BF16)] * 2,
                   device=device)
    kernel = emit(plan, cuda_target("sm_89"), device, "f")
    assert ("RowTile<" in kernel.source) == there
    assert kernel.shared_bytes <= device.shared_bytes


def test_what_leaves_as_it_came() -> None:
    """Of channels that stay in front lanes store neighbours."""
    assert "RowTile<" not in tiles(lambda x: jax.nn.softmax(x, 1), Spec((32, 96, 3136), F32))

"""Problems and profilers for the tests of the tuner."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from models import graph_of

from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.tuning import Conditions, Problem, problems_of
from jaxmono.tuning.choice import Row
from jaxmono.tuning.problem import schedule_text
from jaxmono.tuning.profiler import GpuProfiler

HERE = Path(__file__).parent
WORKER = HERE.parent.parent / "jaxmono" / "tuning" / "gpu_worker.py"
DEVICE = Device(name="Test GPU")
CONDITIONS = Conditions(DEVICE, cuda_target("sm_90a"), "580.1", "generator", "nvrtc")


def spec(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def matmul(x: Any, w: Any) -> Any:
    return x @ w


def plan_of(fn: Callable[..., Any], *args: Any) -> Plan:
    return make_plan(graph_of(fn, *args), DEVICE)


def problem_of(fn: Callable[..., Any] = matmul, *args: Any,
               conditions: Conditions = CONDITIONS) -> Problem:
    """The first problem of a function; by default a small product of f32."""
    args = args or (spec(64, 64, dtype=jnp.float32), spec(64, 64, dtype=jnp.float32))
    return problems_of(plan_of(fn, *args), conditions)[0]


def with_siblings(problem: Problem, siblings: int) -> Problem:
    return Problem(problem.sig, dataclasses.replace(problem.request, siblings=siblings),
                   problem.conditions)


def fake_gpu(folder: Path, behaviours: Sequence[dict[str, Any]], *,
             run_seconds: float = 20.0) -> GpuProfiler:
    """A profiler whose candidates behave as told (see fake_cuda.py), the last for all others."""
    told = folder / "behaviours.json"
    told.write_text(json.dumps(list(behaviours)))
    return GpuProfiler(
        workers=2, run_seconds=run_seconds,
        gpu_command=(sys.executable, str(HERE / "fake_cuda.py"), str(WORKER)),
        compile_command=(sys.executable, str(HERE / "fake_compiler.py"), str(told)))


class FakeProfiler:
    """Times of candidates by a function of their rank; counts what is measured."""

    def __init__(self, us: Callable[[int], float | str | None]) -> None:
        self.us = us
        self.measured: list[str] = []
        self.closed = False

    def prepare(self, problem: Problem, skip: frozenset[str]) -> Any:
        return problem, skip

    def measure(self, prepared: Any, deadline: float) -> tuple[Row, ...]:
        problem, skip = prepared
        self.measured.append(str(problem))
        rows: list[Row] = []
        for rank, schedule in enumerate(problem.candidates):
            text, us = schedule_text(schedule), self.us(rank)
            if us is not None and (rank == 0 or text not in skip):
                rows.append(Row(text, rank, None, 0.0, us) if isinstance(us, str)
                            else Row(text, rank, us, 0.01))
        return tuple(rows)

    def close(self) -> None:
        self.closed = True

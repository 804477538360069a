"""Contractions in the emulator: graphs, inputs whose results are exact, forced schedules.

With small integers as floats every product and sum is exact in f32, so kernels are compared bit
by bit with the f64 reference, rounded once to the result's type: one wrong element of one tile
shows, whatever the size of the contraction.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import DEVICE, run_program
from models import graph_of

from jaxmono.codegen import Program, generate, interpret_target
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_function import shared_bytes
from jaxmono.codegen.dot_gemv import shape
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan, Sig
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph

Array = np.ndarray[Any, Any]

__all__ = ["Array", "build", "check_exact", "check_near", "dot_sigs", "graph_of", "plan_of",
           "small_integers", "smooth", "with_dots"]


def small_integers(graph: Graph, seed: int = 0, high: int = 2) -> list[Array]:
    """Inputs of integers from -high to high (0 to high if unsigned), in the graph's types."""
    rng = np.random.default_rng(seed)
    out: list[Array] = []
    for v in graph.inputs:
        t = v.type.dtype
        low = 0 if t.is_unsigned or not (t.is_float or t.is_integer) else -high
        top = 1 if not (t.is_float or t.is_integer) else high
        out.append(np.asarray(rng.integers(low, top + 1, v.type.dims)).astype(t.numpy))
    return out


def smooth(graph: Graph, seed: int = 0, scale: float = 1.0) -> list[Array]:
    """Inputs from a normal distribution; integers are 0 to 3."""
    rng = np.random.default_rng(seed)
    out: list[Array] = []
    for v in graph.inputs:
        t = v.type.dtype
        if t.is_float:
            a = np.asarray(rng.standard_normal(v.type.dims) * scale).astype(t.numpy)
        elif t.is_integer:
            a = np.asarray(rng.integers(0, 4, v.type.dims)).astype(t.numpy)
        else:
            a = np.asarray(rng.integers(0, 2, v.type.dims)).astype(np.bool_)
        out.append(a)
    return out


def plan_of(fn: Callable[..., Any], *args: Any, device: Device = DEVICE) -> Plan:
    return make_plan(graph_of(fn, *args), device)


def dot_sigs(plan: Plan) -> list[Sig]:
    return [s for s in plan.sigs if s.kind == "dot"]


def build(plan: Plan, sigs: dict[str, Any] | None = None, *, threads: int = 128,
          lean: bool = False, in_turn: bool = False) -> Program:
    """The plan for the emulator; ``sigs`` replaces the default schedules of some Sigs."""
    target = dataclasses.replace(interpret_target(), threads=threads)
    schedule = default_schedule(plan, target, DEVICE)
    schedule = dataclasses.replace(schedule, sigs={**schedule.sigs, **(sigs or {})}, lean=lean,
                                   in_turn=in_turn)
    return generate(plan, target, DEVICE, "test_contraction", schedule=schedule)


def with_dots(plan: Plan, schedule: DotSchedule) -> dict[str, Any]:
    """``schedule`` for every dot of the plan."""
    out: dict[str, Any] = {}
    for s in dot_sigs(plan):
        code = DotCode.of(s, schedule)
        bytes_ = shape(code, interpret_target().threads).shared_bytes \
            if schedule.family == "gemv" else shared_bytes(code)
        assert bytes_ <= interpret_target().shared_bytes
        out[s.key] = schedule
    return out


def in_order(plan: Plan, *schedules: DotSchedule) -> dict[str, Any]:
    """The schedules for the dots of a plan, in order, the last one for the rest."""
    return {s.key: schedules[min(i, len(schedules) - 1)] for i, s in enumerate(dot_sigs(plan))}


def check_exact(plan: Plan, program: Program, *, seeds: Sequence[int] = (0, 1),
                blocks: Sequence[int] = (4,), inputs: Sequence[Array] | None = None) -> None:
    """Runs with small integers; every output bit must be that of the f64 reference."""
    given = list(inputs) if inputs is not None else small_integers(plan.graph)
    wanted = evaluate(plan.graph, given, accumulate="f64")
    for seed, count in _runs(seeds, blocks):
        found = run_program(program, given, seed=seed, blocks=count)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_array_equal(
                a.astype(np.float64) if a.dtype.kind not in "iub" else a,
                b.astype(a.dtype).astype(np.float64) if a.dtype.kind not in "iub" else b,
                err_msg=f"output {i} {plan.graph.outputs[i].type}, seed {seed}, {count} blocks")


def check_near(plan: Plan, program: Program, given: Sequence[Array], rtol: float, *,
               seeds: Sequence[int] = (0, 1), blocks: Sequence[int] = (4,)) -> None:
    """Compares with the f64 reference, relative to each output's mean magnitude as well."""
    wanted = evaluate(plan.graph, list(given), accumulate="f64")
    for seed, count in _runs(seeds, blocks):
        found = run_program(program, given, seed=seed, blocks=count)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            finite = np.abs(b[np.isfinite(b)]) if b.dtype.kind == "f" else np.abs(b)
            atol = rtol * float(finite.mean()) if finite.size else 0.0
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol,
                err_msg=f"output {i} {plan.graph.outputs[i].type}, seed {seed}, {count} blocks")


def check_rounded(plan: Plan, sigs: dict[str, Any], given: list[Array],
                  bias: float = 5e-6) -> None:
    """Of operands of one sign: what wgmma would cut off them as tf32 does not average out."""
    program = build(plan, sigs, threads=256)
    for found, wanted in zip(run_program(program, given, seed=1),
                             evaluate(plan.graph, given, accumulate="f64"), strict=True):
        error = (found.astype(np.float64) - wanted) / wanted
        assert abs(error.mean()) < bias and 1e-5 < np.abs(error).mean() < 1e-4  # cut: -3.5e-4


def _runs(seeds: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int]]:
    return [(s, b) for s in seeds for b in blocks]


def wgmma(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1, lines: int = 1,
          ) -> DotSchedule:
    """Tiles of 16-bit elements for Hopper's warpgroups; ``lines`` times 64 of k in a slot."""
    return DotSchedule("wgmma", bm, bn, 64 * lines, slots, warps, split)


def handovers(program: Program) -> list[tuple[bool, bool]]:
    """Of every grid barrier of a kernel with producers, in the order of the text: whether shared
    memory is handed over there, and whether the stage behind it has loads."""
    body = program.source[program.source.index('extern "C" __global__'):]
    told = re.findall(r"roles->grid_(?:barrier<(\w+), (\w+)>|arrive<(\w+)>|wait<(\w+)>)", body)
    flags = [x == "true" for line in told for x in line if x]
    return list(zip(flags[::2], flags[1::2], strict=True))


def run_wgmma(plan: Plan, *schedules: DotSchedule, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """The plan's contractions by these, in the emulator, on integers."""
    program = build(plan, in_order(plan, *schedules), threads=256)
    assert program.threads == 384
    check_exact(plan, program, seeds=seeds, blocks=(1, 3))


def every_layout(m: int) -> Plan:
    """[m,k] or [k,m] times [k,n] or [n,k] in one stage, a bias and a residual."""
    def fn(a: Any, at: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
        pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt), ("km,kn->mn", at, b),
                 ("km,nk->mn", at, bt)]
        return tuple(jnp.einsum(e, x, y, preferred_element_type=jnp.float32) + bias + c
                     for e, x, y in pairs)

    shapes = [(m, 200), (200, m), (200, 104), (104, 200)]
    return plan_of(fn, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes),
                   *(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((104,), (m, 104))))

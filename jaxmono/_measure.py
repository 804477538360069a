"""Counts for reports: live ops, their work, names that a reader and a C compiler accept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from jaxmono._explain import Work
from jaxmono.custom_call.options import Options
from jaxmono.fusion import cost
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.ops import has_side_effect
from jaxmono.hlo.passes.counted import trip_count


def live_ops(graph: Graph) -> dict[Op, None]:
    """The ops that an output or a side effect needs, in order (an ordered set)."""
    wanted: set[Value] = set(graph.outputs)
    live: set[Op] = set()
    for op in reversed(graph.ops):
        if has_side_effect(op) or any(v in wanted for v in op.results):
            live.add(op)
            wanted.update(op.uses)
    return {op: None for op in graph.ops if op in live}


def is_free(op: Op) -> bool:
    """Constants cost nothing and may be in a kernel and outside at once: they are not counted."""
    return isinstance(op, ops.Constant)


def work(counted: Iterable[Op]) -> Work:
    """What these ops compute if each ran alone (symbolic shapes count as no bytes, no flops).

    The ops inside a loop count once as ops, and once per trip as bytes and flops; of the branches
    of a case the one with the most flops counts.
    """
    total = Work()
    for op in counted:
        if isinstance(op, ops.While):
            body, trips = work(op.body.ops), trip_count(op)
            total += Work(1 + body.ops, body.bytes * trips, body.flops * trips)
        elif isinstance(op, ops.Case):
            total += max((work(g.ops) for g in op.branches), key=lambda w: w.flops)
        elif not is_free(op):
            static = all(v.type.is_static for v in (*op.inputs, *op.results))
            total += Work(1, cost.op_bytes(op), cost.op_flops(op) if static else 0)
    return total


def op_name(op: Op) -> str:
    """The op as a user knows it: ``tanh``, ``sort``, ``stablehlo.fft``."""
    if isinstance(op, ops.Elementwise):
        return op.kind
    return op.name if isinstance(op, ops.Unknown) else op.opcode


def function_name(symbol: str, options: Options) -> str:
    """The user's function name from the symbol that the lowering made of it."""
    return re.sub(rf"(_with_[0-9a-f]{{8}})?({options.tag}|_xla)(_\d+)?$", "", symbol) or "fun"


def kernel_name(name: str, index: int, count: int) -> str:
    """A C identifier from a function's name; numbered when there are several kernels."""
    word = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "kernel"
    return f"mono_{word}" + (f"_{index}" if count > 1 else "")


def predicted_us(plan: Plan, device: Device) -> float:
    """The cost model's time of one launch, in microseconds."""
    return cost.plan_us(plan, device)


def floor_us(plan: Plan, device: Device) -> float:
    """The least time of one launch that memory and arithmetic allow, in microseconds."""
    return cost.floor_us(plan, device)

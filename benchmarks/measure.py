"""One case measured: times of both sides in turns, kernels, resources, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import jax

from benchmarks.cases import Case
from benchmarks.device_profile import NoDeviceTrace, profile
from benchmarks.errors import error, references
from benchmarks.sides import SIDES, Runner, chained, fresh, jitted
from examples.latency import interleaved
from examples.xla_kernels import count_kernels

Row = dict[str, Any]


def compiled_facts(case: Case, side: str, *, interpret: bool = False) -> Row:
    """Compile times, kernels and resources of one side, compiled anew."""
    function = jitted(case.step, side, interpret=interpret)
    args = (case.state, case.carry, *case.inputs[0])
    start = time.perf_counter()
    lowered = function.lower(*args)
    middle = time.perf_counter()
    compiled = lowered.compile()
    row: Row = {"lower_seconds": middle - start, "xla_seconds": time.perf_counter() - middle,
                "hlo_kernels": count_kernels(compiled.as_text() or "").total()}
    return row if side == "xla" else row | kernel_facts(compiled)


def kernel_facts(compiled: Any) -> Row:
    """What jaxmono tells of a compiled program."""
    told = compiled.explain()
    row: Row = {
        "kernels": told.kernels, "stages": told.stages, "barriers": told.barriers,
        "barriers_before_merging": told.barriers_before_merging,
        "scratch_bytes": told.scratch_bytes, "shared_bytes": told.shared_bytes,
        "compile_seconds": told.compile_seconds, "cached": told.cached,
        "registers": max((k.registers for k in told.planned if k.registers is not None),
                         default=None),
        "spill_bytes": None if any(k.spill_bytes is None for k in told.planned)
        else sum(k.spill_bytes or 0 for k in told.planned),
        "predicted_us": told.predicted_us, "floor_us": told.floor_us,
        "refused": [f"{r.op} at {r.source}: {r.reason}" for r in told.refused[:10]],
        "source_bytes": len(compiled.as_text("cuda")), "note": told.note,
    }
    # "compile time" there is generating and NVRTC alone; above it is all phases.
    for line in compiled.as_text("ptxas").splitlines():
        name, _, value = line.partition(": ")
        if name == "compile time":
            row["nvrtc_seconds"] = row.get("nvrtc_seconds", 0.0) + float(value.split()[0])
    return row


def measure(case: Case, *, calls: int, rounds: int, chain: int, trace: bool,
            interpret: bool = False) -> Iterator[Row]:
    """Rows of one case, each with ``kind``; a part that fails gives a row with ``failed``."""
    base: Row = {"case": case.name, "title": case.title}
    step = {side: jitted(case.step, side, interpret=interpret) for side in SIDES}
    for side in SIDES:
        yield {**base, "kind": "program", "side": side,
               **compiled_facts(case, side, interpret=interpret)}

    wanted = references(case)
    for side in SIDES:
        yield {**base, "kind": "error", "side": side, **asdict(error(case, step[side], wanted))}

    runners = {side: Runner(step[side], case) for side in SIDES}
    times = interleaved(runners, calls=calls, rounds=rounds)
    for side in SIDES:
        yield {**base, "kind": "pipelined", "side": side, **asdict(times[side])}

    if chain:
        many = {side: Runner(chained(step[side], chain), case, stack=chain) for side in SIDES}
        times = interleaved(many, calls=max(1, calls // chain), rounds=rounds)
        for side in SIDES:
            yield {**base, "kind": "chained", "side": side, "chain": chain,
                   **{k: v / chain for k, v in asdict(times[side]).items()}}

    for side in SIDES if trace else ():
        row = {**base, "kind": "trace", "side": side}
        try:
            seen = profile(runners[side], calls=20)
        except NoDeviceTrace as reason:
            yield {**row, "failed": str(reason)}
            continue
        yield {**row, "launches": seen.launches, "copies": seen.copies, "busy_us": seen.busy_us,
               "names": dict(seen.names.most_common(10))}


def first_result(case: Case, side: str) -> float:
    """Seconds from calling an untraced function to having its first result."""
    function = jitted(case.step, side)
    carry = fresh(case.carry)
    args = (case.state, carry, *case.inputs[0])
    jax.block_until_ready(args)
    start = time.perf_counter()
    out, _ = function(*args)
    out.block_until_ready()
    return time.perf_counter() - start


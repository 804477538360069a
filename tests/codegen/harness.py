"""Runs Programs of the target "interpret" on NumPy arrays, and compares with the reference."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxmono.codegen import Program, generate, interpret_target
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.types import FOUR_BITS, DType

DEVICE = Device(sm_count=4)
BLOCKS = 4
_ERROR_BYTES = 1024


def buffer(nbytes: int) -> np.ndarray[Any, Any]:
    """Bytes aligned as XLA aligns buffers, full of 0xFF, NaN in every float type; so is what lies
    behind them, which a kernel must not read."""
    raw = np.full(nbytes + 256 + (1 << 20), 0xFF, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start:start + nbytes]


def run_program(program: Program, inputs: Sequence[Any], *, blocks: int = BLOCKS, seed: int = 0,
                ) -> list[np.ndarray[Any, Any]]:
    """The outputs of one launch; inputs are copied first."""
    held = [buffer(max(t.nbytes, 1)) for t in (*program.inputs, *program.outputs)]
    n = len(program.inputs)
    for array, t, b in zip(inputs, program.inputs, held, strict=False):
        b[: t.nbytes] = _in_memory(np.asarray(array, t.dtype.numpy), t.dtype)
    for out, source in program.aliases:
        held[n + out] = held[source]
    pointers = [*held, *([buffer(program.scratch_bytes)] if program.scratch_bytes else [])]
    arguments = (ctypes.c_void_p * max(len(pointers), 1))(*(p.ctypes.data for p in pointers))
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    blocks = min(max(blocks, program.min_blocks), program.max_blocks)
    code = _entry(program.binary)(arguments, blocks,
                                  ctypes.c_ulonglong(seed), error, _ERROR_BYTES)
    if code != 0:
        raise RuntimeError(error.value.decode())
    return [held[n + i][: t.nbytes].view(t.dtype.numpy).reshape(t.dims)
            for i, t in enumerate(program.outputs)]


def _in_memory(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Its bytes; NumPy has one for each integer of 4 bits, memory one for two."""
    if dtype not in FOUR_BITS:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    codes = np.append(array.reshape(-1).astype(np.int8), np.int8(0)).view(np.uint8) & 0xF
    return codes[: array.size + 1 & ~1].reshape(-1, 2) @ np.array([1, 16], np.uint8)


@lru_cache(maxsize=256)
def _entry(binary: bytes) -> Any:
    with tempfile.TemporaryDirectory(prefix="jaxmono-test-") as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(binary)
        f = ctypes.CDLL(str(path)).jaxmono_emulate
    f.restype = ctypes.c_int
    return f


def compile_graph(graph: Graph, *, plan: Plan | None = None, **kw: Any) -> Program:
    """The graph as one kernel of the interpreter."""
    plan = plan if plan is not None else make_plan(graph, DEVICE)
    return generate(plan, interpret_target(), DEVICE, "test_kernel", **kw)


def check(graph: Graph, inputs: Sequence[Any], *, rtol: float | None = None,
          seeds: tuple[int, ...] = (0,), **kw: Any) -> Program:
    """Runs the graph as a kernel and compares every output with the NumPy reference."""
    program = compile_graph(graph, **kw)
    wanted = evaluate(graph, inputs)
    for seed in seeds:
        found = run_program(program, inputs, seed=seed)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert_close(a, b, rtol, f"output {i}, seed {seed}\n{program.source[-4000:]}")
    return program


def last_loop(plan: Plan) -> LoopSchedule:
    """What is chosen for the last stage, a loop, on a whole GPU: small vectors may be made
    before."""
    found = default_schedule(plan, cuda_target("sm_90a"), Device()).sigs
    (group,) = plan.stages[-1].groups
    schedule = found[group.sig.key]
    assert isinstance(schedule, LoopSchedule)
    return schedule


_RTOL = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 2e-5, DType.F64: 1e-12}


def assert_close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], rtol: float | None,
                 message: str) -> None:
    """Integers exactly; floats to a few units of their type, NaN and Inf exactly."""
    dtype = DType.of(found.dtype)
    assert found.shape == wanted.shape
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted, err_msg=message)
        return
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    tolerance = rtol if rtol is not None else _RTOL[dtype]
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=message)

"""What `benchmarks.counters` runs under ncu: each case once, through XLA and through jaxmono.

    python -m benchmarks.counters_child RANGES '[["mlp", 1, "bf16"]]'

Before each of these an empty kernel, ``jaxmono_range``, is launched, with as many blocks as its
line in the file RANGES has as its number: ncu's list of kernels has no other sign of whose they are
(of a model, XLA's are hundreds, and some of jaxmono's may be XLA's too).
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import data, select
from benchmarks.data import Case
from benchmarks.floor import floor_of
from benchmarks.systems_jax import JaxRunning, compile_jaxmono, compile_xla

MARKER = "jaxmono_range"
_PTX = f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry {MARKER}() {{ ret; }}\n"


class Marks:
    """The profiler's switch, by the CUDA driver in JAX's context."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._lib = ctypes.CDLL(library)
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_PTX.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module,
                   ctypes.c_char_p(MARKER.encode()))

    def begin(self, number: int) -> None:
        self._call("cuCtxSynchronize")
        self._call("cuProfilerStart")
        self._call("cuLaunchKernel", self._kernel, number, 1, 1, 1, 1, 1, 0, None, None, None)
        self._call("cuCtxSynchronize")

    def end(self) -> None:
        self._call("cuCtxSynchronize")
        self._call("cuProfilerStop")

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._lib, name)(*arguments):
            raise OSError(f"{name}: CUDA driver error {status}")


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a case failed, 2 without a GPU."""
    _, ranges, given = arguments
    if jax.default_backend() != "gpu":
        sys.stderr.write("JAX sees no GPU here; on a machine with one, install jax[cuda13]\n")
        return 2
    cases = [case for name, batch, dtype in json.loads(given)
             for case in select.cases([name], [str(batch)], [dtype])]
    return 1 if run(cases, Marks(), Path(ranges)) else 0


def run(cases: Sequence[Case], marks: Marks, ranges: Path, *, interpret: bool = False) -> int:
    """Runs all; returns how many failed."""
    number = bad = 0
    with ranges.open("w", encoding="utf-8") as out:
        for case in cases:
            for system in ("xla", "jaxmono"):
                number += 1
                told: dict[str, Any] = {"range": number, "case": case.name, "dtype": case.dtype,
                                        "system": system}
                try:
                    told |= _once(case, system, number, marks, interpret)
                except Exception as error:
                    bad += 1
                    told["failed"] = f"{type(error).__name__}: {error}"[:500]
                out.write(json.dumps(told) + "\n")
                out.flush()
                sys.stdout.write("# " + "  ".join(f"{k}={v}" for k, v in told.items()) + "\n")
                sys.stdout.flush()
    return bad


def _once(case: Case, system: str, number: int, marks: Marks, interpret: bool) -> dict[str, Any]:
    """One call counted, the third; returns what the table needs of it."""
    made = data.make(case, sets=1)
    compiled, facts = compile_xla(made.program.step, made) if system == "xla" else \
        compile_jaxmono(made.program.step, made, "monolithic", interpret=interpret)
    running = JaxRunning(system, compiled, made, facts)
    for _ in range(2):
        running.wait(running.start())
    marks.begin(number)
    try:
        running.wait(running.start())
    finally:
        marks.end()
    return {"shape": made.program.shape, "status": facts.status, "reason": facts.reason,
            "flops": floor_of(made.program.step, *made.arguments()).flops}


if __name__ == "__main__":
    sys.exit(main(sys.argv))

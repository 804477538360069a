"""Generated source to a cubin, by NVRTC. Needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import importlib
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jaxmono._errors import CompileError

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--device-as-default-execution-space")
_SPLIT = "--split-compile=0"
"""Over all CPUs: 2, 4 and all of them give the same code. Not that of 1: six kernels of BERT and
ViT were as fast, within 0.4 %. BERT-base at batch 16 takes 4.9 s on 2 CPUs, 5.9 otherwise."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")


class MissingNvrtcError(CompileError):
    """The CUDA bindings or the NVRTC library are not installed."""


class NvrtcError(CompileError):
    """NVRTC refused a generated kernel; a fault of jaxmono. ``log`` has all of its messages."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class CudaBinary:
    """A compiled kernel.

    Attributes:
      log: NVRTC's and ptxas' messages.
      registers: per thread, the most that any kernel of the binary uses.
      spill_stores, spill_loads: bytes per thread, likewise.
      static_shared: bytes per block, likewise.
      seconds: compile time.
    """

    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    registers: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    seconds: float


def compile_cuda(source: str, arch: str, *, name: str = "jaxmono.cu",
                 split: bool = False) -> CudaBinary:
    """Compiles a self-contained source (`headers.bundle`).

    Args:
      arch: a real architecture such as "sm_90a".
      name: file name in NVRTC's messages.
      split: over all CPUs. Some of ptxas' warnings (C75xx, products that wait for each other) then
        go to stderr, and are not in the log.

    Raises:
      MissingNvrtcError: NVRTC cannot be loaded.
      NvrtcError: the source does not compile.
    """
    start = time.perf_counter()
    nvrtc = _nvrtc()
    given = (*_OPTIONS, *([_SPLIT] if split else []), f"--gpu-architecture={arch}")
    options = [o.encode() for o in given]
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            errors = [line for line in log.splitlines() if "error" in line] or log.splitlines()
            raise NvrtcError(f"NVRTC could not compile the kernel for {arch} ({status.name}): "
                             + "\n".join(errors[:8]), log)
        size = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytearray(size)
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    spills = _SPILLS.findall(log)
    return CudaBinary(
        cubin=bytes(cubin), log=log,
        registers=max((int(n) for n in _REGISTERS.findall(log)), default=0),
        spill_stores=max((int(s) for s, _ in spills), default=0),
        spill_loads=max((int(n) for _, n in spills), default=0),
        static_shared=max((int(n) for n in _SHARED.findall(log)), default=0),
        seconds=time.perf_counter() - start)


@lru_cache(maxsize=1)
def nvrtc_version() -> str:
    """``"13.2"``: of the NVRTC library that `compile_cuda` uses.

    Raises:
      MissingNvrtcError: NVRTC cannot be loaded.
    """
    nvrtc = _nvrtc()
    (status, major, minor) = nvrtc.nvrtcVersion()
    _checked(nvrtc, (status,))
    return f"{major}.{minor}"


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingNvrtcError(
            f"NVRTC cannot be loaded ({error}); install it with pip: "
            "pip install cuda-bindings nvidia-cuda-nvrtc (jax[cuda13] has the latter)") from error
    return nvrtc


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    """The value of a call of the bindings, ``(status, value)`` or ``(status,)``."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(f"NVRTC failed: {status.name}", "")
    return values[0] if values else None


def _text(nvrtc: Any, size: Any, get: Any, program: Any) -> str:
    buffer = bytearray(_checked(nvrtc, size(program)))
    _checked(nvrtc, get(program, buffer))
    return bytes(buffer).rstrip(b"\0").decode(errors="replace")

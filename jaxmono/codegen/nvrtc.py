"""Generated source to a cubin, by NVRTC. Needs no GPU and no CUDA toolkit."""

from __future__ import annotations

import importlib
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import Any, cast

from jaxmono import _logging
from jaxmono._errors import CompileError
from jaxmono.codegen import nvrtc_child

_log = _logging.get("codegen")

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--device-as-default-execution-space")
_SPLIT = "--split-compile=0"
"""Over all CPUs: 2, 4 and all of them give the same code. Not that of 1: six kernels of BERT and
ViT were as fast, within 0.4 %. BERT-base at batch 16 takes 4.9 s on 2 CPUs, 5.9 otherwise."""
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")
_SERIALIZED = re.compile(r"wgmma\.mma_async instructions are serialized")


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
      serialized: functions in which ptxas waits for every wgmma before it issues the next (its
        notes C7510 and on, for lack of registers or for calls between them).
      seconds: compile time.
    """

    cubin: bytes = field(repr=False)
    log: str = field(repr=False)
    registers: int
    spill_stores: int
    spill_loads: int
    static_shared: int
    serialized: int
    seconds: float


def compile_cuda(source: str, arch: str, *, name: str = "jaxmono.cu", split: bool = False,
                 seconds: float | None = None, cancelled: Sequence[Event] = ()) -> CudaBinary:
    """Compiles a self-contained source (`headers.bundle`).

    Args:
      arch: a real architecture such as "sm_90a".
      name: file name in NVRTC's messages.
      split: over all CPUs, in a process of its own: where ptxas finds no registers (its error
        C7600) NVRTC 13.0 then aborts the process. Without ``split`` it says so, in this one.
      seconds: that the process of its own may take; None: as long as it wants to. For some sources
        that differ in a line from quick ones ptxas wants minutes and gigabytes. Without such a
        process (no ``split``, or no Python to start) there is no limit.
      cancelled: when one of these is set, the process is ended: nobody needs the binary any more.

    Raises:
      MissingNvrtcError: NVRTC cannot be loaded.
      NvrtcError: the source does not compile, or not in time, or is not needed any more.
    """
    start = time.perf_counter()
    nvrtc, options = _nvrtc(), (*_OPTIONS, f"--gpu-architecture={arch}")
    made = _apart(source, name, options, seconds, cancelled) if split else None
    if made is None:
        try:
            made = nvrtc_child.compile_with(nvrtc, source, name, options)
        except nvrtc_child.StatusError as error:
            raise NvrtcError(f"NVRTC failed: {error}", "") from error
    status, log, cubin = made
    if not cubin:
        errors = [line for line in log.splitlines() if "error" in line] or log.splitlines()
        raise NvrtcError(f"NVRTC could not compile the kernel for {arch} ({status}): "
                         + "\n".join(errors[:8]), log)
    spills = _SPILLS.findall(log)
    return CudaBinary(
        cubin=cubin, log=log,
        registers=max((int(n) for n in _REGISTERS.findall(log)), default=0),
        spill_stores=max((int(s) for s, _ in spills), default=0),
        spill_loads=max((int(n) for _, n in spills), default=0),
        static_shared=max((int(n) for n in _SHARED.findall(log)), default=0),
        serialized=len(_SERIALIZED.findall(log)),
        seconds=time.perf_counter() - start)


class _EndedError(Exception):
    """A signal ended the process; its text says which."""


def _apart(source: str, name: str, options: Sequence[str], seconds: float | None,
           cancelled: Sequence[Event]) -> tuple[str, str, bytes] | None:
    """`nvrtc_child.compile_with` over all CPUs in a process of its own, and if that ends, over one
    in another. None, and a line of log, where no process can be asked.

    Raises:
      NvrtcError: both have ended, or the ``seconds`` for both.
    """
    begin, ended = time.monotonic(), ""
    for chosen in ((*options, _SPLIT), options):
        left = None if seconds is None else max(begin + seconds - time.monotonic(), 0.0)
        try:
            return _ask(source, name, chosen, left, cancelled)
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")
            raise NvrtcError(f"NVRTC took longer than {seconds:g} s and was ended; "
                             "JAXMONO_COMPILE_SECONDS sets the limit", said) from None
        except _EndedError as error:
            ended = str(error)
            _log.info("NVRTC %s, with %s", ended, chosen[-1])
    raise NvrtcError(f"NVRTC {ended}", ended)


def _ask(source: str, name: str, options: Sequence[str], seconds: float | None,
         cancelled: Sequence[Event]) -> tuple[str, str, bytes] | None:
    """One process. What it says on standard error is part of the log: with ``_SPLIT`` some of
    ptxas' warnings (C75xx, products that wait for each other) go there.

    Raises:
      _EndedError: a signal has ended it.
      subprocess.TimeoutExpired: it had no answer in time, and is ended.
    """
    if not (python := _interpreter()):
        _log.info("NVRTC runs in this process: sys.executable is %r, no Python", sys.executable)
        return None
    entries = cast(Sequence[object], sys.path)  # users add paths, too, which Python skips
    request = {"path": [p for p in entries if isinstance(p, str)], "source": source,
               "name": name, "options": list(options)}
    try:
        ended = _run([python, "-P", nvrtc_child.__file__], json.dumps(request).encode() + b"\n",
                     seconds, cancelled)
    except OSError as error:
        _log.warning("NVRTC runs in this process: no other one can be started (%s)", error)
        return None
    said = ended.stderr.decode(errors="replace")
    if ended.returncode < 0:
        raise _EndedError(f"ended with its process ({_signal(-ended.returncode)}): "
                          f"{said[-2000:].strip()}")
    head, _, cubin = ended.stdout.partition(nvrtc_child.MARK)[2].partition(b"\n")
    if ended.returncode or not head:
        _log.warning("NVRTC runs in this process: the other one failed (exit status %d): %s",
                     ended.returncode, said[-2000:].strip())
        return None
    answer = json.loads(head)
    if answer["version"] != nvrtc_version():
        _log.warning("NVRTC runs in this process: it is version %s here and %s in another one",
                     nvrtc_version(), answer["version"])
        return None
    return answer["status"], answer["log"] + said, cubin[:answer["cubin"]]


_LOOK_S = 0.1
"""How often it is asked whether anybody still wants an answer."""


def _run(command: Sequence[str], given: bytes, seconds: float | None,
         cancelled: Sequence[Event]) -> subprocess.CompletedProcess[bytes]:
    """`subprocess.run`, which ends when one of ``cancelled`` is set, too.

    Raises:
      NvrtcError: it was.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as file:  # a pipe is not filled any more behind a first timeout
        file.write(given)
        file.seek(0)
        with subprocess.Popen(command, stdin=file, stdout=pipe, stderr=pipe) as child:
            try:
                out, said = _answer(child, seconds, cancelled)
            except BaseException:
                child.kill()
                raise
    return subprocess.CompletedProcess(command, child.returncode, out, said)


def _answer(child: subprocess.Popen[bytes], seconds: float | None,
            cancelled: Sequence[Event]) -> tuple[bytes, bytes]:
    end = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        left = max(end - time.monotonic(), 0.0)
        look = min(left, _LOOK_S) if cancelled else left
        try:
            return child.communicate(timeout=None if look == math.inf else look)
        except subprocess.TimeoutExpired:
            if any(e.is_set() for e in cancelled):
                raise NvrtcError("not needed any more", "") from None
            if seconds is not None and look == left:
                child.kill()
                _, said = child.communicate()
                raise subprocess.TimeoutExpired(child.args, seconds, None, said) from None


def _signal(number: int) -> str:
    known = {s.value: s.name for s in signal.Signals}
    return f"signal {known.get(number, number)}"


def _interpreter() -> str:
    """The Python to start; "" where this process is another program with Python inside."""
    is_python = re.fullmatch(r"(python|pypy)[\d.]*t?d?", Path(sys.executable or "").name)
    return sys.executable if is_python and not getattr(sys, "frozen", False) else ""


@lru_cache(maxsize=1)
def nvrtc_version() -> str:
    """``"13.2"``: of the NVRTC library that `compile_cuda` uses.

    Raises:
      MissingNvrtcError: NVRTC cannot be loaded.
    """
    try:
        return nvrtc_child.version_of(_nvrtc())
    except nvrtc_child.StatusError as error:
        raise NvrtcError(f"NVRTC failed: {error}", "") from error


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

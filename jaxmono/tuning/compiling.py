"""Candidates to cubins, in parallel child processes."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxmono.codegen.cores import cores
from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.generate import emit, partners
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.fusion.plan import Plan
from jaxmono.tuning.child import Child, ChildError, python
from jaxmono.tuning.problem import Problem

_SECONDS = 120.0
"""A kernel of one stage takes a second or two."""
_MAX_WORKERS = 16
_NAME = "candidate"


@dataclass(frozen=True)
class Compiled:
    """A candidate that can be launched.

    Attributes:
      launch: what the GPU worker's "load" takes.
      scratch_bytes: that it needs.
    """

    launch: dict[str, Any]
    scratch_bytes: int


class Pending:
    """A candidate on its way."""

    def __init__(self, future: Future[Compiled | str]) -> None:
        self._future = future

    def result(self, deadline: float) -> Compiled | str:
        """The kernel, or why there is none.

        Raises:
          TimeoutError: not before ``deadline`` (of `time.monotonic`). It is not compiled any more
            if nobody began to.
        """
        try:
            return self._future.result(max(deadline - time.monotonic(), 0.0))
        except FutureTimeout:
            self._future.cancel()
            raise TimeoutError from None


class CompilePool:
    """Compiles with as many child processes as there are CPUs, kept until `close`."""

    def __init__(self, workers: int | None = None, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or python("-m", "jaxmono.tuning.compile_worker"))
        self._workers = workers or min(cores(), _MAX_WORKERS)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[Child] = []
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, plan: Plan, problem: Problem, schedule: Any) -> Pending:
        """Starts compiling ``plan``, whose only Sig is the problem's, with a schedule."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers, "jaxmono-tuning")
            self._folder = tempfile.TemporaryDirectory(prefix="jaxmono-tuning-")
        assert self._folder is not None
        with self._lock:
            self._count += 1
            stem = Path(self._folder.name) / str(self._count)
        return Pending(self._threads.submit(self._compile, plan, problem, schedule, stem))

    def close(self) -> None:
        """Ends the processes; what is not compiled yet will not be."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._idle:
            child.close()
        self._idle.clear()
        if self._folder is not None:
            self._folder.cleanup()
        self._threads = self._folder = None

    def _compile(self, plan: Plan, problem: Problem, schedule: Any, stem: Path) -> Compiled | str:
        at = problem.conditions
        try:
            kernel = emit(plan, at.target, at.device, _NAME, KernelSchedule(
                at.target.threads, 1, {problem.sig.key: schedule}))
        except (CodegenError, ValueError) as error:
            return f"no code: {error}"
        if kernel.shared_bytes > problem.request.shared_bytes:
            return (f"{kernel.shared_bytes} bytes of shared memory, more than the "
                    f"{problem.request.shared_bytes} that a block may use")
        source, cubin = stem.with_suffix(".cu"), stem.with_suffix(".cubin")
        source.write_text(kernel.source)
        with self._lock:
            child = self._idle.pop() if self._idle else Child(self._command)
        try:
            answer = child.ask({"source": str(source), "cubin": str(cubin), "name": _NAME,
                                "arch": at.target.arch}, _SECONDS)
        except ChildError as error:
            return f"the compiler failed: {error}"
        finally:
            with self._lock:
                self._idle.append(child)
        if "error" in answer:
            return f"it does not compile: {answer['error']}"
        spilled = answer["resources"].get("spill_stores", 0)
        if spilled:
            return f"it spills {spilled} bytes of registers"
        if answer["resources"].get("serialized"):
            return "ptxas lets its products wait for each other"
        return Compiled({
            "cubin": str(cubin), "name": _NAME, "threads": kernel.threads,
            "shared_bytes": kernel.shared_bytes, "max_blocks": kernel.max_blocks,
            "blocks_per_sm": 1, "min_blocks": partners(schedule),
            "cooperative": kernel.cooperative}, kernel.scratch_bytes)

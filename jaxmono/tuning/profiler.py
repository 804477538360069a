"""The light profiler: candidates of a problem, compiled side by side, timed in rotation.

    kernels (emitted here) -> compile workers, one per CPU -> the GPU worker -> rows

A candidate that does not compile, spills registers, lets its products wait for each other, hangs,
crashes or computes something else than the analytic choice becomes a row with a reason; the others
go on, in a new process if need be.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from jaxmono.fusion.plan import Plan
from jaxmono.tuning.alone import alone
from jaxmono.tuning.child import Child, ChildError, python
from jaxmono.tuning.choice import Row
from jaxmono.tuning.compiling import Compiled, CompilePool, Pending
from jaxmono.tuning.problem import Problem, schedule_text

_FIRST_ROUNDS, _MORE_ROUNDS = 3, 9
_SLOW = 1.4
"""What is slower than the best by this factor after the first rounds is not timed any more."""
DIFFERENT = 0.05
"""Relative difference of outputs that no order of summation makes."""
_OPEN_SECONDS = 60.0
_RUN_SECONDS = 20.0
_MAX_RESTARTS = 6
"""Crashes of one problem after which its remaining candidates are given up."""


class UnavailableError(RuntimeError):
    """Nothing can be measured on this machine now; no fault of any candidate."""


class NoRoomError(UnavailableError):
    """One problem cannot be measured: its buffers do not fit."""


class Profiler(Protocol):
    """What a `Tuner` measures with."""

    def prepare(self, problem: Problem, skip: frozenset[str]) -> Any:
        """Starts what can be done before the GPU is free: compilation. Returns what `measure`
        takes. ``skip``: texts of schedules that are not wanted."""
        ...

    def measure(self, prepared: Any, deadline: float) -> tuple[Row, ...]:
        """The rows that were found before ``deadline`` (of `time.monotonic`).

        Raises:
          NoRoomError: this problem is too large. UnavailableError: nothing can be measured.
        """
        ...

    def close(self) -> None:
        """Ends all processes."""
        ...


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A problem whose candidates are being compiled.

    Attributes:
      candidates: rank, schedule's text and the kernel to come.
    """

    problem: Problem
    plan: Plan
    candidates: tuple[tuple[int, str, Pending], ...]


@dataclasses.dataclass
class _Trial:
    rank: int
    text: str
    kernel: Compiled
    times: list[float] = dataclasses.field(default_factory=list)
    reason: str = ""
    loaded: bool = False


class GpuProfiler:
    """Measures on one GPU. Processes start when they are needed first.

    Args:
      device: ordinal among the visible GPUs.
      workers: compilers that run side by side; default: one per CPU, at most 16.
      gpu_command, compile_command: the children; for tests.
    """

    def __init__(self, *, device: int = 0, workers: int | None = None,
                 gpu_command: Sequence[str] | None = None,
                 compile_command: Sequence[str] | None = None,
                 run_seconds: float = _RUN_SECONDS) -> None:
        worker = Path(__file__).with_name("gpu_worker.py")
        self._gpu = Child(gpu_command or python(str(worker)))
        self._device = device
        self._pool = CompilePool(workers, compile_command)
        self._run_seconds = run_seconds
        self._open = False

    def prepare(self, problem: Problem, skip: frozenset[str] = frozenset()) -> Prepared:
        plan = alone(problem.sig, problem.siblings)
        found: list[tuple[int, str, Pending]] = []
        for rank, schedule in enumerate(problem.candidates):
            text = schedule_text(schedule)
            # The analytic choice is what the others are compared with, so it runs in any case.
            if rank == 0 or text not in skip:
                found.append((rank, text, self._pool.submit(plan, problem, schedule)))
        return Prepared(problem, plan, tuple(found))

    def measure(self, prepared: Prepared, deadline: float) -> tuple[Row, ...]:
        trials: list[_Trial] = []
        rows: list[Row] = []
        for rank, text, pending in prepared.candidates:
            try:
                kernel = pending.result(deadline)
            except TimeoutError:
                continue  # no time left: it has no row, and is measured another time
            if isinstance(kernel, str):
                rows.append(Row(text, rank, None, 0.0, kernel))
            else:
                trials.append(_Trial(rank, text, kernel))
        self._run(prepared.plan, trials, deadline)
        for t in trials:
            if t.reason:
                rows.append(Row(t.text, t.rank, None, 0.0, t.reason))
            elif len(t.times) >= _FIRST_ROUNDS:
                rows.append(Row(t.text, t.rank, statistics.median(t.times), _error(t.times)))
        return tuple(sorted(rows, key=lambda r: r.rank))

    def close(self) -> None:
        self._gpu.close()
        self._pool.close()
        self._open = False

    # ---- the GPU -------------------------------------------------------------------------------

    def _run(self, plan: Plan, trials: list[_Trial], deadline: float) -> None:
        """Fills ``times`` or ``reason`` of every trial, as far as time allows."""
        for _ in range(_MAX_RESTARTS):
            if not self._open:
                self._ask({"do": "open", "device": self._device}, UnavailableError)
                self._open = True
            self._set_up(plan, trials)
            if self._all(trials, deadline):
                return
        for t in trials:
            if not t.reason and not t.times:
                t.reason = f"not reached: {_MAX_RESTARTS} candidates before it crashed"

    def _set_up(self, plan: Plan, trials: list[_Trial]) -> None:
        """Buffers for all trials; in a new process nothing is loaded yet."""
        for t in trials:
            t.loaded = False
        self._ask({
            "do": "problem",
            "inputs": [(v.type.nbytes, v.type.dtype.value) for v in plan.graph.inputs],
            "outputs": [(v.type.nbytes, v.type.dtype.value) for v in plan.graph.outputs],
            "aliases": [(b.index, b.alias) for b in plan.outputs if b.alias is not None],
            "scratch": max((t.kernel.scratch_bytes for t in trials), default=0),
        }, NoRoomError)

    def _all(self, trials: list[_Trial], deadline: float) -> bool:
        """One pass over all trials; False: the process died on one, which now has a reason."""
        live = [t for t in trials if not t.reason]
        for t in live:
            if time.monotonic() > deadline:
                return True
            if not self._try(t, {"do": "load", "id": t.rank, **t.kernel.launch}):
                return False
        for round_ in range(_FIRST_ROUNDS + _MORE_ROUNDS):
            if round_ == _FIRST_ROUNDS:
                live = _fast([t for t in live if not t.reason])
            for t in live:
                if time.monotonic() > deadline:
                    return True
                if t.loaded and not t.reason and not self._try(t, {"do": "time", "id": t.rank}):
                    return False
        return True

    def _try(self, t: _Trial, request: dict[str, Any]) -> bool:
        """One request for one trial; False: the process is gone."""
        try:
            answer = self._gpu.ask(request, self._run_seconds)
        except ChildError as error:
            self._open, t.reason = False, f"it ended the profiler: {error}"
            return False
        if "error" in answer:
            t.reason = str(answer["error"])
            if answer.get("fatal"):
                self._gpu.close()
                self._open = False
            return self._open
        if request["do"] == "load":
            t.loaded = True
            if answer["difference"] > DIFFERENT:
                t.reason = (f"its results differ from the analytic choice's by "
                            f"{answer['difference']:.2g}")
        else:
            t.times.append(float(answer["us"]))
        return True

    def _ask(self, request: dict[str, Any], kind: type[UnavailableError]) -> None:
        try:
            answer = self._gpu.ask(request, _OPEN_SECONDS)
        except ChildError as error:
            self._open = False
            raise kind(str(error)) from error
        if "error" in answer:
            self._gpu.close()
            self._open = False
            raise kind(str(answer["error"]))


def _fast(trials: list[_Trial]) -> list[_Trial]:
    """The analytic choice, and the trials that may still be the best."""
    timed = [t for t in trials if t.times]
    best = min((statistics.median(t.times) for t in timed), default=math.inf)
    return [t for t in timed if t.rank == 0 or statistics.median(t.times) <= _SLOW * best]


def _error(times: list[float]) -> float:
    """Standard error of the median, from the median absolute deviation."""
    middle = statistics.median(times)
    deviation = 1.4826 * statistics.median([abs(x - middle) for x in times])
    return 1.2533 * deviation / math.sqrt(len(times))

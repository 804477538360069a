"""The table of a run, part by part: XLA and jaxmono, in as many passes as asked for; then torch.

What a process has run before may add 0.2 to 0.35 us to the start of each of XLA's kernels until the
process ends: another case, or torch (10 % of BERT-base at batch 1). So each case has a process of
its own, but for the first pass, which compiles and compares and goes on from case to case; and
torch's systems come after all cases of the others, in turns with jaxmono once more. Why there are
passes, `passes.py` says.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from benchmarks import connections, passes, supervise
from benchmarks.data import Case
from benchmarks.measure import Anchor, Key, Settings, measure
from benchmarks.phases import Phases
from benchmarks.results import RUNS, Folder
from benchmarks.row import Row
from benchmarks.turns import Turns, seconds_of
from benchmarks.xla_best import DEFAULT


@dataclass
class Run:
    """Where the rows go, and how.

    Attributes:
      resume: leave out what the folder has.
      workers: processes that share the cases, this one among them.
      limit_s: for one case.
      passes: how often XLA and jaxmono are timed at most; once where nothing is.
      fresh: each case of a later pass has a process of its own, which ends behind it with
        `supervise.NEXT`.
    """

    folder: Folder
    settings: Settings
    resume: bool = False
    workers: int = 1
    limit_s: float = 300.0
    passes: int = 1
    fresh: bool = False
    _used: bool = field(default=False, init=False)
    """Whether this process has measured a case."""
    _bad: int = field(default=0, init=False)
    """Rows of XLA and jaxmono that failed or are wrong, in this process."""

    def measure(self, cases: Sequence[Case]) -> int:
        """All rows; returns how many of XLA and jaxmono failed or are wrong."""
        own = self._own
        torch = tuple(key for key in self.settings.systems if key not in own)
        mono = next((key for key in own if key[0] == "jaxmono"), None)
        if own:
            self._part(cases, own, "turns", None)
        for number in range(2, self._last + 1) if own else ():
            self._again(cases, own, number)
        if torch:
            self._part(cases, torch, "turns_torch", mono if self.settings.speed else None)
        return self._bad

    @property
    def _own(self) -> tuple[Key, ...]:
        """XLA and jaxmono."""
        return tuple(key for key in self.settings.systems if not key[0].startswith("torch"))

    @property
    def _last(self) -> int:
        """Number of the last pass."""
        return self.passes if self.settings.speed else 1

    def _part(self, cases: Sequence[Case], systems: tuple[Key, ...], name: str,
              beside: Key | None) -> None:
        """All cases of some systems, with turns of that name.

        Args:
          beside: measured again, so that ratios to XLA come from turns in one process.
        """
        folder, settings = self.folder, dataclasses.replace(self.settings, systems=systems)
        done = folder.done() if self.resume else set()
        planned = {case: [Row(case.workload.name, case.batch, "", case.dtype, *key,
                              commit=settings.commit) for key in systems] for case in cases}
        left = [case for case, rows in planned.items()
                if not all((r.model, r.batch, r.dtype, r.name) in done for r in rows)]
        turns = self._turns(left, name, len(cases))
        self._connect(turns, 1 if name == "turns" else None)
        for case in turns:
            anchor = beside and self._anchor(case, beside)
            supervise.working_on(folder.path, planned[case])
            phases = Phases()
            rows = list(measure(case, settings, phases, anchor))
            folder.add(*rows)
            self._bad += sum(row.system in ("xla", "jaxmono") and (
                row.status == "failed" or row.ok is False) for row in rows)
            self._close(case, phases, rows, name, f"case {turns.taken} of {turns.total}")
            self._leave_lost(rows)

    def _again(self, cases: Sequence[Case], systems: tuple[Key, ...], number: int) -> None:
        """A later pass: all cases that have times are timed once more, and their rows replaced;
        from the third on those whose lowest times have not been seen twice.

        Args:
          number: of the pass, from 2.
        """
        folder, name = self.folder, f"turns_{number}"
        there = {case: self._rows(case, systems) for case in cases} if self.resume else {}
        left = [case for case in cases
                if not (rows := there.get(case)) or passes.missing(list(rows.values()), number)]
        turns = self._turns(left, name, len(cases))
        self._connect(turns, number)
        for case in turns:
            known = self._rows(case, systems, after=number - 1)
            before = {key: row for key, row in known.items() if row.status != "failed"}
            if not before or not passes.missing(list(before.values()), number):
                continue
            supervise.working_on(folder.path, [dataclasses.replace(row, passes=number)
                                               for row in before.values()])
            phases = Phases()
            settings = dataclasses.replace(self.settings, systems=tuple(before), cpu_loads=())
            again = {(row.system, row.mode): row
                     for row in measure(case, settings, phases, before=before)}
            rows = passes.merged(before, again, number)
            folder.add(*rows)
            self._close(case, phases, rows, name,
                        f"pass {number}, case {turns.taken} of {turns.total}")
            self._leave_lost(list(again.values()))
            if self.fresh:
                sys.exit(supervise.NEXT)

    def _turns(self, left: Sequence[Case], name: str, cases: int) -> Turns:
        seconds = seconds_of(RUNS, name, besides=self.folder.path) or \
            seconds_of(RUNS, "turns", besides=self.folder.path)
        return Turns(left, supervise.shared() / name if self.workers > 1 else None, seconds,
                     before=cases - len(left))

    def _connect(self, turns: Turns, number: int | None) -> None:
        """Leaves the cases of a pass (None: torch's) to a process that nothing has run in, with
        its connections to the GPU."""
        if self.fresh and turns.waiting and (self._used or not connections.right(number)):
            connections.ask(number)
            sys.exit(supervise.NEXT_BAD if self._bad else supervise.NEXT)

    def _close(self, case: Case, phases: Phases, rows: Sequence[Row], name: str, told: str) -> None:
        """A case is done, its rows written."""
        self._used = True
        # Modules and caches, a million objects with torch, stay: no collection, of 0.4 s, need
        # look at them again.
        gc.freeze()
        supervise.working_on(self.folder.path, ())
        worker = supervise.number() if self.workers > 1 else None
        where = {} if worker is None else {"worker": worker}
        self.folder.add_phases(case.name, phases.to_json(), turns=name, **where)
        lines = [line(row) for row in rows]
        lines.append(f"  {told}: {phases}{'' if worker is None else f', worker {worker}'}")
        # At once: other processes write to the terminal, too.
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def _rows(self, case: Case, systems: Sequence[Key], *, after: int = 0) -> dict[Key, Row]:
        """The rows of a case that count.

        Args:
          after: waits for those of this pass, which another worker may still be at; not longer
            than a case may take.
        """
        end = time.monotonic() + self.limit_s
        while True:
            found = {(row.system, row.mode): row for row in self.folder.rows()
                     if row.cpu_load is None and (row.model, row.batch, row.dtype) == (
                         case.workload.name, case.batch, case.dtype)}
            found = {key: found[key] for key in systems if key in found}
            there = len(found) == len(systems) and not passes.missing(list(found.values()), after)
            if not after or there or time.monotonic() > end:
                return found
            supervise.working_on(self.folder.path, ())  # says that this process is alive
            time.sleep(0.5)

    def _anchor(self, case: Case, key: Key) -> Anchor:
        """A system of a case, with its ratios to XLA as they are after the last pass."""
        row = self._rows(case, self._own, after=self._last).get(key)
        return Anchor(key) if row is None else Anchor(
            key, row.ratio_to_xla, row.device_ratio_to_xla, row.variant or DEFAULT)

    def _leave_lost(self, rows: Sequence[Row]) -> None:
        """Ends the process if the GPU does not answer after one of these failed."""
        if any(row.status == "failed" for row in rows) and not _answers():
            os._exit(supervise.GPU_LOST)  # without its GPU, JAX cannot be taken down in order


def _answers() -> bool:
    """Whether the device still works: a fault in a kernel ends it for the whole process."""
    try:
        return bool(jax.block_until_ready(jnp.ones((2,)) + 1)[0] == 2)
    except Exception:
        return False


def line(row: Row) -> str:
    """A row for the terminal."""
    told = [f"{row.model} b{row.batch} {row.dtype} {row.name}:"]
    for label, value, unit in (("device", row.device_us, " us"),
                               ("pipelined", row.pipelined_us, " us"),
                               ("p50", row.latency_us_p50, " us"), ("/xla", row.ratio_to_xla, ""),
                               ("device/xla", row.device_ratio_to_xla, ""),
                               ("kernels", row.kernels, ""), ("error", row.error, ""),
                               ("XLA's", row.reference_error, "")):
        if value is not None:
            told.append(f"{label} {value:.4g}{unit}")
    told += [f"load {row.cpu_load:.0%}"] if row.cpu_load is not None else []
    told += ["WRONG"] if row.ok is False else []
    told += [f"[{row.variant}]"] if row.variant else []
    told += [f"of pass {row.device_pass}"] if row.passes > 1 else []
    told += [f"{row.status}: {row.reason}"] if row.status != "ok" else []
    return "  ".join(told)

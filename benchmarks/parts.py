"""The table of a run, part by part: XLA and jaxmono, then torch.

Once torch has made a stream, XLA's command buffers take 0.3 us more for each kernel until the
process ends (10 % of BERT-base at batch 1). So torch's systems come after all cases of the others,
and take turns with jaxmono once more.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks import supervise
from benchmarks.data import Case
from benchmarks.measure import Anchor, Key, Settings, measure
from benchmarks.phases import Phases
from benchmarks.results import RUNS, Folder
from benchmarks.row import Row
from benchmarks.turns import Turns, seconds_of
from benchmarks.xla_best import DEFAULT


@dataclass(frozen=True)
class Run:
    """Where the rows go, and how.

    Attributes:
      resume: leave out what the folder has.
      workers: processes that share the cases, this one among them.
      limit_s: for one case.
    """

    folder: Folder
    settings: Settings
    resume: bool = False
    workers: int = 1
    limit_s: float = 300.0

    def measure(self, cases: Sequence[Case]) -> int:
        """All rows; returns how many of XLA and jaxmono failed or are wrong."""
        systems = self.settings.systems
        own = tuple(key for key in systems if not key[0].startswith("torch"))
        torch = tuple(key for key in systems if key[0].startswith("torch"))
        mono = next((key for key in own if key[0] == "jaxmono"), None)
        bad = self._part(cases, own, "turns", None) if own else 0
        if torch:
            bad += self._part(cases, torch, "turns_torch", mono if self.settings.speed else None)
        return bad

    def _part(self, cases: Sequence[Case], systems: tuple[Key, ...], name: str,
              beside: Key | None) -> int:
        """All cases of some systems, with turns of that name; as `measure`.

        Args:
          beside: measured again, so that ratios to XLA come from turns in one process.
        """
        folder, settings = self.folder, dataclasses.replace(self.settings, systems=systems)
        bad, done = 0, folder.done() if self.resume else set()
        planned = {case: [Row(case.workload.name, case.batch, "", case.dtype, *key,
                              commit=settings.commit) for key in systems] for case in cases}
        left = [case for case, rows in planned.items()
                if not all((r.model, r.batch, r.dtype, r.name) in done for r in rows)]
        worker = supervise.number() if self.workers > 1 else None
        turns = Turns(left, None if worker is None else supervise.shared() / name,
                      seconds_of(RUNS, name, besides=folder.path))
        for case in turns:
            anchor = beside and self._anchor(case, beside)
            supervise.working_on(folder.path, planned[case])
            phases = Phases()
            rows = list(measure(case, settings, phases, anchor))
            # Modules and caches, a million objects with torch, stay: no collection, of 0.4 s, need
            # look at them again.
            gc.freeze()
            for row in rows:
                folder.add(row)
                bad += row.system in ("xla", "jaxmono") and (
                    row.status == "failed" or row.ok is False)
            supervise.working_on(folder.path, ())
            where = {} if worker is None else {"worker": worker}
            folder.add_phases(case.name, phases.to_json(), turns=name, **where)
            lines = [line(row) for row in rows]
            lines.append(f"  case {turns.taken} of {len(left)}: {phases}"
                         f"{'' if worker is None else f', worker {worker}'}")
            # At once: other processes write to the terminal, too.
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            if any(row.status == "failed" for row in rows) and not _answers():
                os._exit(supervise.GPU_LOST)  # without its GPU, JAX cannot be taken down in order
        return bad

    def _anchor(self, case: Case, key: Key) -> Anchor:
        """A system of a case, with its ratios to XLA; another worker may still be at them."""
        end = time.monotonic() + self.limit_s
        while True:
            found = [row for row in self.folder.rows() if row.cpu_load is None
                     and (row.model, row.batch, row.dtype) == (
                         case.workload.name, case.batch, case.dtype)
                     and (row.system, row.mode) == key]
            if found:
                row = found[-1]
                return Anchor(key, row.ratio_to_xla, row.device_ratio_to_xla,
                              row.variant or DEFAULT)
            if time.monotonic() > end:
                return Anchor(key)
            supervise.working_on(self.folder.path, ())  # says that this process is alive
            time.sleep(0.5)


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
    told += [f"{row.status}: {row.reason}"] if row.status != "ok" else []
    return "  ".join(told)

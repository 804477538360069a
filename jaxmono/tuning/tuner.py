"""The tuner: which schedules a kernel's Sigs get, from the cache, by measuring, or neither."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxmono._errors import warn
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.fusion.plan import Plan
from jaxmono.tuning.cache import TuningCache
from jaxmono.tuning.choice import Row, choose
from jaxmono.tuning.problem import Conditions, Problem, problems_of, schedule_text
from jaxmono.tuning.profiler import NoRoomError, Profiler, UnavailableError
from jaxmono.tuning.report import ProblemReport

_log = logging.getLogger("jaxmono.tuning")


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a kernel's Sigs get.

    Attributes:
      changed: the texts of the schedules that differ from the analytic ones, by Sig key.
      measured: how many Sigs have measured schedules, the analytic ones among them.
      total: how many could have.
    """

    changed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measured: int = 0
    total: int = 0


class Tuner:
    """Consults a cache, and a profiler for what the cache lacks.

    Args:
      cache: what was measured so far.
      profiler: makes what measures; None: never measure.
      seconds: that measuring may take, for one kernel.
      reporting: fill ``reports`` also with what the cache knew already.
    """

    def __init__(self, cache: TuningCache, profiler: Callable[[], Profiler] | None = None, *,
                 seconds: float = math.inf, reporting: bool = False) -> None:
        self.cache = cache
        self.seconds = seconds
        self.reporting = reporting
        self.reports: list[ProblemReport] = []
        self.notes: list[str] = []
        self._profiler = profiler

    def choices(self, key: str, conditions: Conditions, plan: Callable[[], Plan]) -> Choices:
        """The choices for a kernel.

        Args:
          key: of the kernel before tuning: equal keys have equal plans.
          plan: makes the kernel's plan; called if the kernel is new here, something has to be
            measured, or reported.
        """
        if self._profiler is None and self.cache.is_empty:
            return Choices()
        known = self.cache.region(key)
        missing = known is None or (self._profiler is not None and not all(
            self.cache.complete(p) for p in known.values()))
        if known is None or missing or self.reporting:
            problems = problems_of(plan(), conditions)
            if known is None:
                known = {p.sig.key: p.key for p in problems}
                self.cache.put_region(key, known)
            if self._profiler is not None:
                self._tune(problems)
        chosen = {sig: choose(self.cache.rows(problem)) for sig, problem in known.items()}
        found = {sig: row for sig, row in chosen.items() if row is not None}
        return Choices({sig: row.schedule for sig, row in found.items() if row.rank != 0},
                       len(found), len(known))

    # ---- measuring -----------------------------------------------------------------------------

    def _tune(self, problems: tuple[Problem, ...]) -> None:
        """Measures what the cache lacks, within the time; one line of progress per problem."""
        begin = time.monotonic()
        missing = [p for p in problems if not self.cache.complete(p.key)]
        if not missing:
            self.reports += [report(p, self.cache.rows(p.key), fresh=False) for p in problems]
            return
        assert self._profiler is not None
        _log.info("measuring %d of %d groups of ops, at most %.0f s", len(missing), len(problems),
                  self.seconds)
        profiler = self._profiler()
        try:
            prepared = [(p, profiler.prepare(p, frozenset(
                r.schedule for r in self.cache.rows(p.key)))) for p in missing]
            for number, (p, kernels) in enumerate(prepared):
                left = self.seconds - (time.monotonic() - begin)
                if left <= 0:
                    self._note(f"{self.seconds:.0f} s were over before {len(missing) - number} of "
                               f"{len(problems)} groups were measured; tune again to go on")
                    break
                share = left / (len(missing) - number)
                try:
                    rows = profiler.measure(kernels, time.monotonic() + share)
                except NoRoomError as error:
                    self._note(f"{p} is not measured: {error}")
                    continue
                self._keep(p, rows, f"{number + 1}/{len(missing)}", time.monotonic() - begin)
        except UnavailableError as error:
            self._note(f"schedules cannot be measured here: {error}")
            warn(f"jaxmono: schedules cannot be measured ({error}); kernels use the ones that need "
                 f"no measurement. JAXMONO_TUNE=cached does not try", stacklevel=4)
        finally:
            profiler.close()
        fresh = {p.key for p in missing}
        self.reports += [report(p, self.cache.rows(p.key), fresh=p.key in fresh) for p in problems]

    def _keep(self, problem: Problem, rows: tuple[Row, ...], number: str, seconds: float) -> None:
        known = {r.schedule for r in rows} | {r.schedule for r in self.cache.rows(problem.key)}
        complete = {schedule_text(s) for s in problem.candidates} <= known
        rows = tuple(r if r.us is None else dataclasses.replace(
            r, us=r.us + problem.late_us(r.schedule)) for r in rows)
        self.cache.put(problem.key, problem.fields, rows, complete=complete)
        r = report(problem, self.cache.rows(problem.key), fresh=True)
        _log.info("%s %s: %d of %d candidates measured, %d failed; analytic %.2f us, best %.2f us; "
                  "%.1f s of %.0f s", number, problem, r.measured, r.candidates, r.failed,
                  r.analytic_us, r.best_us, seconds, self.seconds)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        _log.info("%s", text)


def tuned_schedule(plan: Plan, conditions: Conditions,
                   changed: Mapping[str, str]) -> KernelSchedule:
    """The schedule of a plan with some Sigs' candidates in place of the analytic choices.

    A text that is no candidate of its Sig (any more) is passed over.
    """
    schedule = default_schedule(plan, conditions.target, conditions.device)
    sigs: dict[str, Any] = dict(schedule.sigs)
    for p in problems_of(plan, conditions):
        if p.sig.key in changed:
            found = {schedule_text(s): s for s in p.candidates}.get(changed[p.sig.key])
            if found is None:
                _log.warning("%s: the tuning cache names a schedule that is no candidate", p)
                continue
            sigs[p.sig.key] = found
    return dataclasses.replace(schedule, sigs=sigs)


def report(problem: Problem, rows: tuple[Row, ...], *, fresh: bool) -> ProblemReport:
    """What is known of a problem."""
    times = [r.us for r in rows if r.us is not None]
    chosen = choose(rows)
    analytic = next((r.us for r in rows if r.rank == 0 and r.us is not None), math.nan)
    return ProblemReport(
        name=str(problem), candidates=len(problem.candidates), measured=len(times),
        failed=sum(r.us is None for r in rows), analytic_us=analytic,
        best_us=min(times, default=math.nan),
        schedule=chosen.schedule if chosen else schedule_text(problem.candidates[0]),
        changed=chosen is not None and chosen.rank != 0, fresh=fresh,
        failures=tuple(dict.fromkeys(r.reason for r in rows if r.us is None)))

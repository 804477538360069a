"""What tuning found, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProblemReport:
    """One group of ops that was tuned.

    Attributes:
      name: what it computes, its shape and the type of its first operand.
      candidates: how many schedules there were; ``measured`` of them have a time, ``failed`` have
        a reason instead, the others were not reached.
      analytic_us, best_us: time of the choice without measurement, and of the fastest, with what
        they take longer in their kernel than alone; NaN where it was not measured.
      schedule: the one that kernels use from now on.
      changed: it is not the analytic one.
      fresh: measured just now, rather than found in the tuning cache.
      failures: distinct reasons of failed candidates.
    """

    name: str
    candidates: int
    measured: int
    failed: int
    analytic_us: float
    best_us: float
    schedule: str
    changed: bool
    fresh: bool
    failures: tuple[str, ...] = ()


_GAIN = 0.97
"""Of the kernels' time, below which XLA's program is faster; repeated runs differ by 2 %."""


@dataclass(frozen=True)
class Beside:
    """A function's time on the GPU by its kernels, and by XLA's program of all of it, in
    microseconds of a call (`custom_call.timing`)."""

    kernels_us: float
    xla_us: float

    @property
    def xla_wins(self) -> bool:
        """XLA runs the function from then on."""
        return self.xla_us < _GAIN * self.kernels_us

    def __str__(self) -> str:
        return (f"{self.kernels_us:.2f} us by its kernels, {self.xla_us:.2f} by XLA's program"
                f"{', which runs from now on' if self.xla_wins else ''}")


@dataclass(frozen=True)
class TuningReport:
    """What `jaxmono.tune` did for one function.

    Attributes:
      problems: what there was to tune, in program order; equal ones of repeated layers once.
      seconds: that it took, compilation of the candidates included.
      note: why nothing or not everything was measured, or "".
      beside: the tuned function beside XLA's program of it; None where that was not timed.
    """

    problems: tuple[ProblemReport, ...] = ()
    seconds: float = 0.0
    note: str = ""
    beside: Beside | None = None

    def __str__(self) -> str:
        fresh = sum(p.fresh for p in self.problems)
        lines = [f"jaxmono: {len(self.problems)} tuned groups of ops, {fresh} measured now, "
                 f"{self.seconds:.1f} s"]
        if self.beside is not None:
            lines.append(f"  the function: {self.beside}")
        if self.note:
            lines.append(f"  note: {self.note}")
        for p in self.problems:
            gain = f"{p.analytic_us / p.best_us:.2f}x" if p.changed else "analytic"
            lines.append(f"  {p.name}: {p.best_us:.2f} us ({gain}), {p.measured} of "
                         f"{p.candidates} measured, {p.failed} failed; {p.schedule}")
            lines += [f"    failed: {reason}" for reason in p.failures[:3]]
        return "\n".join(lines)

"""The report that ``explain()`` returns: what runs as jaxmono kernels, what does not, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """An amount of work: ``ops`` (number), ``bytes`` (read and written), ``flops``."""

    ops: int = 0
    bytes: int = 0
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.ops + other.ops, self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Coverage:
    """Which share of the program's work is in jaxmono kernels, each from 0 to 1."""

    ops: float
    bytes: float
    flops: float


@dataclass(frozen=True)
class Refusal:
    """An op that stays with XLA: its name, the user's source line, and why."""

    op: str
    source: str
    reason: str


@dataclass(frozen=True)
class KernelReport:
    """One generated kernel.

    Attributes:
      stages: phases between grid barriers or open borders.
      barriers: grid barriers executed per launch; of a kernel that is only planned, at most as many
        (which borders are open is known with the schedules).
      barriers_before_merging: the barriers if every group of ops had its own stage.
      shared_bytes: dynamic shared memory per block; None until generated.
      scratch_bytes: device memory for intermediate values.
      predicted_us: the cost model's time; ``floor_us``: the least time that memory and
        arithmetic allow.
      work: what the kernel computes.
      compile_seconds: planning, generating and compiling; None when only planned.
      cached: the binary came from the kernel cache; None when only planned.
      registers, spill_bytes: per thread, from the compiler; None when only planned.
      notes: decisions of the planner worth telling.
      schedules: "analytic", or how many groups of ops have measured schedules; None when only
        planned.
    """

    name: str
    stages: int
    barriers: int
    barriers_before_merging: int
    shared_bytes: int | None
    scratch_bytes: int
    predicted_us: float
    floor_us: float
    work: Work
    compile_seconds: float | None = None
    cached: bool | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    notes: tuple[str, ...] = ()
    schedules: str | None = None


@dataclass(frozen=True)
class Report:
    """What `jaxmono.explain` tells of one program on one platform.

    Attributes:
      platform: "cuda", "cpu", ...: where the program was lowered for.
      interpret: the kernels run in the SIMT interpreter.
      kernels: how many jaxmono kernels one call launches, at most (a loop around them counts once,
        and the kernels of all branches do).
      planned: every kernel, in program order, also those that will not run (see ``note``).
      refused: the ops that XLA runs, with reasons; empty when one kernel takes everything.
      total: all work of the program, kernels and XLA's part.
      note: why XLA runs the program, or a part, although kernels could be planned; or "".
    """

    platform: str
    interpret: bool
    mode: str
    kernels: int = 0
    planned: tuple[KernelReport, ...] = ()
    refused: tuple[Refusal, ...] = ()
    total: Work = field(default_factory=Work)
    note: str = ""

    @property
    def stages(self) -> int:
        return sum(k.stages for k in self.planned)

    @property
    def barriers(self) -> int:
        return sum(k.barriers for k in self.planned)

    @property
    def barriers_before_merging(self) -> int:
        return sum(k.barriers_before_merging for k in self.planned)

    @property
    def shared_bytes(self) -> int | None:
        """Dynamic shared memory per block of the kernel that uses most; None until generated."""
        known = [k.shared_bytes for k in self.planned if k.shared_bytes is not None]
        return max(known) if known else None

    @property
    def scratch_bytes(self) -> int:
        return sum(k.scratch_bytes for k in self.planned)

    @property
    def predicted_us(self) -> float:
        return sum(k.predicted_us for k in self.planned)

    @property
    def floor_us(self) -> float:
        return sum(k.floor_us for k in self.planned)

    @property
    def compile_seconds(self) -> float | None:
        known = [k.compile_seconds for k in self.planned if k.compile_seconds is not None]
        return sum(known) if known else None

    @property
    def cached(self) -> bool | None:
        """Every binary came from the kernel cache; None when nothing was compiled."""
        known = [k.cached for k in self.planned if k.cached is not None]
        return all(known) if known else None

    @property
    def coverage(self) -> Coverage:
        """The share of the work in the planned kernels (1 for an empty program, and at most: a loop
        that is a kernel asks whether it begins, besides)."""
        taken = sum((k.work for k in self.planned), Work())

        def share(part: int, whole: int) -> float:
            return min(part / whole, 1.0) if whole else 1.0

        return Coverage(share(taken.ops, self.total.ops), share(taken.bytes, self.total.bytes),
                        share(taken.flops, self.total.flops))

    def __str__(self) -> str:
        return _render(self)


def merged(reports: Iterable[Report], *, platform: str, interpret: bool, mode: str,
           notes: Iterable[str] = ()) -> Report:
    """One report on several programs of one lowering (jaxmono functions called in a loop, or
    beside each other)."""
    all_ = list(reports)
    said = dict.fromkeys([*notes, *(r.note for r in all_ if r.note)])
    return Report(
        platform=all_[0].platform if all_ else platform,
        interpret=interpret, mode=mode,
        kernels=sum(r.kernels for r in all_),
        planned=tuple(k for r in all_ for k in r.planned),
        refused=tuple(f for r in all_ for f in r.refused),
        total=sum((r.total for r in all_), Work()),
        note="; ".join(said),
    )


def _render(report: Report) -> str:
    where = f"platform {report.platform}" + (", SIMT interpreter" if report.interpret else "")
    lines = [f"jaxmono: {report.kernels} kernel{'' if report.kernels == 1 else 's'} on {where} "
             f"(mode {report.mode})"]
    if report.note:
        lines.append(f"  note: {report.note}")
    share = report.coverage
    total = report.total
    lines.append(f"  coverage: {share.ops:.0%} of {total.ops} ops, {share.bytes:.0%} of "
                 f"{_bytes(total.bytes)}, {share.flops:.0%} of {_count(total.flops)}flop")
    if report.planned:
        lines += ["", *_table(report.planned)]
    for kernel in report.planned:
        lines += [f"  {kernel.name}: {note}" for note in kernel.notes]
    if report.refused:
        lines += ["", f"  left to XLA ({len(report.refused)}):", *_left(report.refused)]
    return "\n".join(lines)


def _left(refused: Iterable[Refusal]) -> list[str]:
    """A line for each reason: the kinds of ops, and the place of the first."""
    alike: dict[str, list[Refusal]] = {}
    for r in refused:
        alike.setdefault(r.reason, []).append(r)
    lines: list[str] = []
    for reason, found in alike.items():
        kinds = list(dict.fromkeys(r.op for r in found))
        others = f" and {len(kinds) - 4} other kinds" if len(kinds) > 4 else ""
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        lines.append(f"    {', '.join(kinds[:4])}{others} at {found[0].source}{more}: {reason}")
    return lines


def _table(kernels: tuple[KernelReport, ...]) -> list[str]:
    head = ("kernel", "ops", "stages", "barriers", "(unmerged)", "shared", "scratch", "predicted",
            "floor", "registers", "spills", "schedules", "compiled")
    rows: list[tuple[str, ...]] = [head]
    for k in kernels:
        if k.compile_seconds is None:
            compiled = "-"
        else:
            compiled = "cached" if k.cached else f"{k.compile_seconds:.2f} s"
        rows.append((k.name, str(k.work.ops), str(k.stages), str(k.barriers),
                     str(k.barriers_before_merging),
                     "-" if k.shared_bytes is None else _bytes(k.shared_bytes),
                     _bytes(k.scratch_bytes), f"{k.predicted_us:.1f} us", f"{k.floor_us:.1f} us",
                     "-" if k.registers is None else str(k.registers),
                     "-" if k.spill_bytes is None else _bytes(k.spill_bytes), k.schedules or "-",
                     compiled))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    out: list[str] = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:],
                                                                       strict=True)]
        out.append("  " + "  ".join(cells).rstrip())
    return out


def _count(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000 or unit == "T":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def _bytes(number: int) -> str:
    return f"{_count(number)}B"

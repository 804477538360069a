"""One case measured: every system prepared, timed in turns, traced, compared with f32."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax

from benchmarks import data as datas
from benchmarks import errors, load, timing, trace
from benchmarks.compile_times import CompileTimes
from benchmarks.data import Case, Data
from benchmarks.floor import Floor, floor_of
from benchmarks.jaxmono_best import prepare as prepare_jaxmono
from benchmarks.machine import Speed
from benchmarks.phases import Phases
from benchmarks.row import Row
from benchmarks.running import Facts, Running
from benchmarks.systems_jax import JaxRunning, compile_xla
from benchmarks.throttle import Nvml
from benchmarks.timing import Failures, Times
from benchmarks.torch_side import prepare as prepare_torch
from benchmarks.xla_best import DEFAULT, XLA_DEFAULT, XLA_FLAGS, Choices
from benchmarks.xla_best import prepare as prepare_xla

Key: TypeAlias = tuple[str, str | None]
"""(system, mode): "xla" and the torch systems have no mode."""

XLA: Key = ("xla", None)
_WARM_UP = 3
_ENOUGH = 0.01
"""Of the ratio to XLA: rounds end when it is known that well, with 95 % confidence."""
_COMPARED_SETS = 4


@dataclass(frozen=True)
class Settings:
    """How a run measures.

    Attributes:
      systems: in the order of their turns.
      speed: of this GPU; None without one, and then nothing is timed.
      rounds, calls: pipelined rounds, and calls per round at most.
      seconds: per system of a case; bounds the samples.
      profile: keep every kernel's own time.
      cpu_loads: shares of busy cores under which latency is measured again.
      search: try XLA's variants.
      interpret: jaxmono's kernels run in the SIMT interpreter.
    """

    systems: tuple[Key, ...]
    speed: Speed | None = None
    commit: str | None = None
    rounds: int = 15
    calls: int = 50
    seconds: float = 1.0
    profile: bool = False
    cpu_loads: tuple[float, ...] = ()
    search: bool = True
    interpret: bool = False
    choices: Choices = field(default_factory=lambda: Choices(None))
    compiled: CompileTimes = field(default_factory=lambda: CompileTimes(None))
    nvml: Nvml = field(default_factory=Nvml)


@dataclass(frozen=True)
class Anchor:
    """A system measured once more, beside those that XLA must not share a process with.

    Attributes:
      ratio_to_xla, device_ratio_to_xla: as measured beside XLA; None where they are not known.
      flags: XLA's, that it ran with.
    """

    key: Key
    ratio_to_xla: float | None = None
    device_ratio_to_xla: float | None = None
    flags: str = DEFAULT


@dataclass
class _Found:
    """What was found out about the systems of one case, by key."""

    failures: Failures = field(default_factory=Failures)
    facts: dict[Key, Facts] = field(default_factory=dict)
    pipelined: dict[Key, Times] = field(default_factory=dict)
    latency: dict[Key, Times] = field(default_factory=dict)
    queued: dict[Key, float] = field(default_factory=dict)
    device: dict[Key, trace.DeviceTimes] = field(default_factory=dict)
    errors: dict[Key, errors.Errors] = field(default_factory=dict)
    loaded: dict[float, dict[Key, Times]] = field(default_factory=dict)
    throttling: frozenset[str] | None = None
    notes: dict[Key, list[str]] = field(default_factory=dict)
    reference: errors.Errors | None = None
    floor: Floor | None = None

    def note(self, key: Key, text: str) -> None:
        if text:
            self.notes.setdefault(key, []).append(text)


def measure(case: Case, settings: Settings, phases: Phases | None = None,
            anchor: Anchor | None = None,
            before: Mapping[Key, Row] | None = None) -> Iterator[Row]:
    """One row for every system, whatever happens to it; then those under load on the CPUs.

    Args:
      phases: told where the time goes.
      anchor: takes turns with the systems, and has no row. Their ratios to XLA are those to the
        anchor times its own.
      before: the systems' rows of an earlier pass: the same programs are timed once more, and
        nothing else is found out.
    """
    phases = phases or Phases()
    base = {key: Row(case.workload.name, case.batch, "", case.dtype, *key, commit=settings.commit)
            for key in settings.systems}
    found = _Found()
    try:
        with phases.phase("data"):
            shape = case.program().shape
        base = {key: replace(row, shape=shape) for key, row in base.items()}
        _run(case, settings, found, phases, anchor, before)
    except Exception as error:  # out of memory, a missing package: no system can run it
        for key in base:
            found.failures.reasons.setdefault(key, timing.reason(error))
    with phases.phase("close"):
        gc.collect()
    for row in base.values():
        yield _row(row, found, settings, case, anchor, before)
    for share in settings.cpu_loads if settings.speed else ():
        for row in base.values():
            yield _loaded(row, share, found)


def _run(case: Case, settings: Settings, found: _Found, phases: Phases,
         anchor: Anchor | None, before: Mapping[Key, Row] | None) -> None:
    """Everything that needs the case's data, which is freed with it."""
    with phases.phase("data"):
        data = datas.make(case)
    running: dict[Key, Running] = {}
    try:
        wanted: Sequence[tuple[Any, Any]] = ()
        if before is None:
            with phases.phase("reference"):
                wanted = _reference(data, found, settings)
        check, first = errors.Check(data, wanted), tuple[Key, ...]()
        if anchor is not None:
            first, data.kept[XLA_FLAGS] = (anchor.key,), anchor.flags
        for key in (*first, *settings.systems):
            with phases.phase(key[0]):
                made = found.failures.guard(key, lambda k=key: _prepare(
                    k, data, settings, phases, check, before.get(k) if before else None))
            if made is not None:
                running[key] = made
                if before is None:
                    found.facts[key] = settings.compiled.told(f"{case.name}, {key}", made.facts)
        if settings.speed is not None:
            _time(running, found, settings, phases, again=before is not None)
        with phases.phase("errors"):
            _compare(running, data, check, found)
    finally:
        with phases.phase("close"):
            _close(running, found)


def _close(running: dict[Key, Running], found: _Found) -> None:
    closing = Failures()
    for key, made in running.items():
        closing.guard(key, made.close)
        found.note(key, closing.reasons.get(key, ""))


def _reference(data: Data, found: _Found, settings: Settings) -> Sequence[tuple[Any, Any]]:
    """The f32 program's results; none, with a note, where it does not run."""
    jax_systems = [key for key in settings.systems if key[0] in ("xla", "jaxmono")]
    sets = len(data.inputs) if data.case.workload.search else _COMPARED_SETS
    checks = Failures()
    found.floor = checks.guard("floor", lambda: floor_of(data.program.step, *data.arguments()))
    wanted = checks.guard("reference", lambda: jax.block_until_ready(
        datas.reference(data, sets=sets))) if jax_systems else ()
    for key in settings.systems:
        if "floor" in checks.reasons:
            found.note(key, f"no floor: {checks.reasons['floor']}")
        if key in jax_systems and "reference" in checks.reasons:
            found.note(key, f"not compared: the f32 program failed: {checks.reasons['reference']}")
        if found.floor is not None and found.floor.open_loops:
            found.note(key, "floor: a loop whose trips only the data tells counts as one trip")
    return wanted or ()


def _prepare(key: Key, data: Data, settings: Settings, phases: Phases, check: errors.Check,
             before: Row | None) -> Running:
    """Compiles and warms up one system; in the variant of its row, if there is one before."""
    system, mode = key
    running: Running
    only = before and (before.variant or DEFAULT)
    if system == "xla":
        running = prepare_xla(data, settings.choices, search=settings.search, phases=phases,
                              check=check, only=only)
    elif system == "jaxmono":
        running = prepare_jaxmono(data, mode or "auto", settings.choices, check=check, only=only,
                                  interpret=settings.interpret, phases=phases)
    else:
        running = prepare_torch(data, system)
    for _ in range(_WARM_UP):
        running.wait(running.start())
    return running


def _time(running: dict[Key, Running], found: _Found, settings: Settings, phases: Phases, *,
          again: bool) -> None:
    """All times; failed systems leave ``running`` untouched but have a reason.

    Args:
      again: they were taken before, so that a glance at the bound of the device's time will do.
    """
    nvml, failures = settings.nvml, found.failures
    before = nvml.reasons()
    with phases.phase("pipelined"):
        found.pipelined = timing.pipelined(running, seconds=settings.seconds / 2,
                                           rounds=settings.rounds, calls=settings.calls,
                                           failures=failures, enough=_ENOUGH)
    after = nvml.reasons()
    found.throttling = None if before is None or after is None else frozenset((*before, *after))
    with phases.phase("latency"):
        found.latency = timing.latency(running, seconds=settings.seconds / 2, failures=failures)
    asked: dict[Key, trace.Asked] = {}
    with phases.phase("queued"):
        for key, system in running.items():
            times = found.pipelined.get(key)
            if times is not None and key not in failures.reasons:
                failures.guard(key, lambda k=key, s=system, t=times: _queued(
                    k, s, t.median_us, found, asked, repeats=1 if again else 3))
    with phases.phase("trace"):
        for key, told in trace.device_times(asked, failures).items():
            if isinstance(told, trace.NoDeviceTrace):
                found.note(key, f"no device time: {told}")
            else:
                found.device[key] = told
                found.note(key, told.note)
    with phases.phase("load"):
        for share in settings.cpu_loads:
            with load.busy(share):
                found.loaded[share] = timing.latency(running, seconds=settings.seconds / 2,
                                                     failures=failures)


def _queued(key: Key, system: Running, us: float, found: _Found,
            asked: dict[Key, trace.Asked], *, repeats: int) -> None:
    """The host-clocked device time of a system, and what tracing it needs to know."""
    kernels = system.facts.kernels
    issuing = timing.issuing_us(system, us, kernels)
    told = timing.queued(system, us, kernels, issuing=issuing, repeats=repeats)
    if told is not None:
        found.queued[key] = told
    asked[key] = trace.Asked(system, us, kernels, issuing)


def _compare(running: dict[Key, Running], data: Data, check: errors.Check, found: _Found) -> None:
    """Errors of the JAX systems, after all the calls that were timed."""
    mine, wanted = {k: r for k, r in running.items() if isinstance(r, JaxRunning)}, check.wanted
    if not wanted or not mine:
        return
    for key, system in mine.items():
        told = found.failures.guard(key, lambda s=system: errors.errors(s.function, data, wanted))
        if told is not None:
            found.errors[key] = told
    xla = mine.get(XLA)
    if xla is not None and xla.facts.variant == DEFAULT and XLA in found.errors:
        found.reference = found.errors[XLA]
        return
    # The bar does not depend on which variant was the fastest this time.
    default = Failures()
    found.reference = check.bar or default.guard(
        XLA, lambda: errors.errors(data.kept.get(XLA_DEFAULT) or
                                   compile_xla(data.program.step, data)[0], data, wanted))
    for key in mine:
        if default.reasons:
            found.note(key, f"XLA's own error is not known: {default.reasons[XLA]}")


def _row(row: Row, found: _Found, settings: Settings, case: Case, anchor: Anchor | None,
         before: Mapping[Key, Row] | None) -> Row:
    """Everything known about one system; given its row before, of this pass alone."""
    key = (row.system, row.mode)
    facts = found.facts.get(key)
    if settings.speed is not None and found.floor is not None:
        row = replace(row, floor_us=found.floor.us(settings.speed.read_bytes_per_s,
                                                   settings.speed.flops_per_s[row.dtype]))
    notes = [*found.notes.get(key, ()), *(() if before else (case.workload.notes,))]
    if facts is not None:
        row = replace(row, **{**vars(facts), "notes": ""})
        if settings.speed is None:
            row = replace(row, trace_s=None, compile_s=None, tune_s=None)
        notes.append(facts.notes)
    row = replace(row, notes="; ".join(dict.fromkeys(filter(None, notes))))
    if key in found.errors:
        row = _judged(row, found.errors[key], found.reference)
    row = _timed(row, found, settings, anchor or Anchor(XLA, 1.0, 1.0))
    if key in found.failures.reasons:
        row = replace(row, status="failed", reason=found.failures.reasons[key])
    return row


def _judged(row: Row, mine: errors.Errors, xla: errors.Errors | None) -> Row:
    row = replace(row, error=mine.worst(xla))
    if xla is None:
        return row
    return replace(row, reference_error=xla.worst(xla), ok=errors.verdict(mine, xla, row.dtype))


def _timed(row: Row, found: _Found, settings: Settings, base: Anchor) -> Row:
    key = (row.system, row.mode)
    if key in found.pipelined:
        mine, theirs = found.pipelined[key], found.pipelined.get(base.key)
        row = replace(row, pipelined_us=mine.median_us, pipelined_us_low=mine.at(0.1),
                      pipelined_us_high=mine.at(0.9), ratio_to_xla=theirs and base.ratio_to_xla
                      and mine.ratio_to(theirs) * base.ratio_to_xla)
        if found.throttling is not None:
            row = replace(row, throttled=bool(found.throttling),
                          throttle_reasons=", ".join(sorted(found.throttling)))
    row = _with_latency(row, found.latency.get(key))
    seen, base_seen = found.device.get(key), found.device.get(base.key)
    if seen is not None:
        row = replace(
            row, device_us=seen.span_us, busy_us=seen.busy_us, kernels=seen.kernels,
            copies=seen.copies, roofline=row.floor_us and row.floor_us / seen.span_us,
            device_ratio_to_xla=base_seen and base.device_ratio_to_xla
            and seen.span_us / base_seen.span_us * base.device_ratio_to_xla,
            profile=seen.by_name if settings.profile else None)
    return replace(row, queued_us=found.queued.get(key))


def _with_latency(row: Row, times: Times | None) -> Row:
    if times is None:
        return row
    return replace(row, latency_us_p50=times.at(0.5), latency_us_p95=times.at(0.95),
                   latency_us_p99=times.at(0.99))


def _loaded(row: Row, share: float, found: _Found) -> Row:
    """The row of the same system while other processes load the CPUs."""
    key = (row.system, row.mode)
    row = replace(row, cpu_load=share)
    if key in found.failures.reasons:
        return replace(row, status="failed", reason=found.failures.reasons[key])
    return _with_latency(row, found.loaded.get(share, {}).get(key))

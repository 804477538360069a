"""What the GPU did during calls, from a profiler trace.

The calls are queued behind other work, so that the host, which a profiler slows, is ahead of the
device all the time. The profiler sees the whole process, so kernels of other frameworks too.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from benchmarks import timing
from benchmarks.running import Running

_PAUSE_S = 0.03
_PAUSE_NS = 15e6
"""A gap on the device that only the pause between the two delays can make."""


class NoDeviceTrace(RuntimeError):
    """The trace does not show what the device did; says what is wrong with it."""


@dataclass(frozen=True)
class Event:
    """A kernel, copy or fill on the device; times in ns from any point."""

    name: str
    start: float
    end: float

    @property
    def is_copy(self) -> bool:
        return self.name.lower().startswith(("memcpy", "memset"))


@dataclass(frozen=True)
class DeviceTimes:
    """Per call of a program, microseconds where not said otherwise.

    Attributes:
      span_us: from the first kernel's start to the last one's end, median over calls.
      busy_us: sum of the durations of kernels and copies.
      kernels, copies: launched.
      by_name: sum of the durations, longest first.
      note: what is not as it should be, or "".
    """

    span_us: float
    busy_us: float
    kernels: float
    copies: float
    by_name: dict[str, float]
    note: str = ""


def device_times(running: Running, us: float, kernels: float | None = None) -> DeviceTimes:
    """Traces some calls of a warmed-up program.

    Args:
      us: pipelined time per call. kernels: per call, where known.

    Raises:
      NoDeviceTrace: there is no GPU, no permission to trace it, or the trace makes no sense.
    """
    calls, milliseconds = timing.ahead(us, kernels, slower=3)
    running.wait(running.delay(milliseconds))
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=_options())
        try:
            running.wait(running.delay(milliseconds))
            time.sleep(_PAUSE_S)
            start = time.perf_counter()
            running.delay(milliseconds)
            token = None
            for _ in range(calls):
                token = running.start()
            issued = time.perf_counter() - start
            running.wait(token)
        finally:
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise NoDeviceTrace("the profiler wrote no trace")
        found = events(ProfileData.from_file(str(files[-1])))
    delay, rest = without_delay(found)
    lasted = (delay[-1].end - delay[0].start) / 1e9
    # A loop whose condition the host reads holds the host back as well: those gaps are its own.
    late = "" if issued < lasted else "the host was not ahead of the device while traced"
    return split(rest, calls, note=late)


def _options() -> Any:
    """The device alone: tracing Python would slow the host down."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 0
    return options


def events(data: ProfileData) -> list[Event]:
    """Kernels, copies and fills of the GPUs' streams, by start.

    Raises:
      NoDeviceTrace: there are none.
    """
    found = []
    for plane in data.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            # Other lines of the plane repeat the same time by module and by HLO op.
            if line.name.startswith("Stream"):
                found += [Event(e.name, e.start_ns, e.start_ns + e.duration_ns)
                          for e in line.events]
    if not found:
        raise NoDeviceTrace("the trace has no kernels of a GPU stream")
    return sorted(found, key=lambda e: e.start)


def without_delay(found: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """Takes away the work that went before the calls.

    In the trace: the delay alone, a pause, the same delay, the calls.

    Returns:
      The second delay, and the events of the calls.

    Raises:
      NoDeviceTrace: there is no pause, or what follows it is another work.
    """
    last, count = found[0].end, 0
    for index, event in enumerate(found):
        if event.start - last > _PAUSE_NS:
            count = index
            break
        last = max(last, event.end)
    if not count:
        raise NoDeviceTrace("the trace has no pause after the work that goes before the calls")
    delay, rest = list(found[count:2 * count]), list(found[2 * count:])
    if Counter(e.name for e in delay) != Counter(e.name for e in found[:count]):
        raise NoDeviceTrace("the work that goes before the calls was not traced alike twice")
    if not rest:
        raise NoDeviceTrace("the trace has no kernels of the calls")
    return delay, rest


def split(found: Sequence[Event], calls: int, *, note: str = "") -> DeviceTimes:
    """Times per call of a sequence of events of that many equal calls.

    Where the events cannot be told apart by call, ``span_us`` is the whole span over the calls,
    the gaps between calls included, and ``note`` says so.
    """
    ordered = sorted(found, key=lambda e: e.start)
    per_call, over = divmod(len(ordered), calls)
    groups = [ordered[k * per_call:(k + 1) * per_call] for k in range(calls)]
    alike = not over and len({tuple(sorted(Counter(e.name for e in g).items()))
                              for g in groups}) == 1
    if alike:
        span = statistics.median(_span(g) for g in groups)
    else:
        span = _span(ordered) / calls
        note = "; ".join(filter(None, [note, "the trace does not tell calls apart: device time is "
                                       "their mean"]))
    durations: Counter[str] = Counter()
    for event in ordered:
        durations[event.name] += event.end - event.start
    copies = sum(e.is_copy for e in ordered)
    return DeviceTimes(span / 1e3, sum(durations.values()) / calls / 1e3,
                       (len(ordered) - copies) / calls, copies / calls,
                       {name: ns / calls / 1e3 for name, ns in durations.most_common()}, note)


def _span(group: Sequence[Event]) -> float:
    return max(e.end for e in group) - min(e.start for e in group)

"""What the GPU did during calls, from a profiler trace.

The calls are queued behind other work, so that the host, which a profiler slows, is ahead of the
device all the time. The profiler sees the whole process, so kernels of other frameworks too, and
one session does for several programs.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.profiler import ProfileData

from benchmarks import timing
from benchmarks.running import Running

Key = TypeVar("Key", bound=Hashable)
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
      span_us: from the first kernel's start to the last one's end, median over calls; of calls
        that the host takes part in, the shortest: what else the host does only makes them longer.
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


@dataclass(frozen=True)
class Asked:
    """A warmed-up program that is to be traced.

    Attributes:
      us: pipelined time per call. kernels: per call, where known.
      issuing: host's time per call, where known (`timing.issuing_us`).
    """

    running: Running
    us: float
    kernels: float | None = None
    issuing: float | None = None

    @property
    def ahead(self) -> tuple[int, float]:
        """Calls that are traced, and milliseconds of the work before them."""
        return timing.ahead(self.us, self.kernels, issuing=self.issuing, slower=3)


def device_times(asked: Mapping[Key, Asked], failures: timing.Failures,
                 ) -> dict[Key, DeviceTimes | NoDeviceTrace]:
    """Traces some calls of each program.

    All in one session: to start and end one takes about a second. Where its events do not fall
    apart into programs (one of them failed, or paused), each gets a session of its own.

    Args:
      failures: takes those of the calls themselves.

    Returns:
      Times, or why there are none: no GPU, no permission to trace it, a trace without sense.
    """
    together: list[DeviceTimes] = []
    if len(asked) > 1:
        try:
            together = _session(list(asked.values()))
        except Exception:
            together = []  # which one it was, and why, is found out below
    if together:
        return dict(zip(asked, together, strict=True))
    out: dict[Key, DeviceTimes | NoDeviceTrace] = {}
    for key, one in asked.items():
        try:
            out[key], = _session([one])
        except NoDeviceTrace as error:
            out[key] = error
        except Exception as error:  # the call itself failed while it was traced
            failures.reasons[key] = timing.reason(error)
    return out


def _session(asked: Sequence[Asked]) -> list[DeviceTimes]:
    """The times of each, in order.

    Raises:
      NoDeviceTrace: for one of them.
      Exception: whatever a call raises.
    """
    for one in asked:
        one.running.wait(one.running.delay(one.ahead[1]))
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=_options())
        try:
            issued = [_calls(one) for one in asked]
        finally:
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise NoDeviceTrace("the profiler wrote no trace")
        found = events(ProfileData.from_file(str(files[-1])))
    return [_times(part, one, took)
            for part, one, took in zip(parts(found, len(asked)), asked, issued, strict=True)]


def _calls(asked: Asked) -> float:
    """What is traced of a program; returns the seconds that starting its calls took."""
    running, (calls, milliseconds) = asked.running, asked.ahead
    time.sleep(_PAUSE_S)
    running.wait(running.delay(milliseconds))
    time.sleep(_PAUSE_S)
    start = time.perf_counter()
    running.delay(milliseconds)
    token = None
    for _ in range(calls):
        token = running.start()
    issued = time.perf_counter() - start
    running.wait(token)
    return issued


def _times(found: Sequence[Event], asked: Asked, issued: float) -> DeviceTimes:
    delay, rest = without_delay(found)
    lasted = (delay[-1].end - delay[0].start) / 1e9
    # A loop whose condition the host reads holds the host back as well: those gaps are its own.
    return split(rest, asked.ahead[0], late=issued >= lasted)


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


def parts(found: Sequence[Event], programs: int) -> list[list[Event]]:
    """The events of each program, where several are traced one after another.

    In the trace, of each: the delay alone, a pause, the same delay, the calls; then a pause.

    Raises:
      NoDeviceTrace: there are more pauses, or fewer.
    """
    if programs == 1:
        return [list(found)]
    pieces: list[list[Event]] = []
    last = -math.inf
    for event in found:
        if event.start - last > _PAUSE_NS:
            pieces.append([])
        pieces[-1].append(event)
        last = max(last, event.end)
    if len(pieces) != 2 * programs:
        raise NoDeviceTrace(f"the trace has {len(pieces)} parts, and not two for each program")
    return [alone + calls for alone, calls in zip(pieces[::2], pieces[1::2], strict=True)]


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


def split(found: Sequence[Event], calls: int, *, late: bool = False) -> DeviceTimes:
    """Times per call of a sequence of events of that many equal calls.

    Where the events cannot be told apart by call, ``span_us`` is the whole span over the calls,
    the gaps between calls included, and ``note`` says so.

    Args:
      late: the host was not ahead of the device, and what it did is in the gaps.
    """
    notes = ["the host was not ahead of the device while traced"] if late else []
    ordered = sorted(found, key=lambda e: e.start)
    per_call, over = divmod(len(ordered), calls)
    groups = [ordered[k * per_call:(k + 1) * per_call] for k in range(calls)]
    alike = not over and len({tuple(sorted(Counter(e.name for e in g).items()))
                              for g in groups}) == 1
    if alike:
        spans = [_span(g) for g in groups]
        span = min(spans) if late else statistics.median(spans)
        notes += ["device time is that of the shortest call"] if late else []
    else:
        span = _span(ordered) / calls
        notes.append("the trace does not tell calls apart: device time is their mean")
    durations: Counter[str] = Counter()
    for event in ordered:
        durations[event.name] += event.end - event.start
    copies = sum(e.is_copy for e in ordered)
    return DeviceTimes(span / 1e3, sum(durations.values()) / calls / 1e3,
                       (len(ordered) - copies) / calls, copies / calls,
                       {name: ns / calls / 1e3 for name, ns in durations.most_common()},
                       "; ".join(notes))


def _span(group: Sequence[Event]) -> float:
    return max(e.end for e in group) - min(e.start for e in group)

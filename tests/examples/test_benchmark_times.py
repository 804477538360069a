"""Clocks and traces of the yardstick: in turns, long enough, and each to its own program."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from jax.profiler import ProfileData

from benchmarks import load, timing, trace
from benchmarks.phases import Phases
from benchmarks.running import Facts
from benchmarks.throttle import decoded
from benchmarks.xla_best import choose, first_right

# Traces


def events(calls: int, *, kernels: tuple[str, ...] = ("a", "b"), over: int = 0,
           ) -> list[trace.Event]:
    """Delay (1 kernel, 20 ms), pause, the same again, then calls 10 us apart: kernels of 3 us,
    1 us apart."""
    out = [trace.Event("sleep", 0, 20e6), trace.Event("sleep", 60e6, 80e6)]
    now = 80e6
    for _ in range(calls):
        for name in kernels:
            out.append(trace.Event(name, now, now + 3e3))
            now += 4e3
        now += 9e3
    return out + [trace.Event("late", now, now + 1e3)] * over


def test_a_trace_is_split_into_calls() -> None:
    delay, rest = trace.without_delay(events(5, kernels=("a", "MemcpyD2D", "b")))
    assert [e.name for e in delay] == ["sleep"] and len(rest) == 15
    found = trace.split(rest, 5)
    assert (found.span_us, found.busy_us, found.kernels, found.copies) == (11, 9, 2, 1)
    assert found.by_name == {"a": 3, "MemcpyD2D": 3, "b": 3} and not found.note


def test_a_trace_that_does_not_divide_gives_the_mean_and_says_so() -> None:
    _, rest = trace.without_delay(events(5, over=1))
    found = trace.split(rest, 5)
    assert "does not tell calls apart" in found.note
    assert found.span_us == pytest.approx((5 * 17 + 1) / 5)
    mixed = [trace.Event(name, k, k + 1) for k, name in enumerate("aabb")]
    assert trace.split(mixed, 2).note


def test_of_calls_that_the_host_takes_part_in_the_shortest_counts() -> None:
    delay, rest = events(0), []
    for k, us in enumerate((30, 90, 20, 40, 50)):
        rest.append(trace.Event("loop", 80e6 + 1e5 * k, 80e6 + 1e5 * k + us * 1e3))
    running: Any = None
    asked = trace.Asked(running, 500e3)
    assert asked.ahead[0] == 5
    in_time, late = (trace._times([*delay, *rest], asked, issued) for issued in (0.01, 1.0))
    assert (in_time.span_us, in_time.note) == (40, "")
    assert late.span_us == 20 and "shortest" in late.note
    mean = trace.split(rest[:3], 2, late=True)
    assert "not ahead" in mean.note and "mean" in mean.note and "shortest" not in mean.note


def test_programs_of_one_session_are_told_apart_by_their_pauses() -> None:
    def later(found: list[trace.Event], ns: float) -> list[trace.Event]:
        return [trace.Event(e.name, e.start + ns, e.end + ns) for e in found]

    two = [*events(3), *later(events(2, kernels=("c",)), 200e6)]
    first, second = trace.parts(two, 2)
    assert first == events(3) and [e.name for e in trace.without_delay(second)[1]] == ["c", "c"]
    assert trace.parts(two[:5], 1) == [two[:5]]
    for programs in (2, 3):
        with pytest.raises(trace.NoDeviceTrace, match="not two for each"):
            trace.parts([*two, trace.Event("late", 900e6, 901e6)], programs)


@pytest.mark.parametrize("dies_at", [10**9, 4])
def test_a_session_that_fails_is_taken_apart(monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    """Of two programs together there is no trace, and one may fail in its calls."""
    sizes: list[int] = []

    def session(asked: Any) -> Any:
        sizes.append(len(asked))
        if len(asked) > 1:
            raise trace.NoDeviceTrace("three parts")
        for one in asked:
            for _ in range(3):
                one.running.start()
        return [trace.DeviceTimes(one.us, 1, 1, 0, {}) for one in asked]

    monkeypatch.setattr(trace, "_session", session)
    asked = {"a": trace.Asked(Sleeper(1), 5.0), "b": trace.Asked(Sleeper(1, dies_at=dies_at), 6.0)}
    asked["b"].running.start()
    failures = timing.Failures()
    found = trace.device_times(asked, failures)
    assert sizes == [2, 1, 1] and found["a"].span_us == 5.0
    assert ("b" in found) is (dies_at > 4) and ("b" in failures.reasons) is (dies_at == 4)


@pytest.mark.parametrize("broken", [
    events(0), [e for e in events(3) if e.start != 0],
    [trace.Event("sleep", 0, 20e6), trace.Event("other", 60e6, 80e6), *events(3)[2:]],
])
def test_a_trace_without_delays_or_calls_is_refused(broken: list[trace.Event]) -> None:
    with pytest.raises(trace.NoDeviceTrace):
        trace.without_delay(broken)


TRACE = """
planes {
  name: "/host:CPU"
  lines { name: "Stream #1" events { metadata_id: 1 duration_ps: 9000000 } }
  event_metadata { key: 1 value { id: 1 name: "host" } }
}
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #7(Compute)" timestamp_ns: 1000
    events { metadata_id: 2 offset_ps: 4000000 duration_ps: 1000000 }
    events { metadata_id: 1 duration_ps: 3000000 }
  }
  lines { name: "XLA Ops" events { metadata_id: 1 duration_ps: 3000000 } }
  event_metadata { key: 1 value { id: 1 name: "mono_bert" } }
  event_metadata { key: 2 value { id: 2 name: "loop_fusion" } }
}
"""


def test_kernels_are_read_from_gpu_streams_only() -> None:
    def read(text: str) -> ProfileData:
        return ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace(text))

    assert trace.events(read(TRACE)) == [trace.Event("mono_bert", 1000, 4000),
                                         trace.Event("loop_fusion", 5000, 6000)]
    with pytest.raises(trace.NoDeviceTrace):
        trace.events(read("planes {" + TRACE.split("planes {")[1]))


# Clocks


class Sleeper:
    """A program of known duration."""

    facts = Facts()

    def __init__(self, milliseconds: float, *, dies_at: int = 10**9) -> None:
        self.label = str(milliseconds)
        self.calls = 0
        self._ms, self._dies_at = milliseconds, dies_at

    def start(self) -> Any:
        self.calls += 1
        if self.calls >= self._dies_at:
            raise RuntimeError("out of\nmemory")
        return time.perf_counter()

    def wait(self, token: Any) -> None:
        time.sleep(self._ms / 1e3)

    def delay(self, milliseconds: float) -> Any:
        return None

    def close(self) -> None:
        pass


def test_times_are_taken_in_turns_and_a_failure_costs_one_system() -> None:
    failures = timing.Failures()
    systems = {"a": Sleeper(2), "b": Sleeper(4), "c": Sleeper(1, dies_at=4)}
    found = timing.pipelined(systems, seconds=0.05, rounds=5, calls=1, failures=failures)
    assert set(found) == {"a", "b"} and failures.reasons == {"c": "RuntimeError: out of memory"}
    assert 1.5 < found["b"].ratio_to(found["a"]) < 2.5
    assert found["a"].at(0.1) <= found["a"].median_us <= found["a"].at(0.9)
    single = timing.latency(systems, seconds=0.01, failures=failures)
    assert set(single) == {"a", "b"} and len(single["b"].rounds) >= 20
    assert timing.queued(Sleeper(1), 100.0) is None
    with pytest.raises(RuntimeError):
        timing.pipelined({"c": Sleeper(1, dies_at=1)}, seconds=1, rounds=2, calls=1)


def test_rounds_end_when_the_ratios_are_known() -> None:
    steady = timing.Times((2.0,) * 7)
    assert steady.uncertainty(timing.Times((1.0,) * 7)) == 0
    assert timing.Times((2.0,) * 5).uncertainty(timing.Times((1.0,) * 5)) == math.inf
    # Of 15 values the 4th to the 12th hold the median with 96 %, of 7 none but all do.
    one = timing.Times((1.0,) * 15)
    spread = timing.Times(tuple(1.0 + 0.01 * k for k in range(15)))
    assert spread.uncertainty(one) == pytest.approx(0.04 / 1.07)
    assert timing.Times(spread.rounds[:7]).uncertainty(
        timing.Times(one.rounds[:7])) == pytest.approx(0.03 / 1.03)
    rounds = timing.pipelined({"a": Sleeper(2), "b": Sleeper(4)}, seconds=0.05, rounds=12, calls=1,
                              enough=1.0)
    assert len(rounds["a"].rounds) == 7 == len(rounds["b"].rounds)


def test_phases_count_for_themselves_alone() -> None:
    phases = Phases()
    with phases.phase("outer"):
        time.sleep(0.02)
        with pytest.raises(ValueError), phases.phase("inner"):
            time.sleep(0.04)
            raise ValueError
    assert 0.02 <= phases.seconds["outer"] < 0.04 <= phases.seconds["inner"]
    told = phases.to_json()
    assert list(told) == ["outer", "inner", "other", "total"]
    assert told["total"] == pytest.approx(sum(v for k, v in told.items() if k != "total"), abs=0.02)
    phases.seconds = {"xla": 3.21, "short": 0.01}
    assert "(xla 3.2" in str(phases) and "short" not in str(phases)


def test_calls_that_wait_fit_the_queues() -> None:
    assert timing.ahead(500, 1)[0] == 24 and timing.ahead(500, 300)[0] == 3
    assert timing.ahead(30e3, 1)[0] == 5  # slow ones need few
    assert timing.ahead(4e3, 1, issuing=300)[1] < timing.ahead(4e3, 1)[1] / 5
    assert timing.ahead(500, 1, issuing=1e6) == timing.ahead(500, 1)
    calls, milliseconds = timing.ahead(500, 1)
    assert milliseconds >= calls * 0.5
    assert timing.ahead(1e6, 1)[1] <= 250


def test_the_device_decides_and_the_host_between_equal_variants() -> None:
    assert choose([(100, 300), (90, 400), (200, 100)]) == 1
    assert choose([(100, 50), (101, 40), (200, 10)]) == 1
    scores = [(100.0, 0.0), (10.0, 0.0), (20.0, 0.0)]
    assert first_right(scores, lambda i: True) == 1
    assert first_right(scores, lambda i: i != 1) == 2 and first_right(scores, lambda i: i == 0) == 0


def test_load_keeps_processes_busy_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "cores", lambda: 2)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    with load.busy(0.5) as count:
        assert count == 1
        assert children.read_text().split()
    assert not children.read_text().split()


def test_throttling_is_named() -> None:
    assert decoded(0) == decoded(0x1 | 0x2 | 0x10 | 0x100) == ()
    assert decoded(0x4 | 0x20) == ("power cap", "heat (software)")

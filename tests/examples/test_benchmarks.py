"""The yardstick without a GPU: what it counts and compares is what it says, no row is missing."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.profiler import ProfileData
from small_models import chained

import benchmarks.workloads as zoo
from benchmarks import data, load, select, supervise, timing, trace
from benchmarks.data import L2_BYTES, Case, Data
from benchmarks.errors import ArrayError, Errors, errors, verdict
from benchmarks.floor import floor_of
from benchmarks.machine import Speed
from benchmarks.measure import Settings, measure
from benchmarks.peers import NoPeer
from benchmarks.phases import Phases
from benchmarks.results import Folder, default_folder
from benchmarks.row import Row
from benchmarks.running import Facts
from benchmarks.select import BadFlag
from benchmarks.systems_jax import JaxRunning
from benchmarks.throttle import decoded
from benchmarks.workloads.workload import Program, Request, Workload
from benchmarks.xla_best import choose

ROOT = Path(__file__).resolve().parents[2]


def counting(request: Request) -> Program:
    """``out = ids * w + carry``; the carry counts the calls."""
    dtype = request.jax_dtype

    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return ids.astype(dtype) * state + carry, carry + 1

    return Program(step, "4", state=lambda: jnp.asarray(0.5, dtype),
                   inputs=lambda key: (jax.random.randint(key, (request.batch, 4), 1, 99),),
                   carry=lambda key: jnp.asarray(0, dtype))


COUNTING = Workload("counting", "counting", "transformer", counting)


def made(dtype: str = "f32") -> Data:
    return data.make(Case(COUNTING, 1, dtype), sets=3)


# The row and its folder


def test_a_row_on_disk_is_the_row() -> None:
    row = Row("m", 1, "s8", "bf16", "jaxmono", "stitch", device_us=1.5, kernels=2, ok=True,
              status="fallback", reason="sort", profile={"k": 1.0}, error=math.inf)
    line = row.to_json()
    assert list(json.loads(line))[:23] == [
        "model", "batch", "shape", "dtype", "system", "mode", "device_us", "pipelined_us",
        "latency_us_p50", "latency_us_p95", "latency_us_p99", "floor_us", "roofline", "kernels",
        "barriers", "scratch_bytes", "compile_s", "error", "reference_error", "ok", "status",
        "reason", "commit"]
    assert json.loads(line)["error"] is None and json.loads(line)["pipelined_us"] is None
    assert Row.from_json(line) == dataclasses.replace(row, error=None)
    assert row.name == "jaxmono stitch"
    for wrong in ({"system": "tvm"}, {"status": "failed", "reason": ""}, {"status": "good"}):
        with pytest.raises(ValueError, match=r"system|status"):
            dataclasses.replace(row, **wrong)
    with pytest.raises(ValueError, match="not a row"):
        Row.from_json('{"model": "m"}')


def test_a_folder_starts_anew_or_goes_on(tmp_path: Path) -> None:
    row = Row("m", 1, "s8", "bf16", "xla", ratio_to_xla=1.0, device_us=1.0, device_ratio_to_xla=1.0)
    folder = Folder(tmp_path / "run")
    folder.header({"commit": "abc"})
    folder.add(row)
    folder.add_other({"part": "depth"})
    folder.header({"more": 1})
    again = Folder(folder.path, resume=True)
    assert again.done() == {("m", 1, "bf16", "xla")}
    assert json.loads((folder.path / "header.json").read_text()) == {"commit": "abc", "more": 1}
    again.report()
    assert "abc" in (folder.path / "results.md").read_text()
    assert Folder(folder.path).done() == set()
    where = default_folder({"gpu": "NVIDIA H200", "platform": "gpu", "date": "2001-02-03 04:05"})
    assert where.name == "2001-02-03-nvidia-h200"


# What is measured: rotation, carries, floors


def test_inputs_rotate_and_the_carry_is_handed_on() -> None:
    case = made()
    running = JaxRunning("x", jax.jit(case.program.step, donate_argnums=1), case, Facts())
    first = [np.asarray(i[0], np.float32) * 0.5 for i in case.inputs]
    outs = [np.asarray(running.start()) for _ in range(4)]
    for turn, out in enumerate(outs):
        np.testing.assert_array_equal(out, first[turn % 3] + turn)
    assert not case.carry[0].is_deleted() and not np.array_equal(first[0], first[1])
    running.close()
    with pytest.raises(ValueError, match="closed"):
        running.start()


def test_micro_graphs_rotate_through_more_than_the_l2() -> None:
    assert data.sets_for(False, 10) == data.SETS
    size = 7_000_000
    assert data.sets_for(True, size) * size >= 2 * L2_BYTES
    assert data.sets_for(True, 1) == 256 and data.sets_for(True, 10**9) == data.SETS
    micro = dataclasses.replace(COUNTING, family="micro")
    rotated = data.make(Case(micro, 1, "f32"), sets=5)
    assert len(rotated.states) == 5 == len(rotated.inputs)
    assert len({s.unsafe_buffer_pointer() for s, in rotated.states}) == 5


def test_the_floor_counts_what_is_taken_of_a_table_and_written_of_a_cache() -> None:
    f32 = 4
    table = jax.ShapeDtypeStruct((1000, 8), jnp.float32)
    cache = jax.ShapeDtypeStruct((1, 64, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((3,), jnp.int32)
    weight = jax.ShapeDtypeStruct((8, 5), jnp.float32)

    def step(state: Any, carry: jax.Array, ids: jax.Array) -> Any:
        table, weight, _ = state
        x = jnp.take(table, ids, axis=0, mode="clip")
        carry = jax.lax.dynamic_update_slice(carry, x[None, :1], (0, 7, 0))
        return x @ weight + carry.sum(), carry

    floor = floor_of(step, (table, weight, table), cache, ids)
    assert floor.flops == 2 * 3 * 8 * 5
    # Rows of the table, weight, ids, all of the cache; the result and one row of the cache.
    assert floor.read_bytes == f32 * (3 * 8 + 8 * 5 + 3 + 64 * 8)
    assert floor.written_bytes == f32 * (3 * 5 + 8)
    assert floor.us(1e6, 1e12) == pytest.approx(floor.read_bytes + floor.written_bytes)
    assert floor.us(1e12, 1e6) == pytest.approx(240)


def test_the_floor_of_loops_and_convolutions() -> None:
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 4), (4, 4)))

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (jax.jit(jnp.matmul)(c, w), None), x, length=6)[0]

    assert floor_of(scanned, x, w).flops == 6 * 2 * 4**3
    assert floor_of(scanned, x, w).open_loops == 0
    looped = floor_of(lambda x, w: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ w, x),
                      x, w)
    assert (looped.flops, looped.open_loops) == (2 * 4**3, 1)
    image, kernel = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 8, 8, 3), (3, 3, 3, 16)))

    def conv(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # In each direction 8 outputs see 3 elements each, but for the two that reach over the edge.
    assert floor_of(conv, image, kernel).flops == 2 * 2 * 16 * 3 * (8 * 3 - 2) ** 2


# Errors


def test_errors_see_nan_wrong_carries_and_stale_results() -> None:
    case = made()
    wanted = data.reference(case, sets=3)
    right = errors(case.program.step, case, wanted)
    assert right.worst() == 0 and verdict(right, right, "f32")
    stale = case.program.step(*case.arguments())
    for wrong in (lambda s, c, x: (x * s[0] * 1.5 + c[0], (c[0] + 1,)),
                  lambda s, c, x: (x * s[0] + c[0], (c[0] + 2,)),
                  lambda s, c, x: (x * s[0] + c[0] + jnp.nan, (c[0] + 1,)),
                  lambda s, c, x: stale):
        found = errors(wrong, case, wanted)
        assert found.worst() > 0.1 and not verdict(found, right, "f32")
    wide = errors(lambda s, c, x: (x * s[0] * 1.5 + c[0], (c[0] + 1,)), case, wanted)
    assert wide.worst() == pytest.approx(0.5)
    with pytest.raises(ValueError, match="arrays of results"):
        errors(lambda s, c, x: ((x, x), c), case, wanted)


@pytest.mark.parametrize(("mine", "xla", "right"), [
    ([0.012], [0.01], True), ([0.02], [0.01], False), ([0.001], [0.0], True),
    ([0.01, 0.9], [0.01, 0.7], True),        # XLA has most of the second wrong: measures nothing
    ([0.01, math.inf], [0.01, 0.7], False),  # but it has to be finite
])
def test_the_bar_is_xlas_own_error(mine: list[float], xla: list[float], right: bool) -> None:
    ours, theirs = (Errors(tuple(ArrayError(e, 10**6) for e in side)) for side in (mine, xla))
    assert verdict(ours, theirs, "bf16") is right
    # A bar of the outputs that is high does not excuse a bad cache.
    high = (ArrayError(0.3, 10**6),)
    assert verdict(Errors(high, ours.outputs), Errors(high, theirs.outputs), "bf16") is right


def test_ids_count_by_the_share_that_differs() -> None:
    case = made()
    first, second = (case.inputs[k][0] for k in (0, 1))
    found = errors(lambda s, c, x: ((x, 1.0 * x), ()), case,
                   [((first, 1.0 * first), ()), ((second + 1, 1.0 * second), ())])
    assert found.outputs[0] == ArrayError(0.5, 8, True)
    assert found.outputs[1] == ArrayError(0.0, 8, False)
    none, few, many = (Errors((ArrayError(e, 100, True),)) for e in (0.0, 0.2, 0.4))
    assert verdict(few, none, "bf16") and not verdict(many, none, "bf16")


def test_a_single_number_may_be_off_by_more_than_a_thousand_may() -> None:
    none = Errors((ArrayError(0.0, 1),))
    for size, right in ((1, True), (1000, False)):
        assert verdict(Errors((ArrayError(0.01, size),)), none, "bf16") is right


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


def test_a_models_weights_are_made_once_for_all_batches() -> None:
    made: list[int] = []

    def noted(request: Request) -> Program:
        def state() -> Any:
            made.append(request.batch)
            return jnp.asarray(0.5, request.jax_dtype)

        return dataclasses.replace(counting(request), state=state)

    model = Workload("noted", "noted", "transformer", noted)
    micro = dataclasses.replace(model, family="micro")
    states = [data.make(Case(model, batch, "f32"), sets=2).states[0] for batch in (1, 2)]
    assert made == [1] and states[0][0] is states[1][0]
    data.make(Case(model, 1, "bf16"), sets=2)
    data.make(Case(model, 1, "f32"), sets=2)  # no more than the last ones are kept
    assert made == [1, 1, 1]
    for batch in (1, 2):
        data.make(Case(micro, batch, "f32"), sets=2)
    assert made[3:] == [1, 2]


def test_calls_that_wait_fit_the_queues() -> None:
    assert timing.ahead(500, 1)[0] == 24 and timing.ahead(500, 300)[0] == 3
    assert timing.ahead(30e3, 1)[0] == 5  # slow ones need few
    assert timing.ahead(4e3, 1, issuing=300)[1] < timing.ahead(4e3, 1)[1] / 5
    assert timing.ahead(500, 1, issuing=1e6) == timing.ahead(500, 1)
    calls, milliseconds = timing.ahead(500, 1)
    assert milliseconds >= calls * 0.5
    assert timing.ahead(1e6, 1)[1] <= 250


def test_the_faster_device_decides_between_equal_variants() -> None:
    def never() -> float:
        raise AssertionError

    assert choose([(100, never), (90, never), (200, never)]) == 1
    assert choose([(100, lambda: 50), (101, lambda: 40), (200, never)]) == 1


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


# Whole cases


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo of two."""
    broken = dataclasses.replace(COUNTING, name="broken", build=_broken)
    table = {w.name: w for w in (COUNTING, broken)}
    monkeypatch.setattr(zoo, "all_workloads", lambda: table)
    monkeypatch.setattr(select, "all_workloads", lambda: table)


def _broken(request: Request) -> Program:
    def weights() -> Any:
        raise MemoryError(f"batch {request.batch} does not fit")

    return dataclasses.replace(counting(request), state=weights)


SYSTEMS = (("xla", None), ("torch_compile", None), ("jaxmono", "layer"),
           ("jaxmono", "monolithic"))


def rows(name: str, *, phases: Phases | None = None, **settings: Any) -> list[Row]:
    workload = {"counting": COUNTING,
                "broken": dataclasses.replace(COUNTING, build=_broken)}[name]
    return list(measure(Case(workload, 2, "f32"), Settings(SYSTEMS, commit="abc", **settings),
                        phases))


def test_every_system_has_a_row_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise NoPeer("torch is not installed")

    monkeypatch.setattr("benchmarks.torch_side.torch_peer", none)
    xla, torch, layer, mono = rows("counting")
    assert (xla.status, xla.ok, xla.error, xla.reference_error) == ("ok", True, 0, 0)
    assert (torch.status, torch.reason) == ("failed", "torch is not installed")
    assert layer.status == "failed" and "not built yet" in layer.reason and layer.mode == "layer"
    assert mono.status == "fallback" and mono.reason and mono.ok  # no GPU: XLA runs it
    for row in (xla, torch, layer, mono):
        assert row.shape == "4" and row.commit == "abc"
        assert row.pipelined_us is row.device_us is row.floor_us is row.compile_s is None
    for row in rows("broken"):
        assert row.status == "failed" and row.reason == "MemoryError: batch 2 does not fit"


def test_times_end_up_in_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_times(asked: Any, failures: Any) -> Any:
        return {key: trace.DeviceTimes(us, 40.0, 7, 1, {"k": 40.0})
                for key, us in zip(asked, (100.0, 50.0), strict=True)}

    monkeypatch.setattr(trace, "device_times", device_times)
    monkeypatch.setattr(load, "cores", lambda: 2)
    speed = Speed(1e12, {"f32": 1e12})
    phases = Phases()
    found = rows("counting", phases=phases, speed=speed, rounds=3, seconds=0.02, profile=True,
                 cpu_loads=(0.5,))
    assert list(phases.seconds) == ["data", "reference", "xla", "torch_compile", "jaxmono",
                                    "pipelined", "latency", "queued", "trace", "load", "errors",
                                    "close"]
    xla, mono = found[0], found[3]
    assert xla.ratio_to_xla == 1 and xla.device_ratio_to_xla == 1 and xla.device_us == 100
    assert mono.device_ratio_to_xla == 0.5 and mono.kernels == 7 and mono.copies == 1
    assert mono.floor_us and mono.roofline == mono.floor_us / 50 and mono.profile == {"k": 40.0}
    assert mono.pipelined_us_low <= mono.pipelined_us <= mono.pipelined_us_high
    assert mono.latency_us_p50 <= mono.latency_us_p95 <= mono.latency_us_p99
    under = found[4:]
    assert [r.cpu_load for r in under] == [0.5] * 4 and under[0].latency_us_p50
    assert under[0].pipelined_us is None and under[2].status == "failed"


# The program


def test_flags_that_make_no_sense(few: None) -> None:
    assert select.systems(("xla", "xla"), ("stitch",)) == (("xla", None), ("jaxmono", "stitch"))
    assert [c.batch for c in select.cases(["all"], ["2", "3"], [])] == [2, 3, 2, 3]
    assert [c.workload.name for c in select.cases(["transformer"], [], [])] == [
        "counting", "broken"]
    for wrong, told in ((lambda: select.systems(("tvm",), ()), "xla, torch_compile"),
                        (lambda: select.systems((), ("mono",)), "monolithic"),
                        (lambda: select.systems((), ()), "nothing to measure"),
                        (lambda: select.cases(["countin"], [], []), "did you mean counting"),
                        (lambda: select.cases(["all"], ["0"], []), "--batch"),
                        (lambda: select.cases(["all"], ["x"], []), "--batch"),
                        (lambda: select.cases(["all"], [], ["fp8"]), "bf16, f16, f32"),
                        (lambda: select.shares(["1.5"]), "--cpu_load")):
        with pytest.raises(BadFlag, match=told):
            wrong()


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "benchmarks.run", *flags], cwd=ROOT, check=False,
                          capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(("flags", "told"), [
    (("--models=bert_bas",), "did you mean bert_base"), (("--nonsense=1",), "'nonsense'"),
    (("--models=bert_base",), "--tiny --interpret"),
])
def test_the_program_says_what_to_do(flags: tuple[str, ...], told: str) -> None:
    done = run(*flags)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr


def test_a_tiny_run_without_a_gpu(tmp_path: Path) -> None:
    done = run("--tiny", "--interpret", "--models=bert_base", f"--out={tmp_path}", "--commit=abc",
               "--modes=monolithic,layer")
    assert done.returncode == 1, done.stderr  # mode='layer' is not built
    assert "nothing is timed" in done.stdout.replace("\n", " ")
    found = [Row.from_json(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [r.name for r in found] == ["xla", "jaxmono monolithic", "jaxmono layer"]
    assert found[1].ok and found[1].status == "ok" and found[1].kernels == 1
    for row in found:
        assert all(v is None for k, v in vars(row).items() if k.endswith(("_us", "_s"))
                   or "_us_" in k)
    assert "note" in json.loads((tmp_path / "header.json").read_text())
    assert (tmp_path / "results.md").exists()


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[str]:
    """A measuring program that is killed in its first case, and ends well the second time."""
    (tmp_path / "dying_run.py").write_text(f"""
import os, signal, sys, time
from pathlib import Path
from benchmarks import supervise
from benchmarks.row import Row
if "--resume" not in sys.argv:
    supervise.working_on(Path({str(tmp_path)!r}), [Row("m", 1, "", "bf16", "xla")])
    if "hang" in sys.argv:
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGSEGV)
""")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    yield "dying_run"
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize(("how", "told"), [("die", "SIGSEGV"), ("hang", "--case_limit_s")])
def test_a_case_that_kills_its_process_has_rows_too(dying: str, tmp_path: Path, how: str,
                                                   told: str) -> None:
    assert supervise.supervise(dying, [how], limit_s=1 if how == "hang" else 60) == 1
    row = Row.from_json((tmp_path / "rows.jsonl").read_text())
    assert row.status == "failed" and told in row.reason and row.model == "m"


def test_chained_calls_depend_on_each_other_and_none_is_left_out() -> None:
    """A helper of the GPU tests: nothing may be computed once for all calls, or not at all."""
    def step(state: Any, carry: Any, ids: jax.Array) -> Any:
        return jnp.tanh(jnp.sin(ids * state) @ state), carry

    ids = jnp.ones((4, 8, 8), jnp.int32)
    text = chained(step, 4).lower(jnp.ones((8, 8)), (), ids).compile().as_text() or ""
    single = jax.jit(step).lower(jnp.ones((8, 8)), (), ids[0]).compile().as_text() or ""
    assert text.count(" dot(") + text.count("__ynn") >= 4 * max(
        1, single.count(" dot(") + single.count("__ynn"))

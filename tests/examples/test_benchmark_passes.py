"""Several passes of the yardstick: of each system the lowest time, whatever comes between."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from tiny_workload import doubling

from benchmarks import (
    connections,
    data,
    jaxmono_best,
    parts,
    passes,
    report,
    supervise,
    trace,
    xla_best,
)
from benchmarks.data import Case, Data
from benchmarks.errors import Check
from benchmarks.kept import Kept
from benchmarks.machine import Speed
from benchmarks.measure import Anchor, Key, Settings, measure
from benchmarks.phases import Phases
from benchmarks.results import Folder
from benchmarks.row import Row
from benchmarks.running import Facts
from benchmarks.systems_jax import JaxRunning
from benchmarks.workloads.workload import Workload
from benchmarks.xla_best import Variant

ROOT = Path(__file__).resolve().parents[2]
XLA: Key = ("xla", None)
MONO: Key = ("jaxmono", "monolithic")
TORCH: Key = ("torch_compile", None)
SPEED = Speed(1e12, {"f32": 1e12})


CASES = [Case(Workload(name, name, "transformer", doubling), 2, "f32") for name in "abc"]


def timed(of: Key, device: float | None, pipelined: float | None = None, *, ratio: float = 1.0,
          model: str = "a", **more: Any) -> Row:
    """A row as one pass makes it: what belongs to a time can be told from it."""
    told: dict[str, Any] = {}
    if device is not None:
        told |= {"device_us": device, "busy_us": device - 1, "kernels": device / 10,
                 "copies": 0.0, "queued_us": device + 2, "profile": {"k": device}}
    if pipelined is not None:
        told |= {"pipelined_us": pipelined, "pipelined_us_low": pipelined - 1,
                 "pipelined_us_high": pipelined + 1, "ratio_to_xla": ratio,
                 "throttled": False, "throttle_reasons": f"at {pipelined}"}
    told = {"floor_us": 10.0, **told, **more}
    return Row(model, 2, "8", "f32", *of, **told)


def by_key(*rows: Row) -> dict[Key, Row]:
    return {(row.system, row.mode): row for row in rows}


# What is kept


def test_of_each_system_the_lowest_is_kept_with_what_belongs_to_it() -> None:
    before = by_key(
        timed(XLA, 358.0, 400.0, compile_s=5.0, variant="no triton gemm", notes="n",
              device_ratio_to_xla=1.0, latency_us_p50=90.0, latency_us_p95=91.0,
              latency_us_p99=99.0),
        timed(MONO, 200.0, 210.0, ratio=0.525, error=0.1, ok=True, device_ratio_to_xla=200 / 358,
              latency_us_p50=50.0, latency_us_p95=60.0, latency_us_p99=70.0))
    again = by_key(
        timed(XLA, 306.0, 420.0, compile_s=None, latency_us_p50=80.0, latency_us_p95=95.0,
              latency_us_p99=98.0),
        timed(MONO, 204.0, 205.0, ratio=205 / 420, latency_us_p50=55.0, latency_us_p95=56.0,
              latency_us_p99=57.0))
    xla, mono = passes.merged(before, again, 2)
    assert (xla.device_us, xla.busy_us, xla.kernels, xla.queued_us, xla.device_pass) == (
        306.0, 305.0, 30.6, 308.0, 2)
    assert xla.profile == {"k": 306.0}
    assert (xla.pipelined_us, xla.pipelined_us_low, xla.pipelined_us_high, xla.pipelined_pass,
            xla.throttle_reasons) == (400.0, 399.0, 401.0, 1, "at 400.0")
    assert (xla.latency_us_p50, xla.latency_us_p95, xla.latency_us_p99) == (80.0, 95.0, 98.0)
    assert (xla.compile_s, xla.variant, xla.notes) == (5.0, "no triton gemm", "n")
    assert (mono.device_us, mono.busy_us, mono.device_pass) == (200.0, 199.0, 1)
    assert (mono.pipelined_us, mono.pipelined_pass, mono.throttle_reasons) == (205.0, 2, "at 205.0")
    assert (mono.latency_us_p50, mono.latency_us_p99) == (50.0, 70.0)
    assert (mono.error, mono.ok, xla.passes, mono.passes) == (0.1, True, 2, 2)
    # Ratios are of what is kept.
    assert mono.device_ratio_to_xla == 200 / 306 and xla.device_ratio_to_xla == 1
    assert mono.ratio_to_xla == 205 / 400 and xla.ratio_to_xla == 1
    assert xla.roofline == 10 / 306 and mono.roofline == 10 / 200


def test_a_sorted_table_has_no_row_that_another_replaced(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    folder.add(timed(XLA, 358.0), timed(MONO, 200.0), timed(XLA, 90.0, model="b"))
    folder.add(timed(XLA, 306.0, passes=2))
    folder.sort([("b", 2, "f32"), ("a", 2, "f32")])
    assert [(r.model, r.system, r.device_us) for r in folder.rows()] == [
        ("b", "xla", 90.0), ("a", "xla", 306.0), ("a", "jaxmono", 200.0)]


@pytest.mark.parametrize(("lower", "kept"), [(1, 0.7), (2, 0.6)])
def test_times_of_one_pass_keep_its_own_median_of_ratios(lower: int, kept: float) -> None:
    """Which is not the quotient of the medians."""
    first = by_key(timed(XLA, 10.0, 100.0), timed(MONO, 10.0, 50.0, ratio=0.7))
    off = -1 if lower == 2 else 1
    again = by_key(timed(XLA, 10.0, 100.0 + off), timed(MONO, 10.0, 50.0 + off, ratio=0.6))
    _, mono = passes.merged(first, again, 2)
    assert (mono.ratio_to_xla, mono.pipelined_pass) == (kept, lower)


def test_a_third_pass_finds_both_times_together_again() -> None:
    rows = by_key(timed(XLA, 9.0, 100.0), timed(MONO, 9.0, 50.0, ratio=0.7))
    ratios: list[float | None] = []
    for number, (theirs, mine, ratio) in enumerate(
            [(90.0, 55.0, 0.8), (95.0, 60.0, 0.9), (80.0, 40.0, 0.65)], 2):
        rows = by_key(*passes.merged(rows, by_key(
            timed(XLA, 9.0, theirs), timed(MONO, 9.0, mine, ratio=ratio)), number))
        ratios.append(rows[MONO].ratio_to_xla)
    assert ratios == [50 / 90, 50 / 90, 0.65]
    assert [r.passes for r in rows.values()] == [4, 4] == [r.pipelined_pass for r in rows.values()]


def test_what_fails_in_a_later_pass_keeps_its_row() -> None:
    before = by_key(timed(XLA, 300.0, 400.0, notes="n"), timed(MONO, 200.0, 210.0, ratio=0.5))
    again = by_key(timed(XLA, 100.0, 100.0, status="failed", reason="out of memory"),
                   timed(MONO, 190.0, 195.0))
    xla, mono = passes.merged(before, again, 2)
    assert xla == dataclasses.replace(
        before[XLA], notes="n; pass 2 failed: out of memory", passes=2, roofline=10 / 300,
        device_ratio_to_xla=1.0)
    assert mono.device_ratio_to_xla == 190 / 300 and mono.ratio_to_xla == 195 / 400
    # XLA has failed in the first pass: there is nothing to be a multiple of.
    (alone,) = passes.merged({MONO: before[MONO]}, {MONO: dataclasses.replace(
        again[MONO], ratio_to_xla=None)}, 2)
    assert alone.ratio_to_xla is alone.device_ratio_to_xla is None and alone.roofline == 10 / 190


def test_figures_that_are_missing_or_not_sound_change_nothing() -> None:
    row = timed(MONO, 200.0, 210.0, notes="the mean")
    for again in (timed(MONO, None), timed(MONO, 1.0, notes="another trouble")):
        (kept,) = passes.merged({MONO: row}, {MONO: again}, 2)
        assert kept == dataclasses.replace(row, passes=2, roofline=10 / 200)
    (kept,) = passes.merged({MONO: row}, {MONO: timed(MONO, 1.0, notes="the mean")}, 2)
    assert kept.device_us == 1.0
    (kept,) = passes.merged({MONO: timed(MONO, None)}, {MONO: timed(MONO, 5.0, 6.0)}, 2)
    assert (kept.device_us, kept.pipelined_us, kept.device_pass) == (5.0, 6.0, 2)


def test_from_the_third_pass_on_what_was_seen_twice_is_not_timed_again() -> None:
    def rows(*times: float) -> list[Row]:
        kept = by_key(timed(XLA, times[0]), timed(MONO, 50.0))
        for number, us in enumerate(times[1:], 2):
            kept = by_key(*passes.merged(kept, by_key(timed(XLA, us), timed(MONO, 50.5)), number))
        return list(kept.values())

    assert passes.missing(rows(300.0), 2)  # a second pass there always is
    assert not passes.missing(rows(300.0, 305.9), 3)
    assert passes.missing(rows(300.0, 306.1), 3) and passes.missing(rows(306.1, 300.0), 3)
    for times in ((350.0, 306.1, 300.0), (300.0, 350.0, 306.1), (306.1, 350.0, 300.0)):
        assert passes.missing(rows(*times), 4), times
    for times in ((350.0, 305.9, 300.0), (300.0, 350.0, 305.9), (305.9, 350.0, 300.0)):
        assert not passes.missing(rows(*times), 4), times
    # Short ones are known to two microseconds.
    assert not passes.missing(rows(20.0, 21.9), 3) and passes.missing(rows(20.0, 22.1), 3)
    # jaxmono's, too; what was not timed or has failed is not waited for.
    mono = timed(MONO, 100.0, device_us_next=110.0)
    assert passes.missing([*rows(300.0, 300.0)[:1], mono], 3)
    for end in (dataclasses.replace(mono, status="failed", reason="no"), timed(MONO, None)):
        assert not passes.missing([*rows(300.0, 300.0)[:1], end], 3)


def test_a_trace_that_is_not_sound_confirms_nothing() -> None:
    (row,) = passes.merged({XLA: timed(XLA, 300.0)}, {XLA: timed(XLA, 299.0, notes="half")}, 2)
    assert (row.device_us, row.device_us_next) == (300.0, None) and passes.missing([row], 3)


def test_a_lost_process_costs_the_row_in_the_first_pass_only() -> None:
    row = timed(MONO, 200.0)
    first = passes.lost(row, "died")
    assert (first.status, first.reason) == ("failed", "died")
    later = passes.lost(dataclasses.replace(row, passes=2), "died")
    assert (later.status, later.notes) == ("ok", "pass 2 failed: died")
    assert passes.missing([row], 2) and not passes.missing([later], 2)
    assert not passes.missing([first], 2) and passes.missing([first, row], 2)


# A whole run


class Fake:
    """`measure`, with times by (model, system, pass)."""

    def __init__(self, times: Mapping[tuple[str, str, int], float | str], *,
                 stops: tuple[str, int] = ("", 0)) -> None:
        self.calls: list[tuple[str, int, tuple[Key, ...], Anchor | None]] = []
        self._times, self._stops = times, stops

    def __call__(self, case: Case, settings: Settings, phases: Any = None,
                 anchor: Anchor | None = None, before: Mapping[Key, Row] | None = None,
                 ) -> list[Row]:
        number = 1 if before is None else next(iter(before.values())).passes + 1
        name = case.workload.name
        self.calls.append((name, number, settings.systems, anchor))
        if (name, number) == self._stops:
            raise KeyboardInterrupt
        assert before is None or (set(before) == set(settings.systems) and not settings.cpu_loads)
        rows = []
        for key in settings.systems:
            us = self._times.get((name, key[0], number), 100.0)
            more: dict[str, Any] = {"status": "failed", "reason": us} if isinstance(us, str) else {}
            rows.append(timed(key, None if isinstance(us, str) else us, model=name, **more))
        return rows


TIMES = {("a", "xla", 1): 358.0, ("a", "xla", 2): 306.0, ("a", "jaxmono", 1): 153.0,
         ("a", "jaxmono", 2): 155.0, ("b", "xla", 1): "no", ("b", "jaxmono", 1): "no",
         ("c", "jaxmono", 1): "no", ("c", "xla", 1): 50.0, ("c", "xla", 2): "not now"}


def run(fake: Fake, monkeypatch: pytest.MonkeyPatch, path: Path, *, resume: bool = False,
        systems: tuple[Key, ...] = (XLA, TORCH, MONO), speed: Speed | None = SPEED,
        count: int = 2, fresh: bool = False) -> int:
    monkeypatch.setattr(parts, "measure", fake)
    settings = Settings(systems, speed, cpu_loads=(0.5,))
    return parts.Run(Folder(path, resume=resume), settings, resume=resume, passes=count,
                     fresh=fresh).measure(CASES)


def test_a_run_goes_through_all_cases_twice_and_then_to_torch(monkeypatch: pytest.MonkeyPatch,
                                                               tmp_path: Path) -> None:
    fake, out = Fake(TIMES), tmp_path / "run"
    assert run(fake, monkeypatch, out) == 3  # of the first pass
    assert [call[:3] for call in fake.calls] == [
        *((name, 1, (XLA, MONO)) for name in "abc"),
        ("a", 2, (XLA, MONO)), ("c", 2, (XLA,)),  # nothing of b could be timed
        *((name, 1, (TORCH,)) for name in "abc")]
    # torch goes by the row that counts.
    assert fake.calls[5][3] == Anchor(MONO, None, 0.5)
    results = report.read(out)
    xla, mono = (results.row(("a", 2, "8", "f32"), s) for s in ("xla", "jaxmono monolithic"))
    assert xla and mono and (xla.device_us, mono.device_us) == (306.0, 153.0)
    assert results.ratio(("a", 2, "8", "f32"), "jaxmono monolithic") == 0.5
    assert (xla.device_pass, mono.device_pass, mono.passes) == (2, 1, 2)
    only = results.row(("c", 2, "8", "f32"), "xla")
    assert only and (only.device_us, only.notes) == (50.0, "pass 2 failed: not now")
    told = [json.loads(line) for line in (out / "phases.jsonl").read_text().splitlines()]
    assert [(t["case"][0], t["turns"]) for t in told] == [
        *((name, "turns") for name in "abc"), ("a", "turns_2"), ("c", "turns_2"),
        *((name, "turns_torch") for name in "abc")]


def test_where_nothing_is_timed_there_is_one_pass(monkeypatch: pytest.MonkeyPatch,
                                                  tmp_path: Path) -> None:
    fake = Fake({})
    run(fake, monkeypatch, tmp_path / "run", speed=None, systems=(XLA, MONO))
    assert [call[:2] for call in fake.calls] == [("a", 1), ("b", 1), ("c", 1)]


def test_a_run_cut_short_in_a_later_pass_goes_on_there(monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    out, systems = tmp_path / "run", (XLA, MONO)
    with pytest.raises(KeyboardInterrupt):
        run(Fake(TIMES, stops=("c", 2)), monkeypatch, out, systems=systems)
    assert report.write(out) is not None and "306" in (out / report.TABLE).read_text()
    fake = Fake(TIMES)
    run(fake, monkeypatch, out, systems=systems, resume=True, count=3)
    assert [call[:3] for call in fake.calls] == [
        ("c", 2, (XLA,)), ("a", 3, systems), ("c", 3, (XLA,))]
    assert {r.passes for r in report.read(out).rows if r.status == "ok"} == {3}
    fake = Fake(TIMES)
    run(fake, monkeypatch, out, systems=systems, resume=True, count=3)
    assert not fake.calls


def test_with_a_process_for_each_later_case_the_table_is_the_same(monkeypatch: pytest.MonkeyPatch,
                                                                  tmp_path: Path) -> None:
    """And each pass has its own connections to the GPU."""
    variable, had = connections.VARIABLE, []

    class Noted(Fake):
        def __call__(self, *args: Any, **more: Any) -> list[Row]:
            had.append(os.environ.get(variable))
            return super().__call__(*args, **more)

    whole, fake, statuses = Fake(TIMES), Noted(TIMES), []
    run(whole, monkeypatch, tmp_path / "whole")
    monkeypatch.setenv(supervise.STATE, str(tmp_path / "state.json"))
    monkeypatch.setattr(connections, "_GIVEN", False)
    while len(statuses) < 20:
        monkeypatch.delenv(variable, raising=False)  # as a process begins
        connections.take()
        before = len(fake.calls)
        try:
            run(fake, monkeypatch, tmp_path / "parts", resume=bool(statuses), fresh=True)
            break
        except SystemExit as left:
            statuses.append((left.code, len(fake.calls) - before))
    assert fake.calls == whole.calls
    assert had == [connections.of_pass({2: 2}.get(call[1])) for call in fake.calls]
    assert None in had and "1" in had
    # One process for the first pass, which tells of its bad rows, one for each case of the second,
    # one that finds that torch needs other connections; torch's part is the last one's.
    assert statuses == [(supervise.NEXT_BAD, 3), (supervise.NEXT, 1), (supervise.NEXT, 1),
                        (supervise.NEXT, 0)]
    assert [call[3] is not None for call in fake.calls[-3:]] == [True] * 3
    assert report.read(tmp_path / "parts").rows == report.read(tmp_path / "whole").rows


def test_connections_that_were_given_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(supervise.STATE, str(tmp_path / "state.json"))
    monkeypatch.setenv(connections.VARIABLE, "4")
    monkeypatch.setattr(connections, "_GIVEN", True)
    connections.ask(2)
    connections.take()
    assert os.environ[connections.VARIABLE] == "4"
    assert connections.right(1) and connections.right(2) and connections.right(None)


WORKER = """
import json, os, signal, sys, time
from benchmarks import parts, supervise
from benchmarks.data import Case
from benchmarks.machine import Speed
from benchmarks.measure import Settings
from benchmarks.results import Folder
from benchmarks.row import Row
from benchmarks.workloads import find
from pathlib import Path

out, count = sys.argv[1], int(sys.argv[2])
number, again = supervise.number(), "--resume" in sys.argv

def measure(case, settings, phases=None, anchor=None, before=None):
    at = 1 if before is None else 2
    if case.batch == 3 and at == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if anchor is None and (case.batch, at) in ((4, 1), (1, 2)):
        time.sleep(2)  # what the second pass, or torch, is to begin with is still in the one before
    time.sleep(0.05)
    key = settings.systems[0][0]
    assert key != "torch_compile" or anchor.device_ratio_to_xla == (2.0 if case.batch == 3 else 4.0)
    us = {"xla": (100.0, 50.0), "jaxmono": (200.0, 300.0)}
    return [Row(case.workload.name, case.batch, "8", "bf16", *k, floor_us=1.0,
                device_us=us[k[0]][at - 1] if k[0] in us else 9.0, device_ratio_to_xla=us[k[0]][
                    at - 1] / us["xla"][at - 1] if k[0] in us else None) for k in settings.systems]

parts.measure = measure
parts._answers = lambda: True
if number:
    folder = Folder(supervise.folder_opened(), resume=True)
else:
    folder = Folder(Path(out), resume=again)
    supervise.opened(folder.path)
settings = Settings((("xla", None), ("jaxmono", "monolithic"), ("torch_compile", None)),
                    Speed(1.0, {"bf16": 1.0}))
run = parts.Run(folder, settings, resume=again, workers=count, passes=2)
run.measure([Case(find("softmax"), batch, "bf16") for batch in range(1, 5)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_workers_share_a_later_pass_too_and_one_may_die(monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Path, count: int) -> None:
    (tmp_path / "fake_passes.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    out = tmp_path / "out"
    assert supervise.supervise("fake_passes", [str(out), str(count)], limit_s=60,
                               gpus=[str(k) for k in range(count)]) == 1  # one has died
    results = report.read(out)
    assert len(results.rows) == 12 and all(r.status == "ok" for r in results.rows)
    for row in results.rows:
        if row.system == "torch_compile":
            continue
        assert row.passes == 2
        lost = row.batch == 3
        assert ("pass 2 failed: the process was ended by SIGSEGV" in row.notes) is lost
        assert row.device_us == {"xla": 100.0 if lost else 50.0, "jaxmono": 200.0}[row.system]
        assert row.system == "xla" or row.device_ratio_to_xla == (2.0 if lost else 4.0)
    told = [json.loads(line) for line in (out / "phases.jsonl").read_text().splitlines()]
    assert sorted((t["turns"], t["case"]) for t in told) == sorted(
        (turns, f"softmax b{batch} bf16") for turns in ("turns", "turns_2", "turns_torch")
        for batch in range(1, 5) if (turns, batch) != ("turns_2", 3))


# What a later pass measures


def test_a_later_pass_takes_times_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_times(asked: Any, failures: Any) -> Any:
        return {key: trace.DeviceTimes(us, 4.0, 1, 0, {}) for key, us in zip(asked, (10.0, 5.0),
                                                                           strict=True)}

    monkeypatch.setattr(trace, "device_times", device_times)
    before = by_key(timed(XLA, 10.0, model="a", variant="default"),
                    timed(MONO, 5.0, model="a", status="fallback", reason="no GPU"))
    phases = Phases()
    settings = Settings((XLA, MONO), SPEED, rounds=3, seconds=0.02)
    rows = list(measure(CASES[0], settings, phases, before=before))
    assert "reference" not in phases.seconds
    assert {"pipelined", "latency", "queued", "trace"} < set(phases.seconds)
    for row in rows:
        assert row.status == "ok" and row.pipelined_us and row.latency_us_p50 and row.device_us
        assert row.error is row.compile_s is row.ok is row.floor_us is None and not row.notes
    xla, mono = passes.merged(before, by_key(*rows), 2)
    assert (xla.status, mono.status, mono.reason) == ("ok", "fallback", "no GPU")
    assert mono.device_ratio_to_xla == 0.5 and mono.ratio_to_xla == rows[1].ratio_to_xla


def test_a_later_pass_takes_the_variants_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = data.make(CASES[0], sets=2)
    taken: list[Any] = []

    def running(of: Data, *which: Any, **_: Any) -> JaxRunning:
        taken.append(which)
        return JaxRunning("x", of.program.step, of, Facts(status="fallback"))

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for module in (xla_best, jaxmono_best):
        monkeypatch.setattr(module, "_running", running)
    check, chosen = Check(made, ()), Variant("cudnn gemm fusion", "cudnn")
    xla_best.prepare(made, xla_best.Choices(None), search=True, phases=Phases(), check=check,
                     only=str(chosen))
    made.kept[xla_best.XLA_FLAGS] = "no triton gemm"
    jaxmono_best.prepare(made, "auto", xla_best.Choices(None), interpret=False, phases=Phases(),
                         check=check, only="default")
    assert taken == [(chosen,), ("auto", "default")]
    for variant in (Variant(), Variant("no triton gemm", "xla")):
        assert Variant.named(str(variant)) == variant
    with pytest.raises(ValueError, match="no variant"):
        Variant.named("as fast as can be")


def test_what_one_worker_has_chosen_the_others_know(tmp_path: Path) -> None:
    one, other = Kept(tmp_path / "kept.json"), Kept(tmp_path / "kept.json")
    assert other.get("a") is None
    one.put("a", 1)
    assert other.get("a") == 1 and other.get("b") is None
    other.put("a", 2)
    assert one.get("a") == 1 and Kept(tmp_path / "kept.json").get("a") == 2

"""XLA at its best: undisturbed by torch, and right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import pytest
from tiny_workload import doubling

from benchmarks import data, parts, timing, trace, xla_best
from benchmarks.compile_times import CompileTimes
from benchmarks.data import Case, Data
from benchmarks.errors import Check
from benchmarks.machine import Speed
from benchmarks.measure import Anchor, Key, Settings, measure
from benchmarks.phases import Phases
from benchmarks.results import Folder
from benchmarks.row import Row
from benchmarks.running import Facts
from benchmarks.systems_jax import JaxRunning
from benchmarks.workloads.workload import Workload
from benchmarks.xla_best import Variant

MONO: Key = ("jaxmono", "monolithic")
TORCH: Key = ("torch_compile", None)


DOUBLING = Workload("doubling", "doubling", "transformer", doubling)
CASE = Case(DOUBLING, 2, "f32")


def test_ratios_to_xla_come_by_way_of_the_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_times(asked: Any, failures: Any) -> Any:
        return {key: trace.DeviceTimes({MONO: 50.0, TORCH: 150.0}[key], 40.0, 7, 1, {})
                for key in asked}

    def as_jax(made: Data, system: str) -> JaxRunning:
        return JaxRunning(system, jax.jit(made.program.step, donate_argnums=(1,)).lower(
            *made.arguments()).compile(), made, dataclasses.replace(run_facts()))

    monkeypatch.setattr(trace, "device_times", device_times)
    monkeypatch.setattr("benchmarks.measure.prepare_torch", as_jax)
    settings = Settings((TORCH,), Speed(1e12, {"f32": 1e12}), rounds=3, seconds=0.02)
    (row,) = measure(CASE, settings, Phases(), Anchor(MONO, 0.5, 0.25))
    assert (row.system, row.device_us) == ("torch_compile", 150.0)
    assert row.device_ratio_to_xla == 0.75  # 3 times the anchor, which is a quarter of XLA
    assert row.ratio_to_xla and row.floor_us and row.error is None
    (alone,) = measure(CASE, settings, Phases())
    assert alone.ratio_to_xla is None and alone.device_us == 150.0
    (unknown,) = measure(CASE, settings, Phases(), Anchor(MONO))
    assert unknown.ratio_to_xla is None and unknown.device_ratio_to_xla is None


def run_facts() -> Any:
    from benchmarks.running import Facts

    return Facts(kernels=1)


def test_torch_comes_after_all_that_it_could_disturb(monkeypatch: pytest.MonkeyPatch,
                                                     tmp_path: Path) -> None:
    order: list[tuple[str, tuple[Key, ...], Anchor | None]] = []

    def measured(case: Case, settings: Settings, phases: Any = None,
                 anchor: Anchor | None = None) -> list[Row]:
        order.append((case.name, settings.systems, anchor))
        return [Row(case.workload.name, case.batch, "8", case.dtype, *key, ratio_to_xla=0.5,
                    device_ratio_to_xla=0.25) for key in settings.systems]

    monkeypatch.setattr(parts, "measure", measured)
    cases = [CASE, dataclasses.replace(CASE, batch=3)]
    settings = Settings((("xla", None), TORCH, MONO), Speed(1e12, {"f32": 1e12}))
    assert parts.Run(Folder(tmp_path / "run"), settings).measure(cases) == 0
    own, anchor = (("xla", None), MONO), Anchor(MONO, 0.5, 0.25)
    assert order == [(cases[0].name, own, None), (cases[1].name, own, None),
                     (cases[0].name, (TORCH,), anchor), (cases[1].name, (TORCH,), anchor)]


def test_a_wrong_variant_is_left_out_however_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    made = data.make(CASE, sets=2)
    wanted = data.reference(made, sets=2)
    speeds = {"default": 30.0, "all in command buffers": 10.0, "no triton gemm": 20.0}

    def compile_xla(step: Any, of: Data, options: Any) -> Any:
        name = next(k for k, v in xla_best.FLAGS.items() if v is options)
        if name not in speeds:
            raise ValueError(f"no such flag: {name}")
        wrong = name == "all in command buffers"

        def program(state: Any, carry: Any, x: jax.Array) -> Any:
            out, carry = step(state, carry, x)
            return (out * 0 if wrong else out), carry

        return jax.jit(program, donate_argnums=(1,)).lower(*of.arguments()).compile(), run_facts()

    def scores(running: Any) -> Any:
        return [(us, us) for us in (speeds[r.chosen.flags] for r in running)]

    monkeypatch.setattr(xla_best, "compile_xla", compile_xla)
    monkeypatch.setattr(xla_best, "scores", scores)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = xla_best.prepare(made, xla_best.Choices(None), search=True, phases=Phases(),
                             check=Check(made, wanted))
    assert found.facts.variant == str(Variant("no triton gemm"))
    assert "all in command buffers: its results are wrong" in found.facts.notes
    assert "cudnn gemm fusion: ValueError" in found.facts.notes


def test_variants_are_compared_by_traced_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host's clock only where there is no trace of one."""
    class Program:
        pass

    traced, hidden = Program(), Program()
    times = {0: timing.Times((30.0,)), 1: timing.Times((40.0,))}
    told = {0: trace.DeviceTimes(20.0, 18.0, 1, 0, {}), 1: trace.NoDeviceTrace("no kernels")}
    monkeypatch.setattr(timing, "pipelined", lambda running, **_: times)
    monkeypatch.setattr(timing, "issuing_us", lambda running, us: 5.0)
    monkeypatch.setattr(timing, "queued", lambda running, us, *, issuing: {
        id(traced): 99.0, id(hidden): 25.0}[id(running)])
    monkeypatch.setattr(trace, "device_times", lambda asked, failures: told)
    running: Any = [traced, hidden]
    assert xla_best.scores(running) == [(20.0, 30.0), (25.0, 40.0)]


def test_what_comes_from_a_cache_shows_what_compiling_took(tmp_path: Path) -> None:
    path = tmp_path / "compiled.json"
    first, other = CompileTimes(path), CompileTimes(path)
    fresh = Facts(variant="default", compile_s=2.0, tune_s=3.0)
    assert first.told("bert b1, xla", fresh) == fresh
    other.told("bert b1, jaxmono", Facts(compile_s=5.0))  # neither loses what the other has put
    later = CompileTimes(path)
    cached = later.told("bert b1, xla", Facts(variant="default", kernels=7))
    assert (cached.compile_s, cached.tune_s, cached.kernels) == (2.0, 3.0, 7)
    assert "earlier run" in cached.notes
    assert later.told("bert b1, jaxmono", Facts()).compile_s == 5.0
    unknown = Facts(variant="no triton gemm")
    assert later.told("bert b1, xla", unknown) == unknown
    assert CompileTimes(None).told("bert b1, xla", Facts()) == Facts()

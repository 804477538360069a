"""The tuner with a profiler that makes times up, and what the build does with its choices."""

from __future__ import annotations

import ast
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from models import graph_of
from tuning_harness import CONDITIONS, FakeProfiler, matmul, plan_of, spec

import jaxmono
from jaxmono import _config, _tune
from jaxmono._build import Built, Job, build
from jaxmono._device import Facts
from jaxmono._errors import ConfigError, JaxmonoWarning
from jaxmono._key import tuned_key
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.target import cuda_target, interpret_target
from jaxmono.fusion.plan import Device, Plan
from jaxmono.tuning import Problem, Tuner, TuningCache, problems_of
from jaxmono.tuning.cache import NAME
from jaxmono.tuning.choice import Row
from jaxmono.tuning.problem import schedule_text
from jaxmono.tuning.profiler import NoRoomError, UnavailableError
from jaxmono.tuning.tuner import Choices, tuned_schedule


def two(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ w) @ v


TWO = spec(128, 64), spec(64, 256), spec(256, 64)


def second_best(rank: int) -> float:
    return 1.0 if rank == 2 else 5.0 + rank


def no_plan() -> Plan:
    raise AssertionError("no plan is needed")


def test_measured_once_then_found_without_a_plan(tmp_path: Path) -> None:
    plan = plan_of(two, *TWO)
    first, second = problems_of(plan, CONDITIONS)
    profiler = FakeProfiler(second_best)
    cache = TuningCache(tmp_path / NAME)
    tuner = Tuner(cache, lambda: profiler, reporting=True)
    choices = tuner.choices("kernel", CONDITIONS, lambda: plan)
    assert choices.changed == {p.sig.key: schedule_text(p.candidates[2]) for p in (first, second)}
    assert (choices.measured, choices.total) == (2, 2)
    assert profiler.closed and len(profiler.measured) == 2
    # Both are mma in the second problem, which waits for a barrier that producers are ahead of.
    assert [(r.analytic_us, r.best_us, r.changed, r.fresh) for r in tuner.reports] == [
        (5.0, 1.0, True, True), (6.0, 2.0, True, True)]
    # The same process, another one, and one that never measures.
    for make in (lambda: pytest.fail("it measured again"), None):
        again = Tuner(TuningCache(tmp_path / NAME), make)
        assert again.choices("kernel", CONDITIONS, no_plan) == choices
    # The same groups in another kernel.
    other = Tuner(TuningCache(tmp_path / NAME))
    assert other.choices("other kernel", CONDITIONS, lambda: plan) == choices
    assert other.choices("other kernel", CONDITIONS, no_plan) == choices


def test_an_empty_cache_costs_nothing(tmp_path: Path) -> None:
    assert Tuner(TuningCache(tmp_path / NAME)).choices("k", CONDITIONS, no_plan) == Choices()
    assert list(tmp_path.iterdir()) == []


def test_ties_and_failures_keep_the_analytic_choice() -> None:
    plan = plan_of(matmul, *TWO[:2])
    for us in (lambda rank: 5.0 - 0.01 * (rank == 1), lambda rank: "hangs" if rank else 5.0,
               lambda rank: "all fail"):
        tuner = Tuner(TuningCache(None), lambda us=us: FakeProfiler(us))
        assert tuner.choices("k", CONDITIONS, lambda: plan).changed == {}


def test_failures_are_rows_with_reasons_and_not_tried_again() -> None:
    plan = plan_of(matmul, *TWO[:2])
    (p,) = problems_of(plan, CONDITIONS)
    cache = TuningCache(None)
    tuner = Tuner(cache, lambda: FakeProfiler(
        lambda rank: "it hangs" if rank == 1 else None if rank > 3 else 5.0), reporting=True)
    tuner.choices("k", CONDITIONS, lambda: plan)
    assert [(r.rank, r.us, r.reason) for r in cache.rows(p.key)][:3] == [
        (0, 5.0, ""), (1, None, "it hangs"), (2, 5.0, "")]
    assert not cache.complete(p.key), "some were not reached"
    (report,) = tuner.reports
    assert (report.measured, report.failed, report.failures) == (3, 1, ("it hangs",))
    # What was not reached is measured the next time, the failed one is left alone.
    rest = FakeProfiler(lambda rank: 1.0 if rank == 1 else 5.0)
    Tuner(cache, lambda: rest).choices("k", CONDITIONS, lambda: plan)
    assert cache.complete(p.key)
    assert len(cache.rows(p.key)) == len(p.candidates)
    assert cache.rows(p.key)[1] == Row(schedule_text(p.candidates[1]), 1, None, 0.0, "it hangs")


def test_the_budget_is_shared_and_told(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of(two, *TWO)

    class Slow(FakeProfiler):
        def measure(self, prepared: Any, deadline: float) -> tuple[Row, ...]:
            shares.append(deadline - time.monotonic())
            time.sleep(0.3)
            return super().measure(prepared, deadline)

    shares: list[float] = []
    tuner = Tuner(TuningCache(None), lambda: Slow(second_best), seconds=0.25, reporting=True)
    with caplog.at_level(logging.INFO, "jaxmono.tuning"):
        choices = tuner.choices("k", CONDITIONS, lambda: plan)
    assert (choices.measured, choices.total, len(choices.changed)) == (1, 2, 1)
    assert len(shares) == 1 and shares[0] == pytest.approx(0.125, abs=0.05)
    assert "were over before 1 of 2 groups were measured" in tuner.notes[0]
    assert "1/2 dot" in caplog.text and "best 1.00 us" in caplog.text
    assert math.isnan(tuner.reports[1].best_us) and not tuner.reports[1].changed


def test_no_gpu_is_one_warning_and_a_large_problem_is_passed_over() -> None:
    plan = plan_of(two, *TWO)

    class Failing(FakeProfiler):
        def measure(self, prepared: Any, deadline: float) -> tuple[Row, ...]:
            errors.append(kind)
            raise kind("no room")

    errors: list[type[UnavailableError]] = []
    kind: type[UnavailableError] = NoRoomError
    tuner = Tuner(TuningCache(None), lambda: Failing(second_best))
    assert tuner.choices("k", CONDITIONS, lambda: plan).changed == {}
    assert len(errors) == 2 and "is not measured: no room" in tuner.notes[0]
    errors.clear()
    kind = UnavailableError
    tuner = Tuner(TuningCache(None), lambda: Failing(second_best))
    with pytest.warns(JaxmonoWarning, match=r"cannot be measured \(no room\)"):
        assert tuner.choices("k", CONDITIONS, lambda: plan).changed == {}
    assert len(errors) == 1


def test_tuned_schedule_takes_candidates_only() -> None:
    plan = plan_of(matmul, *TWO[:2])
    (p,) = problems_of(plan, CONDITIONS)
    analytic = default_schedule(plan, CONDITIONS.target, CONDITIONS.device)
    text = schedule_text(p.candidates[3])
    assert tuned_schedule(plan, CONDITIONS, {p.sig.key: text}).sigs[p.sig.key] == p.candidates[3]
    for changed in ({}, {p.sig.key: '{"type": "DotSchedule", "bm": 7}'}, {"unknown": text}):
        assert tuned_schedule(plan, CONDITIONS, changed) == analytic


# ---- the build ---------------------------------------------------------------------------------

H200 = Facts(Device(name="Test GPU"), cuda_target("sm_90a"))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAXMONO_CACHE_DIR", str(tmp_path))
    return tmp_path


def build_two(facts: Facts = H200) -> Built:
    pytest.importorskip("cuda.bindings.nvrtc")
    return build(Job("mono_two", graph_of(two, *TWO), facts, "auto"), _config.read(),
                 plan_only=False)


def use(monkeypatch: pytest.MonkeyPatch, us: Callable[[int], float | str | None]) -> FakeProfiler:
    profiler = FakeProfiler(us)
    monkeypatch.setattr(_tune, "_profiler", lambda: profiler)
    return profiler


def test_a_tuned_kernel_has_its_own_key_and_schedule(
        fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = use(monkeypatch, second_best)
    plain = build_two()
    assert profiler.measured == [] and plain.choices == Choices() and not plain.cached
    monkeypatch.setenv("JAXMONO_TUNE", "on")
    tuned = build_two()
    assert len(profiler.measured) == 2 and tuned.choices.measured == 2
    assert tuned.key != plain.key and tuned.key == tuned_key(plain.key, tuned.choices.changed)
    assert plain.program and tuned.program and tuned.program.source != plain.program.source
    for text in tuned.choices.changed.values():
        assert text
    # From now on the tuned one is used, from the cache, without a plan; "off" uses the other.
    monkeypatch.delenv("JAXMONO_TUNE")
    again = build_two()
    assert again.cached and again.key == tuned.key and "plan" not in again.__dict__
    assert again.program and again.program.source == tuned.program.source
    monkeypatch.setenv("JAXMONO_TUNE", "off")
    off = build_two()
    assert off.cached and off.key == plain.key
    assert len(profiler.measured) == 2


def test_measured_but_unchanged_is_the_same_kernel(
        fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_two()
    use(monkeypatch, lambda rank: 1.0 + rank)
    monkeypatch.setenv("JAXMONO_TUNE", "on")
    tuned = build_two()
    assert tuned.key == plain.key and tuned.cached and tuned.choices.measured == 2


def test_tuning_that_breaks_is_a_warning(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *_: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Tuner, "choices", broken)
    with pytest.warns(JaxmonoWarning, match=r"measured schedules failed \(RuntimeError: a fault"):
        assert build_two().program is not None


def test_the_interpreter_and_absent_devices_are_not_tuned(
        fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_TUNE", "on")
    profiler = use(monkeypatch, second_best)
    for facts in (Facts(Device(), interpret_target()), Facts(Device(), H200.target, here=False)):
        assert _tune.choices("k", facts, _config.read(), no_plan) == Choices()
    assert profiler.measured == []


def test_without_a_cache_directory_nothing_is_written(
        fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_CACHE", "off")
    monkeypatch.setenv("JAXMONO_TUNE", "on")
    _tune._cache.cache_clear()
    profiler = use(monkeypatch, second_best)
    assert build_two().choices.measured == 2 and build_two().choices.measured == 2
    assert len(profiler.measured) == 2, "this process remembers"
    assert list(fresh.iterdir()) == []
    _tune._cache.cache_clear()


# ---- the public face ---------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("on", "on"), ("OFF", "off"), ("cached", "cached"),
                                              ("", "cached")])
def test_setting(text: str, value: str) -> None:
    assert _config.read({"JAXMONO_TUNE": text}).tune == value


@pytest.mark.parametrize(("name", "text", "says"), [
    ("JAXMONO_TUNE", "cache", "Did you mean 'cached'?"),
    ("JAXMONO_TUNE", "1", "'cached', 'on' or 'off'"),
    ("JAXMONO_TUNE_SECONDS", "0", "from 1 to 86400"),
])
def test_bad_settings(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as info:
        _config.read({name: text})
    assert name in str(info.value) and says in str(info.value)


def test_tune_without_a_gpu_says_so() -> None:
    x = np.ones((8, 8), np.float32)
    report = jaxmono.tune(lambda x: x @ x)(x)
    assert report.problems == () and "interpret=True" in report.note
    assert str(report).startswith("jaxmono: 0 tuned groups of ops")
    own = jaxmono.jit(lambda x: x @ x, interpret=True)
    assert "no kernel of this function has schedules" in jaxmono.tune(own)(x).note


def test_tune_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="seconds must be positive, not 0"):
        jaxmono.tune(lambda x: x, seconds=0)
    with pytest.raises(TypeError, match=r"already is a jaxmono.jit function.*'mode'"):
        jaxmono.tune(jaxmono.jit(lambda x: x), mode="auto")
    with pytest.raises(TypeError, match="must be callable"):
        jaxmono.tune(3)  # type: ignore[arg-type]


def test_tune_measures_whatever_the_variable_says_and_reports(
        fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXMONO_TUNE", "off")
    profiler = use(monkeypatch, second_best)
    with _tune.tuning(9.0) as request:
        built = build_two()
    assert built.choices.measured == 2 and len(profiler.measured) == 2
    assert [r.fresh for r in request.reports] == [True, True]
    with _tune.tuning(None) as request:
        build_two()
    assert [r.fresh for r in request.reports] == [False, False] and len(profiler.measured) == 2
    text = str(jaxmono.TuningReport(tuple(request.reports), 1.5, "a note"))
    assert "2 tuned groups of ops, 0 measured now, 1.5 s" in text and "note: a note" in text
    assert "1.00 us (5.00x)" in text


def test_problem_names() -> None:
    (p,) = problems_of(plan_of(matmul, spec(128, 768), spec(768, 256)), CONDITIONS)
    assert isinstance(p, Problem) and str(p) == "dot 128x256x768 bf16"


def test_the_room_imports_only_rooms_below_it_and_no_jax() -> None:
    """The GPU worker imports nothing of jaxmono at all."""
    allowed = ("jaxmono.tuning", "jaxmono.codegen", "jaxmono.fusion", "jaxmono.hlo",
               "jaxmono._errors")
    folder = Path(jaxmono.__file__).parent / "tuning"
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [
                a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] != "jax", f"{file.name} imports {name}"
                if name.startswith("jaxmono"):
                    assert name.startswith(allowed) and file.name != "gpu_worker.py", \
                        f"{file.name} imports {name}"


def test_what_a_candidate_takes_longer_behind_a_barrier() -> None:
    """mma, where wgmma's producers are ahead: it is timed alone, and used in a kernel of stages."""
    first, second = problems_of(plan_of(two, *TWO), CONDITIONS)
    late = [{(s.family, p.late_us(schedule_text(s))) for s in p.candidates}
            for p in (first, second)]
    assert {us for _, us in late[0]} == {0.0}
    assert ("mma", 1.0) in late[1] and ("wgmma", 0.0) in late[1]
    assert first.late_us("no candidate") == 0.0
    assert first.key != second.key and first.fields["stage"] == ((1, 256, 64),)

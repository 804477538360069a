"""The profiler on a driver without a GPU: rotation, failures of every kind, time limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tuning_harness import fake_gpu, problem_of

from jaxmono.tuning.choice import Row, choose
from jaxmono.tuning.profiler import NoRoomError, UnavailableError

GOOD = {"us": 9.0, "value": 1.0}


def rows_of(folder: Path, behaviours: list[dict[str, Any]], *, run_seconds: float = 20.0,
            seconds: float = 60.0) -> dict[int, Row]:
    profiler = fake_gpu(folder, behaviours, run_seconds=run_seconds)
    try:
        prepared = profiler.prepare(problem_of())
        rows = profiler.measure(prepared, time.monotonic() + seconds)
        assert len({r.schedule for r in rows}) == len(rows)
        return {r.rank: r for r in rows}
    finally:
        profiler.close()


def test_every_candidate_gets_a_time_and_the_fastest_is_chosen(tmp_path: Path) -> None:
    count = len(problem_of().candidates)
    rows = rows_of(tmp_path, [GOOD, {"us": 7.0, "value": 1.0}, {"us": 8.0, "value": 1.01}])
    assert sorted(rows) == list(range(count)) and not any(r.reason for r in rows.values())
    assert rows[0].us == pytest.approx(9.0) and rows[1].us == pytest.approx(7.0)
    assert rows[3].us == pytest.approx(1000.0), "slow ones keep the time of their first rounds"
    assert choose(rows.values()) == rows[1]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("bad", "says"), [
    ({"error": "syntax"}, "it does not compile: syntax"),
    ({"error": "crash"}, "the compiler failed: its process ended with status 3"),
    ({"us": 1.0, "value": 1.0, "spills": 8}, "it spills 8 bytes"),
    ({"us": 1.0, "value": 1.0, "serialized": 1}, "ptxas lets its products wait for each other"),
    ({"us": 1.0, "value": 1.2}, "its results differ from the analytic choice's by 0.2"),
    ({"do": "refuse"}, "CUDA_ERROR_INVALID_IMAGE"),
    ({"do": "fault"}, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ({"do": "exit"}, "it ended the profiler: its process ended with status 139: a segmentation"),
])
def test_a_failing_candidate_has_a_reason_and_the_others_a_time(
        tmp_path: Path, bad: dict[str, Any], says: str) -> None:
    count = len(problem_of().candidates)
    rows = rows_of(tmp_path, [GOOD, bad, {"us": 6.0, "value": 1.0}])
    assert len(rows) == count
    assert rows[1].us is None and says in rows[1].reason
    assert all(r.us is not None for rank, r in rows.items() if rank != 1)
    chosen = choose(rows.values())
    assert chosen is not None and chosen.rank == 2


def test_a_candidate_that_hangs_is_killed(tmp_path: Path) -> None:
    begin = time.monotonic()
    rows = rows_of(tmp_path, [GOOD, {"do": "hang"}], run_seconds=1.5)
    assert time.monotonic() - begin < 30
    assert "no answer within 2 s" in rows[1].reason or "no answer within 1 s" in rows[1].reason
    assert rows[0].us is not None and rows[2].us is not None


def test_candidates_after_many_crashes_are_given_up(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [GOOD, *[{"do": "exit"}] * 20])
    assert sum("ended the profiler" in r.reason for r in rows.values()) == 6
    assert all(r.reason for rank, r in rows.items() if rank)


def test_what_there_is_no_time_for_has_no_row(tmp_path: Path) -> None:
    assert rows_of(tmp_path, [GOOD], seconds=0.0) == {}


def test_launches_that_cannot_be_captured_are_timed_plainly(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [GOOD, {"us": 5.0, "value": 1.0, "do": "no capture"}])
    assert rows[1].us == pytest.approx(5.0) and not rows[1].reason


def test_a_known_candidate_is_not_measured_again_but_the_analytic_one(tmp_path: Path) -> None:
    profiler = fake_gpu(tmp_path, [GOOD, GOOD])
    problem = problem_of()
    try:
        first = profiler.measure(profiler.prepare(problem), time.monotonic() + 60)
        skip = frozenset(r.schedule for r in first[:-1])
        again = profiler.measure(profiler.prepare(problem, skip), time.monotonic() + 60)
    finally:
        profiler.close()
    assert [r.rank for r in again] == [0, first[-1].rank]


def test_a_machine_without_room_or_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FREE", "1000")
    with pytest.raises(NoRoomError, match="do not fit the 1000 bytes"):
        rows_of(tmp_path, [GOOD])
    profiler = fake_gpu(tmp_path, [GOOD])
    profiler._gpu._command = ("false",)
    try:
        with pytest.raises(UnavailableError, match="ended with status 1"):
            profiler.measure(profiler.prepare(problem_of()), time.monotonic() + 60)
    finally:
        profiler.close()

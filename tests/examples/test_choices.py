"""`benchmarks.candidates`: what it tells of measured candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import candidates
from jaxmono.tuning.gpu_worker import CudaError


class FakeBench:
    """Candidate 0 takes 4 us, 1 takes 3, 2 computes something else, 3 cannot be launched."""

    def __init__(self, device: int) -> None:
        assert device == 0

    def problem(self, *buffers: Any) -> None:
        assert buffers[3] == 64  # the most that a candidate needs

    def load(self, launch: dict[str, Any]) -> dict[str, float]:
        assert Path(launch["cubin"]).is_absolute()
        if launch["id"] == 3:
            raise CudaError("CUDA: out of resources")
        return {"difference": 0.5 if launch["id"] == 2 else 0.0}

    def time(self, number: int) -> float:
        return {0: 4.0, 1: 3.0}[number]


def test_times_of_all_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    entries: list[dict[str, Any]] = [
        {"schedule": {"bn": 8 * k}, "launch": {"cubin": f"{k}.cubin"}, "scratch": 16 * k}
        for k in range(5)]
    entries[4] = {"schedule": {"bn": 64}, "reason": "it spills"}
    entries[3]["scratch"] = 64
    (tmp_path / candidates.INDEX).write_text(json.dumps([{
        "case": "dot", "problem": "dot 1x2x3", "candidates": entries, "inputs": [],
        "outputs": [], "aliases": []}]))
    monkeypatch.setattr(candidates, "Bench", FakeBench)
    candidates.time_all(tmp_path, turns=3)
    told = capsys.readouterr().out
    assert "analytic 4.00 us, best 3.00 us (1.333), 2 of 5 timed; bn 0 -> 8" in told
    assert "out of resources" in told
    assert "analytic / best: 1.333, geometric mean of 1" in told
    rows = [json.loads(x) for x in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [r["us"] for r in rows] == [4.0, 3.0, None, None, None]

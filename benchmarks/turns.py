"""Which process measures which case next, where several share a run.

Each case is taken by creating a file, which succeeds for one process only. The longest come first,
so that no process is left with a long one at the end; but a process stays with the model that it
has, whose weights are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.data import Case

_MICRO_S, _MODEL_S = 8.0, 25.0
"""Of a case that was never measured: about what one takes on an H200."""


class Turns:
    """The cases of a run, each taken once.

    Args:
      folder: that the processes share; None for one process alone, which goes by the table.
      seconds: of a case's name, from an earlier run.
      before: how many cases of the run were taken before there were turns.

    Attributes:
      taken, total: cases of the run, for the terminal.
    """

    def __init__(self, cases: Sequence[Case], folder: Path | None = None,
                 seconds: Mapping[str, float] | None = None, *, before: int = 0) -> None:
        self.taken = before
        self.total = before + len(cases)
        self._folder = folder
        self._left = list(cases)
        if folder is not None:
            folder.mkdir(exist_ok=True)
            self.total = len({_file(case) for case in cases} | set(os.listdir(folder)))
            # Stable, so that equal ones stay in the table's order.
            self._left.sort(key=lambda case: -expected_s(case, seconds or {}))

    def __iter__(self) -> Iterator[Case]:
        """Cases that are this process' own from then on."""
        model = ""
        while self._left:
            mine = [c for c in self._left if c.workload.name == model] if self._folder else []
            case = (mine or self._left)[0]
            self._left.remove(case)
            if self._take(case):
                model = case.workload.name
                yield case

    @property
    def waiting(self) -> bool:
        """Whether there is a case that nobody has taken."""
        if self._folder is None:
            return bool(self._left)
        taken = set(os.listdir(self._folder))
        return any(_file(case) not in taken for case in self._left)

    def _take(self, case: Case) -> bool:
        self.taken += 1
        if self._folder is None:
            return True
        try:
            (self._folder / _file(case)).touch(exist_ok=False)
        except FileExistsError:
            return False
        self.taken = len(os.listdir(self._folder))
        return True


def _file(case: Case) -> str:
    return case.name.replace(" ", "_")


def expected_s(case: Case, seconds: Mapping[str, float]) -> float:
    """What a case may take: what it took, else a guess; larger batches take longer."""
    guess = _MICRO_S if case.workload.family == "micro" else _MODEL_S
    return seconds.get(case.name, guess * (1 + case.batch / 100))


def seconds_of(runs: Path, turns: str, *, besides: Path) -> dict[str, float]:
    """Seconds of each case's name in the newest run of a folder of runs that tells them.

    Args:
      turns: name of the part of the run; a run without parts tells them all.
      besides: the folder of a run that is being made.
    """
    files = sorted(f for f in runs.glob("*/phases.jsonl") if f.parent.name != besides.name)
    lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
    told = [json.loads(line) for line in lines]
    return {t["case"]: t["seconds"]["total"] for t in told if t.get("turns", turns) == turns}

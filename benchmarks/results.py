"""The folder of a run: rows.jsonl, other.jsonl, phases.jsonl, header.json, and the report made of
them. Several processes may write to it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report.load import identity
from benchmarks.row import Row

ROWS, OTHER, HEADER = "rows.jsonl", "other.jsonl", "header.json"
PHASES = "phases.jsonl"
RUNS = Path(__file__).resolve().parent / "results"
"""Where runs are kept."""


def default_folder(header: dict[str, Any]) -> Path:
    """benchmarks/results/<date>-<device>; numbered where there is one of another run."""
    device = re.sub(r"[^a-z0-9]+", "-", (header["gpu"] or header["platform"]).lower()).strip("-")
    name = f"{header['date'].split()[0]}-{device}"
    taken = [name, *(f"{name}-{k}" for k in range(2, 1000))]
    return next(RUNS / n for n in taken if not (RUNS / n).exists())


class Folder:
    """Where a run writes; every row is on disk as soon as it is made."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Starts an empty run there, or goes on with the one that is there."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not resume:
            for name in (ROWS, OTHER, PHASES, HEADER):
                (path / name).unlink(missing_ok=True)

    def header(self, values: dict[str, Any]) -> None:
        """Adds to header.json."""
        file = self.path / HEADER
        with self._alone():
            before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            file.write_text(json.dumps({**before, **values}, indent=1) + "\n", encoding="utf-8")

    def add(self, *rows: Row) -> None:
        """Rows of the tables; who reads the file sees all of them or none."""
        self._append(ROWS, *(row.to_json() for row in rows))

    def add_other(self, row: dict[str, Any]) -> None:
        """A row of --parts=depth,first."""
        self._append(OTHER, json.dumps(row))

    def add_phases(self, case: str, phases: dict[str, float], **more: Any) -> None:
        """Where the seconds of a case went (`Phases.to_json`)."""
        self._append(PHASES, json.dumps({"case": case, **more, "seconds": phases}))

    def sort(self, cases: Sequence[tuple[str, int, str]]) -> None:
        """Puts the rows into the order of the (model, batch, dtype) given; others come first, as
        they are. Several processes write theirs as they come, and those of a later pass behind the
        ones that they replace."""
        file, order = self.path / ROWS, {case: k for k, case in enumerate(cases)}
        if not file.exists():
            return
        with self._alone():
            lines = file.read_text(encoding="utf-8").splitlines()
            last = {identity(row): (row, line) for row, line in (
                (Row.from_json(line), line) for line in lines)}
            rows = list(last.values())
            rows.sort(key=lambda pair: order.get(
                (pair[0].model, pair[0].batch, pair[0].dtype), -1))
            part = file.with_suffix(".part")
            part.write_text("".join(line + "\n" for _, line in rows), encoding="utf-8")
            part.replace(file)

    def done(self) -> set[tuple[str, int, str, str]]:
        """(model, batch, dtype, system with mode) of the rows that are there."""
        return {(r.model, r.batch, r.dtype, r.name) for r in self.rows()}

    def rows(self) -> list[Row]:
        """Those that are there, also of other processes."""
        file = self.path / ROWS
        with self._alone():
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [Row.from_json(line) for line in lines]

    def report(self) -> str:
        """Writes tables and plot, if there are rows; returns what a reader should know of it."""
        return report.write(self.path) if (self.path / ROWS).exists() else ""

    def _append(self, name: str, *lines: str) -> None:
        with self._alone(), open(self.path / name, "a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))

    @contextmanager
    def _alone(self) -> Generator[None]:
        """No other process writes here meanwhile."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

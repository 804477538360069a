"""The results of one run, read from its folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from benchmarks.row import SYSTEMS, Row

T = TypeVar("T")

Case: TypeAlias = tuple[str, int, str, str]
"""(model, batch, shape, dtype): one line of the tables."""

System: TypeAlias = str
"""As `Row.name`: "xla", "jaxmono stitch"."""


class BadResults(ValueError):
    """A folder that holds no results, or damaged ones; says what to do."""


@dataclass(frozen=True)
class Results:
    """A run.

    Attributes:
      header: where and with what it was measured.
      rows: in the order of measuring; of equal ones the last.
      others: measurements of other parts, each with "part" and figures of its own.
    """

    header: dict[str, Any]
    rows: tuple[Row, ...]
    others: tuple[dict[str, Any], ...] = ()
    _main: dict[tuple[Case, System], Row] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        main = {(case(r), r.name): r for r in self.rows if r.cpu_load is None}
        object.__setattr__(self, "_main", main)

    def cases(self) -> list[Case]:
        """The lines of the tables, in the order of measuring."""
        return list(dict.fromkeys(c for c, _ in self._main))

    def systems(self) -> list[System]:
        """Those that have rows, XLA first and jaxmono's modes last."""
        names = dict.fromkeys((SYSTEMS.index(r.system), r.name) for r in self._main.values())
        # Modes stay in the order of measuring.
        return [name for _, name in sorted(names, key=lambda pair: pair[0])]

    def row(self, of: Case, system: System) -> Row | None:
        """The row without load on the CPUs, if there is one."""
        return self._main.get((of, system))

    def ratio(self, of: Case, system: System, key: str = "device") -> float | None:
        """Time as a multiple of XLA's: "device" time, or "pipelined"."""
        mine, xla = self.row(of, system), self.row(of, "xla")
        if mine is None or mine.status == "failed":
            return None
        told = mine.device_ratio_to_xla if key == "device" else mine.ratio_to_xla
        if told is not None or xla is None:
            return told
        ours, theirs = ((r.device_us if key == "device" else r.pipelined_us) for r in (mine, xla))
        return ours / theirs if ours and theirs else None


def case(row: Row) -> Case:
    """Which line of the tables a row belongs to."""
    return row.model, row.batch, row.shape, row.dtype


def identity(row: Row) -> tuple[Any, ...]:
    """Equal for rows of which only the last counts."""
    return *case(row), row.name, row.cpu_load


def read(folder: Path) -> Results:
    """The results in a folder.

    Raises:
      BadResults: there is no rows.jsonl, it is empty, or a line of it, of other.jsonl or the
        header is damaged.
    """
    path = folder / "rows.jsonl"
    if not path.is_file():
        raise BadResults(f"{path} does not exist; python -m benchmarks.run writes it")
    found = _lines(path, Row.from_json)
    if not found:
        raise BadResults(f"{path} is empty: the run ended before its first row")
    # What failed before its program was made does not know its shape.
    shapes = {(r.model, r.batch, r.dtype): r.shape for r in found if r.shape}
    rows: dict[tuple[Any, ...], Row] = {}
    for row in found:
        row = dataclasses.replace(
            row, shape=row.shape or shapes.get((row.model, row.batch, row.dtype), ""))
        rows[identity(row)] = row
    others = folder / "other.jsonl"
    return Results(header(folder), tuple(rows.values()),
                   tuple(_lines(others, json.loads)) if others.is_file() else ())


def _lines(path: Path, parse: Callable[[str], T]) -> list[T]:
    """What the lines of a file hold."""
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                out.append(parse(line))
            except ValueError as error:
                raise BadResults(f"{path}, line {number}: {error}; remove the line or measure "
                                 "again") from error
    return out


def header(folder: Path) -> dict[str, Any]:
    """header.json of a folder; empty where there is none.

    Raises:
      BadResults: it is no JSON object.
    """
    path = folder / "header.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadResults(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadResults(f"{path} is no JSON object")
    return found

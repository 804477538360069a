"""Two runs beside each other: `python -m benchmarks.report.compare FOLDER_A FOLDER_B`.

The bar: in two runs of one commit, the ratio to XLA of every row over 100 us differs by less than
5 %. By device time: that of queued calls is the host's where dispatching takes longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report.load import BadResults, Case, Results, System, read
from benchmarks.report.markdown import cell, table, times, us

MEASURES = ("device", "pipelined")
LEAST_US = 100.0
TOLERANCE = 0.05
_MANY = 8
"""Rows of one system that one run lacks: more of them are counted, not named."""


@dataclass(frozen=True)
class Difference:
    """One row in both runs.

    Attributes:
      us: the shorter of the two times; None where either has none.
      ratios: to XLA, in the first and the second run.
      verdict: "same", "short" (too short to judge), "differs", or what one run has and the other
        has not, "ok / failed" say.
    """

    case: Case
    system: System
    measure: str
    us: float | None
    ratios: tuple[float | None, float | None]
    verdict: str

    @property
    def change(self) -> float | None:
        """Of the ratio, relative to the first run's."""
        a, b = self.ratios
        return b / a - 1 if a and b else None

    @property
    def bad(self) -> bool:
        return self.verdict not in ("same", "short")


def compare(a: Results, b: Results, measures: Sequence[str] = MEASURES, *,
            tolerance: float = TOLERANCE, least_us: float = LEAST_US) -> list[Difference]:
    """Every row but XLA's that both runs have. Rows that failed in both runs are the same."""
    out = []
    for of in a.cases():
        for system in a.systems():
            twin = _twin(of, b)
            first, second = a.row(of, system), b.row(twin, system)
            if system == "xla" or first is None or second is None:
                continue
            for measure in measures:
                ratios = a.ratio(of, system, measure), b.ratio(twin, system, measure)
                took = [getattr(row, f"{measure}_us") for row in (first, second)]
                shorter = None if None in took else min(took)
                verdict = "same"
                if first.status != second.status:
                    verdict = f"{first.status} / {second.status}"
                elif (ratios[0] is None) != (ratios[1] is None):
                    verdict = "ratio / none" if ratios[1] is None else "none / ratio"
                elif ratios[0] and ratios[1]:
                    if shorter is not None and shorter <= least_us:
                        verdict = "short"
                    elif abs(ratios[1] / ratios[0] - 1) >= tolerance:
                        verdict = "differs"
                else:
                    continue  # failed in both: no ratio to compare
                out.append(Difference(of, system, measure, shorter, ratios, verdict))
    return out


def _twin(of: Case, other: Results) -> Case:
    """The same case in the other run: what was lost with its process does not know its shape."""
    near = [c for c in other.cases() if c[:2] == of[:2] and c[3] == of[3]
            and (c[2] == of[2] or not (c[2] and of[2]))]
    return near[0] if near else of


def document(a: Results, b: Results, names: tuple[str, str], found: Sequence[Difference], *,
             tolerance: float = TOLERANCE, least_us: float = LEAST_US) -> str:
    """The comparison as Markdown."""
    bad = [d for d in found if d.bad]
    judged = [d for d in found if d.verdict != "short"]
    largest = max((abs(d.change) for d in judged if d.change is not None), default=0.0)
    body = [[*d.case, d.system, d.measure, us(d.us), times(d.ratios[0]), times(d.ratios[1]),
             None if d.change is None else f"{100 * d.change:+.1f} %", d.verdict] for d in found]
    alone = _alone(a, b), _alone(b, a)
    lines = ["# Two runs compared", "",
             f"Verdict: {verdict(a, b, found)}", "",
             f"A: {names[0]}, commit {cell(a.header.get('commit'))}. "
             f"B: {names[1]}, commit {cell(b.header.get('commit'))}.", "",
             f"{len(bad)} of {len(judged)} ratios to XLA of rows over {least_us:g} us differ by "
             f"{100 * tolerance:g} % or more; the largest change is {100 * largest:.1f} %.", "",
             *table(["model", "batch", "shape", "dtype", "system", "time", "us", "A / xla",
                     "B / xla", "change", "verdict"], body, text_columns=6)]
    for name, of in zip(names, alone, strict=True):
        lines += ["", f"Only in {name}: {_told(of)}."] if of else []
    return "\n".join(lines) + "\n"


def _alone(one: Results, other: Results) -> list[tuple[Case, System]]:
    """The rows that only the first run has."""
    twins = {of: _twin(of, other) for of in one.cases()}
    return [(of, system) for of, twin in twins.items()
            for system in one.systems() if one.row(of, system) and not other.row(twin, system)]


def _told(rows: Sequence[tuple[Case, System]]) -> str:
    """Rows by name, or, of a system with many, how many."""
    out = []
    for system in dict.fromkeys(system for _, system in rows):
        cases = [" ".join(str(x) for x in of) for of, s in rows if s == system]
        out += [f"{len(cases)} rows of {system}"] if len(cases) > _MANY else \
            [f"{case} {system}" for case in cases]
    return ", ".join(out)


def verdict(a: Results, b: Results, found: Sequence[Difference]) -> str:
    """One line: "the same", "different" or "nothing to compare", and of how many ratios."""
    judged = [d for d in found if d.verdict != "short"]
    bad, rest = [d for d in judged if d.bad], len(_alone(a, b)) + len(_alone(b, a))
    told = "different" if bad else "the same" if judged else "nothing to compare"
    text = f"{told}: {len(judged)} ratios judged, {len(bad)} of them differ"
    if rest:
        text += f"; {rest} rows are in one run only, and are not judged"
    # Of the rows, not of the headers: a run that was resumed has rows of both.
    commits = {r.commit for results in (a, b) for r in results.rows}
    return text + ("; the rows are not all of one commit." if len(commits) > 1 else ".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 the same, 1 a row differs, 2 nothing to compare (every row is
    short, or in one run only)."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report.compare",
        description="Compares the ratios to XLA of two runs; exit status 1 if a row over --least "
        "microseconds differs by --tolerance or more.")
    parser.add_argument("folders", nargs=2, type=Path, metavar="FOLDER")
    parser.add_argument("--by", choices=(*MEASURES, "both"), default="device",
                        help="which time's ratio is judged (default: device; a pipelined time may "
                        "be the host's)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--least", type=float, default=LEAST_US, metavar="US")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    given = parser.parse_args(arguments)
    try:
        a, b = (read(folder) for folder in given.folders)
    except BadResults as error:
        sys.stderr.write(f"benchmarks.report.compare: {error}\n")
        return 2
    limits = {"tolerance": given.tolerance, "least_us": given.least}
    found = compare(a, b, MEASURES if given.by == "both" else (given.by,), **limits)
    if not found:
        sys.stderr.write("benchmarks.report.compare: the two runs have no row with a ratio to XLA "
                         "in common\n")
        return 2
    names = str(given.folders[0].name), str(given.folders[1].name)
    text = document(a, b, names, found, **limits)
    judged = [d for d in found if d.verdict != "short"]
    # The last line again: the first ones have left the terminal.
    sys.stdout.write(f"{text}\nVerdict: {verdict(a, b, found)}\n")
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    if not judged:
        return 2
    return 1 if any(d.bad for d in judged) else 0


if __name__ == "__main__":
    sys.exit(main())

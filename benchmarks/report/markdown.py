"""Cells and tables of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ABSENT = "–"


def table(head: Sequence[str], body: Sequence[Sequence[Any]], *, text_columns: int = 1,
          ) -> list[str]:
    """Lines of a table; the first ``text_columns`` are flushed left, the others right."""
    rule = ["---" if i < text_columns else "--:" for i in range(len(head))]
    return [_line(head), f"|{'|'.join(rule)}|", *(_line([cell(v) for v in row]) for row in body)]


def section(title: str, text: str, head: Sequence[str], body: Sequence[Sequence[Any]], *,
            text_columns: int = 1) -> list[str]:
    """A heading, a paragraph and a table; nothing where the table has no lines."""
    if not body:
        return []
    return ["", f"## {title}", "", text, "", *table(head, body, text_columns=text_columns)]


def cell(value: Any) -> str:
    """One value; None is a dash."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def us(value: float | None) -> str | None:
    """Microseconds to a tenth, whole ones from 1000 on."""
    return None if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def times(value: float | None) -> str | None:
    """A ratio, to a hundredth."""
    return None if value is None else f"{value:.2f}"


def percent(value: float | None) -> str | None:
    """A share as per cent."""
    return None if value is None else f"{100 * value:.0f} %"


def small(value: float | None) -> str | None:
    """An error, two digits."""
    return None if value is None else f"{value:.1e}"


def mebibytes(value: int | None) -> str | None:
    """Bytes as MiB."""
    return None if value is None else f"{value / 2**20:.1f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

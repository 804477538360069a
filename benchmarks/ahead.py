"""The folder of kernels that `benchmarks.prepare` compiles ahead: which files are which case's."""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "kernels.json"
"""In the folder: names of cases to the files of their kernels, under it."""


def read(folder: Path) -> dict[str, list[str]]:
    """Files by case; nothing where there is no index."""
    file = folder / INDEX
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def write(folder: Path, files: dict[str, list[str]]) -> None:
    """Replaces the index."""
    (folder / INDEX).write_text(json.dumps(files, indent=1), encoding="utf-8")

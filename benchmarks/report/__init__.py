"""Reports of a run: `python -m benchmarks.report FOLDER` writes results.md and the plot anew.

Nothing here needs JAX or a GPU.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.report.load import BadResults, Results, read
from benchmarks.report.plot import NAME as PLOT
from benchmarks.report.plot import draw
from benchmarks.report.table import document

__all__ = ["PLOT", "TABLE", "BadResults", "Results", "read", "write"]

TABLE = "results.md"


def write(folder: Path) -> str:
    """Writes results.md and the plot of a folder's rows.

    Returns:
      Why there is no plot, or "".

    Raises:
      BadResults: the folder has no rows, or damaged ones.
    """
    results = read(folder)
    missing = draw(results, folder / PLOT)
    (folder / TABLE).write_text(document(results, plot="" if missing else PLOT, no_plot=missing),
                                encoding="utf-8")
    return missing

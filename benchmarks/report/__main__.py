"""`python -m benchmarks.report FOLDER...`: rewrites the table and the plot of finished runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.report import PLOT, TABLE, BadResults, write


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 2 for a folder without results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=f"Writes {TABLE} and {PLOT} of a run anew, from its rows.jsonl.")
    parser.add_argument("folder", nargs="+", type=Path, help="benchmarks/results/...")
    for folder in parser.parse_args(arguments).folder:
        try:
            missing = write(folder)
        except BadResults as error:
            sys.stderr.write(f"benchmarks.report: {error}\n")
            return 2
        names = TABLE if missing else f"{TABLE} and {PLOT}"
        sys.stdout.write(f"{folder}: wrote {names}{f' ({missing})' if missing else ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

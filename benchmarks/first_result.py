"""Time from an untraced function to its first result, in a fresh process each.

`in_fresh_process` starts this file as a program, which prints the seconds as its last line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = "seconds: "
_LIMIT_S = 240


def rows(case: str, weights: str | None) -> Iterator[dict[str, Any]]:
    """Rows for jax.jit, jaxmono with an empty kernel cache, and jaxmono with the filled one."""
    with tempfile.TemporaryDirectory() as cache:
        for side, state in (("xla", ""), ("jaxmono", "cold"), ("jaxmono", "cached")):
            row = {"case": case, "kind": "first_result", "side": side, "cache": state}
            try:
                yield {**row, "seconds": in_fresh_process(case, side, cache, weights)}
            except RuntimeError as error:
                yield {**row, "failed": str(error)}


def in_fresh_process(case: str, side: str, cache: str, weights: str | None) -> float:
    """Seconds in a new Python process whose kernel cache is the directory ``cache``.

    Raises:
      RuntimeError: the process failed; carries the end of what it wrote.
    """
    command = [sys.executable, "-m", "benchmarks.first_result", case, side, weights or ""]
    root = Path(__file__).resolve().parent.parent
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False,
                              timeout=_LIMIT_S, env={**os.environ, "JAXMONO_CACHE_DIR": cache,
                                                     "PYTHONPATH": paths})
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no result within {_LIMIT_S} s") from error
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode != 0 or not last.startswith(SECONDS):
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-400:].strip()}")
    return float(last.removeprefix(SECONDS))


def main(case: str, side: str, weights: str) -> None:
    """The program in the fresh process."""
    from benchmarks.cases import make
    from benchmarks.measure import first_result

    seconds = first_result(make(case, Path(weights) if weights else None), side)
    sys.stdout.write(f"{SECONDS}{seconds:.4f}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

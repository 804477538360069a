"""Runs the measuring process, and starts it again where a case has killed it.

A kernel that faults leaves a process without its GPU, one that waits for ever hangs it, and a
failed assertion ends it. The rows of the case that was being measured are then written from here,
and a new process goes on with the next case.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.results import Folder
from benchmarks.row import Row

GPU_LOST = 3
"""Exit status of a process whose GPU does not answer any more; its rows are written."""

_HUNG = 1000
"""No exit status of a process."""

STATE = "BENCHMARKS_STATE"
"""Environment variable of the measuring process: the file in which it says what it is doing."""


def working_on(folder: Path, rows: Sequence[Row]) -> None:
    """Said by the measuring process: these rows come next, none when a case is done."""
    file = os.environ.get(STATE)
    if file:
        state = {"folder": str(folder.resolve()), "rows": [row.to_json() for row in rows]}
        Path(file).write_text(json.dumps(state), encoding="utf-8")


def supervise(module: str, arguments: Sequence[str], *, limit_s: float) -> int:
    """Runs ``python -m module``; returns its exit status.

    Args:
      limit_s: for one case; a process that takes longer is killed.
    """
    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)  # so that the child ends too
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / "state.json"
        again: list[str] = []
        failed = False
        while True:
            state.unlink(missing_ok=True)
            status = _child([sys.executable, "-m", module, *arguments, *again], state, limit_s)
            if status in (0, 1, 2):
                return max(status, int(failed)) if status < 2 else status
            failed = True
            told: dict[str, Any] = json.loads(state.read_text(encoding="utf-8")) \
                if state.exists() else {"rows": []}
            if not told["rows"] and status != GPU_LOST:
                sys.stderr.write(f"{module}: the measuring process "
                                 f"{_ended(status, limit_s)}\n")
                return 1
            folder = Folder(Path(told["folder"]), resume=True)
            for line in told["rows"]:
                row = replace(Row.from_json(line), status="failed",
                              reason=f"the process {_ended(status, limit_s)} while this was "
                              "measured")
                folder.add(row)
                sys.stdout.write(f"{row.model} b{row.batch} {row.name}: {row.reason}\n")
            again = [f"--out={folder.path}", "--resume"]


def _child(command: Sequence[str], state: Path, limit_s: float) -> int:
    """Its exit status; _HUNG when it had to be killed."""
    process = subprocess.Popen(command, env={**os.environ, STATE: str(state)})
    try:
        while True:
            try:
                return process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if state.exists() and time.time() - state.stat().st_mtime > limit_s:
                    return _HUNG
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _ended(status: int, limit_s: float) -> str:
    if status == _HUNG:
        return f"was still not done after {limit_s:.0f} s (--case_limit_s)"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return "lost its GPU" if status == GPU_LOST else f"ended with status {status}"

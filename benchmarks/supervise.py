"""Runs the measuring processes, one for each GPU at a time, and starts the next where one ends.

A process may end because a pass or a case was all that it was for (`NEXT`); the one after it has
been started ahead, and has loaded its modules. Or because a case has killed it: a kernel that
faults leaves a process without its GPU, one that waits for ever hangs it, and a failed assertion
ends it. The rows of that case are then written from here. The other GPUs' do not notice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from benchmarks import passes
from benchmarks.results import Folder
from benchmarks.row import Row

_Told = TypeVar("_Told")

GPU_LOST = 3
"""Exit status of a process whose GPU does not answer any more; its rows are written."""

BAD_FLAGS = 2
"""Exit status of a process that cannot do what the flags ask for; it has said why."""

NEXT, NEXT_BAD = 4, 5
"""Exit status of a process that was for one pass or case, and is done; BAD: as status 1."""

_HUNG = 1000
"""No exit status of a process."""

STATE = "BENCHMARKS_STATE"
"""Environment variable of a measuring process: the file in which it says what it is doing."""

WORKER = "BENCHMARKS_WORKER"
"""Its number, from 0. The first one makes the folder of the results."""

TURN = "BENCHMARKS_TURN"
"""Environment variable of a process that was started ahead: the file that says it may begin."""


def working_on(folder: Path, rows: Sequence[Row]) -> None:
    """Said by a measuring process: these rows come next, none when a case is done."""
    file = os.environ.get(STATE)
    if file:
        state = {"folder": str(folder.resolve()), "rows": [row.to_json() for row in rows]}
        _write(Path(file), json.dumps(state))


def number() -> int | None:
    """Of this measuring process; None where there is no supervisor."""
    return int(os.environ.get(WORKER, "0")) if STATE in os.environ else None


def shared() -> Path:
    """A folder that the measuring processes of a run share until it ends."""
    return Path(os.environ[STATE]).parent


def opened(folder: Path) -> None:
    """Said by the first process: here are the results."""
    if STATE in os.environ:
        _write(shared() / "folder", str(folder.resolve()))


def folder_opened() -> Path:
    """Where the results are, once the first process has said so.

    The supervisor ends this process if the first one never does.
    """
    return _awaited(lambda: _folder(shared()))


def await_turn() -> None:
    """Said by a measuring process before it touches a GPU: it may have been started ahead."""
    if TURN in os.environ:
        _awaited(Path(os.environ[TURN]).exists)


def _awaited(told: Callable[[], _Told | None]) -> _Told:
    """What it tells, once it is something; ends the process if its parent is gone."""
    parent = os.getppid()
    while not (found := told()):
        if os.getppid() != parent:
            sys.exit(1)
        time.sleep(0.02)
    return found


@dataclass
class _Worker:
    """A measuring process and those after it."""

    number: int
    state: Path
    environment: dict[str, str]
    cores: frozenset[int] | None
    again: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    ahead: subprocess.Popen[bytes] | None = None
    turn: Path = Path()
    """Of the process that was started ahead. Each has its own: the one before may still be loading
    modules when it is told to begin, and the next is started."""

    def start(self, command: Sequence[str]) -> None:
        """The process that was started ahead, if it still waits, or a new one."""
        self.state.unlink(missing_ok=True)
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead.poll() is None:
            self.process = ahead
            self.turn.touch()
        else:
            self.process = self._started(command)

    def start_ahead(self, command: Sequence[str], folder: Path) -> None:
        """The next process, which waits for its turn; nothing where there is one."""
        if self.ahead is None:
            self.again = _resumed(folder)
            self.turn = self.state.with_suffix(f".turn-{time.monotonic_ns()}")
            self.ahead = self._started(command, {TURN: str(self.turn)})

    def _started(self, command: Sequence[str], more: Mapping[str, str] | None = None,
                 ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*command, *self.again],
            env={**os.environ, **self.environment, STATE: str(self.state),
                 WORKER: str(self.number), **(more or {})})
        if self.cores:  # before it has threads: Python starts
            os.sched_setaffinity(process.pid, self.cores)
        return process

    def ended(self, limit_s: float) -> int | None:
        """Exit status, _HUNG after killing it, None as long as it runs."""
        assert self.process is not None
        status = self.process.poll()
        if status is None and self.state.exists() and \
                time.time() - self.state.stat().st_mtime > limit_s:
            self.kill()
            return _HUNG
        return status

    def told(self) -> dict[str, Any]:
        """The last that it said."""
        return json.loads(self.state.read_text(encoding="utf-8")) if self.state.exists() else {
            "rows": []}

    def kill(self) -> None:
        for process in (self.process, self.ahead):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def supervise(module: str, arguments: Sequence[str], *, limit_s: float, gpus: Sequence[str] = ("",),
              finish: Callable[[Path], None] = lambda folder: None, fresh: bool = False) -> int:
    """Runs ``python -m module`` for each GPU; returns the largest exit status.

    Args:
      limit_s: for one case; a process that takes longer is killed.
      gpus: one process each, as CUDA_VISIBLE_DEVICES ("": as it is here), and its share of the
        cores.
      finish: called with the results' folder at the end, also when this process is told to end.
      fresh: processes end with a pass or a case, so that the next one is started ahead.
    """
    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    command = [sys.executable, "-m", module, *arguments]
    before = signal.signal(signal.SIGTERM, end)  # so that the children end too
    # Compilers' own processes may still write to their caches there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        workers = _workers(Path(scratch), gpus)
        try:
            for worker in workers:
                worker.start(command)
            return _watch(module, command, workers, limit_s, Path(scratch), fresh)
        finally:
            for worker in workers:
                worker.kill()
            folder = _folder(Path(scratch))
            if folder is not None:
                finish(folder)
            signal.signal(signal.SIGTERM, before)


def _workers(scratch: Path, gpus: Sequence[str]) -> list[_Worker]:
    cores, count = sorted(os.sched_getaffinity(0)), len(gpus)
    out = []
    for k, gpu in enumerate(gpus):
        # Neighbouring cores are mostly on one socket, as are the GPUs of neighbouring numbers.
        mine = frozenset(cores[k * len(cores) // count:(k + 1) * len(cores) // count])
        out.append(_Worker(k, scratch / f"state-{k}.json",
                           {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {},
                           mine if count > 1 else None))
    return out


def _watch(module: str, command: Sequence[str], workers: Sequence[_Worker], limit_s: float,
           scratch: Path, fresh: bool) -> int:
    """Until all have ended; the exit status."""
    running, worst = list(workers), 0
    while running:
        time.sleep(0.05)
        for worker in tuple(running):
            status, folder = worker.ended(limit_s), _folder(scratch)
            if status is None:
                if fresh and folder is not None:
                    worker.start_ahead(command, folder)
                continue
            again = False
            if status in (0, 1, BAD_FLAGS):
                worst = max(worst, status)
            elif status in (NEXT, NEXT_BAD) and folder is not None:
                worst = max(worst, int(status == NEXT_BAD))
                worker.again, again = _resumed(folder), True
            else:
                worst = max(worst, 1)
                again = _lost(module, worker, status, limit_s)
            if again:
                worker.start(command)
                continue
            worker.kill()  # what was started ahead
            running.remove(worker)
            # Nothing can come of the others without a folder, which the first one makes.
            if folder is None and (worker.number == 0 or status == BAD_FLAGS):
                return worst
    return worst


def _lost(module: str, worker: _Worker, status: int, limit_s: float) -> bool:
    """Writes the rows of the case that has ended a process; whether it is to be started again."""
    told = worker.told()
    if not told["rows"] and status != GPU_LOST:
        sys.stderr.write(f"{module}: the measuring process {_ended(status, limit_s)}\n")
        return False
    folder = Folder(Path(told["folder"]), resume=True)
    for line in told["rows"]:
        why = f"the process {_ended(status, limit_s)} while this was measured"
        row = passes.lost(Row.from_json(line), why)
        folder.add(row)
        sys.stdout.write(f"{row.model} b{row.batch} {row.name}: {row.reason or why}\n")
    sys.stdout.flush()
    worker.again = _resumed(folder.path)
    return True


def _resumed(folder: Path) -> list[str]:
    """Arguments of a process that goes on with a run."""
    return [f"--out={folder}", "--resume"]


def _folder(scratch: Path) -> Path | None:
    file = scratch / "folder"
    return Path(file.read_text(encoding="utf-8")) if file.exists() else None


def _write(file: Path, text: str) -> None:
    """At once: another process may read it at any time."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def _ended(status: int, limit_s: float) -> str:
    if status == _HUNG:
        return f"was still not done after {limit_s:.0f} s (--case_limit_s)"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return "lost its GPU" if status == GPU_LOST else f"ended with status {status}"

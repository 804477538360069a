"""A child process that answers requests, one JSON object a line each way, under a time limit.

Work that may hang or crash (a compiler, an untried kernel) is done in such a process; the parent
learns that it died, or kills it, and starts another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any


class ChildError(RuntimeError):
    """The child died or did not answer in time. It is gone; the next request starts a new one."""


class Child:
    """A process started at the first request. Not safe for several threads at once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
          ChildError: says how it ended, with the last line it wrote to standard error.
        """
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(max(seconds, 0.0), stop)
        timer.start()
        try:
            line = ""
            with suppress(OSError, ValueError):  # a broken pipe: the process is dead
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
        finally:
            timer.cancel()
        try:
            answer = json.loads(line) if line.endswith("\n") and not late.is_set() else None
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        why = self._end(process)
        raise ChildError(f"no answer within {seconds:.0f} s" if late.is_set() else why)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._end(self._process)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[str]:
        root = str(Path(__file__).parents[2])
        path = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *([path] if path else [])])}
        # A file, not a pipe: nobody has to read it while the child runs.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True, env=env,
                                         stdout=subprocess.PIPE, stderr=self._errors)
        return self._process

    def _end(self, process: subprocess.Popen[str]) -> str:
        """Kills a process and waits for it; how it ended, for a message."""
        known = process.poll()
        if known is None:
            with suppress(OSError, ValueError):
                assert process.stdin is not None
                process.stdin.close()  # what is idle ends by itself
            try:
                known = process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                known = process.wait()
        assert process.stdout is not None
        with suppress(OSError, ValueError):
            process.stdout.close()
        said = ""
        if self._errors is not None:
            with suppress(OSError, ValueError):
                self._errors.seek(0)
                lines = [x.strip() for x in self._errors if x.strip()]
                said = lines[-1] if lines else ""
                self._errors.close()
        self._process = self._errors = None
        return f"its process ended with status {known}" + (f": {said}" if said else "")


def python(*arguments: str) -> tuple[str, ...]:
    """The command for this Python, without the working directory on its path."""
    return (sys.executable, "-P", *arguments)

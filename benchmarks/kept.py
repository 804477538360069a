"""A JSON object in a file that several processes add to, for what a later run need not find out."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any


class Kept:
    """Values by key.

    Args:
      path: of the file, made when something is put; None keeps them in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """What was put, by this process or another; None if nothing was."""
        if key not in self._known and self._path is not None and self._path.exists():
            with open(self._path, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self._known = {**json.loads(file.read() or "{}"), **self._known}
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        """Remembers it."""
        self._known[key] = value
        if self._path is None:
            return
        with open(self._path, "a+", encoding="utf-8") as file:  # other processes add theirs
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            self._known = {**json.loads(file.read() or "{}"), **self._known}
            file.truncate(0)
            file.write(json.dumps(self._known, indent=1))

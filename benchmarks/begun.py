"""What the first of a GPU's measuring processes finds out for those after it: the header of the
results and the speed of the GPU."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import supervise
from benchmarks.machine import Speed


@dataclass
class Begun:
    """Attributes:
      header: of this process' results. speed: None where nothing is timed.
    """

    header: dict[str, Any]
    speed: Speed | None

    @classmethod
    def earlier(cls) -> Begun | None:
        """Of an earlier process of this run on this GPU, if there is one."""
        file = cls._file()
        if file is None or not file.exists():
            return None
        told = json.loads(file.read_text(encoding="utf-8"))
        return cls(told["header"], told["speed"] and Speed(**told["speed"]))

    def keep(self) -> None:
        """For the processes after this one."""
        if (file := self._file()) is not None:
            file.write_text(json.dumps({
                "header": self.header, "speed": self.speed and dataclasses.asdict(self.speed)}))

    @staticmethod
    def _file() -> Path | None:
        worker = supervise.number()
        return None if worker is None else supervise.shared() / f"begun-{worker}.json"

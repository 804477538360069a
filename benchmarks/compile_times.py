"""What compiling took when it was done: a run that finds programs in its caches shows it, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.kept import Kept
from benchmarks.running import Facts


class CompileTimes:
    """Seconds by program and variant.

    Args:
      path: of the file, beside the caches; None knows nothing of earlier runs.
    """

    def __init__(self, path: Path | None) -> None:
        self._kept = Kept(path)

    def told(self, name: str, facts: Facts) -> Facts:
        """``facts``, with what an earlier run has measured where the program came from a cache.

        Args:
          name: of case and system.
        """
        key = f"{name}, {facts.variant or 'as it comes'}"
        if facts.compile_s is not None:
            self._kept.put(key, {"compile_s": facts.compile_s, "tune_s": facts.tune_s})
            return facts
        if (known := self._kept.get(key)) is None:
            return facts
        notes = "; ".join(filter(None, (facts.notes, "compiled by an earlier run")))
        return replace(facts, **known, notes=notes)

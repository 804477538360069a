"""Where the time of a case goes: seconds by phase, for the terminal and for phases.jsonl."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by name of a phase, in the order in which they first began.

    A phase inside another one counts for itself alone, so the sum is the time that all took.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []
        self._start = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds what the block takes, whatever becomes of it, to the phase of that name."""
        self.seconds.setdefault(name, 0.0)
        self._inner.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self.seconds[name] += taken - self._inner.pop()
            if self._inner:
                self._inner[-1] += taken

    @property
    def total(self) -> float:
        """Seconds since this object was made."""
        return time.perf_counter() - self._start

    def to_json(self) -> dict[str, float]:
        """The phases, what is in none of them as "other", and "total"."""
        total = self.total
        other = total - sum(self.seconds.values())
        return {name: round(s, 2) for name, s in
                {**self.seconds, "other": other, "total": total}.items()}

    def __str__(self) -> str:
        """Total first, then the phases of at least a tenth of a second."""
        told = self.to_json()
        total = told.pop("total")
        parts = ", ".join(f"{name} {s:.1f}" for name, s in told.items() if s >= 0.1)
        return f"{total:.1f} s" + (f" ({parts})" if parts else "")

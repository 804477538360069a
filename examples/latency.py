"""Times of several functions, measured in turns so that clocks and other load hit all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Latency:
    """Microseconds per call: median over rounds, and the 10th and 90th percentile."""

    median_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        return f"{self.median_us:.1f} us ({self.low_us:.1f} to {self.high_us:.1f})"


def interleaved(functions: Mapping[str, Callable[[], Any]], *, calls: int = 50, rounds: int = 15,
                ) -> dict[str, Latency]:
    """Pipelined time per call of each function.

    In every round each function in turn is called ``calls`` times without waiting, then waited
    for once: A A A ... wait, B B B ... wait, A A A ... The first round warms up and is dropped.

    Args:
      functions: name to a function without arguments that starts work and returns its results.
      calls: per round; enough that one round is much longer than waiting for it.
      rounds: that count.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            out = None
            start = time.perf_counter()
            for _ in range(calls):
                out = function()
            jax.block_until_ready(out)
            if turn:
                taken[name].append((time.perf_counter() - start) / calls * 1e6)
    return {name: _latency(values) for name, values in taken.items()}


def _latency(values: list[float]) -> Latency:
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))]

    return Latency(statistics.median(ordered), at(0.1), at(0.9))

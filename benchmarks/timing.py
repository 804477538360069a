"""Times of several running programs by the host's clock, measured in turns.

In every round each program in turn makes its calls: A A A, B B B, A A A, ... so that clocks, heat
and other load hit all alike. A program that fails in a round is left out from then on.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.running import Running

Key = TypeVar("Key", bound=Hashable)
_IN_FLIGHT = 24
"""JAX lets 32 computations wait on a GPU; the one after them waits on the host."""
_RISK = 0.05
_LAUNCHES = 900
"""CUDA lets about a thousand launches wait on a stream."""
_LONGEST_US = 60e3
"""Of calls that wait together; slow programs queue fewer, for which few are enough."""
_LONGEST_WAIT_US = 250e3
"""Of the work before them."""
_FEWEST_ROUNDS = 7
"""With fewer, not even the whole range of the rounds holds the median with 95 % confidence."""


@dataclass(frozen=True)
class Times:
    """Microseconds per call of each round, in order."""

    rounds: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds)

    def at(self, share: float) -> float:
        """A percentile, ``share`` from 0 to 1: the nearest of the values."""
        ordered = sorted(self.rounds)
        return ordered[round(share * (len(ordered) - 1))]

    def ratio_to(self, other: Times) -> float:
        """Median of the rounds' own ratios: what a round did to both cancels."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))

    def uncertainty(self, other: Times) -> float:
        """Of that median: half of its 95 % interval (of order statistics, whatever the rounds'
        distribution), relative to it; infinite for fewer than 6 rounds."""
        ratios = sorted(a / b for a, b in zip(self.rounds, other.rounds, strict=True))
        n = len(ratios)
        # The probability that the median is not between the values of these ranks.
        outside, rank = 2.0 * 0.5**n, 0
        if outside > _RISK:
            return math.inf
        while (more := outside + 2.0 * math.comb(n, rank + 1) * 0.5**n) <= _RISK:
            outside, rank = more, rank + 1
        return (ratios[n - 1 - rank] - ratios[rank]) / 2 / statistics.median(ratios)


@dataclass
class Failures:
    """Who failed, and why, by key."""

    reasons: dict[Any, str] = field(default_factory=dict)

    def guard(self, key: Any, work: Callable[[], Any]) -> Any:
        """``work()``, or None with the reason kept."""
        if key in self.reasons:
            return None
        try:
            return work()
        except Exception as error:  # one system's failure is its row's reason, not the run's end
            self.reasons[key] = reason(error)
            return None


def pipelined(systems: Mapping[Key, Running], *, seconds: float, rounds: int, calls: int,
              failures: Failures | None = None, enough: float = 0.0) -> dict[Key, Times]:
    """Time per call, calls queued back to back and waited for once a round.

    Args:
      systems: warmed up.
      seconds: to spend on each; bounds the calls per round, of which there are at least 3 in all.
      rounds: that count, at most; one more warms up.
      calls: per round, at most.
      failures: takes the failures; without it they are raised.
      enough: no more rounds once all ratios to the first system are as certain as that.

    Returns:
      Of those that made it through all rounds.
    """
    taken: dict[Key, list[float]] = {key: [] for key in systems}
    counts: dict[Key, int] = dict.fromkeys(systems, 1)
    turn = 0
    with _quiet():
        for turn in range(rounds + 1):
            for key, running in systems.items():
                us = _guarded(failures, key, lambda r=running, n=counts[key]: _round(r, n))
                if us is None:
                    continue
                if not turn:
                    # The first call after others ran may be slow: count with the second.
                    us = _guarded(failures, key, lambda r=running: _round(r, 2)) or us
                    fit = seconds / rounds / us * 1e6
                    counts[key] = max(1, min(calls, round(fit)))
                else:
                    taken[key].append(us)
            if turn >= _FEWEST_ROUNDS and _certain(taken, turn) <= enough:
                break
    return {key: Times(tuple(v)) for key, v in taken.items() if len(v) == turn}


def _certain(taken: Mapping[Any, list[float]], rounds: int) -> float:
    """The largest uncertainty of a ratio to the first of those that made it this far."""
    times = [Times(tuple(v)) for v in taken.values() if len(v) == rounds]
    return max((other.uncertainty(times[0]) for other in times[1:]), default=math.inf)


def latency(systems: Mapping[Key, Running], *, seconds: float, calls: int = 200,
            failures: Failures | None = None) -> dict[Key, Times]:
    """Time of single calls, each waited for; in turns of ten.

    Args:
      seconds: to spend on each; a slow program makes fewer calls, but at least 20.
    """
    taken: dict[Key, list[float]] = {key: [] for key in systems}
    spent = dict.fromkeys(systems, 0.0)
    with _quiet():
        for key, running in systems.items():
            _guarded(failures, key, lambda r=running: _round(r, 1))
        for _ in range(max(1, calls // 10)):
            for key, running in systems.items():
                if spent[key] >= seconds and len(taken[key]) >= 20:
                    continue
                found = _guarded(failures, key, lambda r=running: [_round(r, 1)
                                                                   for _ in range(10)])
                taken[key] += found or []
                spent[key] += sum(found or ()) / 1e6
    lost = failures.reasons if failures else {}
    return {k: Times(tuple(v)) for k, v in taken.items() if v and k not in lost}


def issuing_us(running: Running, us: float, kernels: float | None = None) -> float:
    """Microseconds of the host per call until it has started all the calls of `ahead`, which wait
    for the device; at most ``us``.

    Args:
      us: pipelined time per call. kernels: per call, where known.
    """
    calls, _ = ahead(us, kernels)
    with _quiet():
        running.wait(_queue(running, 1))
        start = time.perf_counter()
        token = _queue(running, calls)
        taken = time.perf_counter() - start
        running.wait(token)
    return min(taken / calls * 1e6, us)


def queued(running: Running, us: float, kernels: float | None = None, *, repeats: int = 3,
           issuing: float | None = None) -> float | None:
    """Microseconds per call when all calls wait behind other work, so that the host is ahead.

    Args:
      us: pipelined time per call. kernels: per call, where known.
      issuing: what `issuing_us` found, where known.

    Returns:
      None where nothing can be put before the calls (on a CPU).
    """
    calls, milliseconds = ahead(us, kernels, issuing=issuing)
    token = running.delay(milliseconds)
    if not token:
        return None
    running.wait(token)
    taken = []
    with _quiet():
        for _ in range(repeats):
            start = time.perf_counter()
            running.wait(running.delay(milliseconds))
            middle = time.perf_counter()
            running.delay(milliseconds)
            running.wait(_queue(running, calls))
            end = time.perf_counter()
            taken.append((end - middle - (middle - start)) / calls * 1e6)
    return max(statistics.median(taken), 0.0)


def ahead(us: float, kernels: float | None = None, *, issuing: float | None = None,
          slower: float = 1.0) -> tuple[int, float]:
    """How many calls may wait on the device, and how many milliseconds starting them takes.

    Args:
      us: pipelined time per call, more than what starting one takes.
      issuing: what starting one takes, where known.
      slower: by what factor something, a profiler say, slows starting down.
    """
    calls = max(3, min(_IN_FLIGHT, int(_LAUNCHES / max(kernels or 1.0, 1.0)),
                       max(5, int(_LONGEST_US / us))))
    wait = calls * min(us, 1.5 * (issuing or us)) * slower * 1.2
    return calls, min(max(wait, 5e3), _LONGEST_WAIT_US) / 1e3


def _queue(running: Running, calls: int) -> Any:
    token = None
    for _ in range(calls):
        token = running.start()
    return token


def _round(running: Running, calls: int) -> float:
    start = time.perf_counter()
    running.wait(_queue(running, calls))
    return (time.perf_counter() - start) / calls * 1e6


def _guarded(failures: Failures | None, key: Any, work: Callable[[], Any]) -> Any:
    return work() if failures is None else failures.guard(key, work)


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection while the clock runs: under JAX and torch one takes 0.3 s."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def reason(error: BaseException, limit: int = 300) -> str:
    """Type and first lines of an error, for a table."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    kind = type(error).__name__
    told = text if kind in _OWN else f"{kind}: {text or 'no message'}"
    return told if len(told) <= limit else told[:limit - 3] + "..."


_OWN: Sequence[str] = ("NoPeer", "PeerFailed", "NotInstalled", "NoDeviceTrace")
"""Errors whose message is a reason as it stands."""

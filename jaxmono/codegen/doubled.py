"""Two halves of shared memory, in turns: weights come while the block's task before still runs.

    shared memory     | half 0: stages 0, 2, 4...    | half 1: stages 1, 3, 5...   |

    border | task of stage k, in its half       | border | task of stage k + 1, in the other half
            ^ requests those of stage k + 1               ^ requests those of stage k + 2

Behind an open border no block waits for all others, so what counts is how soon a block is done
whose task before was the last one of its stage. With one region it requests its weights only then:
in GPT-2's decode step on an H200 they began 0.3 to 0.9 us behind the last value that they wait for.

A stage takes part if all that its tasks copy is prefetched, and fits a half (`SigCode.can_double`).
Each border in front of one commits two cp.async groups a thread, empty where there is nothing to
request: first those of that stage (if they were not requested at the border before), then those of
the stage behind it. So a task's own group has landed when one is left that has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from jaxmono.codegen.calls import Call, Span, Unit
from jaxmono.codegen.producers import Boundary, boundaries
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.writer import Writer

_ALIGNED = 128
Emit = Callable[[Writer, tuple[Call, ...], str, str, str], None]
"""`Dispatch.emit`, with the half."""


@dataclass(frozen=True)
class Halves:
    """Which stages of a kernel take turns.

    Attributes:
      bytes: of a half; 0 where no stage does.
    """

    spans: Sequence[Span]
    bytes: int

    def takes(self, calls: Sequence[Call]) -> bool:
        """Whether a stage takes part: all of its tasks do, or need no shared memory."""
        return any(c.unit.doubled for c in calls) and all(
            c.unit.doubled or not c.unit.shared for c in calls)

    def early(self, n: int, i: int, behind: Boundary) -> bool:
        """Whether the stage behind that border of stage ``i`` of span ``n`` is requested at the
        border before. The kernel's first stage has none; of a loop of one stage the next trip's
        conditions would be those of another trip."""
        span = self.spans[n]
        return (n > 0 or i > 0) and (span.period > 1 or span.trips == 1) \
            and self.takes(span.calls[i]) and self.takes(behind.calls)

    def half(self, n: int, i: int, trip: str) -> str:
        """The C expression of where a stage's shared memory begins: bytes."""
        span = self.spans[n]
        if not self.takes(span.calls[i]):
            return "0"
        if span.period % 2 == 0 or span.trips == 1 or trip == "0":
            return str((span.start + i) % 2 * self.bytes)
        return f"({span.start + i} + {trip}) % 2 * {self.bytes}"

    def request(self, w: Writer, n: int, i: int, b: Boundary, own: str, emit: Emit) -> None:
        """Behind stage ``i`` of span ``n``, at its border ``b``: all that is requested there. The
        block is done with the stage's shared memory. ``own``: its task of the stage behind."""
        tasks = sum(c.tasks for c in b.calls)
        doubled = any(c.unit.doubled for c in b.calls)
        if not self.early(n, i, b):
            with w.block(f"if (const int t = {own}; t < {tasks})"):
                emit(w, b.calls, b.trip, "_prefetch", self.half(*b.at, b.trip))
            if doubled:
                w.line("cp_async_commit();")
        if not doubled:
            return
        for later in boundaries(self.spans, *b.at):
            if not self.early(*b.at, later):
                continue
            # A condition, or another trip, only behind a loop's last stage, which has the trip.
            trip = b.trip if later.trip == "trip" else later.trip
            with w.block(f"if ({later.condition})") if later.condition else nullcontext():
                count = sum(c.tasks for c in later.calls)
                with w.block(f"if (const int t = next_own({own}, {tasks}); t < {count})"):
                    emit(w, later.calls, trip, "_prefetch", self.half(*later.at, trip))
        w.line("cp_async_commit();", "of the stage behind the next one")


def eligible(units: Mapping[str, Unit], names: Callable[[Unit], Function],
             room: int) -> tuple[tuple[str, ...], int]:
    """The keys of the Units that can take part, and the bytes of a half: two of them are no more
    than ``room``."""
    sizes = {key: math.ceil(u.shared / _ALIGNED) * _ALIGNED for key, u in units.items()
             if u.tasks and u.prefetch is not None
             and u.code.can_double(u.sig, u.schedule, names(u))}
    half = max((n for n in sizes.values() if 2 * n <= room), default=0)
    return tuple(key for key, n in sizes.items() if n <= half), half

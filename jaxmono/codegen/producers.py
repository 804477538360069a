"""The part of a kernel that its producer warps run: the stages once more, loads only.

    stage s     consumers                         producers
                task, task, ...
                meet at the grid barrier          meet: shared memory is theirs
                                                  load, load, ...  (weights)
                the barrier opens: meet           meet
                task, task, ...                   load, load, ...

Where a stage's ring is that of the last stage that had one, shared memory is not handed over: tiles
go on in it while the consumers of the stage before are in their epilogue (`goes_on`). Where stages
in between leave it alone (a normalisation, say), it is handed over before them (`boundaries`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES
from jaxmono.codegen.writer import Writer


class Unit(Protocol):
    """What is asked of a distinct Sig."""

    @property
    def name(self) -> str: ...
    @property
    def load(self) -> Writer | None: ...
    @property
    def shared(self) -> int: ...
    @property
    def ring(self) -> Hashable: ...
    @property
    def frame(self) -> Hashable | None: ...
    @property
    def resident(self) -> bool: ...


class Call(Protocol):
    """The call of one Sig in one stage."""

    @property
    def unit(self) -> Unit: ...
    @property
    def tasks(self) -> int: ...
    @property
    def groups(self) -> int: ...


class Span(Protocol):
    """A periodic run of stages."""

    @property
    def start(self) -> int: ...
    @property
    def period(self) -> int: ...
    @property
    def trips(self) -> int: ...
    @property
    def calls(self) -> tuple[tuple[Any, ...], ...]: ...


def has_load(calls: Sequence[Call]) -> bool:
    """Whether a stage needs the producers."""
    return any(c.unit.load is not None for c in calls)


def is_mixed(calls: Sequence[Call]) -> bool:
    """Whether the tasks of such a stage use shared memory differently, or keep other operands in
    it, so that producers may not run ahead from one task to the next."""
    return has_load(calls) and (len({c.unit.ring for c in calls}) > 1 or any(
        c.unit.resident and (c.groups > 1 or len(calls) > 1) for c in calls))


@dataclass(frozen=True)
class Boundary:
    """What a stage ends with.

    ``condition``: in which trips, "" for all; of two, the second one has the others. ``calls``: of
    the stage behind it, in its trip ``trip``. ``frees``: whether the consumers hand shared memory
    over. ``at``: the span of that stage, and its number there.
    """

    condition: str
    calls: tuple[Any, ...]
    trip: str
    frees: bool
    at: tuple[int, int]


def boundaries(spans: Sequence[Span], n: int, i: int) -> list[Boundary]:
    """Behind stage ``i`` of span ``n``: none, one, or one for the trips before the last and one
    for the last trip."""
    span, inner = spans[n], i + 1 < spans[n].period
    calls, trip = (span.calls[i + 1], "trip") if inner else (span.calls[0], "trip + 1")
    at = (n, i + 1 if inner else 0)
    found = list[Boundary]()
    if span.trips > 1:
        found.append(Boundary(f"trip < {span.trips - 1}", calls, trip,
                              _frees(spans, n, i, last=False), at))
    if inner or n + 1 < len(spans):
        if not inner:
            calls, trip, at = spans[n + 1].calls[0], "0", (n + 1, 0)
        found.append(Boundary(f"trip == {span.trips - 1}" if span.trips > 1 else "", calls, trip,
                              _frees(spans, n, i, last=True), at))
    if inner and len(found) == 2 and found[0].frees == found[1].frees:
        return [replace(found[0], condition="")]
    return found


def emit_producers(w: Writer, spans: Sequence[Span],
                   dispatch: Callable[[Writer, Any, str, str], None], *,
                   lean: bool = False) -> None:
    """The statements of the producer warps; in scope: ``roles``, ``at``.

    ``dispatch(w, calls, trip, "_load")`` writes the call for task ``t``. ``lean``: whether the
    block has tasks is found again in each stage, not kept for all trips.
    """
    for n, span in enumerate(spans):
        with trips(w, span.trips):
            for i, calls in enumerate(span.calls):
                if has_load(calls):
                    _stage(w, spans, n, i, dispatch, "opaque(block_id())" if lean else "block_id()")
                for b in boundaries(spans, n, i):
                    if b.frees:
                        w.line(f"if ({b.condition}) roles->meet();" if b.condition
                               else "roles->meet();")


def _stage(w: Writer, spans: Sequence[Span], n: int, i: int,
           dispatch: Callable[[Writer, Any, str, str], None], block: str) -> None:
    span, calls = spans[n], spans[n].calls[i]
    w.line()
    w.comment(f"stage {span.start + i}" + (f" + {span.period} * trip" if span.trips > 1 else ""))
    fresh = " at.fresh = true;" if any(c.unit.resident for c in calls) else ""
    if not goes_on(spans, n, i):
        w.line(f"at.slot = 0;{fresh}")
    begins = span.start == 0 and i == 0  # the kernel: no grid barrier is before it
    if not begins or span.trips > 1:
        w.line("if (trip > 0) at.close();" if begins else "at.close();")
    with w.block(f"for (int t = {block}; t < {sum(c.tasks for c in calls)}; "
                 "t += num_blocks())"):
        if is_mixed(calls):
            # The tasks before may have been without loads: then the opening comes first.
            meet_before_task(w, "roles->await_open(at), roles->meet()", fresh)
        dispatch(w, calls, "trip", "_load")
    if not begins or span.trips > 1:
        w.line("roles->await_open(at);  // blocks without a task, too")


def meet_before_task(w: Writer, meet: str = "roles->meet()", fresh: str = "") -> None:
    """Both roles', in a stage whose tasks use shared memory differently."""
    w.line(f"if (t != block_id()) {meet};")
    w.line(f"at.slot = 0;{fresh}  // rings of other lengths")


def _frees(spans: Sequence[Span], n: int, i: int, *, last: bool) -> bool:
    """Whether stage ``i`` of span ``n``, in its last trip or one before, is the last one to use
    shared memory before a stage with loads, which does not go on in the ring."""
    if not _uses_ring(spans[n].calls[i]):
        return False
    rest = [(n, k) for k in range(i + 1, spans[n].period)]
    behind = ((m, k) for m in range(n + 1, len(spans)) for k in range(spans[m].period))
    again = ((n, k) for k in range(spans[n].period))
    for m, k in chain(rest, behind if last else again):
        if has_load(spans[m].calls[k]):
            return not goes_on(spans, m, k)
        if _uses_ring(spans[m].calls[k]):
            return False
    return False


def goes_on(spans: Sequence[Span], n: int, i: int) -> bool:
    """Whether the last stage that used the ring's memory before this one used it alike, whichever
    trip it is: then both roles go on in it, slot by slot, and nothing is handed over."""
    calls = spans[n].calls[i]
    frame = _frame(calls)
    if frame is None:
        return False
    before = (next((x for x in h if _uses_ring(x)), calls) for h in _histories(spans, n, i))
    return all(_frame(x) == frame for x in before)


def _frame(calls: Sequence[Call]) -> Hashable | None:
    """`Unit.frame` of all of a stage's tasks; None if they differ, or if one has none."""
    frames = {c.unit.frame for c in calls}
    return frames.pop() if len(frames) == 1 and not is_mixed(calls) else None


def _uses_ring(calls: Sequence[Call]) -> bool:
    return any(c.unit.shared > LOW_BYTES for c in calls)


def _histories(spans: Sequence[Span], n: int, i: int) -> list[list[tuple[Any, ...]]]:
    """The stages before one, the last first, as far as they tell: of a loop's first trip, and of a
    later one."""
    span = spans[n]
    inside = list(span.calls[:i][::-1])
    found = [[*inside, *(x for s in spans[:n][::-1] for x in s.calls[::-1])]]
    if span.trips > 1:
        found.append([*inside, *span.calls[i + 1:][::-1]])
    return found


@contextmanager
def trips(w: Writer, count: int) -> Generator[None]:
    """A loop of ``count`` trips around stages; nothing for a single one."""
    if count == 1:
        yield
        return
    w.directive("#pragma unroll 1")
    with w.block(f"for (int trip = 0; trip < {count}; ++trip)"):
        yield

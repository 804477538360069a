"""The part of a kernel that its producer warps run: the stages once more, loads only.

    stage s     consumers                         producers
                task, task, ...                   await_release: shared memory is theirs
                release                           load, load, ...  (weights before the barrier
                grid barrier, open                                  opens, the rest behind it)

Where a stage's ring is that of the last stage that had one, nothing is awaited: tiles go on in it
while the consumers of the stage before are in their epilogue (`goes_on`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from jaxmono.codegen.dot_wgmma import LOW_BYTES
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


def emit_producers(w: Writer, spans: Sequence[Span],
                   dispatch: Callable[[Writer, Any, str, str], None]) -> None:
    """The statements of the producer warps; in scope: ``roles``, ``at``, ``released``, ``opened``.

    ``dispatch(w, calls, trip, "_load")`` writes the call for task ``t``.
    """
    for n, span in enumerate(spans):
        with trips(w, span.trips):
            for i, calls in enumerate(span.calls):
                if has_load(calls):
                    _stage(w, span, i, None if goes_on(spans, n, i) else _early(spans, n, i),
                           dispatch)
                if n + 1 < len(spans) or i + 1 < span.period or span.trips > 1:
                    w.line("++released, ++opened;")


def _stage(w: Writer, span: Span, i: int, early: int | None,
           dispatch: Callable[[Writer, Any, str, str], None]) -> None:
    """``early``: of `_early`; None where the stage goes on in the ring."""
    calls = span.calls[i]
    mixed = is_mixed(calls)
    ahead = f" - (t == block_id() ? {early} : 0)" if mixed else f" - {early}"
    wait = f"roles->await_release(released{ahead if early else ''});"
    w.line()
    w.comment(f"stage {span.start + i}" + (f" + {span.period} * trip" if span.trips > 1 else ""))
    fresh = " at.fresh = true;" if any(c.unit.resident for c in calls) else ""
    if early is not None:
        w.line(f"at.slot = 0;{fresh}")
        if not mixed:
            w.line(wait)
    total = sum(c.tasks for c in calls)
    with w.block(f"for (int t = block_id(); t < {total}; t += num_blocks())"):
        if mixed:
            w.line(f"at.slot = 0;{fresh}  // rings of other lengths")
            w.line(wait)
        dispatch(w, calls, "trip", "_load")
        if mixed:
            w.line("++released;")


def _early(spans: Sequence[Span], n: int, i: int) -> int:
    """How many stages right before this one leave the ring alone: while the consumers run them (a
    normalisation, say) the weights of this one are loaded. In a loop: whichever trip it is."""
    return min(next((k for k, calls in enumerate(h) if _uses_ring(calls)), len(h))
               for h in _histories(spans, n, i))


def goes_on(spans: Sequence[Span], n: int, i: int) -> bool:
    """Whether the last stage that used the ring's memory before this one used it alike, whichever
    trip it is: then both roles go on in it, slot by slot, and no stage's end is waited for."""
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

"""Where shared memory is handed from the threads that compute to those that load, in any kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES
from jaxmono.codegen.producers import boundaries, emit_producers, goes_on, has_load
from jaxmono.codegen.writer import Writer


@dataclass(frozen=True)
class Calls:
    """A stage's: what `producers` asks of them."""

    unit: Any
    tasks: int = 1
    groups: int = 1


def stage(ring: str) -> tuple[Calls, ...]:
    """``ring``: "" leaves shared memory alone, "mma" uses it without producers, another name is
    that of a ring, and two names are of a mixed stage."""
    return tuple(Calls(SimpleNamespace(
        name=name, load=None if name in {"", "mma"} else Writer(), ring=name, resident=False,
        shared=LOW_BYTES if not name else LOW_BYTES + 1,
        frame=None if name in {"", "mma"} else name)) for name in ring.split(","))


STAGES = st.sampled_from(["", "mma", "a", "b", "a,b", "a,mma"]).map(stage)
SPANS = st.lists(st.tuples(st.lists(STAGES, min_size=1, max_size=3), st.integers(1, 3)),
                 min_size=1, max_size=3)


def spans_of(drawn: Sequence[tuple[list[Any], int]]) -> list[Any]:
    found, start = list[Any](), 0
    for calls, trips in drawn:
        trips = trips if len(calls) == 1 else max(trips, 2)
        found.append(SimpleNamespace(start=start, period=len(calls), trips=trips,
                                     calls=tuple(calls)))
        start += len(calls) * trips
    return found


def walk(spans: Sequence[Any]) -> Iterator[tuple[int, int, bool]]:
    """Every stage of a launch, and whether shared memory is handed over behind it."""
    for n, span in enumerate(spans):
        for trip in range(span.trips):
            for i in range(span.period):
                taken = [b for b in boundaries(spans, n, i)
                         if not b.condition or eval(b.condition, {"trip": trip})]
                end = n + 1 == len(spans) and trip + 1 == span.trips and i + 1 == span.period
                assert len(taken) == (0 if end else 1)
                yield n, i, any(b.frees for b in taken)


@given(SPANS)
def test_handed_over_once_before_producers_begin_a_ring(drawn: Any) -> None:
    """Behind the last use before it; not where one stage's ring goes on in the next stage's."""
    spans = spans_of(drawn)
    last: tuple[Any, bool] | None = None  # the last stage that used it, and whether it gave it away
    for n, i, frees in walk(spans):
        calls = spans[n].calls[i]
        uses = any(c.unit.shared > LOW_BYTES for c in calls)
        assert uses or not frees
        if has_load(calls) and last is not None:
            assert last[1] != goes_on(spans, n, i)
            if goes_on(spans, n, i):
                assert {c.unit.frame for c in last[0]} == {c.unit.frame for c in calls}
        elif uses and last is not None:
            assert not last[1]  # the consumers go on with it themselves
        if uses:
            last = calls, frees


@given(SPANS)
def test_both_roles_meet_in_the_same_order(drawn: Any) -> None:
    """Of a block with one task in every stage: at each grid barrier, before and behind it."""
    spans = spans_of(drawn)
    consumers, stages = list[str](), list(walk(spans))
    for (_, _, frees), (n, i, _) in pairwise(stages):
        consumers += ["given"] * frees + ["open"] * has_load(spans[n].calls[i])
    w = Writer()
    emit_producers(w, spans, lambda w, calls, trip, which: None)
    assert run(w.text()) == consumers


def run(text: str) -> list[str]:
    """The meetings of producers, by the statements for them, which are C of the simplest kind."""
    lines, indent = ["def go(out):", " trip, closed, t = 0, False, 0"], 1
    for line in map(str.strip, text.splitlines()):
        code = line.split("//")[0].strip()
        if loop := re.fullmatch(r"for \(int trip = 0; trip < (\d+); \+\+trip\) \{", code):
            lines.append(" " * indent + f"for trip in range({loop[1]}):")
        elif code.startswith("for (int t"):
            lines.append(" " * indent + "if True:")
        elif code == "}":
            indent -= 1
            continue
        elif code and not code.startswith("#"):
            for statement in filter(None, map(str.strip, code.split(";"))):
                lines.append(" " * indent + python(statement))
            continue
        else:
            continue
        indent += 1
        lines.append(" " * indent + "pass")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    out = list[str]()
    scope["go"](out)
    return out


def python(statement: str) -> str:
    if condition := re.fullmatch(r"if \((.+?)\) (.+)", statement):
        if "block_id" in condition[1]:
            return "pass"  # the only task of the block
        return f"if {condition[1]}: {python(condition[2])}"
    known = {"roles->meet()": "out.append('given')", "at.close()": "closed = True",
             "roles->await_open(at)": "out.extend(['open'] * closed); closed = False"}
    return "pass" if statement.startswith("at.slot") or "fresh" in statement else known[statement]

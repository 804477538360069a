"""Loops that read another loop's values where they compute are one loop with it.

    stage 0    m = 0.9 * m' + 0.1 * g           stored, since the program returns it
    stage 1    w = w' - m / (sqrt(v) + e)       reads it again       ──►   stage 0    m, v, w

A vector of the value is in registers when it is stored. AdamW's step read its two moments again
behind a barrier: 34 bytes a weight in place of 26, and a third more time.

Where a loop and some of those in front of it would store more than `MAX_OUTPUTS` values, but with
all of those no more than that, they are joined as a whole.

Two meet at the level of one of them, where nobody has to wait longer:

    down   the first loop moves to the second's; all others that wait for it come later still
    up     the second moves to the first's; all else that it waits for comes before that
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.fusion.bodies import order
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

MAX_OUTPUTS = 4
"""Of a loop: a vector of each and of what it reads is in registers at a time. With 8 (the scales of
8 batch norms, f32) 288 bytes were spilled."""

MIN_BYTES = 1 << 20
"""Of what is read again. A loop of few elements takes as long as one of them: both in turn, in one
stage, take longer than each beside others in its own. With all such loops joined CTC's loss (8 x
149 x 32) took 1.54 of its time on an H100, and a step of GPT-2's beam search 1.02."""


_WIDEST = 8
"""Bytes of an element."""


MOST_BEHIND = 16
"""Loops that are joined with one as a whole: a chain of hundreds is nothing that stores little."""


@dataclass(frozen=True)
class _Links:
    """Which loop writes a value, which groups read it, and who waits for each group."""

    writer: Mapping[Value, Draft]
    later: dict[Draft, list[Draft]]
    readers: dict[Value, list[Draft]]

    def writers(self, values: Sequence[Value]) -> list[Draft]:
        return [self.writer[v] for v in values if v in self.writer]


def join_chains(state: State, groups: Sequence[Draft], stored: set[Value],
                reads: dict[Draft, tuple[Value, ...]], before: dict[Draft, dict[Draft, None]],
                level: dict[Draft, int], parts: Mapping[Value, Sequence[Value]]) -> list[Draft]:
    """The groups, such loops joined, in the given order; the other arguments are those of the
    joined groups then.

    Args:
      stored: values that live in buffers. reads: those that each group reads. before: whom it waits
        for, readers of what it overwrites among them. level: more than that of all whom it waits
        for; not always the least such number afterwards.
      parts: of values that no group writes as they are (`stacks.written_by`).
    """
    return _Chains(state, stored, reads, before, level, parts).joined(groups)


@dataclass
class _Chains:
    state: State
    stored: set[Value]
    reads: dict[Draft, tuple[Value, ...]]
    before: dict[Draft, dict[Draft, None]]
    level: dict[Draft, int]
    parts: Mapping[Value, Sequence[Value]]

    def joined(self, groups: Sequence[Draft]) -> list[Draft]:
        gone = self._whole(groups)
        groups = [d for d in groups if d not in gone]
        writer = {v: d for d in groups if _is_plain(d) and not isinstance(d.anchor, ops.Stored)
                  for v in d.outputs}
        for loop in sorted(filter(_is_plain, groups), key=lambda d: self.level[d]):
            todo = [writer[v] for v in self.reads[loop] if v in writer]
            while todo:
                first = todo.pop(0)
                if first is not loop and first not in gone and self._join(first, loop):
                    gone.add(first)
                    todo += [writer[v] for v in self.reads[loop] if v in writer]
            writer.update((v, loop) for v in loop.outputs if v in writer)
        return [d for d in groups if d not in gone]

    def _whole(self, groups: Sequence[Draft]) -> set[Draft]:
        """Joins a loop with all that it is computed of, where some of these alone would store too
        much; returns those that are no more groups."""
        gone: set[Draft] = set()
        large = [d for d in groups if _is_plain(d)
                 and math.prod(v.size for v in d.domain) * _WIDEST * MAX_OUTPUTS >= MIN_BYTES]
        links = self._links(large)
        for loop in sorted(large, key=lambda d: -self.level[d]):
            behind = [] if loop in gone else self._behind(loop, links)
            if len(behind) < 2 or self._stored(behind, loop, links) > MAX_OUTPUTS:
                continue
            joined = {d for d in behind if self._join(d, loop, math.inf)}  # readers first
            gone |= joined
            if joined:
                links = self._links([d for d in large if d not in gone])
        return gone

    def _links(self, loops: Sequence[Draft]) -> _Links:
        links = _Links({v: d for d in loops if not isinstance(d.anchor, ops.Stored)
                        for v in d.outputs}, {}, {})
        for d, waits in self.before.items():
            for w in waits:
                links.later.setdefault(w, []).append(d)
        for d, reads in self.reads.items():
            for r in reads:
                for v in self.parts.get(r, (r,)):
                    links.readers.setdefault(v, []).append(d)
        return links

    def _behind(self, loop: Draft, links: _Links) -> list[Draft]:
        """The loops over the same elements whose values ``loop`` reads, and whose values these
        read, the latest first, `MOST_BEHIND` at most; those for which others wait that come before
        ``loop`` end the search."""
        found: dict[Draft, None] = {loop: None}
        todo = dict.fromkeys(links.writers(self.reads[loop]))
        while todo and len(found) <= MOST_BEHIND:
            d = max(todo, key=lambda d: self.level[d])
            del todo[d]
            if d.domain == loop.domain and all(
                    w in found or self.level[w] > self.level[loop]
                    for w in links.later.get(d, ())):
                found[d] = None
                todo |= {w: None for w in links.writers(self.reads[d]) if w not in found}
        return list(found)[1:]

    def _stored(self, behind: Sequence[Draft], loop: Draft, links: _Links) -> int:
        """How many values a loop of all of them stores."""
        inside, returned = {loop, *behind}, self.state.outputs_set()
        kept = [v for d in behind for v in d.outputs
                if v in returned or any(r not in inside for r in links.readers.get(v, ()))]
        return len(kept) + len(loop.outputs)

    def _join(self, first: Draft, loop: Draft, most: float = MAX_OUTPUTS) -> bool:
        """Makes ``loop`` both, if that can be and it stores no more than ``most`` values."""
        if first.domain != loop.domain \
                or sum(v.type.nbytes for v in self._read(first, loop)) < MIN_BYTES \
                or not self._is_read_in_place(first, loop):
            return False
        kept = tuple(v for v in first.outputs if self._is_needed(v, loop))
        level = self._meeting(first, loop)
        why = "one of them would come later" if level is None else \
            f"it would store {n} values" if (n := len(kept) + len(loop.outputs)) > most \
            else ""
        if level is None or why:
            self.state.refused[f"the loops of {_where(first)} and {_where(loop)}, which reads its "
                               f"values, are not made one: {why}"] = None
            return False
        loop.ops = {**first.ops, **loop.ops}
        loop.at.update(first.at)
        loop.outputs = (*kept, *loop.outputs)
        self.stored.difference_update(set(first.outputs).difference(kept))
        del self.reads[first]
        self.reads[loop] = tuple(order(self.state, loop, self.stored)[1])
        self.before[loop] = {d: None for d in (*self.before.pop(first), *self.before[loop])
                             if d is not first}
        for d, waits in self.before.items():
            if first in waits:
                self.before[d] = {loop if w is first else w: None for w in waits}
        self.level[loop] = level
        del self.level[first]
        return True

    def _is_read_in_place(self, first: Draft, loop: Draft) -> bool:
        """Whether ``loop`` needs, of what ``first`` stores, just what is at its own index."""
        inside = set(order(self.state, loop, self.stored)[0])
        walk = Walk(self.state.graph, lambda o: o in inside)
        for v in loop.outputs:
            walk.demand(v, loop.at[v])
        return walk.failed is None and all(walk.only(v) == first.at[v]
                                           for v in self._read(first, loop))

    def _read(self, first: Draft, loop: Draft) -> list[Value]:
        return [v for v in first.outputs if v in self.reads[loop]]

    def _is_needed(self, v: Value, loop: Draft) -> bool:
        """Whether a value is stored for others than ``loop``."""
        return v in self.state.outputs_set() or any(
            v in self.parts.get(r, (r,)) for d, reads in self.reads.items() if d is not loop
            for r in reads)

    def _meeting(self, first: Draft, loop: Draft) -> int | None:
        """The level at which both can run without a group that would come later for it."""
        high, low = self.level[loop], self.level[first]
        if all(self.level[d] > high for d, waits in self.before.items()
               if first in waits and d is not loop):
            return high
        others = (d for d in self.before[loop] if d is not first)
        return low if all(self.level[d] < low for d in others) else None


def _is_plain(d: Draft) -> bool:
    """Whether a group is a loop that computes what it stores, each element by itself. A copy's
    values are an input's, which nobody waits for. Parts of an array meet at the level of the last
    one (merged_loops.py), which others cannot share."""
    return d.kind == "loop" and not d.stored and d.anchor is not None \
        and not isinstance(d.anchor, ops.OF_LINES) \
        and not (isinstance(d.anchor, ops.Stored) and d.anchor.in_turn)


def _where(d: Draft) -> str:
    assert d.anchor is not None
    return str(d.anchor.loc)

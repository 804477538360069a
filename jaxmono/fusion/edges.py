"""Sync edges: every reason why one group has to wait for another.

    raw  the consumer reads a buffer that the producer writes
    war  the consumer overwrites bytes that the producer reads
    waw  the consumer overwrites bytes that the producer wrote
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion.plan import Buffer, Group, Mechanism, Place, Scope, Stage, SyncEdge
from jaxmono.fusion.spans import Span, overlaps


def sync_edges(buffers: Sequence[Buffer], stages: Sequence[Stage]) -> tuple[SyncEdge, ...]:
    """All edges, replaying the stages in order over the places in memory.

    Each edge crosses a stage border, so its mechanism is the grid barrier, or flags in the words
    of the buffer; an earlier group of the same stage never appears as a producer.
    """
    spans = {b.id: _span(b, buffers) for b in buffers}
    whole = {b.id: b.index for b in buffers if b.place is Place.PART}
    touching = {b: [*sorted((b, *found))] for b, found in overlaps(spans).items()}
    writers: dict[int, Group] = {}
    readers: dict[int, list[Group]] = {}
    out: dict[tuple[int, int, int, str], None] = {}
    for stage in stages:
        for g in stage.groups:
            for b in g.params:
                for o in touching[b]:
                    if o in writers and (whole.get(o, o) == whole.get(b, b)
                                         or _aliased(spans, o, b)):
                        out[(writers[o].id, g.id, b, "raw")] = None
        for g in stage.groups:
            for b in g.results:
                for o in touching[b]:
                    if o in writers and writers[o] is not g:
                        out[(writers[o].id, g.id, b, "waw")] = None
                    for r in readers.get(o, ()):
                        if r is not g:
                            out[(r.id, g.id, b, "war")] = None
        for g in stage.groups:
            for b in g.results:
                for o in touching[b]:
                    writers.pop(o, None)
                    readers.pop(o, None)
        for g in stage.groups:
            for b in g.results:
                writers[b] = g
        for g in stage.groups:
            for b in g.params:
                readers.setdefault(b, []).append(g)
    flagged = {b.id for b in buffers if b.place is Place.FLAGGED}
    return tuple(SyncEdge(p, c, b, Scope.GRID,
                          Mechanism.FLAGGED if b in flagged and h == "raw"
                          else Mechanism.BARRIER, h)
                 for p, c, b, h in out if p != c)


def flagged_bytes(b: Buffer) -> int:
    """Of a buffer's words with flags: values of 2 bytes in 4, of 4 bytes in 8."""
    return max(2 * b.type.nbytes, 1)


def _span(b: Buffer, buffers: Sequence[Buffer]) -> Span:
    """The memory space of a buffer and its bytes there; an aliased output is its input."""
    if b.place is Place.PART:
        space, begin, _ = _span(buffers[b.index], buffers)
        return (space, begin + b.offset, begin + b.offset + max(b.type.nbytes, 1))
    if b.place is Place.SCRATCH:
        return ("scratch", b.offset, b.offset + max(b.type.nbytes, 1))
    if b.place is Place.FLAGGED:
        return ("flagged", b.offset, b.offset + flagged_bytes(b))
    if b.place is Place.OUTPUT and b.alias is not None:
        return (f"input{b.alias}", 0, max(b.type.nbytes, 1))
    place = Place.OUTPUT if b.place is Place.STATE else b.place
    return (f"{place.value}{b.index}", 0, max(b.type.nbytes, 1))


def _aliased(spans: dict[int, Span], a: int, b: int) -> bool:
    return spans[a][0] == spans[b][0] and spans[a][0] not in ("scratch", "flagged")

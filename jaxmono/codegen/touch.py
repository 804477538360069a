"""Weights that are requested into the L2 while a stage leaves the memory idle.

    boundary  stage behind it             in flight without this    requested as well
    ...       keys rotated, 1 task        nothing                   8 MB of the gated unit's weights
    ...       attention, 8 tasks          the projection's ring     8 MB more
    ...       projection, all in its ring nothing                   4 MB more

A stage that streams more than its ring holds is then bound by memory for less of it. The rows that
are requested lie evenly in the weights: the stream reads from L2 and from memory by turns, which
together are faster than either. Only inside the loop over the layers, where stages repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxmono.codegen import dot_gemv
from jaxmono.codegen.calls import Call
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import DotForm
from jaxmono.hlo.ir import Value

BUDGET = 8 << 20
"""Bytes that memory delivers in a stage whose few tasks wait for L2 and for each other: 2 us of 4.2
TB/s. Twice that for attention, half for a contraction whose weights are all in its ring."""
AHEAD = 3
"""Stages between a request and its use at most."""
CHUNK = 8192
"""Bytes requested in a row."""


@dataclass(frozen=True)
class Touch:
    """Chunks ``first`` to ``last`` of the ``total`` that are requested of an input of a call.

    Attributes:
      stage: of the period, where the call is. later: it is in the next trip.
      input: position in the body's inputs. size: bytes of it.
    """

    stage: int
    call: int
    later: bool
    input: int
    size: int
    first: int
    last: int
    total: int


@dataclass(frozen=True)
class _Weights:
    """A stream's weights: bytes of one group and of what its blocks hold in their rings."""

    call: int
    input: int
    size: int
    ring: int


def touches(period: Sequence[Sequence[Call]], threads: int) -> dict[int, list[Touch]]:
    """What to request at the barrier in front of each stage of a loop's period."""
    weights = [list(_weights(calls, threads)) for calls in period]
    asked: dict[tuple[int, int], list[tuple[int, bool, int]]] = {}
    for at, calls in enumerate(period):
        left = _idle(calls, weights[at])
        behind = period[(at + 1) % len(period)]
        if 2 * sum(c.tasks for c in calls) < sum(c.tasks for c in behind):
            # Most blocks have nothing to do here and fill the next stage's rings.
            left -= sum(w.ring for w in weights[(at + 1) % len(period)])
        for far in range(1, min(AHEAD, len(period) - 1) + 1):
            to = (at + far) % len(period)
            streams = [w for w in weights[to] if w.size > w.ring]
            size, budget = sum(w.size for w in streams), left
            for w in streams if left >= CHUNK else ():
                # The ring in front of the stage asks for its part in any case.
                room = (w.size - w.ring) // 2 - sum(n for _, _, n in asked.get((to, w.call), ()))
                share = min(budget * w.size // size, room) // CHUNK
                if share > 0:
                    asked.setdefault((to, w.call), []).append((at, at + far >= len(period),
                                                               share * CHUNK))
                    left -= share * CHUNK
    out: dict[int, list[Touch]] = {}
    for (to, call), parts in asked.items():
        (w,) = [w for w in weights[to] if w.call == call]
        total, done = sum(n for _, _, n in parts) // CHUNK, 0
        for at, later, size in parts:
            out.setdefault(at, []).append(Touch(to, call, later, w.input, w.size, done,
                                                done + size // CHUNK, total))
            done += size // CHUNK
    return out


def _weights(calls: Sequence[Call], threads: int) -> Iterator[_Weights]:
    """The weights of a stage that stream from buffers of their own."""
    for i, c in enumerate(calls):
        u, s = c.unit, c.unit.schedule
        if not isinstance(s, DotSchedule) or s.family != "gemv" or u.prefetch is None:
            continue
        code = DotCode.of(u.sig, s)
        form, body = u.sig.form, u.sig.body
        assert isinstance(form, DotForm) and code.rhs.param is not None
        size = form.batch.size * form.n.size * form.k.size * code.rhs.param.type.dtype.itemsize
        at = _position(body.inputs, code.rhs.param)
        if c.groups != 1 or not u.read_only[at] or code.rhs.param.type.nbytes != size:
            continue
        of = dot_gemv.shape(code, threads)
        yield _Weights(i, at, size, min(size, c.tasks * s.stages * of.slot_bytes))


def _position(inputs: Sequence[Value], wanted: Value) -> int:
    return next(i for i, v in enumerate(inputs) if v is wanted)


def _idle(calls: Sequence[Call], weights: Sequence[_Weights]) -> int:
    """Bytes that memory could deliver in a stage beside what the stage asks for."""
    kinds = {c.unit.sig.kind for c in calls}
    if "dot" not in kinds:
        return 2 * BUDGET if "attention" in kinds else BUDGET
    whole = len(weights) == len(calls) and all(w.size <= w.ring for w in weights)
    return BUDGET // 2 if whole else 0

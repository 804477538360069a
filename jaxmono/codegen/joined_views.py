"""A concatenation of parts of buffers: one load, of the place that an element comes from.

    roll(x, 1): y[i] of (x[n - 1:] | x[:n - 1])

    if (i < 1) v = load(x + i + n - 1); else v = load(x + i - 1);
      ──►   v = load(i < 1 ? x + i + n - 1 : x + i - 1)

Behind a branch each load waits for the one before (joined.py, where whole buffers are joined). Of
two dimensions that are rolled there are four places; of rows both alternatives often are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxmono.codegen.index_code import guard_code
from jaxmono.codegen.names import FlaggedName
from jaxmono.codegen.traverse import (
    Access,
    Lane,
    access,
    alternatives,
    dynamics,
    operands,
    uniform_guard,
)
from jaxmono.fusion.indexing import IndexMap, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter

MOST_PLACES = 8
"""That an element is chosen from."""
_VIEWS = (ops.Slice, ops.Reshape, ops.Transpose, ops.BroadcastInDim, ops.Reverse)


@dataclass(frozen=True)
class Place:
    """C text of where an element, or a vector of them, lies, and the buffers that it may lie in."""

    text: str
    buffers: tuple[Value, ...]
    pattern: Access


def emit_place(em: BodyEmitter, value: Value, index: IndexMap, lane: Lane | None) -> Place | None:
    """None where an element is computed, lies where memory says, in more than `MOST_PLACES`, or
    where lanes lie in different ones.

    Args:
      index: split at the lane. lane: None where a single element is asked for.
    """
    if value.type.dtype in FOUR_BITS or dynamics(index):
        return None
    while (buffer := em.buffer(value)) is None:
        op = em.body.producer.get(value)
        if em.is_source(value) or em.known(value, index) is not None \
                or not isinstance(op, (*_VIEWS, ops.Concatenate)):
            return None
        if isinstance(op, ops.Concatenate):
            return _emit_choice(em, op, index, lane)
        (needed,) = operands(op, value, index) or (None,)
        if needed is None:
            return None
        value, index = needed.value, needed.index
    offset = linearize(index, value.type.dims)
    pattern = Access.UNIFORM if lane is None else access(offset, lane)
    if isinstance(buffer, FlaggedName) or pattern not in (Access.UNIFORM, Access.CONTIGUOUS):
        return None
    return Place(f"{buffer} + {em.code(offset)}", (value,), pattern)


def _emit_choice(em: BodyEmitter, op: ops.Concatenate, index: IndexMap, lane: Lane | None,
                 ) -> Place | None:
    tests: list[str] = []
    places: list[Place] = []
    buffers: list[Value] = []
    for choice in alternatives(op, index):
        guard = choice.guard if lane is None else uniform_guard(choice.guard, lane)
        place = emit_place(em, choice.value, choice.index, lane)
        if place is None or guard is None or any(dynamics((x,)) for x, _, _ in guard.bounds):
            return None
        tests.append(guard_code(guard, em.code, branches=False))
        places.append(place)
        buffers += place.buffers
        if len(buffers) > MOST_PLACES:
            return None
    text = places[-1].text
    for test, place in zip(tests[-2::-1], places[-2::-1], strict=True):
        text = text if place.text == text else f"({test} ? {place.text} : {text})"
    patterns = {p.pattern for p in places}
    return Place(text, tuple(buffers), *patterns) if len(patterns) == 1 else None

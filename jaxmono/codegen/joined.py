"""A concatenation of buffers: one load, of the part that an element lies in, and no branches.

    y[i, j] of (a | b | c), 3, 5 and 4 columns

    const T* const part = j < 3 ? a : j < 8 ? b - 3 : c - 8;     } the same for all rows: the
    const int wide = j < 3 ? 3 : j < 8 ? 5 : 4;                  } compiler makes them once
    y = load(part + wide * i + j)

Behind a branch each load waits for the one before: a 3 x 3 pool of six joined arrays, four vectors
a thread, was 216 loads in 216 branches. With five such stages NVRTC took 305 s for Inception-v3
b32, and takes 54 s without their branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxmono.codegen.index_code import one_of
from jaxmono.codegen.names import storage
from jaxmono.codegen.traverse import Access, Lane, access, dynamics, uniform_guard
from jaxmono.fusion.demand import Demand
from jaxmono.fusion.indexing import Index, IndexMap, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter


@dataclass(frozen=True)
class Part:
    """One of the joined buffers.

    Attributes:
      start: element of the buffer that would be the whole's first one, were all of it as wide;
        zero or negative.
      width: its elements for each step of `Joined.row`.
      test: (x, high): where x < high, and no part in front of it has the element; None: the last.
    """

    buffer: Value
    start: int
    width: int
    test: tuple[Index, int] | None


@dataclass(frozen=True)
class Joined:
    """Where an element of a concatenation lies: at ``start + width * row + column`` of its part."""

    parts: tuple[Part, ...]
    row: Index
    column: Index
    pattern: Access


def joined(op: ops.Concatenate, index: IndexMap, choices: Sequence[Demand], lane: Lane,
           ) -> Joined | None:
    """How ``op`` at ``index`` is loaded at once; None where parts or lanes lie otherwise.

    Args:
      index: split at the lane.
      choices: of the result (`traverse.alternatives`); their values have to be buffers.
    """
    d, whole = op.dimension, op.result.type
    if dynamics(index) or whole.size >= 2**30:  # sums of int
        return None
    inner = math.prod(whole.dims[d + 1:])
    parts: list[Part] = []
    patterns: set[Access] = set()
    for k, choice in enumerate(choices):
        behind = index[d] - choice.index[d]
        guard = uniform_guard(choice.guard, lane)
        last = k == len(choices) - 1
        if behind.variables or guard is None or (not last and len(guard.bounds) != 1):
            return None
        dims = choice.value.type.dims
        patterns.add(access(linearize(choice.index, dims), lane))
        (test,) = [None] if last else [(x, high) for x, _, high in guard.bounds]
        parts.append(Part(choice.value, -behind.const * inner, dims[d] * inner, test))
    if len(patterns) != 1 or not patterns <= {Access.CONTIGUOUS, Access.UNIFORM}:
        return None
    column = index[d] * inner + linearize(index[d + 1:], whole.dims[d + 1:])
    return Joined(tuple(parts), linearize(index[:d], whole.dims[:d]), column, *patterns)


def emit_address(em: BodyEmitter, x: Joined, remark: str = "") -> str:
    """A C expression: where the element is. Whatever the index, it is only computed."""
    first, t = x.parts[0], storage(x.parts[0].buffer.type.dtype)
    tests = [f"{em.code(p.test[0])} < {p.test[1]}" for p in x.parts if p.test is not None]
    begins = [f"{em.buffer(p.buffer)}{f' - {-p.start}' if p.start else ''}" for p in x.parts]
    part = em.once(f"const {t}* const", "part", one_of(tests, begins), remark)
    if all(p.width == first.width for p in x.parts):
        return f"{part} + {em.code(x.row * first.width + x.column)}"
    wide = em.once("const int", "wide", one_of(tests, [str(p.width) for p in x.parts]))
    return f"{part} + {wide} * ({em.code(x.row)}) + {em.code(x.column)}"

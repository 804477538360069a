"""Elements that a thread reads one by one and that lie next to each other: a vector of them, once.

    v0 = load_ro(p0 + 64 * i)         const auto near0 = load_ro<float, 4>(p0 + 64 * i);
    v1 = load_ro(p0 + 64 * i + 1)     near0.x[0], near0.x[1] ...
    ...

Lanes that are computed one by one read what is next to each other (alternating.py). Of others it is
so where all of a vector's elements are read: rows of small matrices, times vectors of columns. A
warp's 64 loads of such elements, from eight rows each, take as many passes through the L1 as 64 of
whole vectors do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxmono.codegen.names import FlaggedName, compute
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import Access, Lane, Root, access, is_multiple
from jaxmono.fusion.indexing import Index, linearize
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter

_MOST_BYTES = 16
"""Of an access."""

Vectors = dict[tuple[Value, Index], int]
"""By an input and the place of a vector's first element: its width."""


def neighbours(reads: Iterable[Root], lane: Lane) -> Vectors:
    """The vectors all of whose elements are among ``reads`` and the same for all lanes. Indices are
    over the two parts of the lane Var."""
    places: dict[tuple[Value, Index], set[int]] = {}
    for value, index in reads:
        offset = linearize(index, value.type.dims)
        if value.type.dtype not in FOUR_BITS and offset.is_static \
                and access(offset, lane) is Access.UNIFORM:
            at = Index.of(offset.const)
            places.setdefault((value, offset - at), set()).add(offset.const)
    found: Vectors = {}
    for (value, rest), at in places.items():
        width = _width(value, rest, _MOST_BYTES // value.type.dtype.itemsize)
        for first in range(min(at) - min(at) % width, max(at), width):
            if width > 1 and all(first + i in at for i in range(width)):
                found[value, rest + Index.of(first)] = width
    return found


def load_near(em: BodyEmitter, pointer: str, offset: Index, value: Value, read_only: bool,
              ) -> Emitted | None:
    """An element of an input out of a vector of its neighbours; None where it is in none, or that
    would be more than an access."""
    if em.reads_if or em.buffer(value) is None or isinstance(pointer, FlaggedName) \
            or not offset.is_static:
        return None
    dtype, rest = value.type.dtype, offset - Index.of(offset.const)
    widest = em.lanes if em.by_lane else _MOST_BYTES // dtype.itemsize
    width = _width(value, rest, widest)
    first = Index.of(offset.const - offset.const % width) + rest
    if width == 1 or not (em.by_lane or em.vectors.get((value, first)) == width):
        return None
    load = "load_ro" if read_only else "load"
    near = em.once("const auto", "near",
                   f"{load}<{compute(dtype)}, {width}>({pointer} + {em.code(first)})")
    return Emitted(f"{near}.x[{offset.const % width}]")


def _width(value: Value, rest: Index, widest: int) -> int:
    """Of vectors of an input that begin at multiples of it from ``rest``."""
    width = widest
    while width > 1 and (width * value.type.dtype.itemsize > _MOST_BYTES
                         or value.type.size % width or not is_multiple(rest, width)):
        width //= 2
    return width

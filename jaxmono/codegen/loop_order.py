"""In which order threads take the elements of a loop whose source lies turned.

    y[p, c] = x[c, p]      in the order of y: neighbouring threads store neighbours, and each load
                           of a warp reads 32 lines of memory
                           here: a thread stores 16 bytes, eight c of a place p, and its neighbour
                           those of the next place, so that each load reads neighbours, too

A thread's vector lies along what is stored; between threads the order is that of the source, in
tiles: a warp reads 32 bytes of each of several lines, and stores more than a vector of each
(`schedule.flat_loop`). 64 x 256 x 1024 f32, turned to 1024 x 64 x 256, took 157 us of an H200 where
it read 128 and stored 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxmono.codegen.traverse import Access, Lane, Root, access, walk
from jaxmono.fusion.indexing import Index, Var, linearize, stride
from jaxmono.hlo.ir import Graph

_VECTOR_BYTES = 16
_SHARE = 4
"""Of the elements that are stored, that the source must have one for at least."""


def source_order(body: Graph, roots: Sequence[Root], stores: Sequence[tuple[Index, int]],
                 variables: Sequence[Var]) -> tuple[tuple[int, ...], int] | None:
    """The positions of ``variables``, outermost first, and the lanes of a vector along the last
    of them; None where the order of the results is as good.

    Args:
      roots: what is stored, with its indices over ``variables``. stores: element offset and item
        size of every store.
    """
    if len(variables) < 2:
        return None
    last = variables[-1]
    lanes = stored_lanes(last, stores)
    if lanes < 2:
        return None
    lane = Lane(last, lanes)
    found = scattered(body, roots, lane, variables)
    if found is None or not found.steps[last]:
        return None
    steps = {**found.steps, last: found.steps[last] * lanes}
    order = sorted(range(len(variables)), key=lambda i: -steps[variables[i]])
    return (tuple(order), lanes) if order != sorted(order) else None


def stored_lanes(last: Var, stores: Sequence[tuple[Index, int]]) -> int:
    """Neighbours along ``last`` that one access stores, at most 16 bytes; 0 where some are none."""
    lanes = _VECTOR_BYTES // max(size for _, size in stores)
    while lanes > 1 and last.size % lanes:
        lanes //= 2
    lane = Lane(last, lanes)
    whole = all(stride(x, last) == 1 if lanes < 2 else
                access(lane.split(x), lane) is Access.CONTIGUOUS for x, _ in stores)
    return lanes if whole else 0


@dataclass(frozen=True)
class Scattered:
    """What vectors along the results read scattered: ``sources``, at their indices, alike in how
    far apart (``steps``, elements) the neighbours along each variable are."""

    sources: tuple[Root, ...]
    steps: dict[Var, int]


def scattered(body: Graph, roots: Sequence[Root], lane: Lane, variables: Sequence[Var],
              ) -> Scattered | None:
    """What of `_SHARE` and more is; None where nothing is, or where not all is alike."""
    found: dict[Root, dict[Var, int]] = {}
    for node in walk(body, roots):
        if node.op is not None:
            continue
        offset = linearize(node.index, node.value.type.dims)
        split = lane.split(offset)
        if access(split, lane) is not Access.SCATTERED:
            continue
        if node.value.type.size * _SHARE < math.prod(v.size for v in variables):
            continue
        if any(not isinstance(atom, Var) for atom, _ in offset.terms):
            return None
        steps = {v: offset.coefficient(v) for v in variables}
        if min(steps.values()) < 0 or any(steps != other for other in found.values()):
            return None
        found[node.value, node.index] = steps
    if not found:
        return None
    return Scattered(tuple(found), next(iter(found.values())))

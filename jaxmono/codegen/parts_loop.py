"""Loops that join equal parts made of the same elements: rotary positions.

    y[h, i, :] = concatenate([a * c[i] - b * s[i], a * s[i] + b * c[i]]),  a, b = halves of x[h, i]

    element by element        4 loads for each, behind a branch that asks which half it is of
    of both halves            4 loads for two, no branch
    and of 4 heads            10 loads for eight

A bf16 line's sines are f32: of 32 heads element by element they are twice the bytes of x that a
multiprocessor asks the L2 for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from jaxmono.codegen.early_loads import read_by
from jaxmono.codegen.stencil_rows import at_place
from jaxmono.codegen.traverse import Root, walk
from jaxmono.fusion.indexing import Index, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph

_MOST_PARTS = 4
_PLACES = (1, 2, 4, 8)
_FEWER = 0.85
"""Of the bytes, from which on several places of another variable are worth it."""
_WORDS = 64
"""Registers of a thread for what it loads, and for what it makes of that."""
_BLOCKS = 4
"""For each multiprocessor at least: with fewer, loads in flight are too few."""


def parts_loop(body: Graph, roots: Sequence[Root], variables: Sequence[Var], lanes: int, *,
               sm_count: int, threads: int) -> tuple[int, tuple[int, ...]] | None:
    """(equal parts of the last variable of which a thread takes a vector each, how many places of
    each variable); None where parts are not joined along it, or read nothing in common.

    Args:
      roots: what is stored, with its indices over ``variables``, of which the last has the lanes.
    """
    if not variables:
        return None
    *outer, last = variables
    parts = _joined(body, last)
    if not 1 < parts <= _MOST_PARTS or last.size // parts % lanes:
        return None
    if not _is_decided(body, roots, last, parts):
        return None
    each = [_bytes(body, roots, variables, (1,) * len(outer), parts, i) for i in range(parts)]
    one = _bytes(body, roots, variables, (1,) * len(outer), parts)
    if not all(each) or one > _FEWER * sum(each) or max(one, 4 * parts) * lanes > 4 * _WORDS:
        return None
    vectors = math.prod(v.size for v in variables) / (parts * lanes * threads * sm_count)
    best, places = float(one), (1,) * len(variables)
    for i, v in enumerate(outer):
        for n in _PLACES[1:]:
            some = tuple(n if j == i else 1 for j in range(len(outer)))
            if v.size % n or vectors / n < _BLOCKS:
                break
            found = _bytes(body, roots, variables, some, parts)
            if max(found, 4 * n * parts) * lanes <= 4 * _WORDS and found / n < _FEWER * best:
                best, places = found / n, (*some, 1)
    return parts, places


def _joined(body: Graph, last: Var) -> int:
    """Of how many equal parts dimensions like the last one of what is stored are joined; else 1."""
    counts = {len(o.inputs) for o in body.ops if isinstance(o, ops.Concatenate)
              and o.dimension == len(o.result.type.dims) - 1
              and o.result.type.dims[-1] == last.size
              and all(v.type.dims == o.inputs[0].type.dims for v in o.inputs)}
    return counts.pop() if len(counts) == 1 else 1


def _is_decided(body: Graph, roots: Sequence[Root], last: Var, parts: int) -> bool:
    """Whether it is known of each part which joined value an element is of: they are joined along
    the variable."""
    part = Var(last.name, last.size // parts)
    every = [(v, tuple(i.substitute({last: Index.of(part) + part.size * p}) for i in index))
             for p in range(parts) for v, index in roots]
    return not any(isinstance(n.op, ops.Concatenate) and n.guards for n in walk(body, every))


def _bytes(body: Graph, roots: Sequence[Root], variables: Sequence[Var], places: Sequence[int],
           parts: int, only: int | None = None) -> int:
    """That a lane reads for so many places of the outer variables and all parts, or ``only`` one
    of these."""
    *outer, last = variables
    part = Var(last.name, last.size // parts)
    ends = [Index.of(part) + part.size * i for i in (range(parts) if only is None else [only])]
    firsts = [[at_place(Index.of(v), v, n, i) for i in range(n)]
              for v, n in zip(outer, places, strict=True)]
    read = {root for *at, end in itertools.product(*firsts, ends)
            for root in read_by(body, [(v, tuple(
                i.substitute(dict(zip(variables, [*at, end], strict=True))) for i in index))
                for v, index in roots])}
    return sum(v.type.dtype.itemsize for v, _ in read)

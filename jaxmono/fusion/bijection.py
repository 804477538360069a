"""Does a store write every element once? Proven on the index, or counted where it is small."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxmono.fusion.indexing import Div, Dyn, Index, IndexMap, Mod, Var, linearize
from jaxmono.fusion.points import evaluate_index, grid

MAX_COUNTED = 1 << 20
"""Points up to which an index that resists proof is checked by counting."""


def injective(index: IndexMap, shape: Sequence[int], over: Sequence[Var]) -> bool | None:
    """Whether no two points of the domain go to one element; None if that cannot be told.

    An index read from memory counts as a constant if it does not depend on the domain.
    """
    offset = linearize(index, shape)
    fixed = Index()
    for a, c in offset.terms:
        if isinstance(a, Dyn):
            if any(i.variables for i in a.index):
                return None
        else:
            fixed = fixed + Index.of(a) * c
    proven = _mixed_radix(fixed, over)
    if proven:
        return True
    count = math.prod(v.size for v in over)
    if count > MAX_COUNTED or not fixed.is_static:
        return None
    where = np.broadcast_to(evaluate_index(fixed, grid(over), {}),
                            tuple(v.size for v in over))
    ordered = np.sort(where, axis=None)
    return bool((ordered[1:] != ordered[:-1]).all())


def _mixed_radix(offset: Index, over: Sequence[Var]) -> bool:
    digits: dict[Var, Index] = {}
    vars: list[Var] = []
    for v in over:
        parts = _digits(v, sorted(_boundaries(offset, v)))
        digits[v] = sum((Index.of(d) * scale for d, scale in parts), Index())
        vars.extend(d for d, _ in parts if d.size != 1)
    linear = offset.substitute(digits)
    rows = sorted((c, a.size) for a, c in linear.terms if isinstance(a, Var))
    if len(rows) != len(linear.terms) or len(rows) != len(set(vars)):
        return False
    reach = 0
    for c, size in rows:
        if c <= reach:
            return False
        reach += c * (size - 1)
    return True


def _digits(v: Var, cuts: Sequence[int]) -> list[tuple[Var, int]]:
    """``v`` split at the cuts that divide each other, as (digit, weight)."""
    out: list[tuple[Var, int]] = []
    at = 1
    for cut in cuts:
        if cut % at == 0 and v.size % cut == 0 and cut > at:
            out.append((Var(f"{v.name}@{at}", cut // at), at))
            at = cut
    out.append((Var(f"{v.name}@{at}", v.size // at), at))
    return out


def _boundaries(x: Index, v: Var) -> set[int]:
    out: set[int] = set()
    for a, _ in x.terms:
        if isinstance(a, (Div, Mod)):
            for scale in _scales(a.x, v):
                out.add(scale * a.d)
            out |= _boundaries(a.x, v)
    return out


def _scales(x: Index, v: Var) -> set[int]:
    """By how much ``v`` is divided before it enters ``x``."""
    out: set[int] = set()
    for a, c in x.terms:
        if a == v:
            out.add(1 if c == 1 else 0)
        elif isinstance(a, Div):
            out |= {s * a.d for s in _scales(a.x, v)}
        elif isinstance(a, Mod):
            out |= _scales(a.x, v)
    return out - {0}

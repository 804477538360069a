"""Indices as numbers: evaluating an index expression over a whole domain with NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmono.fusion.indexing import Div, Index, IndexMap, Mod, Var
from jaxmono.hlo.ir import Value

Array = np.ndarray[Any, Any]


def grid(over: Sequence[Var]) -> dict[Var, Array]:
    """Every point of a domain, as arrays that broadcast against each other."""
    axes = np.ogrid[tuple(slice(0, v.size) for v in over)] if over else ()
    return dict(zip(over, axes, strict=True))


def evaluate_index(i: Index, env: Mapping[Var, Array], values: Mapping[Value, Array]) -> Array:
    """The index as int64, for Vars from ``env`` and memory from ``values``."""
    out = np.asarray(i.const, np.int64)
    for a, c in i.terms:
        if isinstance(a, Var):
            x = env[a]
        elif isinstance(a, Div):
            x = evaluate_index(a.x, env, values) // a.d
        elif isinstance(a, Mod):
            x = evaluate_index(a.x, env, values) % a.d
        else:
            table = values[a.value].astype(np.int64)
            at = tuple(evaluate_index(j, env, values) for j in a.index)
            x = np.clip(table[at], a.low, a.high)
        out = out + x * c
    return out


def offsets(index: IndexMap, shape: Sequence[int], over: Sequence[Var],
            values: Mapping[Value, Array]) -> Array:
    """Flat row-major offsets of all points of a domain, int64[points].

    Raises:
      IndexError: if a point lies outside ``shape``.
    """
    env = grid(over)
    space = tuple(v.size for v in over)
    flat = np.zeros(space, np.int64)
    for i, n in zip(index, shape, strict=True):
        x = np.broadcast_to(evaluate_index(i, env, values), space)
        if x.size and (x.min() < 0 or x.max() >= n):
            raise IndexError(f"index {i} runs from {x.min()} to {x.max()} in a dimension of {n}")
        flat = flat * n + x
    return flat.reshape(-1)

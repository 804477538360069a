"""Loops that read little for each element, beside much that is the same for their neighbours.

    y[b, i, j, c] = silu((x[b, i, j, c] - mean[b, c / 10]) * rsqrt(var[b, c / 10]) * w[c] + s[c])

    place by place        5 loads, one of them of x; two divisions to find mean and var; the rsqrt
    8 places at a time    12 loads and the rest once for eight neighbours along j

What normalises by groups, channels or batches (GroupNorm, a training step's BatchNorm). Vectors of
groups of 10 channels are 4 bytes, and of eight such loads of x all are on their way at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.codegen.traverse import Node, Root, walk
from jaxmono.fusion import cost
from jaxmono.fusion.indexing import Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph

_LEAST_SHARED, _MOST_OWN = 3, 2
"""Loads of an element that its neighbours have, too, and that they have not."""
_PLACES = (2, 4, 8)
_LEAST_BEHIND = 16
"""Elements behind the dimension: a thread's stores lie as far apart, and so do its neighbours', one
place each. Images of 3 channels, normalised, were written 12 bytes at a time; with a stage in front
of it, which has gone as well, that took 21.6 us of an H200, without both 12.0."""
_FIND, _WAIT = 10, 40
"""Instructions that find and load an element; that a thread waits for, in the same unit."""
_WORDS = 64
"""Registers of a thread for what it makes."""


def shared_loop(body: Graph, roots: Sequence[Root], variables: Sequence[Var], lanes: int, *,
                sm_count: int, threads: int) -> tuple[int, ...] | None:
    """How many places of each of ``variables`` a thread takes; None where one is as good.

    Args:
      roots: what is stored, with its indices over ``variables``, of which the last has the lanes.
    """
    nodes = list(walk(body, roots))
    if any(isinstance(n.op, ops.Reduce) for n in nodes):  # what it reads is not among them
        return None
    loads = [n for n in nodes if n.op is None]
    vectors = math.prod(v.size for v in variables) / lanes / threads
    best: tuple[float, tuple[int, ...]] | None = None
    for i, v in enumerate(variables[:-1]):
        behind = math.prod(x.size for x in variables[i + 1:])
        if behind % lanes or behind < _LEAST_BEHIND:
            continue  # a vector lies along it, too
        once = [n for n in nodes if not any(x.depends_on(v) for x in n.index)]
        shared = [n for n in once if n.op is None and n.index]
        if len(shared) < _LEAST_SHARED or len(loads) - len(shared) > _MOST_OWN:
            continue
        fixed = _WAIT + _work(once, lanes)
        each = _work(nodes, lanes) - _work(once, lanes)
        for n in (1, *_PLACES):
            if v.size % n == 0 and n * lanes <= _WORDS:
                rounds = math.ceil(vectors / n / sm_count)
                places = tuple(n if j == i else 1 for j in range(len(variables)))
                best = min(best or (math.inf, places), (rounds * (fixed + n * each), places))
    return best[1] if best is not None and max(best[1]) > 1 else None


def _work(nodes: Sequence[Node], lanes: int) -> float:
    """Lane operations for a vector of each."""
    return sum(_FIND if n.op is None else lanes * cost.weight(n.op) for n in nodes)

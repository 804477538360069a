"""Whether a group reads what it writes over only where it writes it.

    loop, dot    w1[i] = w[i] - 0.1 * g[i]                    the thread of i reads w[i] first
    row          w1[r, c] = w[r, c] / sqrt(sum over c of w[r, c]^2)
                 a thread walks the same columns in every sweep, and stores in the last one

Values of rows are stored by one thread of those that compute them, so what they are made of may be
read for nothing else, and by no sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxmono.fusion.draft import ANCHORS
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.rows import reduced_shape, spread
from jaxmono.fusion.walk import Walk, leaves
from jaxmono.hlo.ir import Graph, Op, Value


def needed_where_written(graph: Graph, inside: Callable[[Op], bool],
                         roots: Mapping[Value, IndexMap], value: Value, written: Value,
                         cols: Sequence[Var] = ()) -> bool:
    """Whether a group needs, of ``value``, just the element in whose place it stores one of
    ``written``, and for nothing that it stores more or less often.

    Args:
      inside: whether the group computes an op. roots: what it stores, and where. cols: of rows,
        what is reduced.
    """
    index = roots[written]
    for v, at in roots.items():
        walk = Walk(graph, lambda o: inside(o) and not isinstance(o, ANCHORS))
        walk.demand(v, at)
        found = _is_only_at(walk, value, written, index)
        if found is None or (found and _variables(at) != _variables(index)):
            return False
        behind = (graph.producer.get(x) for x in walk.reached)
        if not any(value in leaves(graph, y, inside) for o in behind
                   if isinstance(o, ANCHORS) and inside(o) for y in o.uses):
            continue
        if not cols or not _variables(index).issuperset(cols):
            return False
        walk = Walk(graph, inside, lambda o: spread(tuple(cols), reduced_shape(o)))
        walk.demand(v, at)
        if _is_only_at(walk, value, written, index) is None:
            return False
    return True


def _is_only_at(walk: Walk, value: Value, written: Value, index: IndexMap) -> bool | None:
    """Whether a walk has come to ``value``; None if elsewhere, too, or not to its end."""
    def place(v: Value, at: IndexMap) -> Index:
        return linearize(at, v.type.dims)

    known = walk.reached.get(value, {})
    if walk.failed is not None or any(place(value, i) != place(written, index) for i in known):
        return None
    return bool(known)


def _variables(index: IndexMap) -> frozenset[Var]:
    return frozenset(x for i in index for x in i.variables)

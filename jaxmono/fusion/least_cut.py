"""What is stored and what is computed again: a minimum cut of bytes and arithmetic.

    t = erf(z);  y = z * (1 + t)          read elsewhere: t, z
                                  cut:    z is stored, t is computed again where it is read

Used between regions (region_cut.py) and between the groups of one (recompute.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from jaxmono.fusion import cost
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType

COPYABLE = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision)
"""Beside views. Anything else is computed once."""


_PASSING = frozenset({"abs", "clamp", "maximum", "minimum", "negate", "select"})


def fed(graph: Graph, members: Collection[int], copied: Collection[Value] = ()) -> set[Value]:
    """Values that contractions among these ops read, through views and padding too: they want them
    in memory, and would have to wait until they are computed again. Not through what a loop has
    ``copied`` for them: it can compute what it would read."""
    found: set[Value] = set()
    for i, o in reversed(tuple(enumerate(graph.ops))):
        if o.results and o.results[0] in copied:
            continue
        if (i in members and isinstance(o, ops.DotGeneral | ops.Convolution)) or (
                (is_view(o) or isinstance(o, ops.Pad)
                 or (i in members and isinstance(o, ops.Convert)))
                and o.results[0] in found):
            found.update(o.inputs)
    return found


def compared(graph: Graph) -> set[Value]:
    """Values that may not differ by a rounding from what they were: of 16 bits, which are not
    rounded between the ops of a group, where a comparison, a rounding or a bit cast reads them, and
    what is compared for equality; also through ops that pass a value on. (The gradient of a maximum
    looks for it among its operands.)"""
    found: set[Value] = set()
    for o in reversed(list(graph.walk())):  # what is inside of an op before it
        if isinstance(o, ops.While):
            found.update(a for a, v in zip(o.args, o.body.inputs, strict=True) if v in found)
        if not o.results:
            continue
        if o.results[0] in found and (is_view(o) or isinstance(o, ops.Convert) or (
                isinstance(o, ops.Elementwise) and o.kind in _PASSING)):
            found.update(v for v in o.inputs if v.type.dtype.is_float)
        if _jumps(o):
            equal = isinstance(o, ops.Compare) and o.direction in ("EQ", "NE")
            found.update(v for v in o.inputs if v.type.dtype in (DType.F16, DType.BF16)
                         or (equal and v.type.dtype.is_float))
    return found


def _jumps(o: Op) -> bool:
    """Whether small differences of its operands make large ones of its result."""
    if isinstance(o, ops.Convert):
        return not o.result.type.dtype.is_float
    return isinstance(o, ops.Compare | ops.BitcastConvert | ops.ReducePrecision | ops.TopK) or (
        isinstance(o, ops.Elementwise) and o.kind in ops.DISCONTINUOUS)


def places(graph: Graph, needs: Iterable[Value], kept: Collection[Value],
           earlier: Collection[int], index: Mapping[Op, int], made_free: Collection[Value],
           ) -> dict[Value, bool | None]:
    """The values that might be read for ``needs``, and whether they can be computed again; None for
    those that none of the ops at ``earlier`` makes. ``kept``: those that cannot, but for views."""
    found: dict[Value, bool | None] = {}
    todo = list(needs)
    while todo:
        v = todo.pop()
        if v in found:
            continue
        o = graph.producer.get(v)
        if o is None or index[o] not in earlier:
            found[v] = None
            continue
        found[v] = v.type.is_static and (
            is_view(o) or (isinstance(o, COPYABLE) and v not in kept))
        if found[v]:
            todo.extend(u for u in o.uses if u not in made_free)
    return found if any(found.values()) else {}


def least(graph: Graph, needs: Iterable[Value], places: Mapping[Value, bool | None],
          stored: Collection[Value], device: Device, times: int = 1) -> list[Value]:
    """What is to be computed again for ``needs``: what lies behind a minimum cut.

        there ──cost of computing it──► v ──bytes──► v ──► needed      (v twice: made, and read)
                                                      └──► made of v   (no cut: both or none)

    Args:
      places: of `places`. stored: values that are written in any case.
      times: how often what is computed again is.
    """
    bytes_per_lane_op = device.read_bytes_per_us / (cost.LANE_OPS_PER_SM_US * device.sm_count)
    node = {v: 2 + 2 * i for i, v in enumerate(places)}
    edges: dict[tuple[int, int], float] = {(node[v] + 1, 1): np.inf for v in needs}
    for v, again in places.items():
        # What is stored in any case, or was there before, is only read.
        accesses = 1 if again is None or v in stored else 2
        edges[node[v], node[v] + 1] = accesses * v.type.nbytes
        edges[0, node[v]] = np.inf
        if again:
            o = graph.producer[v]
            edges[0, node[v]] = times * cost.weight(o) * v.type.size * bytes_per_lane_op
            edges.update(((node[u] + 1, node[v]), np.inf) for u in o.uses if u in node)
    behind = _behind(edges, 2 + 2 * len(places))
    return [v for v in places if node[v] in behind]


def _behind(edges: Mapping[tuple[int, int], float], nodes: int) -> set[int]:
    """The nodes behind a minimum cut between node 0 and node 1, the one nearest to node 1."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    # Capacities are int32 there, and so is the flow.
    unit = max(1.0, sum(x for x in edges.values() if x < np.inf) / (1 << 30))
    most = np.iinfo(np.int32).max
    sizes = [most if x == np.inf else int(np.ceil(x / unit)) for x in edges.values()]
    begin, end = zip(*edges, strict=True)
    capacity = csr_array((np.array(sizes, np.int32), (begin, end)), shape=(nodes, nodes))
    flow: Any = maximum_flow(capacity, 0, 1).flow
    left = (capacity - flow).tocoo()
    before: dict[int, list[int]] = {}
    for a, b, x in zip(left.row.tolist(), left.col.tolist(), left.data.tolist(), strict=True):
        if x > 0:
            before.setdefault(b, []).append(a)
    found, todo = {1}, [1]
    while todo:
        for a in before.get(todo.pop(), ()):
            if a not in found:
                found.add(a)
                todo.append(a)
    return found

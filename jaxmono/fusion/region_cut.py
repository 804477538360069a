"""What crosses from one region to the next: as few bytes as can be.

    region 0   z = x @ w;  t = erf(z);  y = z * (1 + t)       region 0   z;  t;  y
    XLA        g = sort(y)                                    XLA        g
    region 1   d = g * (t + z * exp(-z * z))            ──►   region 1   t = erf(z);  d
    crosses    t and z                                        crosses    z

An op without a kernel divides a training step between forward and backward. What a region needs of
the ones before it can be read, once they have stored it, or computed again of something smaller:
what differentiation has kept of a GELU, a softmax, a norm; and of a program's inputs nothing has to
be stored at all (an optimizer's moments times a constant, which need no gradient and were ready in
region 0). A minimum cut between what is there and what is needed finds the least bytes, reads and
writes, with arithmetic counted as the bytes that pass in the same time. PyTorch's AOTAutograd
divides forward from backward so ("min-cut rematerialization").

wav2vec2's training step, f32, 8 entries: 4.1 GB crossed before, 1.0 do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxmono.fusion import cost
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

COPYABLE = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision)
"""Beside views. Anything else is computed once."""


@dataclass(frozen=True)
class Part:
    """A region's ops.

    Attributes:
      own: positions of ops that no other region computes. again: of those that it repeats.
      outputs: results of its own that something outside reads.
    """

    own: frozenset[int]
    again: frozenset[int]
    outputs: frozenset[Value]


def part(graph: Graph, regions: Sequence[Collection[int]], outside: Iterable[int],
         free: Collection[int], device: Device) -> tuple[Part, ...]:
    """Divides the ops of ``regions`` anew, so that the least crosses.

    Args:
      regions: positions of ops, in an order in which each region reads of earlier ones only.
      outside: positions of the ops that no region has. free: of those that all may copy.
      device: whose bandwidth and arithmetic are compared.

    Returns:
      One for each region. Some may have lost all ops of their own.
    """
    index = {o: i for i, o in enumerate(graph.ops)}
    wanted = {*graph.outputs, *(v for i in outside for v in graph.ops[i].uses)}
    made_free = {r for i in free for r in graph.ops[i].results}
    earlier = [i for r in regions for i in r]
    found: list[Part] = []
    for members in reversed(regions):
        own = _live(graph, members, wanted)
        earlier = earlier[:len(earlier) - len(members)]
        made = {r for i in own for r in graph.ops[i].results} | made_free
        needs = {v: None for i in sorted(own) for v in graph.ops[i].uses if v not in made}
        places = _places(graph, needs, _fed(graph, own), set(earlier), index, made_free)
        again = frozenset(index[graph.producer[v]] for v in _least(
            graph, needs, places, wanted, device)) if places else frozenset[int]()
        found.append(Part(own, again, frozenset(
            r for i in own for r in graph.ops[i].results if r in wanted)))
        made.update(r for i in again for r in graph.ops[i].results)
        wanted.update(v for i in (*own, *again) for v in graph.ops[i].uses if v not in made)
    return tuple(reversed(found))


def _live(graph: Graph, members: Collection[int], wanted: Collection[Value]) -> frozenset[int]:
    needed, out = set(wanted), set[int]()
    for i in sorted(members, reverse=True):
        o = graph.ops[i]
        if any(r in needed for r in o.results):
            out.add(i)
            needed.update(o.uses)
    return frozenset(out)


def _fed(graph: Graph, members: Collection[int]) -> set[Value]:
    """Values that contractions among these ops read, through views too: they want them in
    memory, and would have to wait until they are computed again."""
    fed: set[Value] = set()
    for i, o in reversed(tuple(enumerate(graph.ops))):
        if (i in members and isinstance(o, ops.DotGeneral | ops.Convolution)) or (
                (is_view(o) or (i in members and isinstance(o, ops.Convert)))
                and o.results[0] in fed):
            fed.update(o.inputs)
    return fed


def _places(graph: Graph, needs: Iterable[Value], fed: Collection[Value],
            earlier: Collection[int], index: Mapping[Op, int], made_free: Collection[Value],
            ) -> dict[Value, bool | None]:
    """The values that might cross for ``needs``, and whether they can be computed again; None for
    those that no earlier region makes."""
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
            is_view(o) or (isinstance(o, COPYABLE) and v not in fed))
        if found[v]:
            todo.extend(u for u in o.uses if u not in made_free)
    return found if any(found.values()) else {}


def _least(graph: Graph, needs: Iterable[Value], places: Mapping[Value, bool | None],
           stored: Collection[Value], device: Device) -> list[Value]:
    """What is to be computed again for ``needs``: what lies behind a minimum cut.

        there ──cost of computing it──► v ──bytes──► v ──► needed      (v twice: made, and read)
                                                      └──► made of v   (no cut: both or none)
    """
    bytes_per_lane_op = device.read_bytes_per_us / (cost.LANE_OPS_PER_SM_US * device.sm_count)
    node = {v: 2 + 2 * i for i, v in enumerate(places)}
    edges: dict[tuple[int, int], float] = {(node[v] + 1, 1): np.inf for v in needs}
    for v, again in places.items():
        # What is stored in any case, or was there before, is only read.
        times = 1 if again is None or v in stored else 2
        edges[node[v], node[v] + 1] = times * v.type.nbytes
        edges[0, node[v]] = np.inf
        if again:
            o = graph.producer[v]
            edges[0, node[v]] = cost.weight(o) * v.type.size * bytes_per_lane_op
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

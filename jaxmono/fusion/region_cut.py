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

wav2vec2's training step, f32, 8 entries: the forward kernel stored 3.7 GB for the backward one, and
stores 0.9; on an H100 it took 7.0 ms, and 5.3 with nothing else changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from jaxmono.fusion.least_cut import compared, fed, least, places
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value


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
    kept = compared(graph) | _of_updated(graph)
    earlier = [i for r in regions for i in r]
    found: list[Part] = []
    for members in reversed(regions):
        own = _live(graph, members, wanted)
        earlier = earlier[:len(earlier) - len(members)]
        made = {r for i in own for r in graph.ops[i].results} | made_free
        needs = {v: None for i in sorted(own) for v in graph.ops[i].uses if v not in made}
        there = places(graph, needs, kept | fed(graph, own), set(earlier), index, made_free)
        again = frozenset(index[graph.producer[v]] for v in least(
            graph, needs, there, wanted, device)) if there else frozenset[int]()
        found.append(Part(own, again, frozenset(
            r for i in own for r in graph.ops[i].results if r in wanted)))
        made.update(r for i in again for r in graph.ops[i].results)
        wanted.update(v for i in (*own, *again) for v in graph.ops[i].uses if v not in made)
    return tuple(reversed(found))


def _of_updated(graph: Graph) -> set[Value]:
    """Values made of inputs that are updated, perhaps in place: made again later they would keep
    the old contents, a copy of the whole."""
    updated = {o.operand for o in graph.ops if isinstance(o, ops.DynamicUpdateSlice)} \
        & set(graph.inputs)
    return {r for o in graph.ops if updated.intersection(o.uses) for r in o.results}


def _live(graph: Graph, members: Collection[int], wanted: Collection[Value]) -> frozenset[int]:
    needed, out = set(wanted), set[int]()
    for i in sorted(members, reverse=True):
        o = graph.ops[i]
        if any(r in needed for r in o.results):
            out.add(i)
            needed.update(o.uses)
    return frozenset(out)

"""What stands behind one element of a value that belongs to no group.

    x0' = x0 + x1                        20 rounds of a random generator: 100 ops, and
    x1' = rotate(x1, r) ^ x0'            2^20 paths from the last one to the first

A group evaluates an op once for an element, however many others read it there: a chain is a set of
ops. What takes other elements of its operand (a slice, a transpose) has a chain of its own behind
it: two slices of a value are two elements of it, computed each.

An op counts once for each path to it, though, until a chain is `PATHS` times its set: what is read
often is in registers for long, and an index, of which there are several paths in the ops that make
a gather of it, is waited for. Without it DeepFM (b256) looks its words up on the way to a product,
and took 20 us in place of 13 on an H200; CLIP (b32) 1553 in place of 1476.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jaxmono.fusion import cost
from jaxmono.fusion.draft import STORED
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MAX_LINKS = 512
"""Of a longer chain only the sums are kept: what shares a part of it counts that part again."""

CAP = 1 << 40
"""Lane operations, or ops, of a chain whose shared parts were counted too often to tell."""

SAME_ELEMENT = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert,
                ops.ReducePrecision, ops.OptimizationBarrier)

PATHS = 4
"""How often an op of a chain counts at most, on average."""

MAX_DEEP = 128
"""Ops behind one element of a value of which other values take several elements (`deep`)."""
SLICES = 4
"""Of such a value, from which on it counts."""

ALIKE = 64
"""Elements that share what a broadcast repeats: a row's own value is read, or made, once for them.
(One among 50257 labels is a comparison for each element, and was stored for all of them.)"""


@dataclass(frozen=True)
class Chain:
    """Attributes:
      weight: lane operations of one element.
      count: ops.
      links: what it consists of, each with its lane operations and ops.
      once: lane operations and ops of the links, each counted once.
    """

    weight: int
    count: int
    links: frozenset[tuple[Op, int, int]]
    once: tuple[int, int]


NONE = Chain(0, 0, frozenset(), (0, 0))


def chains(graph: Graph, holders: Collection[Op], ends: Collection[Op] = (),
           ) -> tuple[dict[Value, Chain], dict[Value, int]]:
    """The chain of each value that no op of ``holders`` makes; and lane operations of one element
    of those whose chains read no array from memory, but for what is the same for `ALIKE` elements.
    What ``ends`` make is stored.
    """
    found: dict[Value, Chain] = {}
    light: dict[Value, int] = {}
    for op in graph.ops:
        if op in holders:
            continue
        if op in ends or isinstance(op, STORED):  # a chain ends there
            found.update(dict.fromkeys(op.results, NONE))
            continue
        found.update(dict.fromkeys(op.results, _behind(op, found)))
        if isinstance(op, ops.BroadcastInDim) \
                and op.result.type.size >= ALIKE * op.operand.type.size:
            light[op.result] = 0
        elif all(v in light or (v not in found and v.type.size == 1) for v in op.uses):
            own = cost.weight(op) + sum(light.get(v, 0) for v in op.uses)
            light.update(dict.fromkeys(op.results, min(own, found[op.results[0]].weight)))
    return found, light


def deep(graph: Graph, holders: Collection[Op]) -> frozenset[Op]:
    """Floating values that several slices take elements of, each of which a long chain makes.

        smooth(u), smooth(smooth(u)), ...      an element is made of 5 of u, of 13, of 25, ...

    Stored every few steps, of whatever size: in a multigrid cycle eight steps of a 5-point stencil
    on 16 x 16 elements were 11706 lines of text, and NVRTC took 65 s for the kernel, 1.5 so.
    """
    found: dict[Value, Chain] = {}
    out: set[Op] = set()
    for op in graph.ops:
        if op in holders:
            continue
        if isinstance(op, STORED):
            found.update(dict.fromkeys(op.results, NONE))
            continue
        chain = _behind(op, found)
        if chain.count > MAX_DEEP and isinstance(op, SAME_ELEMENT) and any(
                r.type.dtype.is_float and _slices(graph, r) >= SLICES for r in op.results):
            out.add(op)
            chain = NONE
        found.update(dict.fromkeys(op.results, chain))
    return frozenset(out)


def _slices(graph: Graph, v: Value) -> int:
    return sum(isinstance(u, ops.Slice) for u in graph.users.get(v, ()))


def _behind(op: Op, found: dict[Value, Chain]) -> Chain:
    own = cost.weight(op)
    of = [found[v] for v in op.uses if v in found]
    weight = own + sum(c.weight for c in of)
    count = 1 + sum(c.count for c in of)
    if not isinstance(op, SAME_ELEMENT) and any(v.type.size != 1 for v in op.uses):
        once = min(weight, CAP), min(count, CAP)
        return Chain(*once, frozenset({(op, *once)}), once)
    longest = max(of, key=lambda c: len(c.links), default=NONE)
    links = longest.links.union(*(c.links for c in of if c is not longest))
    more = links - longest.links
    once = (min(own + longest.once[0] + sum(w for _, w, _ in more), CAP),
            min(1 + longest.once[1] + sum(n for _, _, n in more), CAP))
    weight, count = min(weight, PATHS * once[0]), min(count, PATHS * once[1])
    if len(links) < MAX_LINKS:
        return Chain(weight, count, links | {(op, own, 1)}, once)
    return Chain(weight, count, frozenset({(op, *once)}), once)

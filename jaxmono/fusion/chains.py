"""What stands behind one element of a value that belongs to no group.

    x0' = x0 + x1                        20 rounds of a random generator: 100 ops, and
    x1' = rotate(x1, r) ^ x0'            2^20 paths from the last one to the first

A group evaluates an op once for an element, however many others read it there: a chain is a set of
ops. What takes other elements of its operand (a slice, a transpose) has a chain of its own behind
it: two slices of a value are two elements of it, computed each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jaxmono.fusion import cost
from jaxmono.fusion.draft import IN_MEMORY
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MAX_LINKS = 512
"""Of a longer chain only the sums are kept: what shares a part of it counts that part again."""

CAP = 1 << 40
"""Lane operations, or ops, of a chain whose shared parts were counted too often to tell."""
_ALIKE = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision,
          ops.OptimizationBarrier)


@dataclass(frozen=True)
class Chain:
    """Attributes:
      weight: lane operations of one element.
      count: ops.
      links: what it consists of, each with its lane operations and ops.
    """

    weight: int
    count: int
    links: frozenset[tuple[Op, int, int]]


NONE = Chain(0, 0, frozenset())


def chains(graph: Graph, holders: Collection[Op]) -> tuple[dict[Value, Chain], set[Value]]:
    """The chain of each value that no op of ``holders`` makes, and the values whose chains read an
    array from memory."""
    found: dict[Value, Chain] = {}
    reading: set[Value] = set()
    for op in graph.ops:
        if op in holders:
            continue
        if isinstance(op, (ops.Stored, *IN_MEMORY)):  # a chain ends there
            found[op.result] = NONE
            reading.add(op.result)
            continue
        found.update(dict.fromkeys(op.results, _behind(op, found)))
        if any(v in reading or (v not in found and v.type.size > 1) for v in op.uses):
            reading.update(op.results)
    return found, reading


def _behind(op: Op, found: dict[Value, Chain]) -> Chain:
    own = cost.weight(op)
    of = [found[v] for v in dict.fromkeys(op.uses) if v in found]
    if isinstance(op, _ALIKE) or all(v.type.size == 1 for v in op.uses):
        longest = max(of, key=lambda c: len(c.links), default=NONE)
        links = longest.links.union(*(c.links for c in of if c is not longest))
        more = links - longest.links
        weight = own + longest.weight + sum(w for _, w, _ in more)
        count = 1 + longest.count + sum(n for _, _, n in more)
        if len(links) < MAX_LINKS:
            return Chain(weight, count, links | {(op, own, 1)})
    else:
        weight = own + sum(c.weight for c in of)
        count = 1 + sum(c.count for c in of)
    weight, count = min(weight, CAP), min(count, CAP)
    return Chain(weight, count, frozenset({(op, weight, count)}))

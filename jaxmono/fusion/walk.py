"""Walking from an element back to everything it is computed from.

`Walk` follows the index rules of the ops in between and stops where its caller says. It is how a
claim such as "this reduce is demanded at its own row only" is proven.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jaxmono.fusion.demand import demands, reduction_index
from jaxmono.fusion.indexing import IndexMap
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MOST = 1 << 14
"""Demands that a walk follows. Each level of `jax.lax.associative_scan` doubles the places at which
its operand is read: what scans over 256 steps reach (Mamba's, before these were known as scans)
took the planner 84 s, with this limit 2."""


@dataclass
class Walk:
    """Demands reached from some elements.

    Attributes:
      enter: whether to go through the op that made a value (False: the value is a leaf).
      cols: how a reduce's own dimensions are indexed; None stops at reduces.
      reached: per value, every distinct index at which it is demanded.
      failed: an op on the way needs more than a fixed number of elements, or all together more
        than `MOST`; or none of ``single`` is left.
      single: values that are wanted at one index each. Those that are reached at more are taken
        out of it, and where none is left the walk ends: windows of 7 x 7 places in front of a
        norm's reduce took it 6 of the 10 s in which ConvNeXt-T b32 is planned.
    """

    graph: Graph
    enter: Callable[[Op], bool]
    cols: Callable[[ops.Reduce], IndexMap] | None = None
    reached: dict[Value, dict[IndexMap, None]] = field(default_factory=dict)
    failed: Op | None = None
    single: set[Value] | None = None
    followed: int = field(default=0, init=False)

    def demand(self, value: Value, index: IndexMap) -> None:
        todo: list[tuple[Value, IndexMap]] = [(value, index)]
        while todo:
            v, at = todo.pop()
            known = self.reached.setdefault(v, {})
            if at in known:
                continue
            known[at] = None
            todo.extend(_dynamics(at))
            producer = self.graph.producer.get(v)
            if self.single is not None and len(known) > 1 and v in self.single:
                self.single.remove(v)
                if not self.single:
                    self.failed = self.failed or producer
                    return
            if producer is None or not self.enter(producer):
                continue
            self.followed += 1
            if self.followed > MOST:
                self.failed = self.failed or producer
                return
            if isinstance(producer, ops.Reduce) and self.cols is not None:
                inner = reduction_index(producer, at, self.cols(producer))
                todo.extend((a, inner) for a in producer.args)
                todo.extend((a, ()) for a in producer.inits)
                continue
            needed = demands(producer, at, producer.results.index(v))
            if needed is None:
                self.failed = self.failed or producer
                continue
            for d in needed:
                todo.append((d.value, d.index))

    def only(self, value: Value) -> IndexMap | None:
        """The index at which a value is demanded, if it is one."""
        known = self.reached.get(value, {})
        return next(iter(known)) if len(known) == 1 else None


def _dynamics(index: IndexMap) -> list[tuple[Value, IndexMap]]:
    out: list[tuple[Value, IndexMap]] = []
    for i in index:
        for d in i.dynamics():
            out.append((d.value, d.index))
    return out


def leaves(graph: Graph, value: Value, enter: Callable[[Op], bool]) -> dict[Value, None]:
    """Values that ``value`` is computed from through the ops entered, leaves included."""
    out: dict[Value, None] = {}
    todo = [value]
    while todo:
        v = todo.pop()
        if v in out:
            continue
        out[v] = None
        producer = graph.producer.get(v)
        if producer is not None and enter(producer):
            todo.extend(reversed(producer.uses))
    return out

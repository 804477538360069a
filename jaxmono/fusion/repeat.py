"""A kernel that ends with a loop of which nobody knows how often it runs: stages that repeat.

    graph      y = exp(x);  s, g = s0, p(s0);  while g: s = f(s, y);  g = p(s)
    stages     exp | s0 p ‖ f | p ‖        from the first ‖ on again and again, a grid barrier each
    buffers    what a trip makes lies where it began: s is s, g is g

The stages in front of the loop are a plan, its trip is another one, and both are joined here. In a
trip each value takes the place of the one that it is the next of (donated.py). Where whoever makes
it cannot, because it or others still read the old one, it is made elsewhere and copied in a stage
behind them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jaxmono.fusion import memory
from jaxmono.fusion.edges import sync_edges
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.plan import Buffer, Group, Loop, Place, Plan, Repeat, Stage
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.passes.whole_loop import is_whole
from jaxmono.hlo.rewrite import Builder

Planner = Callable[[Graph, bool], Plan]
"""Of a graph; whether it is a trip: its outputs take the places of its first inputs if they can."""


def whole_loop_of(graph: Graph) -> ops.While | None:
    """The loop that a graph ends with, if that is one that carries whether it goes on.

    Raises:
      PlanError: something needs what the loop makes, or there are two.
    """
    found = [o for o in graph.ops if is_whole(o)]
    if not found:
        return None
    if len(found) > 1 or any(r in graph.users for o in found for r in o.results):
        raise PlanError(f"a kernel ends with a loop that carries whether it goes on; "
                        f"the one at {found[0].loc} is not its end")
    assert isinstance(found[0], ops.While)
    return found[0]


def with_loop(graph: Graph, loop: ops.While, plan: Planner) -> Plan:
    """The plan of a graph that ends with ``loop``.

    Raises:
      PlanError: a value cannot be written where the next trip reads it.
    """
    captured = loop.body.captures
    trip = _trip(Graph((*loop.body.inputs, *captured), loop.body.ops, loop.body.outputs,
                       graph.name), plan)
    within = [v for v in captured if v not in graph.inputs]
    others = [i for i, v in enumerate(graph.outputs) if v not in loop.results]
    walk = Builder()
    walk.ops += [o for o in graph.ops if o is not loop]

    def own(v: Value) -> Value:
        """Not in the place of an input."""
        return walk.emit1(ops.Stored, v.type, operand=v) if v in graph.inputs or isinstance(
            graph.producer[v], ops.DynamicUpdateSlice | ops.Accumulate) else v

    begin, made = [*map(own, loop.args)], [*map(own, within)]
    read = any(v in graph.inputs for v in captured)
    rest = [own(v) if read and v not in graph.inputs else v
            for v in (graph.outputs[i] for i in others)]
    front = plan(dead_code(Graph(graph.inputs, tuple(walk.ops), (*begin, *made, *rest),
                                 graph.name)), False)
    return _Joined(graph, loop, front, trip, captured, within, others).plan()


def _trip(trip: Graph, plan: Planner) -> Plan:
    found, copies = plan(trip, True), set[int]()
    while left := _elsewhere(found):
        if len(copies) == len(trip.outputs):
            raise PlanError(f"the loop's value {left[0]} is made where no trip finds it again")
        # Copies may be made beside what others wait for: then all are.
        copies.update(range(len(trip.outputs)) if copies.issuperset(left) else left)
        found = plan(_copied(trip, sorted(copies)), True)
    return found


def _elsewhere(plan: Plan) -> list[int]:
    return [b.index for b in plan.outputs if b.alias != b.index and b.type.size]


def _copied(trip: Graph, which: list[int]) -> Graph:
    """Outputs that are made in memory, and copied from there: whoever copies reads nothing that a
    trip writes over."""
    walk, outputs = Builder(), list(trip.outputs)
    walk.ops += trip.ops
    for i in which:
        v = walk.emit1(ops.Stored, outputs[i].type, operand=outputs[i])
        outputs[i] = walk.emit1(ops.Stored, v.type, operand=v, copy=True)
    return Graph(trip.inputs, tuple(walk.ops), tuple(outputs), trip.name)


class _Joined:
    """Two plans as one: their buffers in a table, by what they are of both."""

    def __init__(self, graph: Graph, loop: ops.While, front: Plan, trip: Plan,
                 captured: Sequence[Value], made: Sequence[Value], others: Sequence[int]) -> None:
        self.graph, self.front, self.trip = graph, front, trip
        self.start = len(front.stages)
        self.end = self.start + len(trip.stages)
        self.rows: list[Buffer] = []
        self.of_front, self.of_trip = dict[int, int](), dict[int, int]()
        self.shared: dict[int, int] = {}  # the buffer in whose memory another one is
        given = {v: trip.inputs[len(loop.args) + i] for i, v in enumerate(captured)}
        for v, b in zip(graph.inputs, front.inputs, strict=True):
            last = self.end if v in given else b.last
            self._both(self._add(dataclasses.replace(b, last=last)), b, given.get(v))
        for i, v in enumerate(loop.results):
            self._state(front.outputs[i], trip.inputs[i], trip.outputs[i],
                        graph.outputs.index(v) if v in graph.outputs else None)
        self.going = self.of_trip[trip.outputs[len(loop.results) - 1].id]
        outputs = front.outputs[len(loop.results):]
        for v, b in zip(made, outputs, strict=False):
            kept = dataclasses.replace(b, place=Place.SCRATCH, index=-1, last=self.end)
            self._both(self._add(kept), b, given[v])
        for i, b in zip(others, outputs[len(made):], strict=True):
            self._both(self._add(dataclasses.replace(b, index=i, last=self.end)), b, None)
        self._rest(front, self.of_front, 0)
        self._rest(trip, self.of_trip, self.start)

    def _add(self, b: Buffer) -> int:
        self.rows.append(dataclasses.replace(b, id=len(self.rows)))
        return self.rows[-1].id

    def _both(self, row: int, front: Buffer, trip: Buffer | None) -> None:
        self.of_front[front.id] = row
        if trip is not None:
            self.of_trip[trip.id] = row

    def _state(self, begin: Buffer, old: Buffer, new: Buffer, output: int | None) -> None:
        """What the loop carries: as it is when a trip begins, and as the trip leaves it."""
        at = {"place": Place.SCRATCH, "index": -1} if output is None else {"index": output}
        first = self._add(dataclasses.replace(
            begin, **({"place": Place.STATE} | at), last=self.end))
        self._both(first, begin, old)
        last = self._add(dataclasses.replace(
            new, **at, alias=None, before=first, first=new.first + self.start, last=self.end))
        self.of_trip[new.id] = last
        self.shared[last] = first

    def _rest(self, plan: Plan, of: dict[int, int], stages: int) -> None:
        for b in plan.buffers:
            if b.id not in of:
                index = of[b.index] if b.place is Place.PART else b.index
                of[b.id] = self._add(dataclasses.replace(
                    b, index=index, first=b.first + stages, last=b.last + stages))

    def plan(self) -> Plan:
        """The plan."""
        scratch = [b for b in self.rows if b.place is Place.SCRATCH and b.id not in self.shared]
        offsets, total = memory.assign(
            [memory.Interval(b.type.nbytes, b.first, b.last) for b in scratch])
        for b, offset in zip(scratch, offsets, strict=True):
            self.rows[b.id] = dataclasses.replace(b, offset=offset)
        for last, first in self.shared.items():
            self.rows[last] = dataclasses.replace(self.rows[last], offset=self.rows[first].offset)
        stages: list[Stage] = []
        for plan, of in ((self.front, self.of_front), (self.trip, self.of_trip)):
            for s in plan.stages:
                number = sum(len(x.groups) for x in stages)
                stages.append(Stage(tuple(_bound(g, number + i, of)
                                          for i, g in enumerate(s.groups))))
        loops = (*self.front.loops, *(Loop(x.start + self.start, x.period, x.trips)
                                      for x in self.trip.loops))
        return Plan(
            self.graph, tuple(self.rows), tuple(stages), sync_edges(self.rows, stages), loops,
            total, self.front.barriers_before_merging + self.trip.barriers_before_merging + 1,
            tuple(dict.fromkeys((
                f"{len(self.trip.stages)} stages repeat until the loop ends", *self.front.notes,
                *self.trip.notes))),
            repeat=Repeat(self.start, self.going))


def _bound(g: Group, number: int, of: Mapping[int, int]) -> Group:
    return Group(number, g.sig, tuple(of[b] for b in g.params), tuple(of[b] for b in g.results))

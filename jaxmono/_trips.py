"""Which loops ask for several trips at a time, and how many (`hlo/passes/several_trips.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxmono._measure import is_free, live_ops
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_time import shortest_us
from jaxmono.fusion.regions import Refusals, Region, Repeated
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.importer.asked_loop import ask_first
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.passes.several_trips import asked, several_trips

ASKED_US = 60.0
"""The most that trips may take that are in vain: about what XLA takes to ask whether a loop goes
on, and to launch what it does."""
MOST_TRIPS, FEWEST_TRIPS, MOST_OPS = 32, 4, 4096
EACH_TIME = "each time that XLA asks whether the loop goes on"

Find = Callable[..., tuple[tuple[Region, ...], Refusals]]


@dataclass(frozen=True, eq=False)
class Several:
    """A loop's body as a kernel of several trips, which is its one region."""

    imported: Imported
    region: Repeated


def with_several_trips(imported: Imported, find: Find, device: Device,
                       ) -> tuple[Imported, Mapping[Op, Several]]:
    """The block in which loops carry whether they go on, where a kernel takes several trips at a
    time; and the bodies of these loops.

    Args:
      find: regions of a graph.
    """
    found: dict[Op, Several] = {}
    for loop in live_ops(imported.graph):
        if isinstance(loop, ops.While) and (trips := _how_many(loop, device)) \
                and refusal(loop, imported.graph.producer) is not None:
            what = asked(loop)
            changed, new = ask_first(imported, loop, what.carried)
            body = changed.origins[changed.graph.ops.index(new)].regions[1]
            graph = several_trips(loop, what, body.graph.inputs, trips)
            if (several := _several(body, graph, find, f"up to {trips} trips {EACH_TIME}")):
                imported, found[new] = changed, several
    return imported, found


def _several(body: Imported, graph: Graph, find: Find, note: str) -> Several | None:
    """``graph`` as the one region of a loop's body, if it can be."""
    regions, refused = find(graph)
    written = [i for i, (v, u) in enumerate(zip(graph.outputs, graph.inputs, strict=True))
               if v is not u]
    if refused or len(regions) != 1 \
            or not {graph.outputs[i] for i in written} <= set(regions[0].outputs):
        return None
    once = Graph(body.graph.inputs, body.graph.ops, graph.outputs, body.graph.name)
    return Several(
        Imported(once, body.origins, tuple((i, i) for i in written)),
        Repeated(tuple(range(len(once.ops))), regions[0].inputs, regions[0].outputs, note,
                 regions[0].subgraph(graph)))


def _how_many(loop: ops.While, device: Device) -> int:
    """Trips of a kernel; 0 where trips are long beside what XLA takes for one."""
    inside = [o for o in (*loop.body.ops, *loop.cond.ops) if not is_free(o)]
    if any(isinstance(o, ops.While) for o in inside) or not all(
            v.type.is_static for o in inside for v in o.results):
        return 0
    trip_us = shortest_us(inside, device)[0][-1]
    trips = min(MOST_TRIPS, int(ASKED_US / max(trip_us, 1.0)), MOST_OPS // max(len(inside), 1))
    return trips if trips >= FEWEST_TRIPS else 0

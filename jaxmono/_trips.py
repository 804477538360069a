"""Which loops run in kernels although nobody knows how often, or for long: some trips each time
that XLA asks whether to go on (`hlo/passes/several_trips.py`), or all of them
(`fusion/repeat.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from jaxmono._measure import is_free, live_ops
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_time import shortest_us
from jaxmono.fusion.regions import Refusals, Region, Repeated
from jaxmono.fusion.repeat import MOST_TRIPS
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.importer.asked_loop import ask_first
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.several_trips import all_trips, asked, several_trips
from jaxmono.hlo.passes.unroll import refused_inside

MOST_US = 20.0
"""Of what a trip reads and multiplies: XLA takes 10 to 20 to ask whether a loop goes on and to
launch what little it does. Longer trips are kernels of their own, with producer warps, which know
no such loops."""
IN_REGISTERS = 24
"""Trips at a time where each number has its own, and none waits for another one."""
MOST_OPS = 4096
_WAITS = (ops.While, ops.Case, ops.DotGeneral, ops.RaggedDot, ops.Convolution, ops.Reduce,
          ops.ReduceWindow, ops.Scan, ops.Sort, ops.TopK, ops.Gather, ops.DynamicSlice,
          ops.DynamicUpdateSlice, ops.Scatter)

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
        producer = imported.graph.producer
        if not isinstance(loop, ops.While) or not _is_short(loop, producer, device) \
                or refusal(loop, producer) is None:
            continue
        what = asked(loop)
        by_registers = what.settles and _each_by_itself(loop)
        carried = what.carried if by_registers else what.carried[-1:]
        changed, new = ask_first(imported, loop, carried)
        body = changed.origins[changed.graph.ops.index(new)].regions[1]
        if by_registers:
            graph = several_trips(loop, what, body.graph.inputs, IN_REGISTERS)
            several = _several(body, graph, find)
        else:
            graph = all_trips(loop, body.graph.inputs, producer)
            several = _repeated(body, graph, {**producer, **graph.ops[0].body.producer}, find)
        if several:
            imported, found[new] = changed, several
    return imported, found


def _is_short(loop: ops.While, producer: Mapping[Value, Op], device: Device) -> bool:
    inside = [o for o in (*loop.body.ops, *loop.cond.ops) if not is_free(o)]
    known = {**producer, **loop.body.producer}
    return len(inside) <= MOST_OPS and not any(refused_inside(o, known) for o in inside) \
        and all(v.type.is_static for o in inside for v in o.results) \
        and shortest_us(inside, replace(device, phase_us=0.0))[0][-1] <= MOST_US


def _each_by_itself(loop: ops.While) -> bool:
    """Whether a trip treats the numbers of arrays of one shape one by one."""
    body = loop.body
    shapes = {v.type.shape for v, old in zip(body.outputs, body.inputs, strict=True)
              if v is not old}
    return len(shapes) == 1 and not any(isinstance(o, _WAITS) for o in body.ops)


def _several(body: Imported, graph: Graph, find: Find) -> Several | None:
    """Some trips as the one region of a loop's body, if they can be."""
    regions, refused = find(graph)
    written = [i for i, (v, u) in enumerate(zip(graph.outputs, graph.inputs, strict=True))
               if v is not u]
    if refused or len(regions) != 1 \
            or not {graph.outputs[i] for i in written} <= set(regions[0].outputs):
        return None
    return _region(body, regions[0].subgraph(graph), dict(zip(written, (
        graph.outputs[i] for i in written), strict=True)),
        f"up to {IN_REGISTERS} trips each time that XLA asks whether the loop goes on")


def _repeated(body: Imported, graph: Graph, producer: Mapping[Value, Op], find: Find,
              ) -> Several | None:
    """A whole loop as the one region of the body of the loop that XLA runs."""
    (loop,) = graph.ops
    trip = Graph((*graph.inputs, *loop.subgraphs[1].inputs), loop.subgraphs[1].ops,
                 loop.subgraphs[1].outputs)
    _, refused = find(trip)
    if any(refusal(o, producer) is not None for o, _ in refused):
        return None
    written = {body.graph.inputs.index(u): v for u, v in zip(graph.inputs, graph.outputs,
                                                             strict=False)}
    return _region(body, graph, written, f"up to {MOST_TRIPS} trips each time that XLA asks "
                   "whether the loop goes on")


def _region(body: Imported, graph: Graph, written: Mapping[int, Value], note: str) -> Several:
    """``graph`` as all that a body does. written: its values, by their places in the body's."""
    outputs = tuple(written.get(i, v) for i, v in enumerate(body.graph.inputs))
    once = Graph(body.graph.inputs, body.graph.ops, outputs, body.graph.name)
    return Several(
        Imported(once, body.origins, tuple((i, i) for i in written)),
        Repeated(tuple(range(len(once.ops))), graph.inputs, graph.outputs, note, graph))

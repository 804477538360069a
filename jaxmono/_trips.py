"""Which loops are kernels of their own although nobody knows how often they run, or they run for
long (`hlo/passes/whole_loop.py`, `fusion/repeat.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxmono._measure import is_free, live_ops, op_name
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_time import shortest_us
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.importer.asked_loop import ask_first
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.unroll import refused_inside
from jaxmono.hlo.passes.whole_loop import asked, changing, whole_loop

MOST_US = 20.0
"""Of what a trip reads and multiplies. XLA took 7 to 40 for all of a short trip on an H200 (asking
whether the loop goes on, launches); of longer ones it is little, and their kernels have producer
warps, which know no such loops."""
MOST_OPS = 4096
JOINED_US = 4.0
"""Likewise, of what is in front of a loop in the same kernel."""


@dataclass(frozen=True, eq=False)
class Loops:
    """What becomes of the loops of a block that nobody can take apart.

    Attributes:
      imported: the block, in which those that kernels end with carry whether they go on.
      whole: these loops, and whether what is in front of each goes with it.
      refused: why others are in no kernel.
    """

    imported: Imported
    whole: Mapping[Op, bool]
    refused: Mapping[Op, str]


def whole_loops(imported: Imported, device: Device, *, same_bits: bool = False) -> Loops:
    """Finds them.

    Args:
      same_bits: of `support.refusal`.
    """
    refused = dict[tuple[Value, ...], str]()
    made = list[tuple[Value, ...]]()
    for results in [o.results for o in live_ops(imported.graph) if isinstance(o, ops.While)]:
        graph = imported.graph
        loop = next(o for o in graph.ops if o.results == results)
        assert isinstance(loop, ops.While)
        if refusal(loop, graph.producer, same_bits=same_bits) is None:
            continue
        why = _why_not(loop, graph.producer, device, same_bits=same_bits)
        if why is not None:
            refused[results] = why
            continue
        what = asked(loop)
        imported, new = ask_first(imported, loop, changing(loop), what.carried, partial(
            whole_loop, loop, what, producer=graph.producer))
        made.append(new.results)
    graph = imported.graph
    by_results = {o.results: o for o in graph.ops}
    return Loops(imported, {by_results[r]: _is_light(graph, by_results[r], device) for r in made},
                 {by_results[r]: why for r, why in refused.items()})


def _is_light(graph: Graph, loop: Op, device: Device) -> bool:
    """Whether all in front of a loop is little."""
    wanted, found = set(loop.uses), list[Op]()
    for o in reversed(graph.ops):
        if not wanted.isdisjoint(o.results):
            found.append(o)
            wanted.update(o.uses)
    found = [o for o in reversed(found) if all(v.type.is_static for v in (*o.uses, *o.results))]
    return _least_us(found, device) <= JOINED_US


def _least_us(found: Sequence[Op], device: Device) -> float:
    """Of what ops read and multiply, however many stages they are."""
    return shortest_us(found, replace(device, phase_us=0.0))[0][-1]


def _why_not(loop: ops.While, producer: Mapping[Value, Op], device: Device, *,
             same_bits: bool) -> str | None:
    """Why a loop is no kernel of its own."""
    inside = [o for o in (*loop.body.ops, *loop.cond.ops) if not is_free(o)]
    known = {**producer, **loop.body.producer, **loop.cond.producer}
    if len(inside) > MOST_OPS:
        return f"a trip is {len(inside)} ops; a kernel that is a loop takes up to {MOST_OPS}"
    for o in inside:
        if (why := refused_inside(o, known) or refusal(o, known, same_bits=same_bits)) is not None:
            return f"{op_name(o)} in it: {why}"
    least = _least_us(inside, device)
    return None if least <= MOST_US else \
        f"a trip takes {least:.0f} us at least; a kernel that is a loop takes up to {MOST_US:.0f}"

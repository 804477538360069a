"""Which loops are kernels of their own although nobody knows how often they run, or they run for
long (`hlo/passes/whole_loop.py`, `fusion/repeat.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jaxmono._measure import is_free, live_ops
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_time import shortest_us
from jaxmono.fusion.regions import Region, Whole
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.importer.asked_loop import ask_first
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.unroll import refused_inside
from jaxmono.hlo.passes.whole_loop import asked, changing, whole_loop

MOST_US = 20.0
"""Of what a trip reads and multiplies: XLA takes 10 to 20 to ask whether a loop goes on and to
launch what little it does. Longer trips are kernels of their own, with producer warps, which know
no such loops."""
MOST_OPS = 4096
NOTE = "repeats its stages until the loop ends"


def with_whole_loops(imported: Imported, device: Device, *, same_bits: bool = False,
                     ) -> tuple[Imported, Mapping[Op, Region]]:
    """The block in which such loops carry whether they go on, and the kernels that they are.

    Args:
      same_bits: of `support.refusal`.
    """
    found: dict[Op, Region] = {}
    for loop in live_ops(imported.graph):
        producer = imported.graph.producer
        if not isinstance(loop, ops.While) or refusal(loop, producer, same_bits=same_bits) is None \
                or not _can_be(loop, producer, device, same_bits=same_bits):
            continue
        what = asked(loop)
        imported, new = ask_first(imported, loop, what.carried)
        outside = [Value(v.type, v.hint) for v in new.args]
        graph = whole_loop(loop, what, outside, producer)
        args = dict(zip(outside, new.args, strict=True))
        results = (*(new.results[i] for i in changing(loop)), *new.results[len(loop.args):])
        same = tuple((v, u) for v, u in zip(new.results, new.args, strict=True)
                     if v not in results)
        found[new] = Whole((), tuple(args.get(v, v) for v in graph.inputs), results, NOTE, same,
                           graph)
    return imported, {op: replace(r, op_indices=(imported.graph.ops.index(op),))
                      for op, r in found.items()}


def _can_be(loop: ops.While, producer: Mapping[Value, Op], device: Device, *,
            same_bits: bool) -> bool:
    inside = [o for o in (*loop.body.ops, *loop.cond.ops) if not is_free(o)]
    known = {**producer, **loop.body.producer, **loop.cond.producer}
    return len(inside) <= MOST_OPS and not any(
        refused_inside(o, known) or refusal(o, known, same_bits=same_bits) for o in inside) \
        and all(v.type.is_static for v in loop.args) \
        and shortest_us(inside, replace(device, phase_us=0.0))[0][-1] <= MOST_US

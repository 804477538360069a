"""Which loops are kernels of their own although nobody knows how often they run, or they run for
long (`hlo/passes/whole_loop.py`, `fusion/repeat.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxmono._measure import is_free, live_ops, op_name
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


@dataclass(frozen=True, eq=False)
class Loops:
    """What becomes of the loops of a block that nobody can take apart.

    Attributes:
      imported: the block, in which those that are kernels carry whether they go on.
      regions: these kernels, by loop.
      refused: why others are none.
    """

    imported: Imported
    regions: Mapping[Op, Region]
    refused: Mapping[Op, str]


def whole_loops(imported: Imported, device: Device, *, same_bits: bool = False) -> Loops:
    """Finds them.

    Args:
      same_bits: of `support.refusal`.
    """
    found, refused = dict[Op, Region](), dict[Op, str]()
    for loop in live_ops(imported.graph):
        producer = imported.graph.producer
        if not isinstance(loop, ops.While) or refusal(loop, producer, same_bits=same_bits) is None:
            continue
        if (why := _why_not(loop, producer, device, same_bits=same_bits)) is not None:
            refused[loop] = why
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
    return Loops(imported, {op: replace(r, op_indices=(imported.graph.ops.index(op),))
                            for op, r in found.items()}, refused)


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
    least = shortest_us(inside, replace(device, phase_us=0.0))[0][-1]
    return None if least <= MOST_US else \
        f"a trip takes {least:.0f} us at least; a kernel that is a loop takes up to {MOST_US:.0f}"

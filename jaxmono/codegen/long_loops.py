"""Long loops of small stages: what barriers cost there, and what it costs to have none.

    conv  conv  ...  lstm lstm lstm lstm lstm ...         60 stages, each of 2 us

Where a kernel has producer warps, all of its borders are grid barriers (open_borders.py). A
recurrent network's trips are better off with flags, so that the products in front of the loop, or
behind it, go without producers if they are little work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxmono.codegen.open_borders import has_producers
from jaxmono.fusion import cost
from jaxmono.fusion.plan import Device, Loop, Plan
from jaxmono.hlo import ops

TRIPS, PERIOD = 16, 2
"""Trips from which on a loop is long, and stages of each up to which it is not one of layers."""
BORDER_US = 0.5
"""What a trip takes longer with a barrier (RNN of one row on an H200: 2.2 and 1.7 us)."""
_TIMES, _EACH_US = 20.0, 5.0
"""What products lose without producers: as often the time that they take at the hardware's rate,
and each of them so many microseconds. (CRNN b1 took 214 us on an H200 without, 163 with them: 6
convolutions of 1.2 GFLOP lost that much more than 46 open borders gained.)"""


def has_long_loop(plan: Plan) -> bool:
    return bool(_long_loops(plan))


def _long_loops(plan: Plan) -> list[Loop]:
    return [x for x in plan.loops if x.trips >= TRIPS and x.period <= PERIOD]


def with_producers(plan: Plan, sigs: Mapping[str, Any]) -> frozenset[str]:
    """Keys of the Sigs whose schedules have producer warps; empty if some are in a long loop."""
    found = frozenset(s.key for s in plan.sigs if has_producers(s, sigs))
    inside = {g.sig.key for x in _long_loops(plan)
              for s in plan.stages[x.start:x.start + x.period] for g in s.groups}
    return frozenset() if found & inside else found


def lost_us(plan: Plan, keys: Collection[str], device: Device) -> float:
    """Microseconds that the groups of these Sigs take longer without producers."""
    flops = [sum(cost.dot_flops(o) for o in g.sig.body.ops if isinstance(o, ops.DotGeneral))
             for g in plan.groups if g.sig.key in keys]
    return sum(_EACH_US + _TIMES * f / device.matrix_flops_per_us for f in flops)

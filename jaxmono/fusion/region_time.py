"""How long a kernel of some of a region's ops takes at least, wherever the region is cut.

    ops      a  b  c | d  e  f
    before      here ^ after         bytes read from outside, arithmetic, stages in a row

The largest of three: what it reads once, its contractions at the full rate, and a grid barrier for
each contraction or reduce that waits for another one. In truth it takes two to five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion import cost
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.counted import limit

_Work = tuple[float, float, int]
"""Bytes, multiplications and additions, stages."""


def shortest_us(own: Sequence[Op], device: Device) -> tuple[list[float], list[float]]:
    """Microseconds of the first n ops, and of all but these, for each n."""
    before, after = _before(own), _after(own)
    rates = device.read_bytes_per_us, device.matrix_flops_per_us, 1 / device.phase_us
    first, rest = ([max(x / rate for x, rate in zip(work, rates, strict=True)) for work in works]
                   for works in (before, after))
    return first, rest


def _before(own: Sequence[Op]) -> list[_Work]:
    made, read, behind = set[Value](), set[Value](), dict[Value, int]()
    moved, flops, stages = 0.0, 0.0, 0
    out: list[_Work] = [(moved, flops, stages)]
    for o in own:
        for v in o.inputs:
            if v not in made and v not in read:
                read.add(v)
                moved += _bytes(v)
        made.update(o.results)
        here = max((behind.get(v, 0) for v in o.uses), default=0) + _stages(o)
        behind.update(dict.fromkeys(o.results, here))
        flops, stages = flops + _flops(o), max(stages, here)
        out.append((moved, flops, stages))
    return out


def _after(own: Sequence[Op]) -> list[_Work]:
    read, ahead = set[Value](), dict[Value, int]()
    moved, flops, stages = 0.0, 0.0, 0
    out: list[_Work] = [(moved, flops, stages)]
    for o in reversed(own):
        for v in o.results:
            if v in read:
                read.remove(v)
                moved -= _bytes(v)
        for v in o.inputs:
            if v not in read:
                read.add(v)
                moved += _bytes(v)
        here = max((ahead.get(v, 0) for v in o.results), default=0) + _stages(o)
        for v in o.uses:
            ahead[v] = max(ahead.get(v, 0), here)
        flops, stages = flops + _flops(o), max(stages, here)
        out.append((moved, flops, stages))
    return out[::-1]


def _bytes(v: Value) -> int:
    return v.type.nbytes if v.type.is_static else 0


def _stages(o: Op) -> int:
    if isinstance(o, ops.While):
        return _trips(o) * _before(o.body.ops)[-1][2]
    return int(isinstance(o, ops.DotGeneral | ops.Convolution | ops.Reduce | ops.ReduceWindow))


def _flops(o: Op) -> int:
    if isinstance(o, ops.While):
        return _trips(o) * sum(_flops(x) for x in o.body.ops)
    contraction = isinstance(o, ops.DotGeneral | ops.Convolution)
    return cost.op_flops(o) if contraction and all(v.type.is_static for v in o.inputs) else 0


def _trips(o: ops.While) -> int:
    found = limit(o, o.cond.producer)
    return max(found[1], 1) if found else 1

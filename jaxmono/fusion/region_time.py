"""How long a kernel of some of a region's ops takes at least, wherever the region is cut.

    ops      a  b  c | d  e  f
    before      here ^ after         bytes read from outside, arithmetic, stages in a row

The largest of three: what it reads once, its contractions at the full rate, and a grid barrier for
each contraction or reduce that waits for another one. In truth it takes two to five times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from jaxmono.fusion import cost
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.counted import trip_count


def shortest_us(own: Sequence[Op], device: Device, *, moved: bool = True,
                ) -> tuple[list[float], list[float]]:
    """Microseconds of the first n ops, and of all but these, for each n.

    Args:
      moved: whether what they read counts.
    """
    flops = list(accumulate(map(_flops, own), initial=0))
    ahead = _in_a_row((o, o.results, o.uses) for o in reversed(own))[::-1]

    def least(read: int, flops: int, stages: int) -> float:
        return max(moved * read / device.read_bytes_per_us, flops / device.matrix_flops_per_us,
                   stages * device.phase_us)

    return list(map(least, _read_before(own), flops, _stages_of(own))), \
        list(map(least, _read_after(own), (flops[-1] - x for x in flops), ahead))


def _stages_of(own: Iterable[Op]) -> list[int]:
    """Most contractions and reduces one behind the other, of the first n ops."""
    return _in_a_row((o, o.uses, o.results) for o in own)


def _in_a_row(steps: Iterable[tuple[Op, Iterable[Value], Iterable[Value]]]) -> list[int]:
    """Of the first n steps. Each: an op, values that it is behind, and those behind it."""
    behind: dict[Value, int] = {}
    out = [0]
    for o, before, after in steps:
        here = max((behind.get(v, 0) for v in before), default=0) + _stages(o)
        for v in after:
            behind[v] = max(behind.get(v, 0), here)
        out.append(max(out[-1], here))
    return out


def _read_before(own: Sequence[Op]) -> list[int]:
    """Bytes that the first n ops read of what others make."""
    known, moved, out = set[Value](), 0, [0]
    for o in own:
        moved += sum(map(_bytes, {*o.inputs} - known))
        known.update(o.inputs, o.results)
        out.append(moved)
    return out


def _read_after(own: Sequence[Op]) -> list[int]:
    """Bytes that all but the first n ops read of what others make."""
    read, moved, out = set[Value](), 0, [0]
    for o in reversed(own):
        moved += sum(map(_bytes, {*o.inputs} - read))
        moved -= sum(map(_bytes, read.intersection(o.results)))
        read.difference_update(o.results)
        read.update(o.inputs)
        out.append(moved)
    return out[::-1]


def _bytes(v: Value) -> int:
    return v.type.nbytes if v.type.is_static else 0


def _stages(o: Op) -> int:
    if isinstance(o, ops.While):
        return trip_count(o) * _stages_of(o.body.ops)[-1]
    if isinstance(o, ops.Fft):
        return len(o.fft_length)
    return int(isinstance(o, ops.DotGeneral | ops.RaggedDot | ops.Convolution | ops.Reduce
                          | ops.ReduceWindow | ops.Scan))


def _flops(o: Op) -> int:
    if isinstance(o, ops.While):
        return trip_count(o) * sum(map(_flops, o.body.ops))
    contraction = isinstance(o, ops.DotGeneral | ops.RaggedDot | ops.Convolution)
    return cost.op_flops(o) if contraction and all(v.type.is_static for v in o.inputs) else 0

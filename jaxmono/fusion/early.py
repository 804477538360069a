"""Values that the first stage makes, since program inputs or nothing at all determine them.

    sine(position * frequencies)      every layer rotates its keys and queries by it
    x @ cosine(frequencies)           each tile of the product would compute it again
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxmono.fusion import cost
from jaxmono.fusion.chains import CAP, Chain
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import STORED
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

TILE = 64
"""Typical tile edge of a contraction: how often an operand's elements are read again."""

EARLY_WEIGHT = 24
"""Lane operations of a chain that is worth a buffer where `EARLY_READERS` groups would repeat it: a
sine (a call with a branch) is about 0.1 us of a thread, and a vector of 8 is 8 of them in turn."""
EARLY_READERS = 8


def given(graph: Graph, holders: Collection[Op], *, inputs: bool = True) -> frozenset[Op]:
    """Floating ops that program inputs alone determine, with nothing stored in between; without
    ``inputs``: constants and places."""
    out = set[Op]()
    for op in graph.ops:
        if op not in holders and not isinstance(op, STORED) and all(
                inputs if (made := graph.producer.get(v)) is None else made in out
                for v in op.uses):
            out.add(op)
    return frozenset(out)


def summed(graph: Graph, holders: Collection[Op]) -> dict[Value, int]:
    """Of what is computed on the way to products: elements that a tile of these reads."""
    out: dict[Value, int] = {}
    for op in reversed(graph.ops):
        if isinstance(op, ops.DotGeneral):
            dims = dot_dims(op)
            read = {op.lhs: dims.k * min(dims.m, TILE), op.rhs: dims.k * min(dims.n, TILE)}
        elif op in holders or isinstance(op, STORED):
            continue
        else:
            read = dict.fromkeys(op.uses, max((out.get(r, 0) for r in op.results), default=0))
        out.update((v, max(k, out.get(v, 0))) for v, k in read.items() if k)
    return out


def is_early(op: Op, sinks: Mapping[Value, frozenset[int]], behind: Mapping[Value, Chain],
              settled: Collection[Op], tables: Collection[Op], tiles: Mapping[Value, int],
              device: Device) -> bool:
    """Whether many groups need an expensive value that program inputs alone determine, or the tiles
    of a product would take longer over one of ``tables`` than a stage.

        angles = position * frequencies        every layer rotates its keys and queries by them
        sine(angles), cosine(angles)
        repeated = labels[:-1] == labels[1:]   every trip of CTC's loop asks which labels repeat
        x @ cosine(frequencies)                a spectrum: a block has 64 columns of 400

    Stored by the first stage they cost nothing. In a stage of a layer everybody waits for them:
    Llama-1B b1, 8 elements a thread in both halves of a head, 32 calls in turn, about 3 us. And a
    trip whose chains are long with them is cut into more stages: CTC's took 5 in place of 2.

    ``settled``, ``tables``: of `given`; ``tiles``: of `summed`.
    """
    def waits(r: Value) -> bool:
        return min(tiles.get(r, 0), r.type.size) * behind[r].weight \
            > device.phase_us * cost.LANE_OPS_PER_SM_US

    return op in settled and all(
        r.type.rank and EARLY_WEIGHT <= behind[r].weight < CAP
        and (len(sinks.get(r, ())) >= EARLY_READERS or (op in tables and waits(r)))
        for r in op.results)

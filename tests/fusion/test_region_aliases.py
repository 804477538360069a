"""Places of donated inputs, where several kernels share a function (region_aliases.py)."""

from __future__ import annotations

from jaxmono.fusion import region_aliases as module
from jaxmono.fusion.region_aliases import Pairs
from jaxmono.fusion.regions import Region
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

T = TensorType((4,), DType.F32)


def region_aliases(graph: Graph, regions: list[Region], donated: Pairs) -> tuple[Pairs, ...]:
    """Of which every pair that a region writes is found, or told of."""
    found = module.region_aliases(graph, regions, donated)
    for region, (pairs, note) in zip(regions, found, strict=True):
        written = sum(graph.outputs[o] in region.outputs for o, _ in donated)
        assert note == "" if len(pairs) == written else f"{written - len(pairs)} of its" in note
    return tuple(pairs for pairs, _ in found)


class Chain:
    """w and x; a = tanh(w), b = exp(a), c = b + w: ops 0 to 2; d = -w: op 3; e = sin(x): op 4."""

    def __init__(self) -> None:
        b = Builder()
        self.w, self.x = Value(T, "w"), Value(T, "x")
        self.a = b.elementwise("tanh", self.w)
        self.b = b.elementwise("exponential", self.a)
        self.c = b.elementwise("add", self.b, self.w)
        self.d = b.elementwise("negate", self.w)
        self.e = b.elementwise("sine", self.x)
        self.ops = tuple(b.ops)

    def graph(self, *outputs: Value, ops: int) -> Graph:
        return Graph((self.w, self.x), self.ops[:ops], outputs, "chain")


def test_one_kernel() -> None:
    p = Chain()
    whole = Region((0, 1, 2), (p.w,), (p.b, p.c))
    assert region_aliases(p.graph(p.c, p.b, ops=3), [whole], ((0, 0),)) == (((1, 0),),)
    assert region_aliases(p.graph(p.c, p.b, ops=3), [whole], ()) == ((),)


def test_readers_that_the_kernel_waits_for() -> None:
    p = Chain()
    graph = p.graph(p.c, ops=3)
    first, last = Region((0,), (p.w,), (p.a,)), Region((2,), (p.b, p.w), (p.c,))
    assert region_aliases(graph, [first, last], ((0, 0),)) == ((), ((0, 1),))
    assert region_aliases(graph, [last], ((0, 0),)) == (((0, 1),),)  # XLA runs the others


def test_readers_that_may_come_later() -> None:
    p = Chain()
    graph = p.graph(p.c, p.d, ops=4)
    regions = [Region((0, 1, 2), (p.w,), (p.c,)), Region((3,), (p.w,), (p.d,))]
    assert region_aliases(graph, regions, ((0, 0),)) == ((), ())
    assert region_aliases(graph, regions[:1], ((0, 0),)) == ((),)  # XLA runs the other


def test_an_op_of_the_kernel_that_xla_repeats() -> None:
    """a is free, say, and XLA makes it, too."""
    p = Chain()
    graph = p.graph(p.c, p.a, ops=3)
    assert region_aliases(graph, [Region((0, 1, 2), (p.w,), (p.c,))], ((0, 0),)) == ((),)


def test_an_output_that_another_kernel_or_nobody_makes() -> None:
    p = Chain()
    graph = p.graph(p.e, p.c, ops=5)
    regions = [Region((0, 1, 2), (p.w,), (p.c,)), Region((4,), (p.x,), (p.e,))]
    assert region_aliases(graph, regions, ((0, 0), (1, 1))) == ((), ())
    assert region_aliases(graph, regions, ((0, 1),)) == ((), ((0, 0),))

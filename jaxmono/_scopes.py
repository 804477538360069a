"""The blocks of a program in which ops become kernels: the function's own, and those of its loops
and branches that XLA runs.

    f { a, while { b, top_k, c }, d }        f: regions a and d;  the loop's body: b and c

A loop or a branch that cannot enter a kernel as a whole is no reason to leave what it runs to XLA.
Loops that nobody can take apart may be kernels of their own (_trips.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from jaxmono._measure import is_free, live_ops, work
from jaxmono._trips import Loops, whole_loops
from jaxmono.fusion.plan import Device
from jaxmono.fusion.regions import Refusals, Region, find_regions
from jaxmono.hlo import ops
from jaxmono.hlo.importer import Imported
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.passes.counted import steps, trip_count


@dataclass(frozen=True, eq=False)
class Scope:
    """One block.

    Attributes:
      imported: the block; its loops may have been changed (`_trips.whole_loops`).
      live: an ordered set.
      regions: what becomes kernels, in program order.
      refused: the live ops that stay with XLA, with the reason.
      runs: for each run of the program, as far as reports count them (`_measure.work`).
      within: the loop or branch, for people; "" for the function.
      inner: by op that XLA runs, its regions in the order of `Origin.regions`; None: not looked
        into.
    """

    imported: Imported
    live: Mapping[Op, None]
    regions: tuple[Region, ...]
    refused: tuple[tuple[Op, str], ...]
    runs: int
    within: str
    inner: Mapping[Op, tuple[Scope | None, ...]]

    @property
    def graph(self) -> Graph:
        return self.imported.graph

    def walk(self) -> Iterator[Scope]:
        """This one, then those inside."""
        yield self
        for scopes in self.inner.values():
            for scope in scopes:
                if scope is not None:
                    yield from scope.walk()


_HEAVY = (ops.DotGeneral, ops.RaggedDot, ops.Convolution, ops.Reduce, ops.ReduceWindow, ops.Scan,
          ops.TopK)
_SMALL = "in a loop or branch that XLA runs; too little to make up for a launch"
_COUNTS = "counts the trips of a loop: XLA reads off it how many there are"


def find_scopes(imported: Imported, mode: str, device: Device, *, same_bits: bool = False,
                ) -> Scope:
    """Splits a function into what becomes kernels and what does not, and what XLA runs in it.

    Args:
      mode: of `jaxmono.jit`.
      same_bits: of `support.refusal`.
    """
    loops = partial(whole_loops, device=device, same_bits=same_bits)
    find = partial(find_regions, mode=mode, device=device, same_bits=same_bits)
    return _scope(imported, find, loops if mode != "stitch" else _none, 1, "", {})


def _none(imported: Imported) -> Loops:
    return Loops(imported, {}, {})


_Find = Callable[..., tuple[tuple[Region, ...], Refusals]]
_Loops = Callable[[Imported], Loops]


def _scope(imported: Imported, find: _Find, loops: _Loops, runs: int, within: str,
           kept: Mapping[Op, str]) -> Scope:
    """``find``: regions of a graph, but for what is ``kept``. ``loops``: those that are kernels."""
    found = loops(imported)
    imported, graph = found.imported, found.imported.graph
    live = live_ops(graph)
    regions, reasons = find(graph, kept=kept, whole=found.whole)
    refused = [(op, "; ".join([reason, *filter(None, [found.refused.get(op)])]))
               for op, reason in reasons if op in live]
    if within:
        small = [region for region in regions if not _worth_a_launch(graph, region)
                 and found.whole.keys().isdisjoint(graph.ops[i] for i in region.op_indices)]
        regions = tuple(region for region in regions if region not in small)
        taken = {graph.ops[i] for region in regions for i in region.op_indices}
        dropped = dict.fromkeys(graph.ops[i] for region in small for i in region.op_indices)
        refused += [(op, _SMALL) for op in dropped
                    if op in live and op not in taken and not is_free(op)]
    origins = dict(zip(graph.ops, imported.origins, strict=True))
    inner: dict[Op, tuple[Scope | None, ...]] = {}
    for op, _ in refused:
        where = f"{op.opcode} at {op.loc}"
        if isinstance(op, ops.While):
            counts = dict.fromkeys(steps(op.body), _COUNTS)
            inner[op] = None, _scope(origins[op].regions[1], find, loops, runs * trip_count(op),
                                     where, counts)
        elif isinstance(op, ops.Case):
            counted = max(op.branches, key=lambda g: work(g.ops).flops)
            inner[op] = tuple(_scope(region, find, loops, runs * (region.graph is counted), where,
                                     {}) for region in origins[op].regions)
    return Scope(imported, live, regions, tuple(refused), runs, within, inner)


def _worth_a_launch(graph: Graph, region: Region) -> bool:
    """Whether a kernel in a loop's body, or in a branch, is faster than what XLA makes of it.

    On an H200 a launch from XLA's loop took 4 to 6 us, so did a copy of what the loop carries (a
    kernel's results are not where its operands are), and 2 where the body is five launches or more
    and thus a CUDA graph. An LSTM's step in a kernel took 25 us a trip, 12 as XLA's 6 launches;
    conjugate gradients, 9 launches or 1 and 4 copies, 1.4 times as long; one of four experts, two
    products, 0.77 times.
    """
    heavy = _heavy(graph.ops[i] for i in region.op_indices)
    copies = sum(not isinstance(graph.producer[v], ops.DynamicUpdateSlice)
                 for v in region.outputs if v in graph.outputs and graph.inputs)
    return heavy >= 2 + 3 * copies


def _heavy(found: Iterable[Op]) -> int:
    """Products and reductions, those of a loop as often as it runs."""
    return sum(trip_count(op) * _heavy(op.body.ops) if isinstance(op, ops.While)
               else isinstance(op, _HEAVY) for op in found)

"""Which parts of a program become kernels: maximal convex regions of supported ops.

    a = tanh(x)      region 0
    b = sort(a)      XLA
    c = b @ w        region 1
    d = a + 1        region 0

A region is convex: no path leaves it and comes back, so all its inputs exist before it starts.
With mode "stitch" the contractions stay with XLA's libraries and what lies between them is
stitched, as FusionStitching does (section 3): memory-intensive ops only, one region per level.
One with more different parts than a compiler likes is several (region_size.py).
Constants, iotas and other ops that cost nothing are copied into every region that wants them;
others that cost less than what would cross as well (region_cut.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.fusion.demand import is_view
from jaxmono.fusion.plan import Device
from jaxmono.fusion.region_cut import Part, part
from jaxmono.fusion.region_size import NOTE, divided
from jaxmono.fusion.support import WRITTEN_BY_XLA, refusal
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import FOUR_BITS


@dataclass(frozen=True, eq=False)
class Region:
    """A convex part of a graph.

    Attributes:
      op_indices: positions in ``graph.ops``, ascending; free ops that are also used elsewhere, and
        those that are computed again (region_cut.py), may be in several regions and stay with XLA
        as well; they are never outputs there.
      inputs: values read from outside, in order of first use.
      outputs: values that something outside needs, in order.
      note: why it begins where it does, if something is worth telling.
    """

    op_indices: tuple[int, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    note: str = ""

    def subgraph(self, graph: Graph) -> Graph:
        """The region as a Graph of its own (the same Values; inputs and outputs in order)."""
        return Graph(self.inputs, tuple(graph.ops[i] for i in self.op_indices), self.outputs,
                     graph.name)


Refusals = list[tuple[Op, str]]

COMPUTE_INTENSIVE = (ops.DotGeneral, ops.RaggedDot, ops.Convolution)

_NOTHING: Mapping[Op, str] = {}
_NO_LOOPS: Mapping[Op, bool] = {}
_MOVES = "only moves data; not worth a kernel"
_FOLDED = "depends on no argument, like the op beside it that stays with XLA"
NOT_STITCHED = "mode='stitch' leaves contractions to XLA's libraries"


def find_regions(graph: Graph, mode: str = "auto", device: Device | None = None,
                 kept: Mapping[Op, str] = _NOTHING, *, same_bits: bool = False,
                 whole: Mapping[Op, bool] = _NO_LOOPS) -> tuple[tuple[Region, ...], Refusals]:
    """Splits a graph (as imported, dead ops included).

    Args:
      mode: of `jaxmono.jit`; "stitch" refuses contractions with the reason NOT_STITCHED.
      device: by default the cost model's own.
      kept: ops that stay with XLA whatever they are, with the reason.
      same_bits: of `support.refusal`.
      whole: loops with which a region ends, and whether what is in front of them is in it.

    Returns:
      The regions in an order in which each only reads what earlier ones and XLA's ops make, and
      every op that stays with XLA with the reason (ops that a region copies are not listed).
    """
    live = _live(graph)
    reasons: dict[int, str] = {}
    for i in live:
        why = kept.get(graph.ops[i]) or (None if graph.ops[i] in whole else refusal(
            graph.ops[i], graph.producer, same_bits=same_bits))
        if why is not None:
            reasons[i] = why
        elif mode == "stitch" and _computes(graph.ops[i]):
            reasons[i] = NOT_STITCHED
    reasons |= dict.fromkeys(_folded(graph, live, reasons), _FOLDED)
    free = {i for i in live if i not in reasons and _is_free(graph.ops[i])}
    _spread_free(graph, live, free, reasons)
    color = _colors(graph, live, free, reasons, whole)
    members: dict[int, list[int]] = {}
    for i in sorted(color):
        members.setdefault(color[i], []).append(i)
    chosen: list[list[int]] = []
    notes: dict[int, str] = {}
    for c in sorted(members):
        if _worth_launching(graph, members[c]):
            for apart in _with_one_loop(graph, members[c], whole):
                first, *others = divided(graph, apart, device or Device())
                chosen += [first, *others]
                notes |= dict.fromkeys((indices[0] for indices in others), NOTE)
        else:
            reasons.update(dict.fromkeys(members[c], _MOVES))
    while True:
        within = {i for indices in chosen for i in indices}
        parts = part(graph, chosen, [i for i in live if i not in within], free, device or Device())
        # What another region makes for itself may have been all that was worth a kernel.
        bare = [bool(p.own) and not _worth_launching(graph, sorted(p.own | p.again)) for p in parts]
        if not any(bare):
            break
        for indices, views in zip(chosen, bare, strict=True):
            if views:
                reasons.update(dict.fromkeys(indices, _MOVES))
        chosen = [indices for indices, views in zip(chosen, bare, strict=True) if not views]
    regions = tuple(_region(graph, p, free, notes.get(indices[0], ""))
                    for p, indices in zip(parts, chosen, strict=True) if p.own)
    written = {graph.ops[i]: WRITTEN_BY_XLA for region in regions for i in region.op_indices
               if any(v.type.dtype in FOUR_BITS and v in region.outputs
                      for v in graph.ops[i].results)}
    if written:  # of 4 bits kernels write nothing, so that these cannot be in one
        return find_regions(graph, mode, device, {**kept, **written}, same_bits=same_bits,
                            whole=whole)
    taken = {i for region in regions for i in region.op_indices}
    return regions, [(graph.ops[i], reasons[i]) for i in sorted(reasons) if i not in taken]


def _live(graph: Graph) -> list[int]:
    wanted = set(graph.outputs)
    out: list[int] = []
    for i in range(len(graph.ops) - 1, -1, -1):
        o = graph.ops[i]
        if ops.has_side_effect(o) or any(r in wanted for r in o.results):
            out.append(i)
            wanted.update(o.uses)
    return out[::-1]


def _folded(graph: Graph, live: Sequence[int], reasons: Mapping[int, str]) -> set[int]:
    """What is computed of constants alone by an op that stays with XLA, with all that leads there
    and comes of it."""
    constant: dict[int, list[int]] = {}
    maker: dict[Value, int] = {}
    for i in live:
        o = graph.ops[i]
        if all(v in maker for v in o.uses) and not ops.has_side_effect(o):
            constant[i] = [maker[v] for v in o.uses]
            maker.update(dict.fromkeys(o.results, i))
    out: set[int] = set()
    todo: list[int] = []
    for i, before in constant.items():
        o = graph.ops[i]
        if not out.isdisjoint(before) or (i in reasons and o.uses):
            out.add(i)
            todo += before
    while todo:
        i = todo.pop()
        if i not in out and not _is_free(graph.ops[i]):
            out.add(i)
            todo += constant[i]
    return out - reasons.keys()


def _computes(op: Op) -> bool:
    """Whether an op is a contraction, or a loop around one."""
    return isinstance(op, COMPUTE_INTENSIVE) or any(
        isinstance(o, COMPUTE_INTENSIVE) for g in op.subgraphs for o in g.walk())


def _is_free(op: Op) -> bool:
    return isinstance(op, (ops.Constant, ops.Iota))


def _spread_free(graph: Graph, live: Sequence[int], free: set[int],
                 reasons: dict[int, str]) -> None:
    """Views, converts and scalar arithmetic of free values are free as well."""
    made = {r for i in free for r in graph.ops[i].results}
    for i in live:
        o = graph.ops[i]
        if i in free or i in reasons or not o.uses:
            continue
        small = is_view(o) or (isinstance(o, (ops.Elementwise, ops.Convert, ops.Compare))
                               and o.results[0].type.size <= 1)
        if small and all(v in made for v in o.uses):
            free.add(i)
            made.update(o.results)


def _with_one_loop(graph: Graph, members: list[int], whole: Collection[Op]) -> list[list[int]]:
    """A region's ops, and apart from them those of its loops that it does not end with."""
    others = [i for i in members if graph.ops[i] in whole][1:]
    return [[i for i in members if i not in others], *([i] for i in others)]


def _colors(graph: Graph, live: Sequence[int], free: set[int], reasons: dict[int, str],
            whole: Mapping[Op, bool]) -> dict[int, int]:
    """Region number of each supported op: how many changes between kernel and XLA lie before it.

    A kernel's op takes the largest number of its operands' kernels, or one more where an operand
    came from XLA after that kernel; an XLA op carries the largest number on. Ops of one number
    are convex: any path through XLA raises the number. Counted from the end instead, ops run as
    late as they can; whichever way gives fewer regions is taken.
    """
    rows = [i for i in live if i not in free]
    makers = {r: i for i in rows for r in graph.ops[i].results}
    before = {i: [makers[v] for v in graph.ops[i].uses if v in makers] for i in rows}
    after: dict[int, list[int]] = {i: [] for i in rows}
    for i in rows:
        for p in before[i]:
            after[p].append(i)
    ends = {i for i in rows if graph.ops[i] in whole}
    begins = {i for i in ends if not whole[graph.ops[i]]}
    early = _levels(rows, before, reasons, begins, ends)
    late = _levels(rows[::-1], after, reasons, ends, begins)
    last = max(late.values(), default=0)
    late = {i: last - n for i, n in late.items()}
    return late if len(set(late.values())) < len(set(early.values())) else early


def _levels(rows: Sequence[int], before: dict[int, list[int]], reasons: dict[int, str],
            begins: set[int], ends: set[int]) -> dict[int, int]:
    """``begins``, ``ends``: ops that have nothing in their region in front of them, or behind."""
    number: dict[int, int] = {}
    for i in rows:
        mine = i not in reasons
        # XLA's ops that follow no kernel can all run before the first one
        number[i] = max((number[p] + (mine and (p in reasons or p in ends or i in begins))
                         for p in before[i]), default=0 if mine else -1)
    return {i: n for i, n in number.items() if i not in reasons}


def _worth_launching(graph: Graph, indices: Sequence[int]) -> bool:
    return any(not (is_view(graph.ops[i]) or isinstance(graph.ops[i], ops.OptimizationBarrier))
               and graph.ops[i].results[0].type.is_static
               and any(r.type.size for r in graph.ops[i].results) for i in indices)


def _region(graph: Graph, part: Part, free: set[int], note: str) -> Region:
    inside = {*part.own, *part.again}
    made = {r: i for i in free for r in graph.ops[i].results}
    todo = [v for i in inside for v in graph.ops[i].uses]
    while todo:
        v = todo.pop()
        if v in made and made[v] not in inside:
            inside.add(made[v])
            todo.extend(graph.ops[made[v]].uses)
    chosen = sorted(inside)
    defined = {r for i in chosen for r in graph.ops[i].results}
    inputs: dict[Value, None] = {}
    for i in chosen:
        inputs.update(dict.fromkeys(v for v in graph.ops[i].uses if v not in defined))
    outputs = tuple(r for i in chosen for r in graph.ops[i].results if r in part.outputs)
    return Region(tuple(chosen), tuple(inputs), outputs, note)

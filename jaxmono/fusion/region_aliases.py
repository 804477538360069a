"""Which region may write an output into the place of a donated input of the whole function.

    forward   y = f(w, x)                reads w
    update    w1 = w - 0.1 * g(y)        needs y, so it comes later: w1 takes the place of w

Were another reader of the input not done by then, XLA would copy the input in front of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion.regions import Region
from jaxmono.hlo.ir import Graph, Op, Value

Pairs = tuple[tuple[int, int], ...]
_Step = Op | int
"""An op that XLA runs, or the number of a region."""


def region_aliases(graph: Graph, regions: Sequence[Region], donated: Pairs,
                   ) -> list[tuple[Pairs, str]]:
    """For each region the (output, input) pairs, by its own numbers, of ``donated``, by the
    graph's; and a note on the others that it writes, or ""."""
    out: list[list[tuple[int, int]]] = [[] for _ in regions]
    left = [0] * len(regions)
    holders: dict[Op, list[int]] = {}
    for r, region in enumerate(regions):
        for i in region.op_indices:
            holders.setdefault(graph.ops[i], []).append(r)
    makers: dict[Value, _Step] = dict(graph.producer)
    for r, region in enumerate(regions):
        makers.update(dict.fromkeys(region.outputs, r))
    writers = {v: r for r, region in enumerate(regions) for v in region.outputs}
    done: dict[int, set[_Step]] = {}
    for o, i in donated:
        v, u = graph.outputs[o], graph.inputs[i]
        r = writers.get(v)
        if r is None:
            continue
        if u not in regions[r].inputs:
            left[r] += 1
            continue
        if r not in done:
            done[r] = _before(regions, makers, r)
        readers = {s for op in graph.users.get(u, ()) for s in _steps(op, holders, writers, graph)}
        if readers - {r} <= done[r]:
            out[r].append((regions[r].outputs.index(v), regions[r].inputs.index(u)))
        else:
            left[r] += 1
    return [(tuple(pairs), _told(n)) for pairs, n in zip(out, left, strict=True)]


def _told(copies: int) -> str:
    return f"XLA copies {copies} of its outputs into donated inputs, which it does not read or " \
        "others may read later" if copies else ""


def _steps(op: Op, holders: dict[Op, list[int]], writers: dict[Value, int], graph: Graph,
           ) -> list[_Step]:
    """What runs an op: the regions that hold it, or XLA; XLA as well, where others need it."""
    inside = holders.get(op, [])
    needed = [v for v in op.results if v not in writers and (v in graph.outputs or any(
        not set(inside) & set(holders.get(user, ())) for user in graph.users.get(v, ())))]
    return [*inside, *([op] if needed or not inside else [])]


def _before(regions: Sequence[Region], makers: dict[Value, _Step], region: int) -> set[_Step]:
    """All that is done before a region runs."""
    todo: list[_Step] = [makers[v] for v in regions[region].inputs if v in makers]
    found: set[_Step] = set()
    while todo:
        step = todo.pop()
        if step in found:
            continue
        found.add(step)
        needs = regions[step].inputs if isinstance(step, int) else step.uses
        todo += [makers[v] for v in needs if v in makers]
    return found

"""Products that meet element by element: one waits for the other, and has in its epilogue what both
make.

    z = x @ w        h = gelu(z)                       d = g @ v
    d = g @ v        e = d * gelu'(z)         ──►      z = x @ w;  h = gelu(z);  e = d * gelu'(z)
                     a stage of its own                            in z's epilogue

Side by side, as the products of an MLP's gradients are, or those that make a recurrent cell's
gates, both are written, and read by a loop that does nothing else. The one is first of which the
other reads less, here d: nothing of z is stored but what others read. Products of the same rows
that gate each other are in gated.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from jaxmono.fusion import paired_columns
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import depths
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

LEAST_BYTES = 4 << 20
"""Of a product: a microsecond each of memory, written and read, and its tiles fill the GPU alone.
With smaller ones the second stage would cost what the loop did."""
_STEPS = 64
"""Most values that are made of a product element by element; of a GELU's gradients there are 30."""
_Step = ops.Elementwise | ops.Convert | ops.Compare


def meetings(graph: Graph) -> dict[Op, tuple[Value, ...]]:
    """Contractions that wait for values that others of the same depth make, and for which."""
    depth = depths(graph)
    by_depth: dict[int, list[ops.DotGeneral]] = {}
    for o in graph.ops:
        if isinstance(o, ops.DotGeneral) and o.result.type.nbytes >= LEAST_BYTES \
                and dot_dims(o).m >= paired_columns.MIN_ROWS:
            by_depth.setdefault(depth[o.result], []).append(o)
    found: dict[Op, tuple[Value, ...]] = {}
    for same in by_depth.values():
        made = {o: _made(graph, o.result) for o in same} if len(same) > 1 else {}
        for i, one in enumerate(same):
            for other in same[i + 1:]:
                if made[one].isdisjoint(made[other]) or {one, other} & found.keys():
                    continue
                ways = {(first, second): read for first, second in ((one, other), (other, one))
                        if (read := _read(graph, made[first], second, depth))}
                if ways:
                    _, second = best = min(ways, key=lambda w: sum(v.type.nbytes for v in ways[w]))
                    found[second] = ways[best]
    return found


def _made(graph: Graph, product: Value) -> Set[Value]:
    """A product and what is made of it element by element."""
    todo, seen = [product], {product}
    while todo and len(seen) < _STEPS:
        for u in graph.users.get(todo.pop(), ()):
            if isinstance(u, _Step) and u.result not in seen:
                seen.add(u.result)
                todo.append(u.result)
    return seen


def _read(graph: Graph, made: Set[Value], second: ops.DotGeneral,
          depth: Mapping[Value, int]) -> tuple[Value, ...]:
    """Those of ``made``, of the first product, that the epilogue of ``second`` reads if it comes
    next; none if what they make together need not be stored, or not by that epilogue."""
    behind = _behind(graph, second)
    inside, both = {second.result}, set[Value]()
    read: dict[Value, None] = {}
    for o in graph.ops:
        if isinstance(o, _Step) and not inside.isdisjoint(o.inputs) and len(inside) < _STEPS:
            others = [v for v in o.inputs if v not in inside]
            if all(v not in behind and depth.get(v, 0) <= depth[second.result] for v in others):
                inside.add(o.result)
                met = [v for v in others if v in made]
                read.update(dict.fromkeys(met))
                if met or not both.isdisjoint(o.inputs):
                    both.add(o.result)
    return tuple(read) if any(_is_stored(graph, v) for v in both) else ()


def _behind(graph: Graph, o: Op) -> Set[Value]:
    """All that depends on an op."""
    todo, seen = list(o.results), set(o.results)
    while todo:
        for u in graph.users.get(todo.pop(), ()):
            new = [r for r in u.results if r not in seen]
            seen.update(new)
            todo += new
    return seen


def _is_stored(graph: Graph, v: Value) -> bool:
    """Whether a value is in memory whatever its groups are: an output, or a contraction's operand.
    A norm behind two products adds them up itself, and stores nothing in between."""
    return v in graph.outputs or any(
        isinstance(u, ops.DotGeneral) or (is_view(u) and _is_stored(graph, u.results[0]))
        for u in graph.users.get(v, ()))

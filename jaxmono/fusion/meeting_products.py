"""Products that meet element by element: one waits for the others, and has in its epilogue what
they make together.

    z = x @ w        h = gelu(z)                       d = g @ v
    d = g @ v        e = d * gelu'(z)         ──►      z = x @ w;  h = gelu(z);  e = d * gelu'(z)
                     a stage of its own                            in z's epilogue

Side by side, as the products of an MLP's gradients are, or two whose sum makes a recurrent cell's
gates, all are written, and read by a loop that does nothing else. The one is last that reads least
of the others, here z, of which nothing is stored then but what others read. More than `MOST` stay
side by side: the last one's bytes would be saved, of many. Products of the same rows that gate each
other are in gated.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial

from jaxmono.fusion import paired_columns
from jaxmono.fusion.awaited_lookups import behind
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import depths
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType

LEAST_SIZE = 1 << 21
"""Elements of a product, whose tiles fill the GPU alone, and which take some microseconds of memory
to write and read: what a second stage costs. (By that; no product so small was measured.)"""
MOST = 3
_NARROW = DType.BF16, DType.F16
"""Of these an epilogue has another product's values from the ring (codegen/epilogue_source.py). In
f32 it would load them itself, which was not measured."""
_STEPS = 64
"""Most values that are made of a product element by element; of a GELU's gradients there are 30."""
_Step = ops.Elementwise | ops.Convert | ops.Compare


def meetings(graph: Graph) -> dict[Op, tuple[Value, ...]]:
    """Contractions that wait for values that others of the same depth make, and for which."""
    large = [o for o in graph.ops if isinstance(o, ops.DotGeneral)
             and o.result.type.size >= LEAST_SIZE and o.result.type.dtype in _NARROW
             and dot_dims(o).m >= paired_columns.MIN_ROWS]
    if len(large) < 2:
        return {}
    depth, place = depths(graph), {o: i for i, o in enumerate(graph.ops)}
    found: dict[Op, tuple[Value, ...]] = {}
    for together, made in _together(graph, large, depth):
        if not 1 < len(together) <= MOST:
            continue
        ways: dict[Op, tuple[Value, ...]] = {}
        for o in together:
            steps = sorted((p for v in made[o] if isinstance(p := graph.producer[v], _Step)),
                           key=lambda p: place[p])
            if read := _read(graph, o, made, steps, depth):
                ways[o] = read
        if ways:
            last = min(ways, key=lambda o: (sum(v.type.nbytes for v in ways[o]), -place[o]))
            found[last] = ways[last]
    return found


def _together(graph: Graph, large: Iterable[ops.DotGeneral], depth: Mapping[Value, int],
              ) -> Iterable[tuple[Sequence[ops.DotGeneral], Mapping[Op, Set[Value]]]]:
    """Products of one depth that meet, directly or by others, and what is made of each."""
    group: dict[Op, list[ops.DotGeneral]] = {}
    made: dict[Op, Set[Value]] = {}
    first: dict[tuple[int, Value], ops.DotGeneral] = {}
    for o in large:
        group[o], made[o] = [o], _made(graph, o.result)
        for v in made[o]:
            other = group[first.setdefault((depth[o.result], v), o)]
            if other is not group[o]:
                other += group[o]
                group.update(dict.fromkeys(group[o], other))
    for together in {id(g): g for g in group.values()}.values():
        yield together, {o: made[o] for o in together}


def _made(graph: Graph, product: Value) -> Set[Value]:
    """A product and what is made of it element by element, not many more than `_STEPS` values."""
    todo, seen = [product], {product}
    while todo and len(seen) < _STEPS:
        for u in graph.users.get(todo.pop(), ()):
            if isinstance(u, _Step) and u.result not in seen:
                seen.add(u.result)
                todo.append(u.result)
    return seen


def _read(graph: Graph, last: ops.DotGeneral, made: Mapping[Op, Set[Value]],
          steps: Iterable[_Step], depth: Mapping[Value, int]) -> tuple[Value, ...]:
    """What the epilogue of ``last`` reads of the other products if it comes behind them; none if
    they make more together than what it does, and makes on its way, or if none of it is stored.
    ``steps``: what is made of its product, in the graph's order."""
    later, inside = behind(graph, last), {last.result}
    others = set[Value]().union(*(m for o, m in made.items() if o is not last))
    read: dict[Value, None] = {}
    both: list[Value] = []
    for o in steps:
        rest = [v for v in o.inputs if v not in inside]
        if all(v not in later and depth.get(v, 0) <= depth[last.result] for v in rest):
            inside.add(o.result)
            read.update((v, None) for v in rest if v in others)
            if o.result in others:
                both.append(o.result)
    apart = {v for m in made.values() for v in m if v not in inside
             and sum(v in x for x in made.values()) > 1}
    if any(v in graph.outputs or not inside.issuperset(
            r for u in graph.users.get(v, ()) for r in u.results) for v in apart) \
            or any(made[o].isdisjoint(read) for o in made if o is not last):
        return ()
    return tuple(read) if any(map(partial(_is_stored, graph), both)) else ()


def _is_stored(graph: Graph, v: Value) -> bool:
    """Whether a value is in memory whatever its groups are: an output, or a contraction's operand.
    A norm behind two products adds them up itself, and stores nothing in between."""
    return v in graph.outputs or any(
        isinstance(u, ops.DotGeneral) or (is_view(u) and _is_stored(graph, u.results[0]))
        for u in graph.users.get(v, ()))

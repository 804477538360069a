"""Products whose epilogues look up rows that other products make: they wait for these.

    p = dot(x, w1) [v, n]                                 p = dot(x, w1)
    q = dot(e, w0) [t, n]                         ──►     r = relu(dot(e, w0) + gather(p, i))
    r = relu(q + gather(p, i))   a stage of its own

Side by side both are written, and the larger one is read again. The smaller one has far fewer rows
(hlo/passes/rules/looked_up.py makes such products).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.rules.looked_up import FEWER

_STEPS = 32
"""Most values that are made of a product element by element."""


def lookups(graph: Graph) -> dict[Op, tuple[Value, ...]]:
    """Contractions that wait for values that they look up rows of, and for which."""
    found: dict[Op, tuple[Value, ...]] = {}
    waiting: dict[Value, list[Op]] = {}
    for o in graph.ops:
        if not isinstance(o, ops.DotGeneral):
            continue
        read = dict.fromkeys(x for x in _looked_up(graph, o)
                             if FEWER * x.type.size <= o.result.type.size
                             and isinstance(graph.producer.get(x), ops.DotGeneral))
        if read and behind(graph, o, waiting).isdisjoint(read):
            found[o] = tuple(read)
            for v in read:
                waiting.setdefault(v, []).append(o)
    return found


def behind(graph: Graph, o: Op, waiting: Mapping[Value, Sequence[Op]] | None = None) -> Set[Value]:
    """All that depends on an op. ``waiting``: for values, though these ops do not read them."""
    todo, seen = list(o.results), set(o.results)
    while todo:
        v = todo.pop()
        for u in (*graph.users.get(v, ()), *(waiting or {}).get(v, ())):
            new = [r for r in u.results if r not in seen]
            seen.update(new)
            todo += new
    return seen


def _looked_up(graph: Graph, product: ops.DotGeneral) -> list[Value]:
    """What rows are looked up of by ops that are element by element behind a product."""
    todo, seen = [product.result], {product.result}
    out: list[Value] = []
    while todo and len(seen) < _STEPS:
        for u in graph.users.get(todo.pop(), ()):
            if not isinstance(u, ops.Elementwise) or u.result in seen:
                continue
            seen.add(u.result)
            todo.append(u.result)
            out += [g.operand for v in u.inputs
                    if isinstance(g := graph.producer.get(v), ops.Gather)]
    return out

"""Attention of few rows reads its cache as it was, and what has come to it by itself.

    c1 = update(c, row, p)      in place            c1 = update(c, row, p)    in place, at the end
    softmax(q k(c1)) v(c1)      behind a      ──►   c2 = update(c, row, p)    a view, never stored
                                barrier             softmax(q k(c2)) v(c2)    row has flags

A decode step writes its key and its value into caches of its layer, and attends to all of them. In
order, that is a stage that copies a row, and a grid barrier that lets other blocks see it: caches
are too large for flags (`fusion.flags`). But of a cache only that row is new. So attention takes
the contents from before the launch, which it can request whenever it likes, and in their place the
few elements that the row has. The updates themselves wait for all that read the old contents, in
the last stage, behind one barrier of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxmono.fusion.bodies import order
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.formulate import Formulation
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import replace_values

MAX_ROWS = 16
"""Of queries, for which a family of attention has all keys in shared memory (attention_few.py)."""
MAX_NEW = 4
"""New rows of a cache: a thread has a piece of one."""


def apart(graph: Graph) -> tuple[Graph, dict[Op, Op]]:
    """``graph`` with such updates twice, itself if it has none; and of each view the update in
    place that it repeats."""
    views: dict[Op, Op] = {}
    seen: dict[Value, Value] = {}
    out: list[Op] = []
    for o in graph.ops:
        o = o.clone(seen) if any(v in seen for v in o.uses) else o
        out.append(o)
        if isinstance(o, ops.DynamicUpdateSlice) and _is_read_by_few(graph, o):
            view = o.clone({}, fresh_results=True)
            out.append(view)
            views[view] = o
            seen[o.result] = view.results[0]
    return (Graph(graph.inputs, tuple(out), graph.outputs, graph.name), views) if views \
        else (graph, {})


def together(graph: Graph, views: Mapping[Op, Op],
             again: Collection[Op]) -> tuple[Graph, dict[Op, Op]]:
    """``graph`` without some of its views, and those that are left: who reads one reads the update
    again."""
    same = {v.results[0]: views[v].results[0] for v in again}
    kept = tuple(o for o in graph.ops if o not in again)
    made = replace_values(Graph(graph.inputs, kept, graph.outputs, graph.name), same)
    twins = {old: new for old, new in zip(kept, made.ops, strict=True) if old is not new}
    return made, {twins.get(v, v): twins.get(o, o) for v, o in views.items() if v not in again}


def stored(form: Formulation, views: Collection[Op]) -> list[Op]:
    """Those that a group other than attention would compute for itself, the whole cache."""
    wrong: dict[Op, None] = {}
    for d in form.groups:
        placed = order(form.state, d, form.stored)[0]
        if d.kind != "attention":
            wrong.update((o, None) for o in placed if o in views)
    return list(wrong)


def _is_read_by_few(graph: Graph, o: ops.DynamicUpdateSlice) -> bool:
    """Whether ``o`` updates a program input for good, and nothing but contractions with a few rows
    reads what it makes, as it is."""
    cache, new = o.operand, o.result
    if cache not in graph.inputs or cache in graph.outputs or graph.users[cache] != (o,) \
            or graph.outputs.count(new) != 1 or cache.type.dtype.itemsize != 2:
        return False
    changed = [n for n, whole in zip(o.update.type.dims, cache.type.dims, strict=True)
               if n != whole]
    if len(changed) != 1 or changed[0] > MAX_NEW:
        return False
    todo, readers = [new], 0
    while todo:
        v = todo.pop()
        for u in graph.users.get(v, ()):
            if isinstance(u, ops.DotGeneral) and u.lhs is not u.rhs:
                dims = dot_dims(u)
                if (dims.n if v is u.lhs else dims.m) > MAX_ROWS:
                    return False
                readers += 1
            elif is_view(u) and u.results[0] not in graph.outputs:
                todo.append(u.results[0])
            else:
                return False
    return readers > 0

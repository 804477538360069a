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


def apart(graph: Graph) -> tuple[Graph, dict[Op, Op], tuple[str, ...]]:
    """``graph`` with such updates twice, itself if it has none; of each view the update in place
    that it repeats; and of caches that are read behind their updates, why, each one line."""
    views: dict[Op, Op] = {}
    seen: dict[Value, Value] = {}
    refused: list[str] = []
    out: list[Op] = []
    for o in graph.ops:
        o = o.clone(seen) if any(v in seen for v in o.uses) else o
        out.append(o)
        if not isinstance(o, ops.DynamicUpdateSlice) or not _is_cache(graph, o):
            continue
        if reason := _refusal(graph, o):
            refused.append(_behind(o, reason))
            continue
        view = o.clone({}, fresh_results=True)
        out.append(view)
        views[view] = o
        seen[o.result] = view.results[0]
    made = Graph(graph.inputs, tuple(out), graph.outputs, graph.name) if views else graph
    return made, views, tuple(refused)


def _behind(o: Op, reason: str) -> str:
    return f"the cache of {o.loc} is read behind its update: {reason}"


def together(graph: Graph, views: Mapping[Op, Op],
             again: Collection[Op]) -> tuple[Graph, dict[Op, Op], tuple[str, ...]]:
    """``graph`` without some of its views, those that are left, and why: who reads one reads the
    update again."""
    same = {v.results[0]: views[v].results[0] for v in again}
    kept = tuple(o for o in graph.ops if o not in again)
    made = replace_values(Graph(graph.inputs, kept, graph.outputs, graph.name), same)
    twins = dict(zip(kept, made.ops, strict=True))
    left = {twins[v]: twins[o] for v, o in views.items() if v not in again}
    return made, left, tuple(_behind(v, "a product that is no attention's reads it") for v in again)


def stored(form: Formulation, views: Collection[Op]) -> list[Op]:
    """Those that a group other than attention would compute for itself, the whole cache."""
    wrong: dict[Op, None] = {}
    for d in form.groups:
        placed = order(form.state, d, form.stored)[0]
        if d.kind != "attention":
            wrong.update((o, None) for o in placed if o in views)
    return list(wrong)


def _is_cache(graph: Graph, o: ops.DynamicUpdateSlice) -> bool:
    """Whether ``o`` updates a program input for good, and a contraction reads what it makes."""
    return (o.operand in graph.inputs and graph.outputs.count(o.result) == 1
            and any(isinstance(u, ops.DotGeneral) for _, u in _readers(graph, o.result)))


def _readers(graph: Graph, v: Value) -> list[tuple[Value, Op]]:
    """What reads a value, or a view of it, and which of them."""
    out: list[tuple[Value, Op]] = []
    for u in graph.users.get(v, ()):
        passed_on = is_view(u) and u.results[0] not in graph.outputs
        out += _readers(graph, u.results[0]) if passed_on else [(v, u)]
    return out


def _refusal(graph: Graph, o: ops.DynamicUpdateSlice) -> str:
    """Why the contractions do not read the old contents; empty if they do."""
    cache = o.operand
    if cache in graph.outputs or graph.users[cache] != (o,):
        return "its old contents are read, too"
    if cache.type.dtype.itemsize != 2:
        return f"it is of {cache.type.dtype.value}, not of 16 bits"
    changed = [n for n, whole in zip(o.update.type.dims, cache.type.dims, strict=True)
               if n != whole]
    if len(changed) != 1:
        return f"the update leaves {len(changed)} of its dimensions in part, not one"
    if changed[0] > MAX_NEW:
        return f"{changed[0]} new rows are more than {MAX_NEW}"
    for v, u in _readers(graph, o.result):
        if not isinstance(u, ops.DotGeneral):
            return f"a {u.opcode} reads it, too"
        dims = dot_dims(u)
        if (queries := dims.n if v is u.lhs else dims.m) > MAX_ROWS:
            return f"{queries} queries are more than {MAX_ROWS}"
    return ""

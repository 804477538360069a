"""Outputs that take the place of inputs that the caller gives away (``donate_argnums``).

    w1 = w - 0.1 * dot(x, g)      output 0 in the buffer of input w, where each element is read
                                  just before it is written; other readers of w come first

XLA copies an output into a donated input that it did not get as its buffer: a step of AdamW took
twice as long, and one of BERT-base made 604 copies. So an output gets it wherever the readers of
the input can be done before, in as many stages as without. A group that reads the input itself does
so at the index at which it writes, and nowhere else; its threads store nothing of an element (a
vector, a row) before all of it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxmono.fusion.bodies import order as body_order
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.formulate import Formulation
from jaxmono.fusion.order import dependences, latest, raised
from jaxmono.fusion.own_places import needed_where_written
from jaxmono.fusion.stacks import pieces, stacks, written_by
from jaxmono.hlo.ir import Value

Pair = tuple[Value, Value]
"""An output and the input whose place it takes."""


def take_places(form: Formulation, aliases: Sequence[tuple[int, int]], *, longer: bool = False,
                ) -> tuple[Formulation, tuple[str, ...]]:
    """The formulation with the (output, input) pairs of ``aliases`` that are possible, in as many
    stages (or in more, where it may be ``longer``), and why the others are not."""
    graph = form.state.graph
    refused: dict[str, list[tuple[int, int]]] = {}
    found: dict[Pair, tuple[int, int]] = {}
    stacked = {v for whole, parts in stacks(graph).items() for v in (whole, *parts)}
    in_parts = {x: o.operand for x, o in pieces(graph).items()}
    writer = {v: d for d in form.groups for v in d.outputs}
    for o, i in aliases:
        v, u = graph.outputs[o], graph.inputs[i]
        if u in form.updates:
            continue  # find_in_place's
        why = "its parts are written apart" if v in stacked \
            else _why_not(form, writer.get(v), v, u, in_parts)
        if why:
            refused.setdefault(why, []).append((o, i))
        else:
            found[v, u] = (o, i)
    form, late = _in_time(form, writer, list(found), longer=longer)
    for pair in late:
        refused.setdefault("others read the input until more stages are done", []).append(
            found[pair])
    return form, tuple(_told(why, pairs) for why, pairs in refused.items())


def _why_not(form: Formulation, d: Draft | None, v: Value, u: Value,
             in_parts: Mapping[Value, Value]) -> str:
    graph = form.state.graph
    if v.type != u.type:
        return f"it is {v.type} and the input {u.type}"
    if d is None or v in graph.inputs or v not in d.at or graph.outputs.count(v) != 1:
        return "it is no value of its own"
    if u in graph.outputs:
        return "the input is returned as well"
    if form.state.views:
        return "the program's caches are read as they were"
    if d.kind not in ("loop", "row", "dot"):
        return f"it is an {d.kind}'s, which may read again what it has read"
    if d.stored:
        return "who writes it updates other memory in place"
    if any(in_parts.get(x) is u for x in form.reads[d]):
        return "who writes it reads other elements of the input"
    if u in form.reads[d]:
        inside = set(body_order(form.state, d, form.stored)[0])
        # What a dot stores of its prologue has no place in ``at``; all of it is behind the dot.
        roots = {x: d.at[x] for x in d.outputs if x in d.at}
        if d.reduced or not needed_where_written(graph, inside.__contains__, roots, u, v, d.cols):
            return "who writes it reads other elements of the input"
    return ""


def _in_time(form: Formulation, writer: Mapping[Value, Draft], pairs: Sequence[Pair], *,
             longer: bool) -> tuple[Formulation, list[Pair]]:
    """The formulation in which readers come before writers, and the pairs for which they cannot in
    as many stages."""
    last = max(form.level.values(), default=0)
    parts = written_by(form.state.graph)

    def ordered(some: Sequence[Pair]) -> Formulation | None:
        updates = {**form.updates, **{u: writer[v] for v, u in some}}
        before = dependences(form.groups, form.reads, updates, parts)
        level = raised(form.groups, before, form.level)
        if level is None or (max(level.values(), default=0) > last and not longer):
            return None
        groups = sorted(form.groups, key=level.__getitem__)
        return replace(form, groups=groups, before=before, level=level, updates=updates,
                       donated=dict(some))

    ends, readers = latest(form.groups, form.before, last), _readers(form, parts)
    early, late, taken = list[Pair](), list[Pair](), list[Pair]()
    for v, u in pairs:
        before = [form.level[d] for d in readers.get(u, ()) if d is not writer[v]]
        (early if longer or max(before, default=-1) < ends[writer[v]] else late).append((v, u))
    best, todo = form, [early] if early else []
    while todo:
        some = todo.pop()
        if (tried := ordered([*taken, *some])) is not None:
            taken, best = [*taken, *some], tried
        elif len(some) == 1:
            late += some
        else:
            todo += [some[len(some) // 2:], some[:len(some) // 2]]
    return best, late


def _readers(form: Formulation, parts: Mapping[Value, Sequence[Value]]) -> dict[Value, set[Draft]]:
    found: dict[Value, set[Draft]] = {}
    for d in form.groups:
        for v in form.reads[d]:
            for part in parts.get(v, (v,)):
                found.setdefault(part, set()).add(d)
    return found


def _told(why: str, pairs: Sequence[tuple[int, int]]) -> str:
    o, i = pairs[0]
    more = f" (and {len(pairs) - 1} more)" if len(pairs) > 1 else ""
    return f"XLA copies the kernel's output {o}{more} into donated input {i}: {why}"

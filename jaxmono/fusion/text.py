"""Plans as text: indices, forms, sigs, stages, buffers. For people, goldens and content keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxmono.fusion.indexing import Atom, Div, Index, IndexMap, Mod, Var
from jaxmono.fusion.plan import (
    Buffer,
    DotForm,
    Form,
    Group,
    LoopForm,
    Place,
    Plan,
    RowForm,
    Sig,
    Store,
)
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.print import to_text


def value_names(body: Graph) -> dict[Value, str]:
    """``%N`` as `hlo.print` numbers the values of a graph (region insides count as well)."""
    names: dict[Value, str] = {}

    def visit(graph: Graph) -> None:
        for v in graph.inputs:
            names.setdefault(v, f"%{len(names)}")
        for o in graph.ops:
            for r in o.results:
                names.setdefault(r, f"%{len(names)}")
            for g in o.subgraphs:
                visit(g)

    visit(body)
    return names


def index_text(i: Index, names: dict[Value, str]) -> str:
    parts = [_atom(a, names) if c == 1 else f"{c}*{_atom(a, names)}" for a, c in i.terms]
    if i.const or not parts:
        parts.append(str(i.const))
    return " + ".join(parts)


def _atom(a: Atom, names: dict[Value, str]) -> str:
    if isinstance(a, Var):
        return a.name
    if isinstance(a, Div):
        return f"({index_text(a.x, names)})/{a.d}"
    if isinstance(a, Mod):
        return f"({index_text(a.x, names)})%{a.d}"
    return f"clamp({a.low}, {names.get(a.value, '%?')}{map_text(a.index, names)}, {a.high})"


def map_text(index: IndexMap, names: dict[Value, str]) -> str:
    return f"[{', '.join(index_text(i, names) for i in index)}]"


def _vars(vars: Iterable[Var]) -> str:
    return ", ".join(f"{v.name}<{v.size}" for v in vars)


def form_lines(form: Form, body: Graph, names: dict[Value, str] | None = None) -> list[str]:
    """A form, one fact a line; deterministic in the body's structure."""
    names = names or value_names(body)
    lines: list[str] = []

    def at(v: Value, index: IndexMap) -> str:
        return f"{names[v]}{map_text(index, names)}"

    if isinstance(form, LoopForm):
        lines.append(f"loop {_vars(form.vars)}")
    elif isinstance(form, RowForm):
        lines.append(f"rows {_vars(form.rows)}; cols {_vars(form.cols)}")
    elif isinstance(form, DotForm):
        lines.append(f"dot {names[form.dot.result]} over "
                     f"{_vars((form.batch, form.m, form.n, form.k))}"
                     f"{'; row prologue' if form.row_prologue else ''}"
                     f"{f'; {_vars((form.rows,))} of {form.taps} m' if form.taps > 1 else ''}"
                     f"{f'; {_vars((form.pairs,))} of pairs of n' if form.pairs else ''}")
        lines.append(f"lhs {at(form.dot.lhs, form.lhs_index)}; "
                     f"rhs {at(form.dot.rhs, form.rhs_index)}"
                     f"{'; lhs rounded' if form.rounded else ''}")
    else:
        first, second = form.first, form.second
        lhs, rhs = (first.rhs, first.lhs) if form.first_swapped else (first.lhs, first.rhs)
        lines.append(f"attention {names[first.result]} -> {names[second.result]} over "
                     f"{_vars((form.batch, form.m, form.n, form.k, form.v))}"
                     f"{'; first swapped' if form.first_swapped else ''}")
        lines.append(f"query {at(lhs, form.lhs_index)}; key {at(rhs, form.rhs_index)}")
        lines.append(f"probs {at(form.probs, form.p_index)}; "
                     f"value {at(form.value, form.value_index)}")
    lines.extend(_store(s, body, names) for s in form.stores)
    return lines


def _store(s: Store, body: Graph, names: dict[Value, str]) -> str:
    over = ", ".join(v.name for v in s.over)
    return f"store {s.result}: {names[body.outputs[s.result]]}{map_text(s.index, names)} " \
           f"over ({over})"


def buffer_text(b: Buffer) -> str:
    place = {Place.INPUT: f"input {b.index}", Place.OUTPUT: f"output {b.index}",
             Place.SCRATCH: f"scratch+{b.offset}",
             Place.FLAGGED: f"flagged+{b.offset}", Place.STATE: f"state of output {b.index}",
             Place.PART: f"b{b.index}+{b.offset}"}.get(b.place, b.place.value)
    alias = f" in place of input {b.alias}" if b.alias is not None \
        else f" behind b{b.before}" if b.before is not None else ""
    return f"b{b.id} {b.type} {place}{alias} live {b.first}..{b.last}"


def _group(g: Group, alias: Callable[[Sig], str]) -> str:
    params = ", ".join(f"b{p}" for p in g.params)
    results = ", ".join(f"b{r}" for r in g.results)
    return f"g{g.id} {alias(g.sig)}({params}) -> {results}"


def plan_to_text(plan: Plan) -> str:
    """The whole plan: summary, buffers, stages with their groups, sigs, notes."""
    names: dict[str, str] = {}
    taken: dict[str, int] = {}
    for s in plan.sigs:
        count = taken[s.name] = taken.get(s.name, 0) + 1
        names[s.key] = s.name if count == 1 else f"{s.name}.{count}"

    def alias(s: Sig) -> str:
        return names[s.key]

    lines = [f"plan {plan.graph.name}: {len(plan.stages)} stages, {plan.barriers} barriers "
             f"(before merging {plan.barriers_before_merging}), {len(plan.groups)} groups, "
             f"{len(plan.sigs)} sigs, {plan.scratch_bytes} scratch bytes"
             f"{f', {plan.flagged_bytes} flagged bytes' if plan.open else ''}"]
    lines += [f"loop: stages {x.start}..{x.start + x.period * x.trips - 1} are "
              f"{x.trips} times {x.period}" for x in plan.loops]
    if plan.repeat is not None:
        lines.append(f"stages from {plan.repeat.start} on repeat while b{plan.repeat.going} is "
                     "true, a barrier behind the last one")
    lines += [f"note: {n}" for n in plan.notes]
    lines += [f"  {buffer_text(b)}" for b in plan.buffers]
    for i, stage in enumerate(plan.stages):
        lines.append(f"stage {i}{', behind no barrier' if i - 1 in plan.open else ''}")
        lines += [f"  {_group(g, alias)}" for g in stage.groups]
    for s in plan.sigs:
        lines.append(f"sig {alias(s)}")
        lines += [f"  {line}" for line in form_lines(s.form, s.body)]
        lines += [f"  {x}" for x in to_text(s.body, locs=False, elide=True).splitlines()]
    return "\n".join(lines) + "\n"


"""Graph to Plan.

    prepare -> formulate -> places of donated inputs -> Sigs -> stages -> buffers -> scratch offsets
    -> edges -> loops -> verify
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from jaxmono.fusion import cache_rows, memory
from jaxmono.fusion.accumulated import given_away, written_over
from jaxmono.fusion.bodies import make_sig
from jaxmono.fusion.donated import take_places
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.edges import sync_edges
from jaxmono.fusion.epilogue_reduces import After, begin_reduces
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.formulate import Formulation, formulate
from jaxmono.fusion.joined_parts import joined_parts
from jaxmono.fusion.plan import Buffer, Device, DotForm, Group, Place, Plan, Sig, Stage
from jaxmono.fusion.prepare import prepare
from jaxmono.fusion.recompute import recompute
from jaxmono.fusion.repeat import whole_loop_of, with_loop
from jaxmono.fusion.roll import find_loops
from jaxmono.fusion.split_reduce import split_reduces
from jaxmono.fusion.stacks import pieces, stacks
from jaxmono.fusion.stages import place
from jaxmono.fusion.support import refusal
from jaxmono.fusion.twins import twins
from jaxmono.fusion.vector_dots import as_products, exact_dots
from jaxmono.fusion.verify import verify
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import TensorType

MODES = ("monolithic", "auto", "stitch")
OPTIONAL = ("cache_rows", "epilogue_reduces", "recompute")
"""Decisions that `make_plan` can leave out."""


def make_plan(graph: Graph, device: Device, *, mode: str = "monolithic",
              aliases: tuple[tuple[int, int], ...] = (), without: Collection[str] = ()) -> Plan:
    """Plans one kernel for all of ``graph``.

    Args:
      graph: a self-contained graph of supported ops (`regions.cut` makes such graphs), after the
        passes of `jaxmono.hlo`.
      device: the facts of the GPU.
      mode: "monolithic", "auto" or "stitch" (the same here: regions were chosen before).
      aliases: (output, input) pairs that the caller wants in one buffer: donated inputs. An output
        that updates the input in place gets it anyway; a pair that is not possible is noted, and
        XLA copies it.
      without: names of `OPTIONAL`, `prepare.OPTIONAL` and `grow.OPTIONAL` to leave out; other names
        are not looked at.

    Raises:
      PlanError: if an op is refused (the message says which and why) or the plan is not legal.
      NotImplementedError: for a mode that is not built yet.
    """
    if mode not in MODES:
        raise NotImplementedError(f"mode={mode!r} is not built yet; available: "
                                  f"{', '.join(MODES)}")
    if (loop := whole_loop_of(graph)) is None:
        return _planned(graph, device, aliases, without)

    def part(g: Graph, trip: bool) -> Plan:
        own = tuple((i, i) for i in range(len(g.outputs))) if trip else ()
        return _planned(g, device, own, without, longer=trip)

    plan = with_loop(graph, loop, part)
    verify(plan)
    return plan


def _planned(graph: Graph, device: Device, aliases: tuple[tuple[int, int], ...],
             without: Collection[str], *, longer: bool = False) -> Plan:
    """``longer``: an output may wait for a stage of its own to take its place."""
    for o in graph.ops:
        if (reason := refusal(o, graph.producer)) is not None:
            raise PlanError(f"{o.opcode} at {o.loc}: {reason}; leave it to XLA (regions.cut)")
    if graph.captures:
        raise PlanError("the graph uses values from outside; make them inputs (regions.cut)")
    graph, refused = prepare(graph, device, without)
    graph = joined_parts(graph, {i for i, _ in aliases})
    graph = given_away(graph, aliases)
    graph, views, behind = (graph, {}, ()) if "cache_rows" in without else cache_rows.apart(graph)
    form = formulate(graph, device, without, views)
    if again := cache_rows.stored(form, views):  # known once there are groups
        graph, views, more = cache_rows.together(graph, views, again)
        behind = (*behind, *more)
        form = formulate(graph, device, without, views)
    refused = (*refused, *behind)
    if exact := exact_dots(graph):  # likewise, but for attention's
        graph, more = split_reduces(as_products(graph, exact, form.groups), device)
        refused = (*refused, *more)
        form = formulate(graph, device, without, views)
    apart: Mapping[Op, bool] = {}
    if "recompute" not in without and not views:
        graph, form, apart, more = recompute(
            graph, form, device, lambda g, copies: formulate(g, device, without, apart=copies))
        refused = (*refused, *more)
    if "epilogue_reduces" not in without:
        def formed(g: Graph, after: After, begun: Collection[Op]) -> Formulation:
            return formulate(g, device, without, views, after, begun, apart)

        graph, form, more = begin_reduces(graph, form, formed)
        refused = (*refused, *more)
        rest, more = split_reduces(graph, device)
        if rest is not graph:
            graph, form = rest, formed(rest, form.state.after, form.state.begun)
            refused = (*refused, *more)
    form, copied = take_places(form, aliases, longer=longer)
    plan = _assemble(graph, device, form, trip=longer)
    notes = [*plan.notes, *_rounded(plan), *dict.fromkeys(refused), *copied]
    plan = dataclasses.replace(plan, notes=tuple(notes))
    verify(plan)
    return plan


def _assemble(graph: Graph, device: Device, form: Formulation, *, trip: bool) -> Plan:
    outputs: dict[Value, list[int]] = {}
    for i, v in enumerate(graph.outputs):
        outputs.setdefault(v, []).append(i)
    results: dict[Draft, list[Value]] = {
        d: [v for v in d.outputs for _ in range(max(len(outputs.get(v, ())), 1))]
        for d in form.groups}
    sigs: dict[Draft, Sig] = {}
    reads: dict[Draft, list[Value]] = {}
    shared: dict[str, Sig] = {}
    for d in form.groups:
        sig, reads[d] = make_sig(form.state, d, form.stored, results[d])
        sigs[d] = shared.setdefault(sig.key, sig)
    staged = place(form, sigs, device)
    table = _Buffers(graph, form, staged, reads)
    stages: list[Stage] = []
    number = 0
    for groups, own in zip(staged, twins([[sigs[d] for d in s] for s in staged]), strict=True):
        made: list[Group] = []
        for d, sig in zip(groups, own, strict=True):
            made.append(Group(number, sig, tuple(table.read(v) for v in reads[d]),
                              tuple(table.write(results[d]))))
            number += 1
        stages.append(Stage(tuple(made)))
    buffers, scratch = table.finish()
    return Plan(graph, buffers, tuple(stages), sync_edges(buffers, stages), find_loops(stages),
                scratch, max(len(form.groups) - 1, 0), _notes(form, trip=trip))


def _notes(form: Formulation, *, trip: bool) -> tuple[str, ...]:
    out: list[str] = []
    if form.donated and not trip:
        out.append(f"{len(form.donated)} outputs take the place of donated inputs")
    if form.state.folds:
        out.append(f"{form.state.folds} normalisations are recomputed by the contractions that "
                   "read them, which saves as many stages")
    heads = sum(d.kind == "attention" for d in form.groups)
    if heads:
        out.append(f"{heads} attentions keep their scores inside a block")
    if caches := len(form.state.views):
        out.append(f"{caches} caches are read as they were, and updated in the last stage")
    windows = sum(d.taps > 1 for d in form.groups)
    if windows:
        out.append(f"{windows} contractions are pooled before they are stored")
    pairs = sum(d.paired for d in form.groups)
    if pairs:
        out.append(f"{pairs} contractions are gated by their own columns before they are stored")
    reduced = sum(len(d.reduced) > 0 for d in form.groups)
    if reduced:
        out.append(f"{reduced} contractions begin in their epilogues what reduces their results")
    sums = sum(d.kind == "row" and not isinstance(d.anchor, ops.Reduce) for d in form.groups)
    if sums:
        out.append(f"{sums} contractions with few rows leave the sum over their shares of k to the "
                   "norms behind them")
    return (*out, *form.state.refused)


def _rounded(plan: Plan) -> tuple[str, ...]:
    count = sum(isinstance(g.sig.form, DotForm) and g.sig.form.rounded
                and any(isinstance(o, ops.Window | ops.Slice) for o in g.sig.body.ops)
                for g in plan.groups)
    return (f"{count} convolutions read what is rounded to tf32 where it is written",) \
        if count else ()


class _Buffers:
    """Binds values to buffers; knows which stages need them."""

    def __init__(self, graph: Graph, form: Formulation, staged: list[list[Draft]],
                 reads: dict[Draft, list[Value]]) -> None:
        self.rows: list[Buffer] = []
        self.of: dict[Value, int] = {}
        self.outputs: dict[Value, list[int]] = {}
        last_stage = len(staged)
        stage = {d: i for i, groups in enumerate(staged) for d in groups}
        last: dict[Value, int] = {}
        for d, values in reads.items():
            for v in values:
                last[v] = max(last.get(v, -1), stage[d])
        for v, o in pieces(graph).items():
            if v in last:
                last[o.operand] = max(last.get(o.operand, -1), last[v])
        for i, v in enumerate(graph.inputs):
            self.of[v] = self._add(v.type, Place.INPUT, index=i, first=-1, last=last.get(v, -1))
        writer = {v: d for d in form.groups for v in d.outputs}
        alias: dict[int, int] = {}
        chained: dict[Value, int] = {}
        for o, out in form.state.in_place.items():
            chained[o.results[0]] = out
            if o.inputs[0] in graph.inputs:
                alias[out] = graph.inputs.index(o.inputs[0])
        alias.update((graph.outputs.index(v), graph.inputs.index(u))
                     for v, u in form.donated.items())
        for i, v in enumerate(graph.outputs):
            b = self._add(v.type, Place.OUTPUT, index=i, alias=alias.get(i),
                          first=stage[writer[v]] if v in writer else 0,
                          last=last_stage)
            self.outputs.setdefault(v, []).append(b)
            self.of.setdefault(v, b) if v not in graph.inputs else None
        self._stacks(graph, writer, stage, last)
        self.chain = {v: self.outputs[graph.outputs[out]][0] for v, out in chained.items()}
        above = {u: v for u, v in written_over(graph).items() if v in writer}
        for d in form.groups:
            for u in d.outputs:
                if u in above:
                    self.of[u] = self._written_over(u, above[u], stage, writer, last)
        for d in form.groups:
            for v in d.outputs:
                if v in self.chain:
                    self.of[v] = self.chain[v]
                    b = self.rows[self.chain[v]]
                    self.rows[b.id] = dataclasses.replace(b, first=min(b.first, stage[d]))
                elif v not in self.outputs and v not in self.of:
                    self.of[v] = self._add(v.type, Place.SCRATCH, first=stage[d],
                                           last=max(last.get(v, -1), stage[d]))
        self._pieces(graph, last)

    def _written_over(self, u: Value, v: Value, stage: Mapping[Draft, int],
                      writer: Mapping[Value, Draft], last: Mapping[Value, int]) -> int:
        """The buffer of ``u``, in which ``v`` is made behind it."""
        first = stage[writer[u]]
        if v in self.outputs:
            b = self.of[v]
            self.rows[b] = dataclasses.replace(self.rows[b], first=first)
        else:
            b = self.of[v] = self._add(v.type, Place.SCRATCH, first=first,
                                       last=max(last.get(v, -1), stage[writer[v]]))
        return b

    def _pieces(self, graph: Graph, last: Mapping[Value, int]) -> None:
        for v, o in pieces(graph).items():
            if v in last:
                whole = self.rows[self.of[o.operand]]
                self.of[v] = self._add(v.type, Place.PART, index=whole.id, first=whole.first,
                                       offset=o.index * v.type.nbytes, last=last[v])

    def _stacks(self, graph: Graph, writer: Mapping[Value, Draft], stage: Mapping[Draft, int],
                last: Mapping[Value, int]) -> None:
        """Buffers of what lies together, and their parts."""
        for whole, parts in stacks(graph).items():
            if whole not in last and whole not in self.outputs:
                continue
            if missing := [v for v in parts if v not in writer or v in self.outputs]:
                raise PlanError(f"{missing[0]!r} is part of {whole!r}, but not written there")
            first = min(stage[writer[v]] for v in parts)
            if whole in self.outputs:
                b = self.of[whole]
                self.rows[b] = dataclasses.replace(self.rows[b], first=first)
            else:
                b = self.of[whole] = self._add(whole.type, Place.SCRATCH, first=first, last=max(
                    last.get(v, -1) for v in (whole, *parts)))
            for i, v in enumerate(parts):
                self.of[v] = self._add(v.type, Place.PART, index=b, offset=i * v.type.nbytes,
                                       first=stage[writer[v]], last=self.rows[b].last)

    def _add(self, type: TensorType, place: Place, *, index: int = -1, offset: int = -1, first: int,
             last: int, alias: int | None = None) -> int:
        self.rows.append(Buffer(len(self.rows), type, place, index=index, offset=offset,
                                first=first, last=last, alias=alias))
        return self.rows[-1].id

    def read(self, v: Value) -> int:
        return self.of[v]

    def write(self, results: list[Value]) -> list[int]:
        """Buffer of each result; a value that is several program outputs goes to each."""
        out: list[int] = []
        seen: dict[Value, int] = {}
        for v in results:
            if v in self.outputs:
                k = seen[v] = seen.get(v, -1) + 1
                out.append(self.outputs[v][k])
            else:
                out.append(self.of[v])
        return out

    def finish(self) -> tuple[tuple[Buffer, ...], int]:
        scratch = [b for b in self.rows if b.place is Place.SCRATCH]
        offsets, total = memory.assign(
            [memory.Interval(b.type.nbytes, b.first, b.last) for b in scratch])
        for b, offset in zip(scratch, offsets, strict=True):
            self.rows[b.id] = dataclasses.replace(b, offset=offset)
        return tuple(self.rows), total

"""Graph to drafts: the steps of the formulation, in order.

    in_place      which dynamic_update_slices write into the program input's own buffer
    grow          contractions, reduces and attention claim the ops around them
    trim          give back rim ops that would make a group write more
    fold          norms recomputed by the contractions that read them
    materialise   floating chains: inlined, or loops of their own
    copies        program outputs that are program inputs
    finish        outputs and reads of every group; loops of one that read each other's values, or
                  the same
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from jaxmono.fusion import order
from jaxmono.fusion.awaited_lookups import lookups
from jaxmono.fusion.bodies import order as body_order
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.epilogue_reduces import order_after
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.fold import fold
from jaxmono.fusion.gated import paired, waits
from jaxmono.fusion.grow import grow
from jaxmono.fusion.inplace import find_in_place
from jaxmono.fusion.loop_chains import join_chains
from jaxmono.fusion.loops import copies, materialise
from jaxmono.fusion.meeting_products import meetings
from jaxmono.fusion.merged_loops import merge
from jaxmono.fusion.plan import Device
from jaxmono.fusion.stacks import trips_in_turn, written_by
from jaxmono.fusion.trim import trim
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MAX_ATTEMPTS = 32


@dataclass(eq=False)
class Formulation:
    """Drafts with everything that stages and buffers need.

    Attributes:
      groups: in a deterministic order in which every group follows those it waits for.
      before: direct predecessors of each group.
      level: longest path.
      updates: old value to the group that overwrites its buffer.
      donated: outputs to the inputs whose places they take (donated.py).
    """

    state: State
    groups: list[Draft]
    stored: set[Value]
    reads: dict[Draft, tuple[Value, ...]]
    before: dict[Draft, dict[Draft, None]]
    level: dict[Draft, int]
    updates: dict[Value, Draft]
    donated: dict[Value, Value] = field(default_factory=dict[Value, Value])


def formulate(graph: Graph, device: Device, without: Collection[str] = (),
              views: Mapping[Op, Op] | None = None,
              after: Mapping[Op, tuple[Value, ...]] | None = None,
              begun: Collection[Op] = (), apart: Mapping[Op, bool] | None = None) -> Formulation:
    """Drafts for the whole graph.

    Groups that would wait on each other (two results of one group, one needing the other through
    a third) are taken apart and the formulation runs again; single ops always order.
    ``without``: of `grow.OPTIONAL`, what is left out. ``views``: of `cache_rows.apart`; what they
    repeat is done at the end, by loops. ``after``, ``begun``: of `State`. ``apart``: ops that grow
    into no group, and whether each is computed wherever it is needed, however often.
    """
    banned = {*(apart or ()), *trips_in_turn(graph)}
    again = frozenset(o for o, always in (apart or {}).items() if always)
    meet, gates = ({}, {}) if "gated" in without else (meetings(graph), waits(graph))
    pairs = () if "gated" in without else paired(graph, device)
    rows = lookups(graph)
    refused: dict[str, None] = {}
    for _ in range(MAX_ATTEMPTS):
        later = {o: (*rows.get(o, ()), *meet.get(o, ()), *gates.get(o, ()))
                 for o in {**rows, **meet, **gates}}
        for o, values in (after or {}).items():
            later[o] = (*later.get(o, ()), *values)
        state = State(order_after(graph, later), device, banned=set(banned),
                      without=frozenset(without), views=views or {}, after=later, begun=begun,
                      again=again, paired=pairs, refused=dict(refused))
        find_in_place(state)
        grow(state)
        if vain := [o for o, values in meet.items() if not _reads(state, o, values)]:
            refused.update((f"the product of {o.loc} does not wait for those that it meets: what "
                            "they make together is not made in its epilogue", None) for o in vain)
            meet = {o: values for o, values in meet.items() if o not in vain}
            continue
        trim(state)
        fold(state)
        materialise(state)
        state.drafts.extend(copies(state))
        made = _finish(state)
        if isinstance(made, Formulation):
            return made
        banned |= made
    raise PlanError("the groups of this program wait on each other in a circle; "
                    "report the program, it should not happen")


def _reads(state: State, product: Op, values: Collection[Value]) -> bool:
    """Whether a contraction's group reads one of these values."""
    draft = state.owner.get(product)
    return draft is not None and any(v in values for o in draft.ops for v in o.uses)


def _finish(state: State) -> Formulation | set[Op]:
    """The formulation, or the ops that may not grow again because it cannot be ordered."""
    stored = _outputs(state)
    groups = [d for d in state.drafts if any(v.type.size for v in d.outputs)]
    reads = {d: tuple(body_order(state, d, stored)[1]) for d in groups}
    groups, stored, reads = _needed(state, groups, stored, reads)
    if (unsafe := _read_and_updated(state, groups, stored)):
        return unsafe
    updates = {o.inputs[0]: d for d in groups for o in d.ops
               if isinstance(o, ops.Accumulate) or o in state.in_place}
    parts = written_by(state.graph)
    before = order.dependences(groups, reads, updates, parts)
    level = order.levels(groups, before)
    if level is None:
        return {o for d in order.cycle(groups, before) for o in (*d.ops, *d.folded)}
    position = _positions(state)
    groups = join_chains(state, groups, stored, reads, before, level, parts)
    level = order.levels(groups, before)
    assert level is not None, "a joined loop comes where its waits are done"
    groups = merge(state.graph, sorted(groups, key=lambda d: (level[d], position(d))), level, reads)
    before = order.dependences(groups, reads, updates, parts)
    merged = {d: level[d] for d in groups}
    raised = order.raised(groups, before, merged)  # parts of an array come with the last one
    if raised is None:
        return {o for d in order.cycle(groups, before) for o in (*d.ops, *d.folded)}
    if raised != merged:
        groups = sorted(groups, key=raised.__getitem__)
    return Formulation(state, groups, stored, reads, before, {d: raised[d] for d in groups},
                       updates)


def _read_and_updated(state: State, groups: list[Draft], stored: set[Value]) -> set[Op]:
    """Updates in place whose own group also reads the old contents: other elements may be gone."""
    out: set[Op] = set()
    for d in groups:
        for v in d.stored:
            update = state.graph.producer[v]
            old = update.inputs[0]
            users = [o for o in body_order(state, d, stored)[0] if old in o.uses]
            if users != [update] or update.inputs.count(old) != 1 or old in d.outputs:
                out.add(update)
    return out


def _positions(state: State) -> Callable[[Draft], int]:
    place = {o: i for i, o in enumerate(state.graph.ops)}

    def position(d: Draft) -> int:
        anchor = d.anchor if d.anchor is not None else next(iter(d.ops), None)
        return place[anchor] if anchor is not None else -1

    return position


def _outputs(state: State) -> set[Value]:
    """Fills in ``outputs`` of the drafts; returns all values that live in buffers."""
    graph, outputs = state.graph, state.outputs_set()
    stored: set[Value] = set()
    for d in state.drafts:
        if d.outputs:
            continue
        out = list(d.extra)
        for o in d.ops:
            for r in o.results:
                used = r in outputs or any(not d.has(u) for u in graph.users.get(r, ()))
                if used and (r in d.at or r in d.stored or r in d.reduced):
                    out.append(r)
                elif used:
                    raise PlanError(f"{o.opcode} at {o.loc}: a value inside a {d.kind} group is "
                                    "used outside, where it has no place")
        d.outputs = tuple(out)
        stored.update(out)
    return stored


def _needed(state: State, groups: list[Draft], stored: set[Value],
            reads: dict[Draft, tuple[Value, ...]]) -> tuple[list[Draft], set[Value],
                                                            dict[Draft, tuple[Value, ...]]]:
    """Drops outputs that nobody reads after inlining, and groups without outputs."""
    parts = written_by(state.graph)
    while True:
        used = set(state.graph.outputs) | {v for r in reads.values() for v in r}
        used.update(v for whole, held in parts.items() if whole in used for v in held)
        changed = False
        for d in groups:
            keep = tuple(v for v in d.outputs if v in used)
            if keep != d.outputs:
                d.outputs, changed = keep, True
                d.extra = tuple(v for v in d.extra if v in used)
        if not changed:
            return groups, stored, reads
        groups = [d for d in groups if d.outputs]
        stored = {v for d in groups for v in d.outputs}
        reads = {d: tuple(body_order(state, d, stored)[1]) for d in groups}

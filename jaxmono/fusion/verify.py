"""Is this plan legal? Checked always; independent of how the plan was made.

The stages are replayed over memory: every read finds what its writer left, no byte is
overwritten while something still needs it, groups of one stage do not touch each other's results,
every program output is written in full, exactly once. Across borders without a barrier goes nothing
but flagged values, whose words nobody shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.fusion.accumulated import accumulation, check_accumulated, check_updates
from jaxmono.fusion.bijection import injective
from jaxmono.fusion.edges import flagged_bytes
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.flags import borders
from jaxmono.fusion.indexing import Var
from jaxmono.fusion.memory import ALIGNMENT
from jaxmono.fusion.own_places import needed_where_written
from jaxmono.fusion.plan import (
    AttentionForm,
    Buffer,
    DotForm,
    Group,
    Place,
    Plan,
    RowForm,
    Sig,
    SyncEdge,
)
from jaxmono.fusion.proofs import check_form
from jaxmono.fusion.round_rows import is_rounded, moved
from jaxmono.fusion.spans import Span, overlap, overlaps
from jaxmono.fusion.walk import leaves
from jaxmono.hlo import ops
from jaxmono.hlo.types import FOUR_BITS


def verify(plan: Plan) -> None:
    """Raises PlanError, naming the group and the buffer, if the plan breaks a rule."""
    _check_buffers(plan)
    for s in plan.sigs:
        _check_sig(s)
    for g in plan.groups:
        _check_bindings(plan, g)
    _check_rounded(plan)
    _check_parts(plan)
    _check_memory(plan)
    _replay(plan)
    _check_edges(plan)
    _check_loops(plan)
    _check_repeat(plan)
    _check_borders(plan)
    check_accumulated(plan)


def _name(g: Group) -> str:
    return f"group g{g.id} ({g.sig.name})"


# ---- buffers -----------------------------------------------------------------------------------


def _check_buffers(plan: Plan) -> None:
    for i, b in enumerate(plan.buffers):
        if b.id != i:
            raise PlanError(f"buffer b{b.id} stands at position {i}; ids are positions")
        if b.type.dtype in FOUR_BITS and b.place not in (Place.INPUT, Place.PART):
            raise PlanError(f"buffer b{i} of {b.type} would be written; kernels write no integers "
                            f"of 4 bits")
        if b.place is Place.SCRATCH:
            if b.offset < 0 or b.offset % ALIGNMENT:
                raise PlanError(f"buffer b{i}: offset {b.offset} is no multiple of {ALIGNMENT}")
            if b.offset + b.type.nbytes > plan.scratch_bytes:
                raise PlanError(f"buffer b{i} ends at {b.offset + b.type.nbytes}, outside the "
                                f"{plan.scratch_bytes} scratch bytes")
        if b.place is Place.FLAGGED:
            if b.offset < 0 or b.offset % ALIGNMENT or b.type.dtype.itemsize not in (2, 4):
                raise PlanError(f"buffer b{i} of {b.type} at {b.offset} cannot have flags")
            if b.offset + flagged_bytes(b) > plan.flagged_bytes:
                raise PlanError(f"buffer b{i} ends at {b.offset + flagged_bytes(b)}, outside the "
                                f"{plan.flagged_bytes} flagged bytes")
    for kind, buffers, values in (("input", plan.inputs, plan.graph.inputs),
                                  ("output", plan.outputs, plan.graph.outputs)):
        if [b.index for b in buffers] != list(range(len(values))):
            raise PlanError(f"the {kind} buffers do not match the graph's {kind}s one to one")
        for b, v in zip(buffers, values, strict=True):
            if b.type != v.type:
                raise PlanError(f"{kind} {b.index} is {v.type}, its buffer b{b.id} {b.type}")
    for b in plan.outputs:
        if b.alias is not None and plan.inputs[b.alias].type != b.type:
            raise PlanError(f"output {b.index} cannot take the place of input {b.alias}: "
                            f"{b.type} is not {plan.inputs[b.alias].type}")


def span(plan: Plan, b: Buffer) -> Span:
    """Where a buffer's bytes are; an output that updates an input in place is that input."""
    if b.place is Place.PART:
        space, begin, _ = span(plan, plan.buffers[b.index])
        return (space, begin + b.offset, begin + b.offset + b.type.nbytes)
    if b.place is Place.SCRATCH:
        return ("scratch", b.offset, b.offset + b.type.nbytes)
    if b.place is Place.FLAGGED:
        return ("flagged", b.offset, b.offset + flagged_bytes(b))
    if b.place is Place.OUTPUT and b.alias is not None:
        return (f"input {b.alias}", 0, b.type.nbytes)
    place = Place.OUTPUT if b.place is Place.STATE else b.place
    return (f"{place.value} {b.index}", 0, b.type.nbytes)


def _parts(plan: Plan) -> dict[int, list[int]]:
    """The parts of buffers that are written in such, in the order of their bytes."""
    written = {b for g in plan.groups for b in g.results}
    out: dict[int, list[int]] = {}
    for b in sorted(plan.buffers, key=lambda b: b.offset):
        if b.place is Place.PART and b.id in written:
            out.setdefault(b.index, []).append(b.id)
    return out


def _holders(plan: Plan) -> dict[int, list[int]]:
    """The buffers that groups write, of each buffer that they may read: itself, its parts, or what
    it is a part of (of which there are parts, those with bytes of it)."""
    parts = _parts(plan)
    own = {b for of in parts.values() for b in of}
    out: dict[int, list[int]] = {}
    for b in plan.buffers:
        i = b.index if b.place is Place.PART and b.id not in own else b.id
        out[b.id] = [p for p in parts.get(i, [i])
                     if p == i or overlap(span(plan, plan.buffers[p]), span(plan, b))]
    return out


def _check_parts(plan: Plan) -> None:
    """What is written in parts is filled by them, one behind the other; others lie inside."""
    parts_of = _parts(plan)
    written = {b for of in parts_of.values() for b in of}
    for b in plan.buffers:
        if b.place is not Place.PART or b.id in written:
            continue
        whole = plan.buffers[b.index]
        if whole.place is Place.PART or b.offset < 0 or b.offset % ops.PIECE_BYTES \
                or b.offset + b.type.nbytes > whole.type.nbytes:
            raise PlanError(f"buffer b{b.id} at byte {b.offset} is no part of b{whole.id}")
        if b.last > whole.last:
            raise PlanError(f"buffer b{b.id} is needed longer than b{whole.id}, where it lies")
    for whole, parts in parts_of.items():
        end, b = 0, plan.buffers[whole]
        if b.place not in (Place.SCRATCH, Place.OUTPUT) or b.alias is not None:
            raise PlanError(f"buffer b{whole} ({b.place.value}) cannot have parts")
        for p in (plan.buffers[i] for i in parts):
            if p.offset != end or p.offset % ops.PIECE_BYTES:
                raise PlanError(f"buffer b{p.id} begins at byte {p.offset} of b{whole}, the part "
                                f"before it ends at {end}")
            if p.last < b.last:
                raise PlanError(f"buffer b{p.id} is part of b{whole}, which is needed longer")
            end += p.type.nbytes
        if end != b.type.nbytes:
            raise PlanError(f"the parts of b{whole} are {end} of its {b.type.nbytes} bytes")


def _check_memory(plan: Plan) -> None:
    scratch = sorted((b for b in plan.buffers if b.place is Place.SCRATCH),
                     key=lambda b: b.offset)
    for i, a in enumerate(scratch):
        for b in scratch[i + 1:]:
            if b.offset >= a.offset + a.type.nbytes:
                break
            if a.first <= b.last and b.first <= a.last and a.id != b.before and b.id != a.before:
                raise PlanError(f"buffers b{a.id} and b{b.id} share scratch bytes and are both "
                                f"live in stage {max(a.first, b.first)}")
    end = 0
    for b in sorted((b for b in plan.buffers if b.place is Place.FLAGGED), key=lambda b: b.offset):
        if b.offset < end:
            raise PlanError(f"buffer b{b.id} shares flagged words with another")
        end = b.offset + flagged_bytes(b)


# ---- sigs and bindings -------------------------------------------------------------------------


def _check_sig(sig: Sig) -> None:
    form, body = sig.form, sig.body
    written = sorted(s.result for s in form.stores)
    if written != list(range(len(body.outputs))):
        raise PlanError(f"sig {sig.name} stores results {written} of {len(body.outputs)}")
    if isinstance(form, (DotForm, AttentionForm)):
        dots = [o for o in body.ops if isinstance(o, ops.DotGeneral)]
        expected = [form.dot] if isinstance(form, DotForm) else [form.first, form.second]
        if set(dots) != set(expected):
            raise PlanError(f"sig {sig.name} has contractions that its form does not name")
    elif any(isinstance(o, ops.DotGeneral) for o in body.ops):
        raise PlanError(f"sig {sig.name} is a {sig.kind} but holds a contraction")
    check_form(sig)
    for s in form.stores:
        _check_store(sig, s.result, s.over)


def _check_store(sig: Sig, result: int, over: Sequence[Var]) -> None:
    store = next(s for s in sig.form.stores if s.result == result)
    v = sig.body.outputs[result]
    if len(store.index) != v.type.rank:
        raise PlanError(f"sig {sig.name}: the store of result {result} has {len(store.index)} "
                        f"indices for {v.type}")
    free = {x for i in store.index for x in i.variables} - set(over)
    if free:
        raise PlanError(f"sig {sig.name}: the store of result {result} uses "
                        f"{', '.join(sorted(x.name for x in free))} outside its domain")
    count = math.prod(x.size for x in over)
    if count == 0:
        return
    for i, n in zip(store.index, v.type.dims, strict=True):
        low, high = i.bounds
        if i.is_static and (low < 0 or high >= n):
            raise PlanError(f"sig {sig.name}: the store of result {result} runs from {low} to "
                            f"{high} in a dimension of {n}")
    if injective(store.index, v.type.dims, over) is False:
        raise PlanError(f"sig {sig.name}: the store of result {result} writes an element twice")
    if (op := accumulation(sig.body, v)) is not None:
        check_updates(sig.name, op, store)
    if updated_param(sig, result) is None and count != v.type.size:
        raise PlanError(f"sig {sig.name}: the store of result {result} writes {count} of "
                        f"{v.type.size} elements")


def updated_param(sig: Sig, result: int) -> int | None:
    """The body input that a result is an update of (and may share its buffer with)."""
    o = sig.body.producer.get(sig.body.outputs[result])
    if isinstance(o, ops.DynamicUpdateSlice | ops.Accumulate) and o.operand in sig.body.inputs:
        return sig.body.inputs.index(o.operand)
    return None


def _partial(sig: Sig, result: int) -> bool:
    if accumulation(sig.body, sig.body.outputs[result]) is not None:
        return True  # however many updates there are
    store = next(s for s in sig.form.stores if s.result == result)
    return math.prod(x.size for x in store.over) != sig.body.outputs[result].type.size


def _check_bindings(plan: Plan, g: Group) -> None:
    body = g.sig.body
    for what, ids, values in (("param", g.params, body.inputs),
                              ("result", g.results, body.outputs)):
        if len(ids) != len(values):
            raise PlanError(f"{_name(g)} binds {len(ids)} {what}s, its sig has {len(values)}")
        for i, (b, v) in enumerate(zip(ids, values, strict=True)):
            t = plan.buffers[b].type
            if t.dtype is not v.type.dtype or t.size != v.type.size:
                raise PlanError(f"{_name(g)}: {what} {i} is {v.type}, buffer b{b} is {t}")
    for r, b in enumerate(g.results):
        buffer = plan.buffers[b]
        if buffer.place is Place.INPUT:
            raise PlanError(f"{_name(g)} writes program input {buffer.index}")
        p = updated_param(g.sig, r)
        if p is not None and _partial(g.sig, r) \
                and span(plan, plan.buffers[g.params[p]]) != span(plan, buffer):
            raise PlanError(f"{_name(g)} updates b{g.params[p]} in place but writes b{b}")


def _check_rounded(plan: Plan) -> None:
    """What a contraction takes for rounded, every group that writes it rounds."""
    rounds: dict[int, bool] = {}
    for g in plan.groups:
        body = g.sig.body
        given = {v for v, b in zip(body.inputs, g.params, strict=True) if rounds.get(b, False)}
        for b, v in zip(g.results, body.outputs, strict=True):
            rounds[b] = rounds.get(b, True) and (is_rounded(body, v) or moved(body, v) in given)
    for g in plan.groups:
        form, body = g.sig.form, g.sig.body
        if not isinstance(form, DotForm) or not form.rounded:
            continue
        left = leaves(body, form.dot.lhs, lambda _: True)
        for b, v in zip(g.params, body.inputs, strict=True):
            if v in left and not rounds.get(b, False):
                raise PlanError(f"{_name(g)} takes b{b} for rounded to tf32, and it is not")


# ---- replay ------------------------------------------------------------------------------------


def _replay(plan: Plan) -> None:
    spans = {b.id: span(plan, b) for b in plan.buffers}
    # what each buffer's bytes hold: itself, or the buffer that was written over it
    valid = {b.id for b in plan.buffers if b.place is Place.INPUT}
    touching, parts, holders = overlaps(spans), _parts(plan), _holders(plan)
    writes = {b.id: 0 for b in plan.buffers}
    for number, stage in enumerate(plan.stages):
        results: dict[int, Group] = {}
        for g in stage.groups:
            for b in g.results:
                for other, h in results.items():
                    if overlap(spans[b], spans[other]):
                        raise PlanError(f"stage {number}: {_name(h)} and {_name(g)} both write "
                                        f"b{b}")
                results[b] = g
        for g in stage.groups:
            for b in g.params:
                if plan.buffers[b].type.size == 0:
                    continue
                for r, h in results.items():
                    if h is not g and overlap(spans[b], spans[r]):
                        raise PlanError(f"stage {number}: {_name(g)} reads b{b} while {_name(h)} "
                                        f"writes b{r}; a barrier is missing")
                    if h is g and overlap(spans[b], spans[r]) \
                            and not (_in_place(g, b, r) or _taken(plan, g, b, r)):
                        raise PlanError(f"stage {number}: {_name(g)} reads b{b} and overwrites "
                                        "it")
                if not valid.issuperset(holders[b]):
                    raise PlanError(f"stage {number}: {_name(g)} reads b{b}, which holds nothing "
                                    "yet or was overwritten")
                _check_life(plan, b, number, g)
        for b, g in results.items():
            if b in parts:
                raise PlanError(f"stage {number}: {_name(g)} writes b{b}, whose parts others write")
            valid.difference_update(touching[b])
            valid.add(b)
            writes[b] += not _updates(plan, g, b)
            _check_life(plan, b, number, g)
    for b in plan.outputs:
        if b.type.size == 0:
            continue
        for i in parts.get(b.id, (b.id,)):
            if i not in valid:
                raise PlanError(f"output {b.index} (b{i}) is not written, or overwritten later")
            if writes[i] != 1 and b.alias is None and b.before is None:
                raise PlanError(f"output {b.index} (b{i}) is written {writes[i]} times")


def _updates(plan: Plan, g: Group, result: int) -> bool:
    """Whether ``result`` was written before, and the group only changes elements of it."""
    for r, b in enumerate(g.results):
        p = updated_param(g.sig, r)
        if b == result and p is not None:
            return span(plan, plan.buffers[g.params[p]]) == span(plan, plan.buffers[b])
    return False


def _in_place(g: Group, param: int, result: int) -> bool:
    """Whether the group only updates ``param`` in ``result`` and does not read it otherwise."""
    for r, b in enumerate(g.results):
        p = updated_param(g.sig, r)
        if b == result and p is not None and g.params[p] == param:
            v = g.sig.body.inputs[p]
            return (v not in g.sig.body.outputs
                    and len(g.sig.body.users.get(v, ())) == 1
                    and g.sig.body.users[v][0].inputs.count(v) == 1)
    return False


def _taken(plan: Plan, g: Group, param: int, result: int) -> bool:
    """Whether the group reads ``param`` only where it writes ``result``, which takes its place."""
    sig, b = g.sig, plan.buffers[result]
    before = b.before if b.alias is None else plan.inputs[b.alias].id
    if param != before or isinstance(sig.form, AttentionForm) \
            or (isinstance(sig.form, DotForm) and sig.form.reduced):
        return False
    roots = {sig.body.outputs[s.result]: s.index for s in sig.form.stores}
    written = sig.body.outputs[g.results.index(result)]
    cols = sig.form.cols if isinstance(sig.form, RowForm) else ()
    return all(needed_where_written(sig.body, lambda _: True, roots, v, written, cols)
               for v, p in zip(sig.body.inputs, g.params, strict=True) if p == param)


def _check_life(plan: Plan, b: int, stage: int, g: Group) -> None:
    buffer = plan.buffers[b]
    if not buffer.first <= stage <= buffer.last:
        raise PlanError(f"{_name(g)} uses b{b} in stage {stage}, outside its life "
                        f"{buffer.first}..{buffer.last}")


# ---- edges and loops ---------------------------------------------------------------------------


def _check_edges(plan: Plan) -> None:
    stage = {g.id: i for i, s in enumerate(plan.stages) for g in s.groups}
    if len(stage) != len(plan.groups):
        raise PlanError("two groups have the same id")
    for e in plan.edges:
        if e.producer not in stage or e.consumer not in stage:
            raise PlanError(f"a sync edge names a group that does not exist: {e}")
        if stage[e.producer] >= stage[e.consumer]:
            raise PlanError(f"{_edge(e)} is not satisfied: stage {stage[e.producer]} does not "
                            f"come before stage {stage[e.consumer]}")
    held = {(e.producer, e.consumer, e.buffer) for e in plan.edges if e.hazard == "raw"}
    last: dict[Span, Group] = {}
    holders = _holders(plan)
    spans = {b.id: span(plan, b) for b in plan.buffers}
    for s in plan.stages:
        for g in s.groups:
            for b in g.params:
                for w in (last.get(spans[i]) for i in holders[b]):
                    if w is None or w is g or (w.id, g.id, b) in held:
                        continue
                    raise PlanError(f"{_name(g)} reads b{b} from {_name(w)} without a sync edge")
        for g in s.groups:
            last.update({spans[b]: g for b in g.results if plan.buffers[b].type.size})


def _edge(e: SyncEdge) -> str:
    return f"the {e.hazard} edge g{e.producer} -> g{e.consumer} on b{e.buffer}"


def _check_loops(plan: Plan) -> None:
    keys = [tuple(g.sig.key for g in s.groups) for s in plan.stages]
    end = 0
    for x in plan.loops:
        if x.start < end or x.start + x.period * x.trips > len(keys) or x.trips < 2:
            raise PlanError(f"loop {x} overlaps another or leaves the plan")
        end = x.start + x.period * x.trips
        for i in range(x.start + x.period, end):
            if keys[i] != keys[i - x.period]:
                raise PlanError(f"loop {x}: stage {i} is not like stage {i - x.period}")


def _check_repeat(plan: Plan) -> None:
    """What a trip reads and has not made itself is there in the next one, too: nobody writes over
    it, or last of all somebody its next value."""
    if plan.repeat is None:
        return
    if not 0 < plan.repeat.start < len(plan.stages) \
            or plan.buffers[plan.repeat.going].before is None:
        raise PlanError(f"{plan.repeat} is no loop of the plan")
    if plan.repeat.start - 1 in plan.open:
        raise PlanError("no barrier is in front of the loop")
    spans = {b.id: span(plan, b) for b in plan.buffers}
    touching, holders = overlaps(spans), _holders(plan)
    written = set[int]()  # in the trip so far, and still there
    ever = set[int]()  # in the trip
    found: dict[int, Group] = {}
    for stage in plan.stages[plan.repeat.start:]:
        for g in stage.groups:
            found.update({b: g for b in g.params if plan.buffers[b].type.size
                          and not written.issuperset(holders[b])})
        for g in stage.groups:
            for b in g.results:
                written.difference_update(touching[b])
                written.add(b)
        ever |= written
    for b, g in found.items():
        if plan.buffers[b].place is Place.FLAGGED:
            raise PlanError(f"{_name(g)} waits for b{b}, which no stage of the trip writes")
    for new in plan.buffers:
        if new.before is not None and new.type.size and (
                new.id not in written or spans[new.id] != spans[new.before]):
            raise PlanError(f"b{new.id} is not what the next trip finds in b{new.before}")
    for b, g in found.items():
        state = plan.buffers[b].index if plan.buffers[b].place is Place.PART else b
        over = ever & {b, *touching[b]}
        if any(plan.buffers[o].before != state or spans[o] != spans[state] for o in over):
            raise PlanError(f"{_name(g)} reads b{b}, which the trip before has written over")
    if plan.repeat.going not in written:
        raise PlanError("no trip tells whether the loop goes on")


def _check_borders(plan: Plan) -> None:
    """Without `Plan.edges`: who touched what is found again, as in `_replay`."""
    if not plan.open:
        return
    if not plan.open <= set(range(len(plan.stages) - 1)):
        raise PlanError(f"open borders {sorted(plan.open)} of {len(plan.stages)} stages")
    if plan.barriers < 1:
        raise PlanError("no barrier is left, behind which launches of flagged values are counted")
    for together in borders(plan):
        if len({i in plan.open for i in together}) > 1:
            raise PlanError(f"the borders behind stages {', '.join(map(str, together))} are the "
                            "same code in each trip of their loop, but differ")
    spans = {b.id: span(plan, b) for b in plan.buffers}
    closed = [0]  # barriers in front of each stage
    for i in range(len(plan.stages) - 1):
        closed.append(closed[-1] + (i not in plan.open))
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    touching = overlaps(spans)

    def apart(number: int, g: Group, what: str, b: int, before: dict[int, int]) -> None:
        for other in (b, *touching[b]):
            at = before.get(other, number)
            if at < number and closed[at] == closed[number]:
                raise PlanError(f"stage {number}: {_name(g)} {what} b{b} behind stage {at} "
                                f"(b{other}) without a barrier")

    for number, stage in enumerate(plan.stages):
        for g in stage.groups:
            for b in g.params:
                if plan.buffers[b].place is not Place.FLAGGED:
                    apart(number, g, "reads", b, written)
            for b in g.results:
                if plan.buffers[b].place is Place.FLAGGED and b in written:
                    raise PlanError(f"{_name(g)} writes flagged b{b} a second time")
                apart(number, g, "writes", b, written)
                apart(number, g, "writes", b, read)
        for g in stage.groups:
            read.update((b, number) for b in g.params)
            written.update((b, number) for b in g.results)

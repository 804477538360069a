"""The verifier rejects plans that are broken by hand, and says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import models
import pytest

from jaxmono.fusion import PlanError, make_plan
from jaxmono.fusion.plan import Device, DotForm, Loop, LoopForm, Place, Plan, Stage, Store
from jaxmono.fusion.verify import verify
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.rewrite import Builder

replace = dataclasses.replace


def good() -> Plan:
    return make_plan(models.encoder_graph(2), Device())


def merge_stages(p: Plan) -> Plan:
    """Removes the barrier between stages 2 and 3."""
    merged = Stage(p.stages[2].groups + p.stages[3].groups)
    return replace(p, stages=(*p.stages[:2], merged, *p.stages[4:]), edges=(), loops=())


def swap_stages(p: Plan) -> Plan:
    s = list(p.stages)
    s[3], s[4] = s[4], s[3]
    return replace(p, stages=tuple(s), edges=(), loops=())


def overlap_live_buffers(p: Plan) -> Plan:
    scratch = [b for b in p.buffers if b.place is Place.SCRATCH]
    a, b = next((a, b) for a in scratch for b in scratch
                if a.id < b.id and a.first <= b.last and b.first <= a.last)
    return replace(p, buffers=tuple(replace(x, offset=a.offset) if x is b else x
                                    for x in p.buffers))


def shorten_a_life(p: Plan) -> Plan:
    b = next(b for b in p.buffers if b.place is Place.SCRATCH and b.last > b.first + 1)
    return replace(p, buffers=tuple(replace(x, last=x.first) if x is b else x
                                    for x in p.buffers))


def swap_bindings(p: Plan) -> Plan:
    g = next(g for g in p.groups if g.sig.kind == "dot")
    return change_group(p, g.id, params=g.params[::-1])


def change_group(p: Plan, group: int, **changes: object) -> Plan:
    return replace(p, stages=tuple(Stage(tuple(
        replace(g, **changes) if g.id == group else g for g in s.groups)) for s in p.stages))


def drop_an_output(p: Plan) -> Plan:
    return replace(p, stages=(*p.stages[:-1], Stage(())), edges=())


def reverse_an_edge(p: Plan) -> Plan:
    e = p.edges[0]
    return replace(p, edges=(replace(e, producer=e.consumer, consumer=e.producer), *p.edges[1:]))


def forget_an_edge(p: Plan) -> Plan:
    e = next(e for e in p.edges if e.hazard == "raw")
    return replace(p, edges=tuple(x for x in p.edges if x is not e))


def stretch_a_loop(p: Plan) -> Plan:
    return replace(p, loops=(Loop(0, 5, 2),))


def misalign(p: Plan) -> Plan:
    b = next(b for b in p.buffers if b.place is Place.SCRATCH and b.offset)
    return replace(p, buffers=tuple(replace(x, offset=x.offset - 4) if x is b else x
                                    for x in p.buffers))


def shrink_scratch(p: Plan) -> Plan:
    return replace(p, scratch_bytes=256)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("breakage", "message"), [
    (merge_stages, "a barrier is missing"),
    (swap_stages, "holds nothing yet|overwritten|outside its life"),
    (overlap_live_buffers, "share scratch bytes"),
    (shorten_a_life, "outside its life"),
    (swap_bindings, r"param \d+ is .*, buffer b\d+ is"),
    (drop_an_output, "output 0 .* is not written"),
    (reverse_an_edge, "is not satisfied"),
    (forget_an_edge, "without a sync edge"),
    (stretch_a_loop, "is not like stage"),
    (misalign, "no multiple of 256"),
    (shrink_scratch, "outside the 256 scratch bytes"),
])
def test_broken_plans_are_rejected(breakage: Callable[[Plan], Plan], message: str) -> None:
    p = good()
    verify(p)
    with pytest.raises(PlanError, match=message):
        verify(breakage(p))


def loop_plan() -> Plan:
    return make_plan(models.graph_of(lambda x: x * 2, models.f32(4, 6)), Device())


def with_store(p: Plan, change: Callable[[Store, LoopForm], Store]) -> Plan:
    g = p.groups[0]
    form = g.sig.form
    assert isinstance(form, LoopForm)
    sig = replace(g.sig, form=replace(form, stores=(change(form.stores[0], form),)))
    return change_group(p, g.id, sig=sig)


@pytest.mark.parametrize(("change", "message"), [
    (lambda s, f: replace(s, index=(s.index[0], s.index[1] // 2)), "writes an element twice"),
    (lambda s, f: replace(s, index=(s.index[0] + 1, s.index[1])), "in a dimension of 4"),
    (lambda s, f: replace(s, over=s.over[:1], index=(s.index[0], s.index[0])),
     "writes 4 of 24 elements"),
    (lambda s, f: replace(s, over=s.over[:1]), "outside its domain"),
    (lambda s, f: replace(s, index=s.index[:1]), "has 1 indices"),
], ids=["twice", "bounds", "partial", "free", "rank"])
def test_broken_stores_are_rejected(change: Callable[..., Store], message: str) -> None:
    p = loop_plan()
    with pytest.raises(PlanError, match=message):
        verify(with_store(p, change))


def dot_plan() -> Plan:
    return make_plan(models.graph_of(lambda x, w: x @ w, models.f32(4, 6), models.f32(6, 4)),
                     Device())


def test_a_dot_needed_at_two_places_is_rejected() -> None:
    """An epilogue ``y + y.T`` of a square result would read elements of other tiles."""
    p = dot_plan()
    g = p.groups[0]
    body = g.sig.body
    b = Builder()
    y = body.outputs[0]
    z = b.elementwise("add", y, b.transpose(y, (1, 0)))
    wrong = Graph(body.inputs, (*body.ops, *b.ops), (z,), body.name)
    with pytest.raises(PlanError, match="need other elements of the contraction"):
        verify(change_group(p, g.id, sig=replace(g.sig, body=wrong)))


def test_a_reduce_needed_off_its_row_is_rejected() -> None:
    p = make_plan(models.graph_of(lambda x: x - x.sum(1, keepdims=True), models.f32(4, 4)),
                  Device())
    g = p.groups[0]
    body = g.sig.body
    b = Builder()
    z = b.elementwise("add", body.outputs[0], b.transpose(body.outputs[0], (1, 0)))
    wrong = Graph(body.inputs, (*body.ops, *b.ops), (z,), body.name)
    with pytest.raises(PlanError, match="more than its own row"):
        verify(change_group(p, g.id, sig=replace(g.sig, body=wrong)))


def test_a_dot_with_the_wrong_operand_index_is_rejected() -> None:
    p = dot_plan()
    g = p.groups[0]
    form = g.sig.form
    assert isinstance(form, DotForm)
    wrong = replace(g.sig, form=replace(form, lhs_index=form.lhs_index[::-1]))
    with pytest.raises(PlanError, match="lhs_index is not that of its contraction"):
        verify(change_group(p, g.id, sig=wrong))

"""Memory that is added to: its buffer, who may read it when, and what the verifier refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checked import checked
from models import graph_of

from jaxmono.fusion import PlanError, make_plan
from jaxmono.fusion import formulate as formulating
from jaxmono.fusion.accumulated import accumulation
from jaxmono.fusion.edges import sync_edges
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Group, LoopForm, Place, Plan, Stage
from jaxmono.fusion.verify import verify
from jaxmono.hlo import ops
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.passes.rules import scatter

X = Any
LINES, UPDATES, WIDTH = 50, 60, 8
U = jax.ShapeDtypeStruct((UPDATES, WIDTH), jnp.float32)
I = jax.ShapeDtypeStruct((UPDATES,), jnp.int32)  # noqa: E741
H = jax.ShapeDtypeStruct((LINES, WIDTH), jnp.float32)


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "DENSE", 0)


def sums(p: Plan) -> list[Group]:
    """The groups that add to memory."""
    return [g for g in p.groups if any(accumulation(g.sig.body, v) for v in g.sig.body.outputs)]


def segments(u: X, i: X) -> X:
    return jax.ops.segment_sum(jnp.tanh(u), i, LINES)


def test_the_sums_of_an_output_are_made_where_it_lies() -> None:
    p = checked(segments, U, I)
    (g,) = sums(p)
    assert len(p.stages) == 2 and p.scratch_bytes == 0
    assert g.results == (p.outputs[0].id,) and p.outputs[0].id in g.params


def test_what_is_read_again_lies_in_one_buffer_until_then() -> None:
    p = checked(lambda u, i: jnp.tanh(segments(u, i)) * 2, U, I)
    (g,) = sums(p)
    buffer = p.buffers[g.results[0]]
    assert (buffer.place, buffer.first, buffer.last) == (Place.SCRATCH, 0, 2)
    assert buffer.id in g.params


def test_equal_beginnings_are_two_buffers() -> None:
    p = checked(lambda u, i, j: (segments(u, i), segments(u, j)), U, I, I)
    first, second = sums(p)
    assert first.results != second.results and len(p.stages) == 2


def test_what_is_returned_twice_is_copied() -> None:
    p = checked(lambda u, i: (s := segments(u, i), s), U, I)
    assert len(sums(p)) == 1 and len(p.stages) == 3


def test_an_input_is_copied_first_and_stays_as_it_is() -> None:
    p = checked(lambda h, u, i: (h.at[i].add(u), h + 1), H, U, I)
    assert len(sums(p)) == 1 and p.outputs[0].alias is None


@pytest.mark.parametrize(("fn", "aliased"), [
    (lambda h, u, i: h.at[i].add(jnp.tanh(u)), True),
    (lambda h, u, i: h.at[i].add(jnp.tanh(u)).at[i].add(u), False),  # the second one's is a copy
    (lambda h, u, i: (h.at[i].add(u), h * 2), False),
    (lambda h, u, i: (h.at[i].add(u),) * 2, True),  # and copied from there
    (lambda h, u, i: h.at[i].add(u) + 1, False)])
def test_a_donated_input_is_added_to_where_it_lies(fn: Callable[..., Any], aliased: bool) -> None:
    graph = graph_of(fn, H, U, I)
    p = make_plan(graph, Device(), aliases=((0, 0),))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-2, 3, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(p, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    in_place = [g for g in sums(p) if p.outputs[0].id in g.results
                and p.inputs[0].id in g.params]
    assert bool(in_place) is aliased
    assert not aliased or (p.outputs[0].alias == 0 and len(p.stages) == len(p.outputs))


def test_layers_of_a_graph_network_roll_into_a_loop() -> None:
    def layers(h: X, s: X, t: X, *weights: X) -> X:
        for w in weights:
            h = jnp.tanh(jax.ops.segment_sum(jnp.tanh(h[s] @ w), t, LINES))
        return h

    p = checked(layers, H, I, I, *[jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 4)
    assert len(sums(p)) == 4 and len({g.sig.key for g in sums(p)}) == 1
    assert [(x.period, x.trips) for x in p.loops] == [(2, 3)]


def test_as_many_updates_as_lines_are_in_place_as_well() -> None:
    """How many elements are written does not tell what is left as it was."""
    p = checked(lambda u, i: jax.ops.segment_sum(jnp.tanh(u), i, UPDATES), U, I)
    (g,) = sums(p)
    other = next(b for b in p.inputs if b.type == p.graph.inputs[0].type)
    bad = change(p, g, params=tuple(other.id if b in g.results else b for b in g.params))
    with pytest.raises(PlanError, match="in place"):
        verify(bad)


# ---- plans that are broken by hand -----------------------------------------------------------


def good() -> Plan:
    return make_plan(graph_of(lambda u, i: jnp.tanh(segments(u, i)), U, I), Device())


def change(p: Plan, group: Group, **changes: Any) -> Plan:
    stages = tuple(Stage(tuple(dataclasses.replace(g, **changes) if g.id == group.id else g
                               for g in s.groups)) for s in p.stages)
    return dataclasses.replace(p, stages=stages, edges=sync_edges(p.buffers, stages))


def of_stages(p: Plan, *order: int) -> Plan:
    """The stages in another order; scratch lives all the time."""
    stages = tuple(Stage(tuple(dataclasses.replace(g, id=10 * n + g.id)
                               for g in p.stages[i].groups)) for n, i in enumerate(order))
    buffers = tuple(dataclasses.replace(b, first=-1, last=len(order)) for b in p.buffers)
    return dataclasses.replace(p, stages=stages, buffers=buffers, loops=(),
                               edges=sync_edges(buffers, stages))


@pytest.mark.parametrize(("broken", "message"), [
    (lambda p: of_stages(p, 0, 2), "reads b3 before anything is added to it"),
    (lambda p: of_stages(p, 0, 2, 1), "reads b3 before anything is added to it"),
    (lambda p: of_stages(p, 0, 1, 1, 2), "which is not stored for it"),
    (lambda p: of_stages(p, 0, 1, 2, 0), "is stored to be added to, and nothing is"),
    (lambda p: of_stages(p, 1, 2), "holds nothing yet"),
])
def test_the_verifier_finds_it(broken: Callable[[Plan], Plan], message: str) -> None:
    p = good()
    verify(p)
    assert len(p.stages) == 3
    with pytest.raises(PlanError, match=message):
        verify(broken(p))


@pytest.mark.parametrize("over", ["half", "twice", "another line"])
def test_the_verifier_counts_updates(over: str) -> None:
    """Neither does a plan's interpreter hide it."""
    p = good()
    group = p.stages[1].groups[0]
    form = group.sig.form
    assert isinstance(form, LoopForm)
    (store,) = form.stores
    t, w = store.over
    if over == "half":
        less = Var(t.name, t.size // 2)
        changed = dataclasses.replace(store, over=(less, w), index=tuple(
            i.substitute({t: Index.of(less)}) for i in store.index))
    elif over == "twice":
        changed = dataclasses.replace(store, over=(t, w, Var("again", 2)))
    else:
        changed = dataclasses.replace(store, index=(Index.of(t) // 2, store.index[1]))
    sig = dataclasses.replace(group.sig, form=dataclasses.replace(
        form, vars=changed.over, stores=(changed,)))
    broken = change(p, group, sig=sig)
    with pytest.raises(PlanError, match=r"does not add each|no line|writes an element twice"):
        verify(broken)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 5, v.type.dims).astype(v.type.dtype.numpy) for v in p.graph.inputs]
    if over != "another line":
        assert not np.array_equal(run_plan(p, inputs)[0], run_plan(broken, inputs)[0])


def test_sums_stay_in_a_donated_input_whatever_else_is_taken_apart(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A formulation that runs again bans ops; of this one there is no other form."""
    find = formulating.find_in_place

    def with_bans(state: Any) -> None:
        state.banned.update(o for o in state.graph.ops if isinstance(o, ops.Accumulate))
        find(state)

    monkeypatch.setattr(formulating, "find_in_place", with_bans)
    p = make_plan(graph_of(lambda h, u, i: h.at[i].add(jnp.tanh(u)), H, U, I), Device(),
                  aliases=((0, 0),))
    assert p.outputs[0].alias == 0

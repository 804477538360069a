"""Open borders: as many as values with flags allow, and none that something else has to cross."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import pytest
from models import graph_of

from jaxmono.fusion import PlanError, make_plan
from jaxmono.fusion.flags import _shortest, borders, unmet, with_flags
from jaxmono.fusion.plan import Device, Mechanism, Place, Plan
from jaxmono.fusion.verify import verify

Spec = jax.ShapeDtypeStruct
BF16 = jnp.bfloat16
replace = dataclasses.replace


def everything(*_: object) -> bool:
    return True


def layers(depth: int = 4) -> Plan:
    """Equal layers of two products, as one loop of the plan."""
    def step(x: Any, *weights: Any) -> Any:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            x = x + jnp.tanh(x @ w) @ v
        return jnp.sin(x)

    return make_plan(graph_of(step, Spec((1, 64), BF16), *[Spec((64, 64), BF16)] * (2 * depth)),
                     Device())


def step_with_cache() -> Plan:
    """A cache that is updated in place and read whole."""
    def step(cache: Any, x: Any, w: Any, at: Any) -> Any:
        new = jax.lax.dynamic_update_slice(cache, x @ w, (at, 0))
        return new, jnp.tanh(jnp.sin(x @ w) @ new.T) @ new

    return make_plan(graph_of(step, Spec((16, 32), BF16), Spec((1, 32), BF16),
                              Spec((32, 32), BF16), Spec((), jnp.int32)), Device())


def test_what_is_between_the_products_of_a_layer_has_flags() -> None:
    """Not what is between layers: the first one reads the program's input by the same code."""
    plan = layers()
    found = with_flags(plan, everything)
    verify(found)
    assert found.barriers == 3 and plan.barriers == len(plan.stages) - 1 == 7
    assert found.open and with_flags(plan, lambda *_: False) is plan
    flagged = [b for b in found.buffers if b.place is Place.FLAGGED]
    assert found.flagged_bytes >= sum(2 * b.type.nbytes for b in flagged)
    assert {e.mechanism for e in found.edges if e.hazard == "raw"} >= {Mechanism.FLAGGED}


def test_trips_of_a_loop_open_together() -> None:
    plan = layers(6)
    assert plan.loops
    found = with_flags(plan, everything, {(plan.loops[0].start, plan.loops[0].start + 2)})
    for together in borders(found):
        assert {i in found.open for i in together} in ({True}, {False})
    assert sorted(i for x in borders(found) for i in x) == list(range(len(plan.stages) - 1))


def test_a_cache_that_is_updated_keeps_its_barrier() -> None:
    plan = step_with_cache()
    found = with_flags(plan, everything)
    stage = {b: i for i, s in enumerate(plan.stages) for g in s.groups for b in g.results}
    (cache,) = [b.id for b in plan.outputs if b.alias is not None]
    readers = [i for i, s in enumerate(plan.stages) for g in s.groups if cache in g.params
               and i > stage[cache]]
    assert readers and found.open
    for reader in readers:
        assert not all(i in found.open for i in range(stage[cache], reader))


def test_stages_that_must_be_apart_are() -> None:
    plan = layers()
    pairs = {(i, i + 2) for i in range(len(plan.stages) - 2)}
    found = with_flags(plan, everything, pairs)
    verify(found)
    assert found.open and unmet(found, pairs) is None
    assert unmet(replace(found, open=frozenset(range(len(plan.stages) - 1))), pairs) is not None


def test_a_place_of_a_sig_has_flags_for_all_groups_or_none() -> None:
    plan = layers()
    refused = plan.groups[2].sig.key
    found = with_flags(plan, lambda sig, result, i: sig.key != refused or result)
    verify(found)
    assert found.open
    for g in found.groups:
        if g.sig.key == refused:
            assert all(found.buffers[b].place is not Place.FLAGGED for b in g.params)


def test_large_values_have_none() -> None:
    def step(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return x

    plan = make_plan(graph_of(step, Spec((512, 64), BF16), Spec((64, 64), BF16)), Device())
    assert with_flags(plan, everything) is plan


def test_encoders_open_what_is_small() -> None:
    plan = make_plan(models.encoder_graph(2), Device())
    found = with_flags(plan, everything)
    verify(found)
    assert found.open


def good() -> Plan:
    return with_flags(layers(), everything)


def open_all(p: Plan) -> Plan:
    return replace(p, open=frozenset(range(len(p.stages) - 1)))


def plain(p: Plan) -> Plan:
    """A flagged buffer back in scratch memory of its own, behind a border that is open."""
    b = next(b for b in p.buffers if b.place is Place.FLAGGED and b.first in p.open)
    at = -(-p.scratch_bytes // 256) * 256
    return replace(p, scratch_bytes=at + b.type.nbytes, buffers=tuple(
        replace(x, place=Place.SCRATCH, offset=at) if x is b else x for x in p.buffers))


def shared_words(p: Plan) -> Plan:
    first, *_, last = (b for b in p.buffers if b.place is Place.FLAGGED)
    return replace(p, buffers=tuple(
        replace(x, offset=first.offset) if x is last else x for x in p.buffers))


def too_few_words(p: Plan) -> Plan:
    return replace(p, flagged_bytes=p.flagged_bytes - 256)


def one_trip_differs(p: Plan) -> Plan:
    loop = p.loops[0]
    return replace(p, open=p.open - {loop.start} if loop.start in p.open else p.open | {loop.start})


def beyond_the_end(p: Plan) -> Plan:
    return replace(p, open=p.open | {len(p.stages) - 1})


@pytest.mark.parametrize(("broken", "message"), [
    (open_all, "no barrier is left"), (plain, "without a barrier"),
    (shared_words, "shares flagged words"), (too_few_words, "outside the"),
    (one_trip_differs, "differ"), (beyond_the_end, "open borders")])
def test_broken_by_hand(broken: Callable[[Plan], Plan], message: str) -> None:
    verify(good())
    with pytest.raises(PlanError, match=message):
        verify(broken(good()))


def test_memory_that_is_used_again_needs_a_barrier() -> None:
    """With all borders but one open, scratch memory is overwritten while it is read."""
    plan = layers()
    half = with_flags(plan, everything)
    late = max(half.open)
    scratch = [b for b in plan.buffers if b.place is Place.SCRATCH]
    clash = [(a, b) for a in scratch for b in scratch if a.last < b.first and a.offset == b.offset]
    assert clash
    with pytest.raises(PlanError, match="without a barrier"):
        verify(replace(plan, open=frozenset(range(late + 1)) - {late - 1}))


def test_the_shortest_needs_are_met_where_all_are() -> None:
    """Of each set of up to four pairs of five stages, with each set of open borders."""
    pairs = list(itertools.combinations(range(5), 2))
    for n in range(5):
        for needs in itertools.combinations(pairs, n):
            short = _shortest(needs)
            for k in range(5):
                for closed in itertools.combinations(range(4), k):
                    met = [any(first <= i < last for i in closed) for first, last in needs]
                    assert all(met) == all(any(first <= i < last for i in closed)
                                           for first, last in short)

"""Plans whose stages repeat: what they compute, where a trip leaves its values, what is illegal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.sparse.linalg import cg

from jaxmono._trips import whole_loops
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.flags import with_flags
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Place, Plan, Repeat
from jaxmono.fusion.planner import make_plan
from jaxmono.fusion.regions import find_regions
from jaxmono.fusion.text import plan_to_text
from jaxmono.fusion.verify import verify
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.passes import simplify

X = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)
W = (np.random.default_rng(1).normal(size=(16, 16)) / 5).astype(np.float32)


def planned(fun: Callable[..., Any], *args: Any) -> Plan:
    """Of the one kernel that a function is."""
    imported = import_module(jax.jit(fun).lower(*args).compiler_ir("stablehlo"))
    loops = whole_loops(imported, Device())
    (region,), refused = find_regions(loops.imported.graph, whole=loops.whole)
    assert not refused
    return make_plan(simplify(region.subgraph(loops.imported.graph)), Device())


def converges(x: Any, w: Any) -> Any:
    y = jnp.tanh(x @ w)
    return lax.while_loop(lambda s: jnp.max(jnp.abs(s)) > 0.05, lambda s: jnp.sin(s @ w) * 0.9, y)


def spreads(x: Any) -> Any:
    return lax.while_loop(lambda s: s[1], lambda s: (
        (y := jnp.roll(s[0], 1, 1) * 0.5), jnp.any(jnp.abs(y) > 0.1)), (x, jnp.asarray(True)))[0]


def counts(x: Any) -> Any:
    """All of it in one stage."""
    return lax.while_loop(lambda s: s[2], lambda s: (s[0] * 0.9, s[1] + 1, s[1] < 5),
                          (x, 0, jnp.asarray(True)))[0]


@pytest.mark.parametrize(("fun", "args"), [(converges, (X, W)), (spreads, (X,)), (counts, (X,))])
def test_what_it_computes(fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    p = planned(fun, *args)
    assert p.repeat is not None and 0 < p.repeat.start < len(p.stages)
    assert p.barriers == len(p.stages) and f"repeat while b{p.repeat.going}" in plan_to_text(p)
    for seed in range(3):
        (found,) = run_plan(p, [np.asarray(a) for a in args], seed=seed)
        np.testing.assert_allclose(found, fun(*args), rtol=1e-5, atol=1e-6)


def test_a_trip_leaves_its_values_where_it_found_them() -> None:
    p = planned(converges, X, W)
    kept = [b for b in p.buffers if b.before is not None]
    assert {b.place for b in kept} == {Place.OUTPUT, Place.SCRATCH} and not p.meets_first
    assert p.buffers[kept[0].before or 0].place is Place.STATE
    # Others read the old value while the new one is made: it is copied in a stage behind them.
    p = planned(spreads, X)
    (state,) = (b for b in p.buffers if b.before is not None and b.type.rank == 2)
    writer = next(g for g in p.groups if state.id in g.results)
    assert writer.sig.kind == "loop" and state.before not in writer.params


def test_blocks_meet_before_a_trip_whose_first_stage_answers() -> None:
    p = planned(counts, X)
    assert p.meets_first and p.repeat is not None and len(p.stages) == p.repeat.start + 1


def test_what_is_in_front_and_is_much_has_a_kernel_of_its_own() -> None:
    x, w = (jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16) for _ in range(2))

    def fun(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w @ w)
        return lax.while_loop(lambda s: s > 0.05, lambda s: s * 0.9, jnp.max(y))

    imported = import_module(jax.jit(fun).lower(x, w).compiler_ir("stablehlo"))
    loops = whole_loops(imported, Device())
    regions, _ = find_regions(loops.imported.graph, whole=loops.whole)
    assert len(regions) == 2 and list(loops.whole.values()) == [False]


def _with(p: Plan, number: int, **changes: Any) -> Plan:
    rows = list(p.buffers)
    rows[number] = dataclasses.replace(rows[number], **changes)
    return dataclasses.replace(p, buffers=tuple(rows))


def test_what_is_illegal() -> None:
    p = planned(converges, X, W)
    verify(p)
    assert p.repeat is not None
    going = p.buffers[p.repeat.going]
    state = next(b for b in p.buffers if b.place is Place.OUTPUT)
    bad = partial(dataclasses.replace, p)
    for broken, message in [
            (bad(repeat=Repeat(0, going.id)), "is no loop"),
            (bad(repeat=Repeat(p.repeat.start, state.before or 0)), "is no loop"),
            (bad(open=frozenset({p.repeat.start - 1})), "no barrier is in front of the loop"),
            (bad(open=frozenset({p.repeat.start})), "without a barrier"),
            (_with(p, state.id, before=None), "written over|overwrites it"),
            (_with(p, going.id, offset=p.scratch_bytes), "scratch|next trip finds")]:
        with pytest.raises(PlanError, match=message):
            verify(broken)


def solves(b: Any, w: Any) -> Any:
    """Conjugate gradients: stages of small values behind each other."""
    return cg(lambda x: w.T @ (w @ x) + x, b, tol=1e-4)[0]


def test_values_of_a_trip_have_flags() -> None:
    """Not those of the trip before, nor what is in front of the loop, whose numbers are others."""
    b = X[0]
    plain = planned(solves, b, W)
    p = with_flags(plain, lambda sig, result, number: True)
    assert p.repeat is not None and p.barriers < plain.barriers - 1
    flagged = [x for x in p.buffers if x.place is Place.FLAGGED and x.first >= p.repeat.start]
    assert flagged and all(x.before is None for x in flagged)
    for seed in range(3):
        (found,) = run_plan(p, [b, W], seed=seed)
        np.testing.assert_allclose(found, solves(b, W), rtol=1e-4, atol=1e-5)
    at = flagged[0].first
    later = dataclasses.replace(p, repeat=Repeat(at + 1, p.repeat.going), open=p.open - {at})
    with pytest.raises(PlanError, match="which no stage of the trip writes"):
        verify(later)

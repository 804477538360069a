"""Caches updated in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np

from jaxmono.fusion import make_plan
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, DotForm, Place, Plan
from jaxmono.hlo.interp import evaluate


def plan(fn: Any, *args: Any, aliases: tuple[tuple[int, int], ...] = ()) -> Plan:
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, Device(), aliases=aliases)
    inputs = models.random_inputs(graph)
    for seed in range(3):
        for got, want in zip(run_plan(made, inputs, seed=seed), evaluate(graph, inputs),
                             strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return made


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


POS = jax.ShapeDtypeStruct((), jnp.int32)


def aliases(p: Plan) -> list[tuple[int, int]]:
    return [(b.index, b.alias) for b in p.outputs if b.alias is not None]


def test_decode_step_updates_its_caches() -> None:
    step, args = models.decode_step(layers=2)
    p = plan(step, *args)
    assert len(aliases(p)) == 4
    assert len(p.stages) == 10
    # no copy of a cache anywhere
    cache = 16 * 4 * 8 * 4
    assert all(b.type.nbytes < cache for b in p.buffers if b.place is Place.SCRATCH)


def test_decode_layers_roll_into_a_loop() -> None:
    step, args = models.decode_step(layers=4)
    p = make_plan(models.graph_of(step, *args), Device())
    assert sum(x.period * x.trips for x in p.loops) >= 15


def test_a_dot_writes_straight_into_the_cache() -> None:
    def fn(cache: Any, x: Any, w: Any, pos: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, x @ w, (pos, 0))

    p = plan(fn, f32(16, 8), f32(1, 20), f32(20, 8), POS)
    assert aliases(p) == [(0, 0)]
    (group,) = p.groups
    assert isinstance(group.sig.form, DotForm)
    assert not all(i.is_static for i in group.sig.form.stores[0].index)


def test_readers_of_the_old_contents_come_first() -> None:
    def fn(cache: Any, new: Any, pos: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, new, (pos,)), cache.sum(), cache * 2

    p = plan(fn, f32(64), f32(4), POS)
    assert aliases(p) == [(0, 0)]
    assert len(p.stages) == 2
    assert {e.hazard for e in p.edges} == {"war"}


def test_an_update_computed_from_the_old_contents_is_not_in_place() -> None:
    def fn(cache: Any, pos: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, cache[3:7][::-1] + 1, (pos,))

    p = plan(fn, f32(64), POS)
    assert aliases(p) == []


def test_a_cycle_of_readers_gives_up_the_update_in_place() -> None:
    """``old`` is read by something that needs the new contents: both must exist at once."""
    def fn(cache: Any, new: Any, pos: Any) -> Any:
        out = jax.lax.dynamic_update_slice(cache, new, (pos,))
        return out, jnp.sum(out) * cache

    p = plan(fn, f32(64), f32(4), POS)
    assert aliases(p) == []


def test_a_chain_of_updates_stays_in_one_buffer() -> None:
    def fn(cache: Any, a: Any, b: Any, pos: Any) -> Any:
        one = jax.lax.dynamic_update_slice(cache, a, (pos, 0))
        total = one.sum()
        return jax.lax.dynamic_update_slice(one, b * total, (pos + 1, 0))

    p = plan(fn, f32(16, 8), f32(1, 8), f32(1, 8), POS)
    assert aliases(p) == [(0, 0)]
    assert len(p.stages) == 3


def test_other_outputs_take_the_places_that_are_wanted() -> None:
    p = plan(lambda x: x + 1, f32(4), aliases=((0, 0),))
    assert aliases(p) == [(0, 0)]  # test_donated.py has more of them

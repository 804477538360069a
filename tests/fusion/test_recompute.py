"""What groups store for others, and what those compute again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest

from jaxmono.fusion import make_plan
from jaxmono.fusion import recompute as recomputing
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Place, Plan
from jaxmono.hlo.interp import evaluate

BF16, F32 = jnp.bfloat16, jnp.float32
X = Any


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def plan(fn: Callable[..., Any], *args: Any, rtol: float = 1e-4, device: Device | None = None,
         **kw: Any) -> Plan:
    """Plans ``fn``, and checks what the plan computes."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, device or Device(), **kw)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs]
    for got, want in zip(run_plan(made, inputs, seed=1), evaluate(graph, inputs), strict=True):
        size = np.abs(want.astype(np.float32)).max()
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=rtol,
                                   atol=rtol * size)
    return made


def kept(p: Plan, size: int) -> list[str]:
    """Types of the scratch buffers of so many elements."""
    return [str(b.type) for b in p.buffers if b.place is Place.SCRATCH and b.type.size == size]


def gradient(activation: Callable[[X], X]) -> Callable[..., Any]:
    """Of a product, behind another product that needs the activation's value."""
    def fn(x: X, w: X, v: X) -> X:
        y, pull = jax.vjp(activation, x @ w)
        return pull(jnp.tanh(y @ v) @ v.T), y.sum()

    return fn


LAYER = spec(640, 64), spec(64, 512), spec(512, 48)


def test_of_a_gelu_its_operand_is_kept() -> None:
    fn = gradient(lambda z: jax.nn.gelu(z, approximate=False))
    p, whole = (plan(fn, *LAYER, without=w) for w in ((), ("recompute",)))
    assert len(kept(p, 640 * 512)) == 2 < len(kept(whole, 640 * 512))  # with the next's operand
    assert any("are computed again where they are read: " in n for n in p.notes), p.notes


def test_of_a_norm_the_moments_of_its_rows_are_kept() -> None:
    def norm(z: X) -> X:
        mean = z.mean(-1, keepdims=True)
        return (z - mean) * jax.lax.rsqrt(((z - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    def fn(x: X, w: X, v: X) -> X:
        y, pull = jax.vjp(norm, x @ w)
        return pull(jnp.tanh(y @ v) @ v.T)

    p, whole = (plan(fn, *LAYER, without=w) for w in ((), ("recompute",)))
    assert len(kept(p, 640 * 512)) < len(kept(whole, 640 * 512))
    assert len(p.stages) <= len(whole.stages)


@pytest.mark.parametrize(("fn", "args"), [
    (gradient(jax.nn.gelu), (spec(64, 64), spec(64, 128), spec(128, 48))),
    (lambda x, w, v: ((z := x @ w), (t := jnp.square(z)), jnp.sin(t @ v) @ v.T * t * z), LAYER),
    (gradient(lambda z: jnp.sin(jnp.sin(jnp.sin(jnp.sin(z))))), LAYER),
], ids=["few bytes", "outputs", "much arithmetic"])
def test_what_is_not_computed_again(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    ours, whole = ([str(b.type) for b in plan(fn, *args, without=w).buffers]
                   for w in ((), ("recompute",)))
    assert ours == whole


def by_channel(read: Callable[[X], X]) -> Callable[..., Any]:
    """Gradients of a norm by channels, of what ``read`` makes of it."""
    def fn(x: X, scale: X) -> X:
        def loss(x: X, scale: X) -> X:
            y = x.astype(F32)
            y = (y - y.mean(0)) * jax.lax.rsqrt(y.var(0) + 1e-5)
            return (jnp.square(read(jax.nn.relu(y * scale)))).mean()

        return jax.grad(loss, (0, 1))(x, scale)

    return fn


def test_loops_store_nothing_that_is_no_more_than_what_they_read() -> None:
    """Three of f32, for three groups: each takes two bytes of x and makes the rest."""
    args = spec(1 << 13, 64, dtype=BF16), spec(64)
    small = Device(sm_count=24)  # arithmetic costs more than a stage
    p, whole = (plan(by_channel(lambda y: y), *args, rtol=2e-2, device=small, without=w)
                for w in ((), ("recompute",)))
    assert len(kept(p, 64 << 13)) < len(kept(whole, 64 << 13))
    assert len(p.stages) <= len(whole.stages)


def segmented(at: X, logits: X) -> X:
    """A loss and its gradient; classes come of a chain of some 200 ops."""
    words = (jnp.abs(at) * 1000).astype(jnp.int32) % logits.shape[-1]

    def loss(logits: X) -> X:
        found = jax.nn.log_softmax(logits.astype(F32), -1)
        return -jnp.take_along_axis(found, words[..., None], -1).mean()

    return jax.value_and_grad(loss)(logits)


def test_a_long_chain_in_front_of_what_is_stored_does_not_count() -> None:
    """Ones at each row's class: what they are computed of is stored, the class alone."""
    args, small = (spec(8, 64, 64), spec(8, 64, 64, 21, dtype=BF16)), Device(sm_count=8)
    for without, ones in (("recompute",), True), ((), False):
        p = plan(segmented, *args, device=small, without=without, rtol=1e-2)
        assert ("f32[32768,21]" in kept(p, 21 << 15)) == ones


def features(x: X, w: X) -> X:
    """Of points in space: sines beside cosines."""
    p = x @ w
    return jnp.concatenate([jnp.sin(p), jnp.cos(p)], -1)


def test_what_is_joined_is_made_where_it_is() -> None:
    args, small = (spec(1 << 15, 3), spec(3, 64)), Device(sm_count=64)
    assert kept(plan(features, *args, device=small, without=("recompute",)), 64 << 15)
    p = plan(features, *args, device=small)
    assert not kept(p, 64 << 15) and len(p.stages) == 1


def test_slices_of_what_is_computed_are_not_computed_again() -> None:
    """Each of them would make its neighbours again."""
    def fn(x: X) -> X:
        y = x * x + 1
        p = y[:, 1:] * y[:, :-1]
        return jnp.concatenate([jnp.sin(p), jnp.cos(p)], -1)

    assert kept(plan(fn, spec(1 << 14, 65), device=Device(sm_count=96)), 64 << 14)


def test_what_windows_read_is_stored() -> None:
    """Each of 9 places would make it again."""
    def window(y: X) -> X:
        return jax.lax.reduce_window(y, 0.0, jax.lax.add, (9, 1), (1, 1), "VALID")

    p = plan(by_channel(window), spec(1 << 13, 64, dtype=BF16), spec(64), rtol=2e-2,
             device=Device(sm_count=24))
    assert kept(p, 64 << 13)


def test_readers_of_several_groups_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again of one group's values is made of what is, of another's."""
    monkeypatch.setattr(recomputing, "MIN_BYTES", 0)

    def fn(x: X, w: X, v: X) -> X:
        def layers(x: X) -> X:
            y = jax.nn.gelu(x @ w) + 1
            return jax.nn.gelu(y @ w.T) * x

        y, pull = jax.vjp(layers, x)
        return pull(jnp.tanh(y @ v) @ v.T)

    p = plan(fn, spec(40, 24), spec(24, 32), spec(24, 16))
    assert kept(p, 40 * 32) != kept(plan(fn, spec(40, 24), spec(24, 32), spec(24, 16),
                                         without=("recompute",)), 40 * 32)


def test_an_update_in_place_stays_one() -> None:
    """What reads the old contents later would take it from the cache's own buffer."""
    def fn(cache: X, x: X, w: X, v: X, p: X) -> X:
        z = x @ w
        t = jnp.square(z) * cache
        q = jnp.tanh(z @ v) @ v.T
        c = jax.lax.dynamic_update_slice(cache, q[:1], (p, jnp.int32(0)))
        return c, (jnp.tanh(c[:, :64].T @ q).sum() + q) * t + z

    graph = models.graph_of(fn, spec(1024, 1024), spec(1024, 256), spec(256, 1024),
                            spec(1024, 64), spec(dtype=jnp.int32))
    made = make_plan(graph, Device(), aliases=((0, 0),))
    assert [b.alias for b in made.outputs] == [0, None]
    assert any(n.endswith("are read: an input would not be updated in place") for n in made.notes)

"""What an element of a floating value costs, and what is stored or computed again because of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np

from jaxmono.fusion import make_plan
from jaxmono.fusion.chains import MAX_LINKS, NONE, PATHS, Chain, chains
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.passes import simplify


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def behind(fn: Callable[..., Any], *args: Any) -> Chain:
    """Of the only result."""
    graph = models.graph_of(fn, *args)
    found, _ = chains(graph, ())
    return found[graph.outputs[0]]


def planned(fn: Callable[..., Any], *args: Any) -> Plan:
    """A plan that computes what the program does."""
    graph = simplify(models.graph_of(fn, *args))
    plan = make_plan(graph, Device())
    inputs = models.random_inputs(graph)
    for got, want in zip(run_plan(plan, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return plan


def test_an_op_that_two_ops_read_is_evaluated_once() -> None:
    def diamonds(x: Any, steps: int) -> Any:
        for _ in range(steps):
            x = x + x * x
        return x

    for steps in (1, 5, 30):
        chain = behind(lambda x, n=steps: diamonds(x, n), f32(8))
        assert chain.once[0] == 2 * steps
        assert chain.once[0] <= chain.weight <= PATHS * chain.once[0]


def test_other_elements_are_evaluated_each() -> None:
    """Of a reversed operand; a scalar is the same wherever it is asked for."""
    assert behind(lambda x: jnp.exp(x) + jnp.exp(x)[::-1], f32(8)).once[0] == 1 + 16 + 16
    assert behind(lambda x, y: y * jnp.exp(x[0]) + jnp.exp(x[0]), f32(1), f32(8)).once[0] == 18


def test_a_chain_ends_at_what_is_stored() -> None:
    graph = models.graph_of(lambda x: x - jnp.exp(x), f32(8))
    exponential, difference = graph.ops
    found, light = chains(graph, (), {exponential})
    assert found[exponential.results[0]] == NONE
    assert found[difference.results[0]].once == (1, 1)
    assert not light


def test_a_chain_without_end_is_counted_in_parts() -> None:
    def long(x: Any) -> Any:
        for _ in range(MAX_LINKS):
            x = x + x * x
        return x

    assert 2 * MAX_LINKS <= behind(long, f32(8)).weight <= 8 * PATHS * MAX_LINKS


def drawn(key: Any, x: Any, w: Any) -> tuple[Any, Any]:
    key, now = jax.random.split(key)
    return jax.random.categorical(now, x @ w), key


def masked(key: Any, x: Any, w: Any, v: Any) -> Any:
    def layers(x: Any, w: Any, v: Any) -> Any:
        y = jax.nn.gelu(x @ w)
        return jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0) @ v

    return jax.vjp(layers, x, w, v)[1](x)


def test_what_a_row_shares_is_free() -> None:
    """One among many labels is a comparison, and no matrix in memory: of three readers."""
    def fn(x: Any, i: Any) -> Any:
        one = jnp.arange(8192) == i[:, None]
        return jnp.where(one, x, 0).sum(1), x - one, jnp.where(one, 2 * x, x).max(1)

    args = (f32(512, 8192), jax.ShapeDtypeStruct((512,), np.int32))
    plan = make_plan(simplify(models.graph_of(fn, *args)), Device())
    assert not any(b.place.name == "SCRATCH" and b.type.size >= 512 * 8192 for b in plan.buffers)


def test_a_token_is_drawn_behind_its_logits() -> None:
    """In the product's group, and where a line is long in one more stage."""
    plan = planned(drawn, KEY, f32(1, 64), f32(64, 4096))
    assert [[g.sig.kind for g in s.groups] for s in plan.stages] == [["loop", "dot"], ["row"]]
    plan = planned(drawn, KEY, f32(1, 64), f32(64, 50257))
    assert [[g.sig.kind for g in s.groups] for s in plan.stages] \
        == [["loop", "dot"], ["row"], ["row"]]


def test_a_generator_under_another_name() -> None:
    """Twenty rounds of ops are no more stages than one op."""
    def rounds(key: Any, x: Any) -> Any:
        a, b = jnp.arange(x.size, dtype=jnp.uint32) + key[0], key[1] + jnp.zeros(x.size, jnp.uint32)
        for i in range(20):
            a = a + b
            b = a ^ (b << (i % 13 + 1) | b >> (31 - i % 13))
        return jnp.where((a ^ b) < jnp.uint32(2**31), x, 0) @ x, (a ^ b).reshape(-1, 2)

    plan = planned(rounds, KEY, f32(1 << 16))
    assert len(plan.stages) <= 3


def test_a_mask_that_the_gradient_reads_again_is_stored_as_bits() -> None:
    """A byte an element of 150 lane operations; of few elements it is made again."""
    args = (KEY, f32(1024, 64), f32(64, 2048), f32(2048, 64))
    plan = make_plan(simplify(models.graph_of(masked, *args)), Device())
    kept = [b.type for b in plan.buffers if b.type.dtype.value == "pred"]
    assert [t.dims for t in kept] == [(1024, 2048)]
    small = planned(masked, KEY, f32(16, 64), f32(64, 64), f32(64, 64))
    assert not any(b.type.dtype.value == "pred" for b in small.buffers)

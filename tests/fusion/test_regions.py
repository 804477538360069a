"""What becomes a kernel and what stays with XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import compile_graph, run_program

from jaxmono.fusion import make_plan
from jaxmono.fusion.least_cut import compared
from jaxmono.fusion.plan import Device
from jaxmono.fusion.regions import NOT_STITCHED, Region, find_regions
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes import simplify

pytestmark = pytest.mark.usefixtures("sorts_left_to_xla")


def raw(fn: Any, *args: Any) -> Graph:
    lowered = jax.jit(fn, keep_unused=True).lower(*args)
    return import_module(lowered.compiler_ir("stablehlo")).graph


def run(graph: Graph, regions: tuple[Region, ...], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Executes a graph with its regions as single steps; fails if they are not convex."""
    env: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    taken = {i for r in regions for i in r.op_indices}
    free = {v for i in taken for v in graph.ops[i].results} - {
        v for r in regions for v in r.outputs}
    todo: list[Region | int] = [*regions, *(i for i in range(len(graph.ops)))]
    while todo:
        left: list[Region | int] = []
        for step in todo:
            if isinstance(step, Region):
                uses, results = step.inputs, step.outputs
                sub = step.subgraph(graph)
            else:
                op = graph.ops[step]
                if all(r in env for r in op.results) or (
                        step in taken and not all(r in free for r in op.results)):
                    continue
                uses, results = op.uses, op.results
                sub = Graph(tuple(dict.fromkeys(uses)), (op,), results)
            if all(v in env for v in uses):
                made = evaluate(sub, [env[v] for v in sub.inputs])
                env.update(zip(results, made, strict=True))
            else:
                left.append(step)
        if len(left) == len(todo):
            break
        todo = left
    return [env[v] for v in graph.outputs]


def check(fn: Any, *args: Any) -> tuple[tuple[Region, ...], list[tuple[str, str]]]:
    graph = raw(fn, *args)
    regions, refused = find_regions(graph)
    inputs = models.random_inputs(graph)
    for got, want in zip(run(graph, regions, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    for r in regions:
        make_plan(simplify(r.subgraph(graph)), Device())
    return regions, [(o.opcode, why) for o, why in refused]


f32 = models.f32


def test_all_of_a_supported_program_is_one_region() -> None:
    regions, refused = check(lambda x, w: jax.nn.softmax(x @ w), f32(4, 8), f32(8, 8))
    assert len(regions) == 1
    assert refused == []


def test_a_sort_in_the_middle_makes_two() -> None:
    regions, refused = check(lambda x, w: jnp.sort(jnp.tanh(x @ w)) @ w, f32(4, 8), f32(8, 8))
    assert len(regions) == 2
    assert [op for op, _ in refused] == ["sort"]
    assert "not generated" in refused[0][1]


def test_what_does_not_meet_the_sort_joins_either_side() -> None:
    def fn(x: Any, y: Any) -> Any:
        a = jnp.tanh(x)
        return jnp.sort(y) + a, a * 2

    regions, _ = check(fn, f32(8), f32(8))
    assert len(regions) == 1


def test_a_diamond_around_a_sort_stays_convex() -> None:
    def fn(x: Any) -> Any:
        a = jnp.tanh(x)
        return jnp.sort(a) + a

    regions, _ = check(fn, f32(8))
    assert len(regions) == 2


def test_views_alone_are_not_worth_a_kernel() -> None:
    regions, refused = check(lambda x: (x.T, jnp.zeros((3,))), f32(4, 6))
    assert regions == ()
    assert refused[0][1] == "only moves data; not worth a kernel"


def test_constants_are_copied_into_every_region() -> None:
    regions, _ = check(lambda x: jnp.sort(x * 3.0) * 3.0, f32(8))
    assert len(regions) == 2
    assert all(len(r.inputs) == 1 for r in regions)


def test_sorts_of_complex_numbers_and_empty_arrays_are_left_to_xla() -> None:
    _, refused = check(lambda x: jnp.real(jnp.sort(x * (1 + 2j))), f32(8))
    assert [why for _, why in refused] == ["sort of complex numbers is not generated yet"]
    regions, _ = check(lambda x: x[:0] * 2, f32(8))
    assert regions == ()


def test_large_literals_stay_buffers() -> None:
    table = np.arange(40_000, dtype=np.float32)
    graph = raw(lambda x: x * table, f32(40_000))
    regions, refused = find_regions(graph)
    assert len(regions) == 1
    assert len(regions[0].inputs) == 2
    assert "literal of 160000 bytes" in refused[0][1]


def test_dead_ops_are_not_reported() -> None:
    def fn(x: Any) -> Any:
        jnp.sort(x)
        return x + 1

    assert check(fn, f32(8))[1] == []


def test_stitch_leaves_the_contractions_and_takes_what_lies_between() -> None:
    def layer(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        y = jax.nn.gelu(x @ w)
        return jax.nn.softmax(y @ v, axis=-1)

    graph = raw(layer, jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((16, 8)))
    assert len(find_regions(graph, "auto")[0]) == 1
    regions, refused = find_regions(graph, "stitch")
    assert [(op.opcode, reason) for op, reason in refused] == 2 * [("dot_general", NOT_STITCHED)]
    assert len(regions) == 2
    inputs = models.random_inputs(graph)
    for got, want in zip(run(graph, regions, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- what crosses (region_cut.py) ---------------------------------------------------------------


def crossing(fn: Any, *args: Any) -> list[str]:
    """Types of what the second of two regions reads of the first one."""
    (first, second), _ = check(fn, *args)
    return [str(v.type) for v in second.inputs if v in first.outputs]


def test_what_needs_nothing_of_a_region_is_computed_where_it_is_used() -> None:
    """An optimizer's moments wait for gradients, not for the forward pass."""
    def fn(x: Any, w: Any, m: Any, count: Any) -> Any:
        g = jnp.sort(x @ w)
        decayed = m * 0.9 / (1 - 0.9 ** count)
        return decayed + g.sum(), x * 2

    assert crossing(fn, f32(64, 8), f32(8, 64), f32(64, 64), f32()) == ["f32[]"], "the divisor"


def test_what_differentiation_kept_is_computed_again() -> None:
    """Of a GELU its operand crosses; of a softmax what it subtracts and divides by are not
    repeated: they are reduces."""
    def gelu(x: Any, w: Any, back: Any) -> Any:
        y, pull = jax.vjp(jax.nn.gelu, x @ w)
        return pull(back * jnp.sort(y.reshape(-1))[0]), y

    assert crossing(gelu, f32(64, 8), f32(8, 64), f32(64, 64)) == ["f32[64,64]"]

    def softmax(x: Any, w: Any, back: Any) -> Any:
        y, pull = jax.vjp(lambda z: jax.nn.softmax(z, -1), x @ w)
        return pull(back * jnp.sort(y.reshape(-1))[0])

    found = crossing(softmax, f32(64, 8), f32(8, 64), f32(64, 64))
    assert found.count("f32[64,64]") == 1


def test_what_a_contraction_reads_crosses_as_it_is() -> None:
    """It would wait for what is computed again; a transposition it reads through."""
    def fn(x: Any, w: Any) -> Any:
        z = x @ w
        y = jnp.tanh(z)
        return y.T @ jnp.sort(z) + z * 2

    assert crossing(fn, f32(64, 8), f32(8, 64)) == ["f32[64,64]", "f32[64,64]"]


def test_much_arithmetic_is_not_repeated() -> None:
    def fn(x: Any, w: Any, repeated: Any) -> Any:
        z = x @ w
        return repeated(z) * jnp.sort(repeated(z).reshape(-1))[5] + z * jnp.sort(z)

    def many(z: Any) -> Any:
        for _ in range(8):
            z = jnp.sin(z)
        return z

    args = f32(64, 8), f32(8, 64)
    assert len(crossing(lambda x, w: fn(x, w, jnp.square), *args)) == 1
    assert len(crossing(lambda x, w: fn(x, w, many), *args)) == 2


def test_what_is_stored_in_any_case_is_read() -> None:
    """An output; a value that XLA's op reads. Nothing is gained by computing it again."""
    def fn(x: Any, w: Any) -> Any:
        t = jnp.tanh(x @ w)
        return jnp.sort(t) * t

    (_, second), _ = check(fn, f32(64, 8), f32(8, 64))
    assert len(second.op_indices) == 1 and len(second.inputs) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_what_is_compared_is_not_made_again_of_what_was_rounded(dtype: Any) -> None:
    """Else no element of a row is its largest: `evaluate` rounds after each op, kernels do not."""
    def fn(x: Any, w: Any, y: Any, v: Any) -> Any:
        u = x @ w
        s = jnp.sqrt(jnp.abs(u * y))
        found = s == s.max(-1, keepdims=True)
        g = jnp.sort((s @ v).astype(jnp.float32)[:, :1], axis=0) * 0 + 1
        return u, jnp.where(found, g * jnp.exp(s.astype(jnp.float32)), 0)

    shapes = (256, 64), (64, 64), (64,), (64, 16)
    graph = raw(fn, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes))
    rng = np.random.default_rng(0)
    env: dict[Value, Any] = {v: rng.normal(size=v.type.dims).astype(v.type.dtype.numpy)
                             for v in graph.inputs}
    for r in find_regions(graph)[0]:  # what XLA makes between them is 1
        given = [env.get(v, np.ones(v.type.dims, v.type.dtype.numpy)) for v in r.inputs]
        made = run_program(compile_graph(simplify(r.subgraph(graph))), given)
        env.update(zip(r.outputs, made, strict=True))
    assert (np.count_nonzero(env[graph.outputs[1]], axis=1) > 0).all()


def test_what_is_compared_may_have_been_passed_on() -> None:
    def fn(x: Any, y: Any) -> Any:
        s = jnp.sqrt(x * y)
        t = jnp.sin(x * y)
        return (-jnp.abs(s.astype(jnp.float32))).T == 3, t + 1

    graph = raw(fn, *[jax.ShapeDtypeStruct((4, 6), jnp.bfloat16)] * 2)
    made = [graph.producer.get(v) for v in compared(graph)]
    assert {o.kind for o in made if isinstance(o, ops.Elementwise)} == {"sqrt", "abs", "negate"}


def test_what_is_compared_in_a_branch_or_a_loop() -> None:
    def fn(x: Any, y: Any) -> Any:
        a, b = jnp.sin(x), jnp.cos(y)
        chosen = jax.lax.cond(x[0] > 0, lambda: jnp.where(a == y, y, 0), lambda: y * 0)
        return chosen, jax.lax.fori_loop(0, 3, lambda _, c: (c == c.max()) + c * 0.5, b)

    graph = raw(fn, f32(8), f32(8))
    made = [graph.producer.get(v) for v in compared(graph)]
    assert {"sine", "cosine"} <= {o.kind for o in made if isinstance(o, ops.Elementwise)}


def test_inputs_that_are_updated_are_read_before_that() -> None:
    """Else the whole would be copied first, or the update could not be in place."""
    def fn(cache: Any, x: Any, w: Any, p: Any) -> Any:
        z = x @ w
        t = z + cache
        return (jax.lax.dynamic_update_slice(cache, z[:1] * 2, (p, jnp.int32(0))),
                (jnp.sort(z) * t) / (z * cache))

    args = f32(64, 64), f32(64, 8), f32(8, 64), jax.ShapeDtypeStruct((), jnp.int32)
    check(fn, *args)
    graph = raw(fn, *args)
    (_, second), _ = find_regions(graph)
    assert graph.inputs[0] not in second.inputs


def test_a_region_may_be_left_with_views_only() -> None:
    regions, refused = check(lambda x, y: (jnp.sort(x[:, 0])[:, None] + (y * 2 + 1), y.T),
                             f32(64, 8), f32(64, 8))
    assert len(regions) == 1
    assert ("transpose", "only moves data; not worth a kernel") in refused


def test_a_region_may_lose_all_it_has() -> None:
    regions, refused = check(lambda x, y: jnp.sort(x) + (y * 2 + 1), f32(64), f32(64))
    assert len(regions) == 1 and [op for op, _ in refused] == ["sort"]

"""What plans look like: golden texts, stages and barriers of known programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from thinned import thinned

from jaxmono.fusion import PlanError, make_plan, split_reduce
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import AttentionForm, Device, DotForm, Loop, Place, Plan, RowForm
from jaxmono.fusion.text import plan_to_text
from jaxmono.hlo.interp import evaluate

pytestmark = pytest.mark.usefixtures("sorts_left_to_xla")

Golden = Callable[[str, str], None]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def plan(fn: Callable[..., Any], *args: Any, device: Device | None = None) -> Plan:
    """Plans ``fn`` and checks that the plan computes it, whatever the order inside stages."""
    graph = models.graph_of(fn, *args)
    made = make_plan(graph, device or Device())
    inputs = models.random_inputs(graph)
    expected = evaluate(graph, inputs)
    for seed in range(2):
        for got, want in zip(run_plan(made, inputs, seed=seed), expected, strict=True):
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64),
                                       rtol=1e-3, atol=1e-4)
    return made


def kinds(p: Plan) -> list[list[str]]:
    return [[g.sig.kind for g in s.groups] for s in p.stages]


def test_softmax_is_one_group(golden: Golden) -> None:
    p = plan(lambda x: jax.nn.softmax(x, -1), f32(64, 32))
    assert kinds(p) == [["row"]]
    golden("plan_softmax", plan_to_text(p))


def test_softmax_over_a_middle_dimension() -> None:
    p = plan(lambda x: jax.nn.softmax(x, 1), f32(4, 8, 6))
    assert kinds(p) == [["row"]]


def test_norm_that_an_epilogue_needs_has_its_own_stage(golden: Golden) -> None:
    def fn(x: Any, s: Any, b: Any, w: Any, u: Any) -> Any:
        h = models.norm(x, s, b)
        return h @ w, h @ u + h

    p = plan(fn, bf16(8, 64), bf16(64), bf16(64), bf16(64, 32), bf16(64, 64))
    golden("plan_norm_dot", plan_to_text(p))
    assert kinds(p) == [["row"], ["dot", "dot"]]  # h + ... needs h in the epilogue, too


def test_norm_is_folded_into_all_dots_behind_it(golden: Golden) -> None:
    def fn(x: Any, s: Any, b: Any, w: Any, u: Any) -> Any:
        h = models.norm(x, s, b)
        return h @ w, jnp.tanh(h @ u)

    p = plan(fn, f32(8, 64), f32(64), f32(64), f32(64, 32), f32(64, 64))
    assert kinds(p) == [["dot", "dot"]]
    assert all(isinstance(g.sig.form, DotForm) and g.sig.form.row_prologue for g in p.groups)
    golden("plan_norm_folded", plan_to_text(p))


def test_norm_of_many_rows_has_its_own_stage() -> None:
    p = plan(lambda x, s, b, w: models.norm(x, s, b) @ w,
             f32(1024, 16), f32(16), f32(16), f32(16, 8))
    assert kinds(p) == [["row"], ["dot"]]


def test_norm_that_others_need_is_written_by_one_dot() -> None:
    def fn(x: Any, s: Any, b: Any, w: Any, u: Any) -> Any:
        h = models.norm(x, s, b)
        return h + jax.nn.relu(h @ w) @ u

    p = plan(fn, f32(8, 16), f32(16), f32(16), f32(16, 32), f32(32, 16))
    assert kinds(p) == [["dot"], ["dot"]]
    form = p.stages[0].groups[0].sig.form
    assert isinstance(form, DotForm) and form.row_prologue
    assert [tuple(v.name for v in s.over) for s in form.stores] == [("b", "m", "k"),
                                                                    ("b", "m", "n")]


@pytest.mark.parametrize("fn", [
    lambda q, k, v: jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(
        jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3, -1), v),
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v),
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
    lambda q, k, v: jnp.einsum("bhqk,bkhd->bhqd",
                               jax.nn.softmax(jnp.einsum("bkhd,bqhd->bhqk", k, q), -1), v),
], ids=["einsum", "dot_product", "causal", "keys_first"])
def test_attention_is_one_group(fn: Callable[..., Any]) -> None:
    p = plan(fn, f32(2, 6, 4, 8), f32(2, 6, 4, 8), f32(2, 6, 4, 8))
    assert kinds(p) == [["attention"]]


def test_attention_golden(golden: Golden) -> None:
    p = plan(lambda q, k, v, m: jax.nn.dot_product_attention(q, k, v, mask=m),
             bf16(2, 6, 4, 8), bf16(2, 10, 2, 8), bf16(2, 10, 2, 8),
             jax.ShapeDtypeStruct((2, 1, 6, 10), jnp.bool_))
    golden("plan_attention", plan_to_text(p))
    form = p.groups[0].sig.form
    assert isinstance(form, AttentionForm)
    assert (form.n.size, form.k.size, form.v.size) == (10, 8, 8)


def test_attention_whose_weights_are_returned_is_not_hidden() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(q @ k.T, -1)
        return weights, weights @ v

    assert not any(isinstance(g.sig.form, AttentionForm)
                   for g in plan(fn, f32(6, 8), f32(6, 8), f32(6, 8)).groups)


def test_attention_in_full_precision_stays_apart() -> None:
    """f32 at HIGHEST does not run on tensor cores, which the attention template needs."""
    def fn(q: Any, k: Any, v: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return jax.nn.softmax(q @ k.T, -1) @ v

    assert "attention" not in {g.sig.kind for g in
                               plan(fn, f32(6, 8), f32(6, 8), f32(6, 8)).groups}


def test_long_attention_does_not_fit_a_block() -> None:
    small = Device(shared_bytes=8 * 1024)
    p = plan(lambda q, k, v: jax.nn.dot_product_attention(q, k, v),
             f32(1, 64, 1, 8), f32(1, 64, 1, 8), f32(1, 64, 1, 8), device=small)
    assert "attention" not in {g.sig.kind for g in p.groups}


def test_encoder_layer(golden: Golden) -> None:
    p = plan(*_encoder(1))
    golden("plan_encoder", plan_to_text(p))


def test_encoder_layers_roll_into_a_loop() -> None:
    p = make_plan(models.encoder_graph(5), Device())
    assert p.loops == (Loop(2, 5, 4),)
    layer = [[g.sig.kind for g in s.groups] for s in p.stages[2:7]]
    assert layer == [["attention"], ["dot"], ["dot"], ["dot"], ["dot"] * 3]
    assert p.barriers < p.barriers_before_merging
    # code does not grow with depth
    assert len(p.sigs) == len(make_plan(models.encoder_graph(3), Device()).sigs)


def test_bert_base_is_planned_quickly_and_small() -> None:
    graph = models.encoder_graph(12, 1, 128, 768, 12, 3072, True)
    p = make_plan(graph, Device())
    assert p.loops == (Loop(1, 7, 11),)
    assert len(p.stages) == 87
    # the largest live set: one layer's activations, not twelve; and 4 shares of a product, f32
    assert p.scratch_bytes < 3 * 2**20


def _encoder(layers: int) -> tuple[Any, ...]:
    fn, args = models.encoder(layers)
    return fn, *args


def test_queries_keys_and_values_share_a_stage_and_a_sig() -> None:
    def fn(x: Any, a: Any, b: Any, c: Any) -> Any:
        return x @ a, x @ b, x @ c

    p = plan(fn, f32(8, 16), f32(16, 4), f32(16, 4), f32(16, 4))
    assert kinds(p) == [["dot"] * 3]
    assert len(p.sigs) == 1


def test_gated_unit_is_inlined_while_small() -> None:
    def fn(x: Any, g: Any, u: Any, d: Any) -> Any:
        return (jax.nn.silu(x @ g) * (x @ u)) @ d

    p = plan(fn, f32(4, 16), f32(16, 32), f32(16, 32), f32(32, 16))
    assert kinds(p) == [["dot", "dot"], ["dot"]]


def _rotations(layers: int, heavy: Callable[[Any], Any]) -> Plan:
    """Layers that turn the halves of a row by angles that an input gives."""
    def fn(x: Any, t: Any, *ws: Any) -> Any:
        angles = t * np.arange(1, 9, dtype=np.float32) / 8
        for w in ws:
            a, b = jnp.split(x @ w, 2, axis=-1)
            x = jnp.concatenate([a * heavy(angles), b - heavy(angles)], axis=-1)
        return x

    return plan(fn, f32(2, 16), f32(), *[f32(16, 16)] * layers)


def test_sines_that_all_layers_need_are_stored_by_the_first_stage() -> None:
    few, many, light = _rotations(5, jnp.sin), _rotations(9, jnp.sin), _rotations(9, jnp.abs)
    sines = [[any(getattr(o, "kind", "") == "sine" for o in g.sig.body.ops) for g in s.groups]
             for s in many.stages]
    assert sines[0].count(True) == 1 and not any(any(s) for s in sines[1:])
    assert len(many.stages) == len(light.stages)  # it costs no stage
    assert sum(g.sig.kind == "loop" for g in few.stages[0].groups) < \
        sum(g.sig.kind == "loop" for g in many.stages[0].groups)


def test_stencils_behind_each_other_are_stored_every_few_steps() -> None:
    """As one chain eight steps are 11706 lines of text, of 256 elements."""
    def smooth(u: Any) -> Any:
        for _ in range(8):
            u = u + 0.2 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1)
                           + jnp.roll(u, -1, 1) - 4 * u)
        return u

    graph = models.graph_of(smooth, models.f32(16, 16))
    plan = make_plan(graph, Device())
    assert 3 <= len(plan.stages) <= 8
    assert max(len(g.sig.body.ops) for g in plan.groups) < 100
    values = models.random_inputs(graph)
    np.testing.assert_allclose(run_plan(plan, values)[0], evaluate(graph, values)[0], 1e-4, 1e-5)


def test_epilogue_writes_the_narrow_type_only() -> None:
    """bf16 sums that an f32 norm reads are stored as bf16; the norm converts."""
    def fn(x: Any, w: Any, r: Any, s: Any, b: Any) -> Any:
        return models.norm((x @ w + r).astype(jnp.float32), s, b)

    p = plan(fn, bf16(1024, 16), bf16(16, 16), bf16(1024, 16), f32(16), f32(16))
    assert kinds(p) == [["dot"], ["row"]]
    scratch = [b.type for b in p.buffers if b.place.value == "scratch"]
    assert [str(t) for t in scratch] == ["bf16[1024,16]"]


def test_squares_by_multiplication_share_a_norm_too() -> None:
    """The mean of ``x * x`` joins that of ``x``, whichever way a square is written."""
    def fn(x: Any, w: Any) -> Any:
        y = (x @ w).astype(jnp.float32)
        mean = y.mean(-1, keepdims=True)
        return ((y - mean) * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) - mean * mean + 1e-5)
                ).astype(jnp.bfloat16)

    p = plan(fn, bf16(1024, 16), bf16(16, 16))
    assert kinds(p) == [["dot"], ["row"]]


def test_attention_output_is_written_row_by_row() -> None:
    """Features of one position are neighbours, so that the next dot loads whole rows."""
    def fn(q: Any, k: Any, v: Any, w: Any) -> Any:
        o = jnp.einsum("bhqk,bkhd->bqhd",
                       jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1), v)
        return o.reshape(*o.shape[:2], -1) @ w

    p = plan(fn, f32(2, 6, 4, 8), f32(2, 6, 4, 8), f32(2, 6, 4, 8), f32(32, 16))
    form = p.stages[0].groups[0].sig.form
    assert isinstance(form, AttentionForm)
    assert form.stores[0].index[-1].coefficient(form.v) == 1


def test_full_sum_of_a_long_array_takes_two_steps() -> None:
    p = plan(jnp.max, f32(512, 1024))
    assert kinds(p) == [["row"], ["row"]]
    assert kinds(plan(jnp.sum, f32(16, 16))) == [["row"]]
    assert not p.notes


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("fn", "arg"), [
    (jnp.sum, f32(1_000_003)), (jnp.min, f32(1_000_003)), (jnp.max, bf16(1_000_000)),
    (jnp.prod, f32(1_000_003)), (jnp.sum, jax.ShapeDtypeStruct((1_000_003,), jnp.int32)),
    (lambda x: jax.lax.reduce(x, jnp.bfloat16(0), jax.lax.add, (0,)), bf16(1_000_003)),
    (lambda x: jax.lax.reduce(x, jnp.float16(1), jax.lax.mul, (0,)),
     jax.ShapeDtypeStruct((1_000_003,), jnp.float16)),
    (lambda x: x.sum((0, 2)), f32(3, 2, 100_003))])
def test_a_long_reduce_whose_length_has_no_divisors_is_padded(
        fn: Callable[..., Any], arg: jax.ShapeDtypeStruct) -> None:
    """As many parts as for a length that has them, and the value of the whole. The only row of a
    kernel that just streams has more: several blocks are on a multiprocessor."""
    p = make_plan(models.graph_of(fn, arg), Device())
    assert kinds(p) == [["row"], ["row"]] and not p.notes
    form = p.groups[0].sig.form
    parts = (200, 264) if p.graph.outputs[0].type.dims else (1600, 2112)
    assert isinstance(form, RowForm)
    assert parts[0] <= math.prod(v.size for v in form.rows) <= parts[1]
    given = np.random.default_rng(0).choice([-1, 1], arg.shape).astype(arg.dtype)
    (found,) = run_plan(p, [given])
    np.testing.assert_array_equal(found, np.asarray(fn(given)))


def two_sums(x: Any) -> Any:
    return jax.lax.reduce((x, -x), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,))


@pytest.mark.parametrize(("fn", "arg", "reason"), [
    (two_sums, f32(1 << 17), "its body is more than one op"),
    (jnp.bitwise_xor.reduce, jax.ShapeDtypeStruct((1 << 17,), jnp.int32), "xor is no sum, product"),
    (lambda x: x.sum(), f32(*[7] * 7), "its longest dimension, 7, has no 8 parts"),
    (lambda x: x.sum((1, 2, 3)), f32(33, 67, 67, 67),
     "its longest dimension, 67, has no 8 parts"),
    (jnp.max, bf16((1 << 15) - 1), ""),
    (lambda x: jnp.max(x, 1), bf16(67, 1 << 17), ""),
], ids=["body", "op", "short dimensions", "padded in vain", "short", "many rows"])
def test_why_a_long_reduce_is_not_split_is_told(fn: Callable[..., Any], arg: jax.ShapeDtypeStruct,
                                                reason: str) -> None:
    p = make_plan(models.graph_of(fn, arg), Device())
    assert kinds(p) == [["row"]] and len(p.notes) == bool(reason)
    for note in p.notes:
        assert note.startswith("the long reduce of ") and f"is not split: {reason}" in note


@pytest.mark.parametrize("fn", [jnp.any, jnp.all, jnp.bitwise_or.reduce, jnp.bitwise_and.reduce])
def test_long_reduces_of_bits_are_split(fn: Callable[..., Any]) -> None:
    bits = fn in (jnp.any, jnp.all)
    arg = jax.ShapeDtypeStruct(((1 << 17) - 3,), jnp.bool_ if bits else jnp.int32)
    p = make_plan(models.graph_of(fn, arg), Device())
    assert len(kinds(p)) == 2
    rng = np.random.default_rng(0)
    for odd in (0, 1):  # one element unlike all others
        given = np.full(arg.shape, 1 - odd if bits else rng.integers(-9, 9), arg.dtype)
        given[rng.integers(arg.shape[0])] = odd
        np.testing.assert_array_equal(run_plan(p, [given])[0], np.asarray(fn(given)))


def test_a_reduce_of_32768_is_long() -> None:
    assert kinds(make_plan(models.graph_of(jnp.max, bf16(1 << 15)), Device())) == [["row"], ["row"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "stages"), [((2, 64, 64, 32, 10), 2), ((2, 32, 32, 32, 20), 1),
                                               ((8, 64, 64, 32, 10), 1), ((1, 512, 512, 32, 4), 2),
                                               ((1, 64, 64, 32, 10), 2)])
def test_channels_of_groups_are_summed_after_places(shape: tuple[int, ...], stages: int) -> None:
    """Places side by side, then the channels of a group: not where one step is as fast (few
    elements), or has a row for every multiprocessor. Of few rows parts are as good."""
    fn = lambda x: jax.lax.reduce(x, np.float32(0), jax.lax.add, (1, 2, 4))  # noqa: E731
    p = make_plan(models.graph_of(fn, f32(*shape)), Device())
    assert kinds(p) == [["row"]] * stages
    if stages == 2 and math.prod(shape) >= split_reduce.MIN_APART:
        assert [b.type.dims[-2:] for b in p.buffers if b.place is Place.SCRATCH] == [shape[-2:]]
    given = np.random.default_rng(0).choice([-1, 1], shape).astype(np.float32)
    (found,) = run_plan(p, [given])
    np.testing.assert_array_equal(found, given.sum((1, 2, 4)))


@pytest.mark.parametrize("shape", [(2503, 401), (4099, 64), (16, 4099)])
def test_a_reduce_whose_longest_dimension_is_short_has_fewer_parts(shape: tuple[int, ...]) -> None:
    """Its dimension is padded to as many as it has, not to those that a long one has."""
    p = make_plan(models.graph_of(lambda x: jnp.max(jnp.tanh(x)), f32(*shape)), Device())
    assert kinds(p) == [["row"], ["row"]] and not p.notes


def test_partial_sums_of_16_bits_are_f32() -> None:
    """As XLA's are. 60 ones and 4 of 1 + 2^-7 are no bf16; every other part takes 64 away."""
    fn = lambda x: jax.lax.reduce(x, jnp.bfloat16(0), jax.lax.add, (0,))  # noqa: E731
    p = make_plan(models.graph_of(fn, bf16(1 << 17)), Device())
    assert [str(b.type) for b in p.buffers if b.place is Place.SCRATCH] == ["f32[2048]"]
    x = np.ones((2048, 64), jnp.bfloat16)
    x[:, :4] = 1 + 2 ** -7
    x[1::2] = -1
    (found,) = run_plan(p, [x.reshape(-1)])
    assert found == 32


def test_outputs_may_repeat_and_be_inputs_and_be_empty() -> None:
    p = plan(lambda x, y: (x + y, x * y, x, jnp.zeros((3,)), x + y, jnp.zeros((0, 2)), y[:0]),
             f32(6, 6), f32(6, 6))
    assert len(p.stages) == 1


def test_contraction_over_nothing() -> None:
    p = plan(lambda a, b: (a @ b, a.sum(1)), f32(4, 0), f32(0, 5))
    assert len(p.outputs) == 2


def test_same_graph_same_text() -> None:
    graph = models.encoder_graph(2)
    assert plan_to_text(make_plan(graph, Device())) == plan_to_text(make_plan(graph, Device()))


def test_refused_ops_and_modes_are_named() -> None:
    graph = models.graph_of(lambda x: jnp.sort(x) + 1, f32(8))
    with pytest.raises(PlanError, match=r"sort at .*: sorting"):
        make_plan(graph, Device())
    with pytest.raises(NotImplementedError, match="available: monolithic"):
        make_plan(models.graph_of(jnp.sin, f32(2)), Device(), mode="layer")


def test_remat_barriers_are_identities() -> None:
    def fn(x: Any, w: Any) -> Any:
        return jax.grad(lambda x: jax.checkpoint(lambda x: jnp.tanh(x @ w))(x).sum())(x)

    plan(fn, f32(4, 8), f32(8, 8))


@pytest.mark.parametrize(("rows", "warpgroups", "stages"), [
    (128, True, 3), (16, True, 2), (128, False, 2)])
def test_a_large_product_finds_its_operand_in_memory(rows: int, warpgroups: bool,
                                                     stages: int) -> None:
    """gate * up costs less than a stage, but what computes it on the way is no warpgroup's."""
    def mlp(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return ((x @ gate) * (x @ up)) @ down

    graph = models.graph_of(mlp, bf16(rows, 2048), bf16(2048, 8192), bf16(2048, 8192),
                            bf16(8192, 2048))
    made = make_plan(graph, Device(wgmma=warpgroups))
    assert len(made.stages) == stages


@pytest.mark.parametrize("features", thinned([(60, 64), (64, 64), (61, 64)], 3))
def test_what_is_joined_for_a_product_is_not_copied(features: tuple[int, int]) -> None:
    """A NeRF's skip connection, an encoding and what is hidden: rows of 16, 8 and 4 bytes."""
    encoded, hidden = features

    def fn(x: Any, w: Any, v: Any) -> Any:
        e = jnp.sin(x) * jnp.cos(x)
        h = jax.nn.relu(e @ w)
        return jnp.concatenate([e, h], 1) @ v

    p = plan(fn, f32(4096, encoded), f32(encoded, hidden), f32(encoded + hidden, 512))
    assert kinds(p) == [["loop"], ["dot"], ["dot"]]
    ((second,),) = [s.groups for s in p.stages[2:]]
    assert len(second.params) == 3  # both parts and the weights

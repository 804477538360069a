"""How wide the accesses of element-wise groups are, and how many a thread has in flight."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import plan_of
from harness import DEVICE
from harness_graphs import graph, value

from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.target import interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, LoopForm, Plan
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

BF16, F32, S32 = jnp.bfloat16, jnp.float32, jnp.int32


def _lanes(g: Graph) -> int:
    plan = make_plan(g, DEVICE)
    (sig,) = plan.sigs
    return default_schedule(plan, interpret_target(), DEVICE).sigs[sig.key].lanes


def test_vector_width() -> None:
    add = lambda b, x, y: b.elementwise("add", x, y)  # noqa: E731
    assert _lanes(graph([value((64,)), value((64,))], add)) == 4
    assert _lanes(graph([value((64,), DType.BF16), value((64,), DType.BF16)], add)) == 8
    assert _lanes(graph([value((66,)), value((66,))], add)) == 2
    assert _lanes(graph([value((63,)), value((63,))], add)) == 1
    # the turned operand is read one by one, in its own order
    assert _lanes(graph([value((8, 8)), value((8, 8))],
                        lambda b, x, y: b.elementwise("add", b.transpose(x, (1, 0)), y))) == 4
    # halves of 12 are aligned to 4 elements: the branch is the same for the whole vector
    assert _lanes(graph([value((8, 12)), value((8, 12))],
                        lambda b, x, y: b.concatenate([x, y], 1))) == 4


@pytest.mark.parametrize("types", [(DType.BF16, DType.F32), (DType.F32, DType.BF16)], ids=str)
def test_mixed_types_are_as_wide_as_the_widest_access(types: tuple[DType, DType]) -> None:
    """16 bytes of f32: of 8 elements each thread would ask for halves of sectors."""
    given, made = types
    assert _lanes(graph([value((64,), given)],
                        lambda b, x: b.elementwise("tanh", b.convert(x, made)))) == 4


def test_literals_are_no_accesses() -> None:
    """A splat of bf16 that is chosen beside f32 made vectors of 8 elements."""
    def make(b: Builder, x: Value) -> Value:
        narrow = b.convert(x, DType.BF16)
        zero = b.splat(0, narrow.type)
        return b.convert(b.elementwise("maximum", narrow, zero), DType.F32)

    assert _lanes(graph([value((64,))], make)) == 4


def _loops(plan: Plan) -> list[LoopSchedule]:
    chosen = default_schedule(plan, interpret_target(), Device()).sigs
    return [chosen[g.sig.key] for stage in plan.stages for g in stage.groups
            if isinstance(g.sig.form, LoopForm)]


def _s(*shape: int, dtype: jnp.dtype = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_vectors_are_wider_where_one_block_is_on_a_multiprocessor() -> None:
    """Others' loads are in flight where the kernel only streams, or where loads come first."""
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jnp.tanh(x.astype(F32))

    def after_a_product(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        g = x @ y
        return w - g.astype(F32) * (g * g).sum().astype(F32)

    def with_a_quotient(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        g = x @ y
        return w - g.astype(F32) / (g * g).sum().astype(F32)

    big = 2048
    (loop,) = _loops(plan_of(step, _s(big, big), _s(big, big, dtype=BF16), device=Device()))
    assert loop == LoopSchedule(4, 4)
    for fn, lanes in ((after_a_product, 8), (with_a_quotient, 4)):
        *_, loop = _loops(plan_of(fn, _s(big, big), _s(big, 64, dtype=BF16),
                                  _s(64, big, dtype=BF16), device=Device()))
        assert loop == LoopSchedule(lanes, 4)


@pytest.mark.parametrize(("rows", "unroll"), [(1 << 15, 8), (1 << 9, 4)])
def test_many_lines_that_are_looked_up_have_more_in_flight(rows: int, unroll: int) -> None:
    *_, loop = _loops(plan_of(lambda table, i: jnp.tanh(table[i]), _s(1000, 2048),
                              _s(rows, dtype=S32), device=Device()))
    assert loop == LoopSchedule(4, unroll)


@pytest.mark.parametrize(("size", "lanes"), [(1 << 14, 1), (3 << 14, 4), (1 << 20, 8)])
def test_few_random_numbers_have_a_thread_each(size: int, lanes: int) -> None:
    def noise(key: jax.Array) -> jax.Array:
        return jax.random.bits(key, (size,)).astype(BF16)

    *_, loop = _loops(plan_of(noise, _s(2, dtype=jnp.uint32), device=Device()))
    assert loop.lanes == lanes

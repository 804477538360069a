"""Products of f32 that XLA computes exactly at default precision: in f32 here, too, not in tf32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from contraction_harness import build, check_near, dot_sigs, plan_of, smooth
from harness import run_program
from jax import lax
from tuning_harness import CONDITIONS

from jaxmono.codegen.dot import operand_type
from jaxmono.fusion.plan import DotForm, Plan
from jaxmono.fusion.support import EXACT_VECTOR_ELEMENTS
from jaxmono.fusion.vector_dots import LONG, SMALL
from jaxmono.hlo.types import DType
from jaxmono.tuning import problems_of

Spec = jax.ShapeDtypeStruct
F32 = jnp.float32
NEAR = 1e-5
"""Of a mean magnitude: sums of up to 8192 products in f32. The rounding to tf32 makes 3e-4."""


def tensor_core_dots(plan: Plan) -> int:
    forms = [s.form for s in dot_sigs(plan)]
    return sum(isinstance(f, DotForm) and operand_type(f) is not None for f in forms)


def dot(batch: Any, contract: Any) -> Any:
    return lambda a, b: lax.dot_general(a, b, ((contract[0], contract[1]), (batch[0], batch[1])))


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("fn", "left", "right"), [
    (dot(((), ()), ((1,), (0,))), (8192, 40), (40, 1)),          # scores
    (dot(((), ()), ((0,), (0,))), (8192, 40), (8192, 1)),        # the gradient of their weights
    (dot(((), ()), ((0,), (0,))), (8192,), (8192, 40)),
    (dot(((), ()), ((1,), (0,))), (1, 640), (640, 500)),
    (dot(((), ()), ((1, 0), (2, 0))), (20, 30, 700), (20, 1, 30)),
    (dot(((0,), (1,)), ((1,), (0,))), (6, 300, 200), (300, 6)),
    (dot(((1,), (0,)), ((2,), (1,))), (200, 6, 300), (6, 300)),
    (dot(((0,), (0,)), ((1,), (1,))), (300, 1000), (300, 1000)),  # vector by vector
    (dot(((), ()), ((1,), (0,))), (700, 1), (1, 30)),             # an outer product
    (dot(((0,), (0,)), ((2,), (1,))), (5, 24, 1), (5, 1, 33)),
    (dot(((), ()), ((), ())), (7, 9), (11,)),                     # nothing is summed at all
    (dot(((), ()), ((1,), (0,))), (9, 5), (5, 10)),               # 95 elements
])
def test_products_with_a_vector_are_exact(fn: Any, left: Any, right: Any) -> None:
    plan = plan_of(fn, Spec(left, F32), Spec(right, F32))
    assert not tensor_core_dots(plan)
    check_near(plan, build(plan), smooth(plan.graph), NEAR, seeds=(0,))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("k", "kinds"), [(LONG, ["dot"]), (LONG + 1, ["row"]), (400, ["row"])])
def test_long_rows_by_a_vector_are_sums_of_rows(k: int, kinds: list[str]) -> None:
    """DeepFM's last layer b256: 25 us in tiles of 64 rows. (Rows that are inputs are streamed.)"""
    def fn(x: Any, w: Any, v: Any) -> Any:
        return jnp.maximum(jnp.dot(x, w, precision="highest"), 0) @ v

    plan = plan_of(fn, Spec((256, 16), F32), Spec((16, k), F32), Spec((k, 1), F32))
    assert 256 * k < SMALL and [s.kind for s in plan.sigs] == ["dot", *kinds]
    check_near(plan, build(plan), smooth(plan.graph), NEAR, seeds=(0,))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize("normed", [False, True])
def test_a_row_streams_its_weights_in_f32(spec: str, normed: bool) -> None:
    """Also where a norm is folded into it: no candidate may round."""
    def fn(x: Any, w: Any) -> Any:
        y = models.norm(x, jnp.ones(640), jnp.zeros(640)) if normed else x
        return jax.nn.relu(jnp.einsum(spec, y, w))

    shape = (640, 500) if spec == "mk,kn->mn" else (500, 640)
    plan = plan_of(fn, Spec((1, 640), F32), Spec(shape, F32))
    (sig,) = dot_sigs(plan)
    assert isinstance(sig.form, DotForm) and sig.form.row_prologue == normed
    assert not tensor_core_dots(plan)
    (problem,) = problems_of(plan, CONDITIONS)
    assert {s.family for s in problem.candidates} <= {"gemv", "fma", "simt"}
    assert problem.candidates[0].family == "gemv"
    check_near(plan, build(plan), smooth(plan.graph), NEAR, seeds=(0,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [2, 8, 16, 32])
def test_a_norm_times_a_vector_is_exact(rows: int) -> None:
    plan = plan_of(lambda x, v: models.norm(x, jnp.ones(768), jnp.zeros(768)) @ v,
                   Spec((rows, 768), F32), Spec((768,), F32))
    assert not tensor_core_dots(plan)
    check_near(plan, build(plan), smooth(plan.graph), NEAR, seeds=(0,))


def test_a_row_whose_results_are_also_summed_is_exact() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        return y, jnp.square(y).sum()

    plan = plan_of(fn, Spec((1, 640), F32), Spec((640, 512), F32))
    assert not tensor_core_dots(plan)
    check_near(plan, build(plan), smooth(plan.graph), NEAR, seeds=(0,))


def test_sums_that_cancel_keep_the_digits_of_f32() -> None:
    """What made a training step ten times less exact than XLA's: the gradient of a bias, as a
    product with ones."""
    plan = plan_of(lambda x, v: v @ x, Spec((16384, 20), F32), Spec((16384,), F32))
    x, v = smooth(plan.graph)
    v = v - v.mean()
    x[:] = 1 + 1e-3 * x
    (found,) = run_program(build(plan), [x, v], seed=0, blocks=4)
    wanted = v.astype(np.float64) @ x.astype(np.float64)
    rounding = np.finfo(np.float32).eps * np.abs(v).sum()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * rounding)


def test_other_values_stay_in_their_rows() -> None:
    plan = plan_of(lambda x, v: x @ v, Spec((8192, 40), F32), Spec((40,), F32))
    x, v = smooth(plan.graph)
    x[5, 3], x[9, 0], v[:] = np.nan, np.inf, np.abs(v) + 0.5
    (found,) = run_program(build(plan), [x, v], seed=0, blocks=4)
    assert np.isnan(found[5]) and found[9] == np.inf
    assert np.isfinite(np.delete(found, [5, 9])).all()


def test_what_xla_rounds_is_rounded() -> None:
    """Matrices, and vectors of too many elements."""
    large = EXACT_VECTOR_ELEMENTS // 1024
    for left, right in (((64, 48), (48, 32)), ((1, 1024), (1024, large))):
        plan = plan_of(jnp.matmul, Spec(left, F32), Spec(right, F32))
        assert tensor_core_dots(plan) == 1, (left, right)


def test_operands_of_16_bits_are_no_matter() -> None:
    plan = plan_of(jnp.matmul, Spec((8192, 40), jnp.bfloat16), Spec((40,), jnp.bfloat16))
    assert [s.form.dot.lhs.type.dtype for s in dot_sigs(plan)  # type: ignore[union-attr]
            if isinstance(s.form, DotForm)] == [DType.BF16]


def test_small_ones_stay_contractions() -> None:
    plan = plan_of(jnp.matmul, Spec((64, 40), F32), Spec((40, 1), F32))
    assert len(dot_sigs(plan)) == 1 and SMALL >= 64 * 40 and not tensor_core_dots(plan)


def test_attention_of_one_query_stays_one_group() -> None:
    """Its scores are products with a vector; they never leave a block."""
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    plan = plan_of(attend, Spec((12, 1, 64), F32), Spec((12, 512, 64), F32),
                   Spec((12, 512, 64), F32))
    assert [s.kind for s in plan.sigs] == ["attention"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, F32])
def test_a_handful_of_products_is_part_of_a_row(dtype: Any) -> None:
    """The first row of Bolt's Table 1: two products, one stage."""
    plan = plan_of(lambda x, w, v: jax.nn.relu(jax.nn.relu(x @ w) @ v), Spec((300, 4), dtype),
                   Spec((4, 1), dtype), Spec((1, 4), dtype))
    assert len(plan.stages) == 1 and not dot_sigs(plan)
    check_near(plan, build(plan), smooth(plan.graph), NEAR if dtype is F32 else 1e-2, seeds=(0,))

"""Probabilities that something is done to after the softmax, and scores with a factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth
from test_attention import attention_sig, qkv
from thinned import thinned

from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.attention_logits import softmax_of
from jaxmono.fusion.plan import Device, Plan
from jaxmono.fusion.softmax import scaled_scores

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32

SCHEDULES = [AttentionSchedule(16, 64, 2, 4, "flash"),
             AttentionSchedule(32, 32, 2, 4, "flash", 2),
             AttentionSchedule(64, 64, 3, 8, "wgmma"),
             AttentionSchedule(128, 32, 3, 8, "wgmma", 2)]


def attend(q: Any, k: Any, v: Any, after: Any = lambda p: p, scale: Any = 0.25,
           mask: Any = None, small: float = -1e38) -> Any:
    s = jnp.einsum("bhmd,bhnd->bhmn", q, k, preferred_element_type=F32) * scale
    s = s if mask is None else jnp.where(mask, s, small)
    return jnp.einsum("bhmn,bhnd->bhmd", after(jax.nn.softmax(s, -1)).astype(q.dtype), v)


def softmax(plan: Plan) -> Any:
    sig = attention_sig(plan)
    form: Any = sig.form
    return softmax_of(sig.body, form)


def scaled(plan: Plan) -> Any:
    sig = attention_sig(plan)
    form: Any = sig.form
    return scaled_scores(sig.body, form.first, softmax(plan), form.n)


@pytest.fixture(params=thinned(SCHEDULES, 2), ids=lambda s: f"{s.family}-{s.bq}")
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    def runs(plan: Plan, given: list[Any], rtol: float = 2e-2) -> None:
        s = request.param
        program = build(plan, {attention_sig(plan).key: s}, threads=32 * s.warps)
        check_near(plan, program, given, rtol, seeds=(0,))

    return runs


FACTORS = {
    "times": lambda p, c: p * c,
    "over": lambda p, c: p / (1 + c * c),
    "or zero": lambda p, c: jnp.where(c > 0.3, p * 1.25, 0),
    "zero or": lambda p, c: jnp.where(c > 0.3, 0, p) * 2,
    "narrow": lambda p, c: p.astype(BF16) * c.astype(BF16),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", thinned(FACTORS, 3))
@pytest.mark.parametrize("keys", thinned([75, 96]))
def test_probabilities_with_factors(name: str, keys: int, run: Callable[..., None]) -> None:
    plan = plan_of(lambda q, k, v, c: attend(q, k, v, lambda p: FACTORS[name](p, c)),
                   *qkv(40, keys, 16, BF16), Spec((40, keys), F32))
    assert softmax(plan).factors
    run(plan, smooth(plan.graph))


def test_a_factor_that_is_not_finite_reaches_its_row_alone(run: Callable[..., None]) -> None:
    plan = plan_of(lambda q, k, v, c: attend(q, k, v, lambda p: p * c), *qkv(40, 75, 16, BF16),
                   Spec((40, 75), F32))
    given = smooth(plan.graph)
    given[3][7, 74], given[3][9, 3] = np.nan, np.inf
    run(plan, given)


def test_longer_than_rows_of_scores_fit() -> None:
    """Dropout of 8192 keys, one stage."""
    plan = plan_of(lambda q, k, v, c: attend(q, k, v, lambda p: jnp.where(c, p / 0.9, 0)),
                   *qkv(64, 8192, 64, BF16), Spec((64, 8192), jnp.bool_), device=Device())
    assert [s.kind for s in plan.sigs] == ["attention"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("after", [
    lambda p, c: p + c, lambda p, c: p * p, lambda p, c: jnp.where(c > 0, p, 1.0),
    lambda p, c: c / p, lambda p, c: jnp.where(p > 0.1, p, 0.0)])
def test_what_is_not_proportional_is_no_factor(after: Any) -> None:
    plan = plan_of(lambda q, k, v, c: attend(q, k, v, lambda p: after(p, c)),
                   *qkv(20, 40, 16, BF16), Spec((20, 40), F32))
    assert softmax(plan) is None
    check_near(plan, build(plan), smooth(plan.graph), 2e-2)


def test_rows_that_a_guard_may_turn_from_nan_to_zero() -> None:
    """With an infinite mask, 0 where nothing counts is not what the weights say: rows of scores."""
    def fn(q: Any, k: Any, v: Any, keep: Any) -> Any:
        return attend(q, k, v, lambda p: jnp.where(keep, p, 0), mask=keep, small=-jnp.inf)

    plan = plan_of(fn, *qkv(20, 40, 16, BF16), Spec((20, 40), jnp.bool_))
    assert softmax(plan) is None
    given = smooth(plan.graph)
    given[3][4] = False
    check_near(plan, build(plan), given, 2e-2)


def test_scores_with_a_factor_stay_scores() -> None:
    def made(dtype: Any = BF16, **kw: Any) -> Plan:
        return plan_of(lambda q, k, v: attend(q, k, v, **kw), *qkv(20, 40, 16, dtype))

    causal = jnp.arange(20)[:, None] >= jnp.arange(40)
    assert scaled(made()).scale == 0.25
    assert scaled(made(mask=causal)).masked == np.float32(-1e38)
    assert scaled(made(scale=3.0)) is None  # may overflow where the scores do not
    assert scaled(made(scale=-0.5)) is None
    assert scaled(made(scale=jnp.linspace(0.1, 1, 40))) is None


@pytest.mark.parametrize("size", thinned([3e3, 10.0]))
def test_weights_of_large_scores(size: float, run: Callable[..., None]) -> None:
    """Beyond the exponents that one multiply-add rounds well enough."""
    plan = plan_of(attend, *qkv(40, 75, 16, F16))
    given = smooth(plan.graph)
    given[0] = (given[0].astype(np.float32) * size / 4).astype(np.float16)
    run(plan, given, rtol=2e-2)
    causal = plan_of(lambda q, k, v: attend(
        q, k, v, mask=jnp.arange(40)[:, None] - 3 >= jnp.arange(75)), *qkv(40, 75, 16, BF16))
    given = smooth(causal.graph)
    given[1] = (given[1].astype(np.float32) * size).astype(given[1].dtype)
    run(causal, given, rtol=4e-2)


def test_f16_scores_may_overflow(run: Callable[..., None]) -> None:
    """They are rounded to f16 before the softmax, infinity included."""
    def fn(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * 0.25
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(F16), v)

    plan = plan_of(fn, *qkv(20, 40, 16, F16))
    assert scaled(plan) is None
    given = smooth(plan.graph)
    given[0][0, 0, 3], given[1][0, 0, 5] = 100, 100
    run(plan, given)

"""f32 values that are only seen rounded to 16 bits: which they are, and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import models
import numpy as np
import pytest
from harness import check
from jax import lax

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
EXP, DIVIDE, RECIPROCAL = SHORT = "narrowed_exponential(", "narrow_divide(", "narrow_reciprocal("


def called(fn: Callable[..., Any], dtype: Any = BF16) -> set[str]:
    """Which of the cheap functions a kernel calls whose results are the reference's."""
    x = np.random.default_rng(0).normal(size=(6, 64)).astype(ml_dtypes.bfloat16) * 20
    x = x.astype(dtype)
    x[1, 3], x[2, 5], x[3, 7], x[4] = np.nan, np.inf, -np.inf, -80
    source = check(models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, dtype)), [x]).source
    kernel = source[source.index("Schedule("):]
    return {f for f in SHORT if f in kernel}


def exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x.astype(F32))


def softmax(x: jax.Array) -> jax.Array:
    e = exp(x - jnp.max(x, axis=1, keepdims=True))
    return e / jnp.sum(e, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_softmax_between_conversions_needs_few_digits(dtype: Any) -> None:
    assert called(lambda x: softmax(x).astype(dtype), dtype) == {EXP, DIVIDE}


@pytest.mark.parametrize(("fn", "short"), [
    (lambda x: (exp(x) * 3).astype(BF16), {EXP}),
    (lambda x: (-jnp.abs(exp(x))).astype(BF16), {EXP}),
    (lambda x: jnp.where(x > 0, exp(x), 2).astype(BF16), {EXP}),
    (lambda x: (1 / (1 + exp(-x))).astype(BF16), {EXP, RECIPROCAL}),
    (lambda x: (x.astype(F32) / (2 + exp(x) * exp(-x))).astype(BF16), {EXP, DIVIDE}),
    (lambda x: (x.astype(F32) / 3.5).astype(F16), set())])  # a product
def test_products_choices_and_sums_of_positives_keep_the_error(fn: Callable[..., Any],
                                                               short: set[str]) -> None:
    assert called(fn) == short


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", [
    exp, softmax,
    lambda x: (exp(x) - 1).astype(BF16),  # few digits are left
    lambda x: (exp(x) + -1).astype(BF16),
    lambda x: jnp.log(exp(x)).astype(BF16),
    lambda x: (exp(x) + x.astype(F32)).astype(BF16),
    lambda x: jnp.sum(-exp(x) * x.astype(F32), axis=1).astype(BF16),  # of any sign
    lambda x: jnp.prod(exp(x / 64), axis=1).astype(BF16),
    lambda x: lax.reduce(exp(x / 64), np.float32(-60), lax.add, (1,)).astype(BF16),
    lambda x: (exp(x / 64) ** 32).astype(BF16)])  # 32 times the error
def test_what_needs_its_digits_keeps_them(fn: Callable[..., Any]) -> None:
    assert called(fn) == set()


def test_subnormal_values_are_not_lost() -> None:
    """An exponential that flushes, as that of 16-bit results does on a GPU, would make the first
    0 / 0 and the second infinite. The emulator keeps them all: see the functions' names."""
    assert called(lambda x: softmax_of(x.astype(F32) * 0 - 88)) == {EXP, DIVIDE}
    assert called(lambda x: (1 / exp(x * 0 - 88)).astype(BF16)) == {EXP, RECIPROCAL}


def softmax_of(x: jax.Array) -> jax.Array:
    e = jnp.exp(x)
    return (e / jnp.sum(e, axis=1, keepdims=True)).astype(BF16)


def test_what_is_seen_as_it_is_too_keeps_its_digits() -> None:
    def fn(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        e = exp(x - jnp.max(x, axis=1, keepdims=True))
        return e, (e / jnp.sum(e, axis=1, keepdims=True)).astype(BF16)

    assert called(fn) == {DIVIDE}

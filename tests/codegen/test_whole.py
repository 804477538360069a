"""Ops that are one function of their argument: where they are, where not, and the values."""

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

from jaxmono.hlo.parse import parse

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
FUNCTIONS = ("bf16_gelu(", "f16_gelu(", "bf16_logistic(", "f16_logistic(", "narrow_logistic(",
             "bf16_softplus(", "f16_softplus(")


def called(fn: Callable[..., Any], dtype: Any) -> list[str]:
    """Which of the functions a kernel calls whose results are the reference's."""
    x = np.linspace(-6, 6, 256).astype(ml_dtypes.bfloat16).astype(dtype)
    x[:4] = [np.nan, np.inf, -np.inf, -0.0]
    source = check(models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, dtype)), [x]).source
    kernel = source[source.index("// loop"):]
    return [f for f in FUNCTIONS if f"_{f}" in kernel]


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("fn", "dtype", "function"), [
    (gelu, BF16, "bf16_gelu("), (gelu, F16, "f16_gelu("), (gelu, F32, None),
    (gelu_tanh, BF16, "bf16_logistic("), (gelu_tanh, F16, "f16_logistic("), (gelu_tanh, F32, None),
    (lambda x: lax.erfc(x * -0.75) * (x * 0.5), BF16, "bf16_gelu("),  # in any order
    (lambda x: gelu(x + x) + 1, BF16, "bf16_gelu("),
    # The fifth power of this scale is 0 in f32.
    (lambda x: 0.5 * x * lax.erfc(x * -2.0 ** -30), BF16, None),
    (jax.nn.sigmoid, BF16, "bf16_logistic("), (jax.nn.silu, F16, "f16_logistic("),
    (lambda x: 1 / (jnp.exp(-x) + 1), BF16, "bf16_logistic("), (jax.nn.sigmoid, F32, None),
    (lambda x: x * jax.nn.sigmoid(1.702 * x), BF16, "bf16_logistic("),
    (lambda x: jax.nn.sigmoid(-x), BF16, "bf16_logistic("),
    (lambda x: 1 / (1 + jnp.exp(x)), F16, "f16_logistic("),
    (jax.nn.softplus, BF16, "bf16_softplus("), (jax.nn.softplus, F16, "f16_softplus("),
    (lambda x: jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(0, x), BF16, "bf16_softplus("),
    (jax.nn.softplus, F32, None)])
def test_one_function_of_16_bit_values(fn: Callable[..., Any], dtype: Any,
                                         function: str | None) -> None:
    assert called(fn, dtype) == ([] if function is None else [function])


def test_the_op_itself() -> None:
    # JAX writes a quotient, other frontends may not.
    graph = parse("graph main(%0: bf16[256]) {\n  %1 = bf16[256] logistic(%0)\n  return %1\n}\n")
    x = np.linspace(-6, 6, 256).astype(ml_dtypes.bfloat16)
    assert "bf16_logistic(" in check(graph, [x]).source.split("// loop")[1]


def test_products_with_numbers_are_part_of_it() -> None:
    x = jax.ShapeDtypeStruct((256,), BF16)
    for fn, constant in ((lambda x: jax.nn.sigmoid(x * 2 * 0.75), "1.5f"),
                         (lambda x: 0.5 * (1 + jnp.tanh(x * 0.75)), "1.5f"),
                         (lambda x: 1 / (1 + jnp.exp(x * -1.5)), "1.5f")):
        source = check(models.graph_of(fn, x), [np.linspace(-6, 6, 256).astype(
            ml_dtypes.bfloat16)]).source
        assert f"bf16_logistic(x0, {constant})" in source.replace("v0", "x0"), fn


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", [
    lambda x: 0.5 * x * lax.erfc(0.75 * x),  # of the other sign
    lambda x: 0.25 * x * lax.erfc(-0.75 * x),
    lambda x: 0.5 * jnp.abs(x) * lax.erfc(-0.75 * x),
    lambda x: 0.5 * (2 + jnp.tanh(x)),
    lambda x: (lax.erfc(-0.75 * x), 0.5 * x * lax.erfc(-0.75 * x)),  # erfc is needed, too
    lambda x: (jnp.tanh(x), 0.5 * (1 + jnp.tanh(x))),
    lambda x: 2 / (1 + jnp.exp(-x)), lambda x: 1 / (2 + jnp.exp(-x)),
    lambda x: (jnp.exp(-x), 1 / (1 + jnp.exp(-x))),
    lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-x)),
    lambda x: jnp.maximum(x, 1) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    lambda x: jnp.maximum(-x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))),
    lambda x: jnp.minimum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))])
def test_what_only_looks_like_one_is_computed_op_by_op(fn: Callable[..., Any]) -> None:
    assert called(fn, BF16) == []

"""Rounded values as integers: where they are one conversion, and the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import check
from jax import lax

EDGES = [np.nan, np.inf, -np.inf, 3e9, -3e9, 1e20, 127.5, -128.5, 255.5, 254.5, -0.5, 0.5, 1.5,
         65535.5, 32767.5, -32768.5, 2147483520, -2147483648, 4294967040, -0.0, 0.49999997]


def kernel_of(fn: Callable[..., Any]) -> str:
    """The text of a kernel whose results are the reference's, of edges and of random numbers."""
    random = np.random.default_rng(3).normal(size=1003)
    x = np.concatenate([EDGES, np.arange(-20, 20) / 2, random * np.exp(random * 3)])
    x = x.astype(np.float32)
    source = check(models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, jnp.float32)), [x]).source
    return source[source.index("  const int e = "):]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("fn", "function"), [
    (lambda x: jnp.round(x).astype(jnp.int8), "v_nearest<int8_t>(v0)"),
    (lambda x: jnp.round(x).astype(jnp.uint8), "v_nearest<uint8_t>(v0)"),
    (lambda x: jnp.round(x).astype(jnp.int16), "v_nearest<int16_t>(v0)"),
    (lambda x: jnp.round(x).astype(jnp.uint16), "v_nearest<uint16_t>(v0)"),
    (lambda x: jnp.round(x).astype(jnp.int32), "v_nearest<int32_t>(v0)"),
    (lambda x: jnp.round(x).astype(jnp.uint32), "v_nearest<uint32_t>(v0)"),
    (lambda x: jnp.clip(jnp.round(x), -127, 127).astype(jnp.int8),
     "v_nearest_from<int8_t>(v0, (-127.0f))"),
    (lambda x: jnp.clip(jnp.round(x), -8, 7).astype(jnp.int8),
     "v_nearest_between<int8_t>(v0, (-8.0f), 7.0f)"),
    (lambda x: jnp.clip(jnp.round(x), 0, 255).astype(jnp.uint8), "v_nearest<uint8_t>(v0)"),
    (lambda x: jnp.minimum(jnp.round(x), 3).astype(jnp.int32), "v_nearest_to<int32_t>(v0, 3.0f)"),
    (lambda x: lax.clamp(-7.0, jnp.round(x), 8.0).astype(jnp.int8),
     "v_nearest_between<int8_t>(v0, (-7.0f), 8.0f)"),
])
def test_one_conversion(fn: Callable[..., Any], function: str) -> None:
    text = kernel_of(fn)
    assert function in text and "v_round_nearest" not in text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fn", [
    lambda x: jnp.clip(jnp.round(x), -1.5, 1.5).astype(jnp.int8),  # no whole numbers
    lambda x: jnp.minimum(jnp.maximum(jnp.round(x), 5), -5).astype(jnp.int8),  # nothing between
    lambda x: (jnp.round(x), jnp.round(x).astype(jnp.int8)),  # who else needs it
    lambda x: jnp.floor(x).astype(jnp.int8), lambda x: x.astype(jnp.int8),
    lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO).astype(jnp.int8),
    lambda x: jnp.round(x).astype(jnp.bool_),
])
def test_what_is_no_rounded_integer(fn: Callable[..., Any]) -> None:
    assert "nearest<" not in kernel_of(fn)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_truncated(dtype: str) -> None:
    kernel_of(lambda x: x.astype(dtype))

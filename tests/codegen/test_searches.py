"""The place of the largest of a row: NaN, infinities, zeros of either sign, equal values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import check
from jax import lax

from jaxmono.hlo.searches import counts

NAN, INF = np.nan, np.inf


def rows(shape: tuple[int, int], dtype: Any) -> np.ndarray[Any, Any]:
    """Few different values, so that most are there several times; the first rows are special."""
    x = np.random.default_rng(shape[1]).integers(-3, 4, shape).astype(dtype)
    if np.issubdtype(dtype, np.floating):
        x[0], x[1], x[2] = -INF, INF, 0.0
        x[2, 1::2] = -0.0
        x[3, shape[1] // 2:] = NAN
        x[4, [2, shape[1] - 1]] = [-INF, INF]
        x[5, 0] = NAN
    return x


@pytest.mark.sampled(7)
@pytest.mark.parametrize("search", [jnp.argmax, jnp.argmin])
@pytest.mark.parametrize(("shape", "dtype"), [
    ((6, 24), np.float32), ((40, 1000), np.float32), ((8, 5001), np.float32),
    ((2048, 40), np.float32), ((40, 1000), np.int32), ((40, 1000), np.float16)])
@pytest.mark.parametrize("axis", [1, 0])
def test_the_first_of_the_largest(search: Any, shape: tuple[int, int], dtype: Any,
                                  axis: int) -> None:
    x = rows(shape, dtype) if axis else np.ascontiguousarray(rows(shape, dtype).T)
    source = check(models.graph_of(lambda x: search(x, axis), jax.ShapeDtypeStruct(x.shape, dtype)),
                   [x]).source
    assert "accumulate<InOrder<" in source and "bool any" not in source


def body(one: Any, two: Any) -> Any:
    """That of `jnp.argmax`."""
    better = jnp.logical_or(one[0] > two[0], one[0] != one[0])
    chosen = jnp.logical_or(better, jnp.logical_and(one[0] == two[0], one[1] < two[1]))
    return lax.select(better, one[0], two[0]), lax.select(chosen, one[1], two[1])


def test_places_that_begin_anew() -> None:
    """128 of 8 bits is -128: behind place 10 comes a smaller one."""
    def fn(x: Any) -> Any:
        places = lax.broadcasted_iota(jnp.int8, x.shape, 1)
        return lax.reduce((x, places), (np.float32(-INF), np.int8(0)), body, (1,))[1]

    x = np.ones((6000, 300), np.float32)
    x[:, [10, 138]] = 2
    program = check(models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, x.dtype)), [x])
    assert "InOrder<" not in program.source[program.source.index("// row"):]


def test_where_places_count() -> None:
    def dims(fn: Any) -> tuple[int, ...]:
        graph = models.graph_of(fn)
        return counts(graph.outputs[0], graph.producer)

    line = jnp.arange
    assert dims(lambda: lax.broadcasted_iota(jnp.int32, (4, 96), 1)) == (1,)
    assert dims(lambda: lax.broadcasted_iota(jnp.int32, (4, 96), 1).reshape(4, 8, 12)) == (1, 2)
    assert dims(lambda: lax.broadcast_in_dim(line(96), (96, 4), (0,))) == (0,)
    assert dims(lambda: lax.broadcast_in_dim(line(1), (96, 4), (0,))) == ()  # all are 0
    assert dims(lambda: lax.broadcasted_iota(jnp.int8, (4, 128), 1)) == (1,)
    assert dims(lambda: lax.broadcasted_iota(jnp.int8, (4, 129), 1)) == ()
    assert dims(lambda: lax.broadcasted_iota(jnp.int4, (4, 8), 1)) == (1,)
    assert dims(lambda: lax.broadcasted_iota(jnp.int4, (4, 9), 1)) == ()
    assert dims(lambda: lax.broadcasted_iota(jnp.bfloat16, (4, 257), 1)) == (1,)
    assert dims(lambda: lax.broadcasted_iota(jnp.bfloat16, (4, 258), 1)) == ()
    assert dims(lambda: lax.broadcasted_iota(jnp.int32, (4, 96), 1)[:, ::-1]) == ()


def test_a_search_that_begins_with_nan() -> None:
    def fn(x: Any) -> Any:
        places = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return lax.reduce((x, places), (np.float32(NAN), np.int32(7)), body, (1,))[1]

    x = rows((40, 300), np.float32)
    check(models.graph_of(fn, jax.ShapeDtypeStruct(x.shape, x.dtype)), [x])


def either(start: float, at: int) -> Any:
    """A search that `jnp.argmax` does not write: from another value, of places that are not those
    of the columns."""
    def fn(x: Any) -> Any:
        places = lax.broadcasted_iota(jnp.int32, x.shape, 1) if at == 1 else \
            (lax.broadcasted_iota(jnp.int32, x.shape, 1) * 7919) % 1009
        return lax.reduce((x, places), (np.float32(start), np.int32(0)), body, (1,))[1]

    return fn


@pytest.mark.parametrize(("start", "at"), [(0.0, 1), (-INF, 7919)])
def test_any_other_search(start: float, at: int) -> None:
    x = rows((40, 1000), np.float32)
    x = np.where(np.isnan(x), np.float32(1), x)  # of two NaNs either may stay
    source = check(models.graph_of(either(start, at), jax.ShapeDtypeStruct(x.shape, x.dtype)),
                   [x]).source
    kernel = source[source.index("// row"):]
    assert "accumulate<reducer" in kernel and "bool any" not in source

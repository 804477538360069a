"""Elements read one by one that lie next to each other: loaded as vectors, where all are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import models
import numpy as np
import pytest
from harness import check

BF16 = ml_dtypes.bfloat16


def near(fn: Callable[..., Any], dtype: Any, *shapes: tuple[int, ...]) -> list[int]:
    """The widths of such vectors in a kernel whose results are the reference's, in order."""
    rng = np.random.default_rng(5)
    args = [rng.integers(-3, 4, s).astype(dtype) for s in shapes]
    source = check(models.graph_of(fn, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes)),
                   args).source
    return [int(n) for n in re.findall(r"const auto near\d+ = load_ro<\w+, (\d+)>", source)]


def products(a: jax.Array, b: jax.Array) -> jax.Array:
    return sum(a[:, :, i, None] * b[:, None, i] for i in range(a.shape[2]))


@pytest.mark.parametrize(("dtype", "k", "width"), [
    (np.float32, 4, 4), (np.float32, 8, 4), (BF16, 8, 8), (BF16, 4, 4), (np.float32, 5, 2)])
def test_rows_of_small_matrices(dtype: Any, k: int, width: int) -> None:
    """What a thread reads of its rows are whole vectors, each once."""
    found = near(products, dtype, (64, 8, k), (64, k, 8))
    assert set(found) == {width}
    assert len(found) in {rows * k // width for rows in (1, 2, 4, 8)}


@pytest.mark.parametrize(("read", "widths"), [
    ((0, 1, 2, 3, 4, 5, 6, 7), [4, 4]), ((0, 1, 3, 4, 5, 6, 7), [4]), ((1, 2, 3, 4, 5, 6), []),
    ((4, 5, 6, 7), [4]), ((0, 1), [])])
def test_vectors_have_no_holes(read: tuple[int, ...], widths: list[int]) -> None:
    def some(a: jax.Array, b: jax.Array) -> jax.Array:
        return sum(a[:, i, None] * b for i in read)

    assert near(some, np.float32, (64, 8), (64, 16)) == widths


def test_the_last_vector_ends_with_its_buffer() -> None:
    def shared(a: jax.Array, b: jax.Array) -> jax.Array:
        return sum(a[i] * b for i in range(21))

    assert near(shared, np.float32, (21,), (256,)) == []
    assert near(shared, np.float32, (22,), (256,)) == [2] * 10
    assert near(shared, np.float32, (24,), (256,)) == [4] * 5

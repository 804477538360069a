"""Sines and cosines of f32, near and far, to units in the last place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from harness import compile_graph, run_program

EDGES = np.array([0.0, -0.0, 1e-40, -1e-30, np.pi / 2, np.pi, -np.pi, 105614.99, 105615.0, 2.0**31,
                  -3.4028235e38, np.inf, -np.inf, np.nan], np.float32)


def ulps(found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.abs(found - exact) / np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [4000, 4001])  # in vectors, one by one
@pytest.mark.parametrize("most", [1.0, 30.0, 1e5, 1e38])
def test_to_two_units_in_the_last_place(size: int, most: float) -> None:
    rng = np.random.default_rng(size)
    x = rng.uniform(-most, most, size).astype(np.float32)
    if most > 1e5:  # of any size, beside near ones
        x = (np.exp(rng.uniform(0, 88, size)) * rng.choice([-1, 1], size)).astype(np.float32)
    x[:len(EDGES)] = EDGES
    graph = models.graph_of(lambda x: (jnp.sin(x), jnp.cos(x)),
                            jax.ShapeDtypeStruct(x.shape, x.dtype))
    program = compile_graph(graph)
    sine, cosine = run_program(program, [x])
    there = np.isfinite(x)
    with np.errstate(invalid="ignore"):
        for found, exact in ((sine, np.sin(x.astype(np.float64))),
                             (cosine, np.cos(x.astype(np.float64)))):
            assert ulps(found[there].astype(np.float64), exact[there]).max() < 1.6
            assert np.isnan(found[~there]).all()
    np.testing.assert_array_equal(np.signbit(sine[:2]), [False, True])

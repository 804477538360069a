"""Results joined of parts that one loop computes, on a real GPU (fusion/joined_parts.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono


def lattice(f: Any) -> Any:
    ways = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
    f = [jnp.roll(x, way, (0, 1)) for x, way in zip(f, ways, strict=True)]
    mass = sum(f[1:], f[0])
    u, v = (sum(way[i] * x for way, x in zip(ways, f, strict=True)) / mass for i in range(2))
    return jnp.stack([x - (x - mass * (1 + a * u + b * v) / 9) / 2
                      for x, (a, b) in zip(f, ways, strict=True)])


def mixed(a: Any, b: Any) -> Any:
    s, d = jnp.cos(a) + b, a - jnp.sin(b)
    return jnp.stack([s * a, d * b + s, s * d, a]), s.sum()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(512, 512), (300, 1000), (257, 264)])
def test_one_stage_writes_all_parts(shape: tuple[int, int], dtype: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 9)
    f = jnp.stack([1 + jax.random.uniform(k, shape) for k in keys]).astype(dtype)
    a, b = (4 * jax.random.normal(k, shape).astype(dtype) for k in keys[:2])
    for fn, args in ((lattice, (f,)), (mixed, (a, b))):
        ours = jaxmono.jit(fn, on_unsupported="error")
        told = ours.lower(*args).compile().explain()
        assert told.kernels == 1 and (fn is mixed or told.barriers == 0)
        exact = jax.jit(fn)(*(v.astype(jnp.float32) for v in args))
        for got, want, xla in zip(*map(jax.tree.leaves, (ours(*args), exact, jax.jit(fn)(*args))),
                                  strict=True):
            mine, other = (np.linalg.norm(np.asarray(v, np.float64) - np.asarray(want, np.float64))
                           for v in (got, xla))
            assert mine <= 1.1 * other + 1e-6 * np.linalg.norm(np.asarray(want, np.float64))

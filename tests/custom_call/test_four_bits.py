"""Programs with integers of 4 bits, which XLA hands over two in a byte: what kernels take of them,
and what stays with XLA, which alone writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxmono

F32, BF16 = jnp.float32, jnp.bfloat16
_RNG = np.random.default_rng(0)


def fours(*shape: int, unsigned: bool = False) -> jax.Array:
    low, high = (0, 16) if unsigned else (-8, 8)
    return jnp.asarray(_RNG.integers(low, high, shape), jnp.int8).astype(
        jnp.uint4 if unsigned else jnp.int4)


def floats(*shape: int, t: Any = F32) -> jax.Array:
    return jnp.asarray(_RNG.uniform(0.1, 1, shape), t)


def _scan(x: jax.Array, qs: jax.Array) -> jax.Array:
    return lax.scan(lambda c, q: (jnp.tanh(c + q.astype(F32).sum(0)), None), x, qs)[0]


def _layers(x: jax.Array, qs: jax.Array, scales: jax.Array) -> jax.Array:
    def step(c: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        q, s = w
        wide = q.reshape(2, 64, 96).astype(BF16) * s[:, None].astype(BF16)
        return jnp.tanh(c @ wide.reshape(128, 96))[:, :1] + c * 0, None
    return lax.scan(step, x, (qs, scales))[0]


def _zero_points(x: jax.Array, q: jax.Array, z: jax.Array, s: jax.Array) -> jax.Array:
    parts = (q.reshape(4, 32, 96).astype(F32) - z[:, None].astype(F32)) * s[:, None]
    return x @ parts.reshape(128, 96).astype(BF16)


def _quantise(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale = jnp.abs(x).max(-1, keepdims=True) / 7
    q = jnp.round(x / scale).astype(jnp.int4)
    return q, q.astype(F32) * scale


def _scaled(x: jax.Array, q: jax.Array, s: jax.Array) -> jax.Array:
    """Weights [k, n], scales [k / G, n]."""
    parts = q.reshape(s.shape[0], -1, q.shape[1]).astype(x.dtype) * s[:, None].astype(x.dtype)
    return x @ parts.reshape(q.shape)


def _scaled_rows(x: jax.Array, q: jax.Array, s: jax.Array) -> jax.Array:
    """Weights [n, k], scales [n, k / G]."""
    parts = q.reshape(*s.shape, -1).astype(x.dtype) * s[..., None].astype(x.dtype)
    return jnp.einsum("mk,nk->mn", x, parts.reshape(q.shape))


Case = tuple[Callable[..., Any], tuple[jax.Array, ...], set[str]]

CASES: dict[str, Case] = {
    "concatenated": (lambda a, b: jnp.concatenate([a, b], 1).astype(F32) * 2,
                     (fours(3, 13), fours(3, 7)), set()),
    "chosen": (lambda a, b, m: jnp.where(m > 0.5, a, b).astype(F32),
               (fours(3, 13), fours(3, 13), floats(3, 13)), set()),
    "looked up": (lambda a, i: jnp.take(a, i, axis=0).astype(F32),
                  (fours(30, 15, unsigned=True), jnp.asarray([1, 5, 29, 3, 0])), set()),
    "backwards": (lambda a: a[::-1, ::2].astype(F32) + 1, (fours(6, 31),), set()),
    "sliced": (lambda a, i: lax.dynamic_slice(a, (i, 1), (2, 5)).astype(F32) + 1,
               (fours(6, 31), jnp.int32(2)), set()),
    "moved and returned": (lambda a: (a.reshape(2, 93).T, a.reshape(2, 93).T.astype(F32) + 1),
                           (fours(6, 31),), {"reshape", "transpose"}),
    "updated": (lambda a, b, i: lax.dynamic_update_slice(a, b, (i, 1)).astype(F32) + 1,
                (fours(6, 31), fours(2, 3), jnp.int32(2)), {"dynamic_update_slice"}),
    "added": (lambda a, b: (a + b).astype(F32), (fours(6, 31), fours(6, 31)), {"add"}),
    "quantised": (_quantise, (floats(5, 7),), {"convert"}),
    "rows of an odd number": (lambda x, q: x @ q.astype(BF16),
                              (floats(4, 63, t=BF16), fours(63, 31)), set()),
    "of mixed types": (lambda x, q: lax.dot_general(x, q, (((1,), (0,)), ((), ())),
                                                    preferred_element_type=F32),
                       (floats(5, 128, t=BF16), fours(128, 64)), set()),
    "by bytes": (lambda x, q: lax.dot_general(x, q.astype(jnp.int8), (((1,), (0,)), ((), ())),
                                              preferred_element_type=jnp.int32),
                 (jnp.ones((40, 64), jnp.int8), fours(64, 96)), set()),
    "zero points": (_zero_points, (floats(1, 128, t=BF16), fours(128, 96, unsigned=True),
                                   fours(4, 96, unsigned=True), floats(4, 96)), set()),
    "scanned": (_scan, (floats(16), fours(6, 4, 16)), set()),
    "scanned, odd": (_scan, (floats(3), fours(5, 3, 3)), set()),
    "scanned, of 31": (_scan, (floats(1), fours(6, 31, 1)), set()),
    "scanned, joined": (lambda x, a, b: _scan(x, jnp.concatenate([a, b])),
                        (floats(16), fours(6, 4, 16), fours(2, 4, 16)), set()),
    "a layer by its number": (lambda x, q, i: x @ q[i].astype(BF16),
                              (floats(1, 128, t=BF16), fours(8, 128, 64), jnp.int32(3)), set()),
    "experts": (lambda x, q, i: jnp.einsum("md,mnd->mn", x, q[i].astype(BF16)),
                (floats(2, 128, t=BF16), fours(8, 64, 128), jnp.asarray([3, 5])), set()),
    "an expert with scales": (lambda x, q, s, i: _scaled(x, q[i], s[i]),
                              (floats(1, 128, t=BF16), fours(4, 128, 64), floats(4, 2, 64),
                               jnp.int32(2)), set()),
    "two scales of a byte": (_scaled_rows, (floats(1, 256, t=BF16), fours(64, 256),
                                            floats(64, 2).astype(jnp.float8_e4m3fn)), set()),
    "six scales of a byte": (_scaled_rows, (floats(1, 384, t=BF16), fours(64, 384),
                                            fours(64, 6).astype(jnp.int8)), set()),
    "scales of 4 bits": (_scaled, (floats(1, 128, t=BF16), fours(128, 64), fours(2, 64)), set()),
    "computed scales": (lambda x, q, s: _scaled(x, q, jnp.sqrt(s)),
                        (floats(2, 128, t=BF16), fours(128, 64), floats(2, 64)), set()),
    "layers": (_layers, (floats(1, 128, t=BF16), fours(4, 128, 96), floats(4, 2, 96)), set()),
}


@pytest.mark.filterwarnings("error::jaxmono.JaxmonoWarning")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_programs(name: str) -> None:
    """Results are XLA's; what stays with it is what would have to be written, and no more."""
    fn, args, left = CASES[name]
    found = jax.tree.leaves(jaxmono.jit(fn, interpret=True)(*args))
    wanted = jax.tree.leaves(jax.jit(fn)(*args))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32),
                                   rtol=2e-2, atol=2e-2)
    report = jaxmono.explain(fn)(*args)
    assert {r.op for r in report.refused} == left
    assert all("4 bits" in r.reason for r in report.refused)

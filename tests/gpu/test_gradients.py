"""Training steps of a layer: what is kept for the gradient, and what is computed again, beside XLA.

One kernel, or several with XLA's ops between them (fusion/recompute.py, fusion/region_cut.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmono

BF16, F32 = jnp.bfloat16, jnp.float32
X = Any
SHAPES = {"x": (8, 149, 256), "scale": (256,), "bias": (256,), "query": (256, 256),
          "key": (256, 256), "value": (256, 256), "up": (256, 1024), "up_bias": (1024,),
          "down": (1024, 256)}


def norm(x: X, scale: X, bias: X) -> X:
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide).mean(-1, keepdims=True) - jnp.square(mean)
    y = (wide - mean) * jax.lax.rsqrt(jnp.maximum(variance, 0) + 1e-5)
    return (y * scale.astype(F32) + bias.astype(F32)).astype(x.dtype)


def layer(x: X, p: dict[str, X]) -> X:
    """Attention of four heads and an MLP, each behind a norm and beside a residual."""
    y = norm(x, p["scale"], p["bias"])
    q, k, v = ((y @ p[n]).reshape(*y.shape[:2], 4, 64) for n in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32) / 8
    found = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(v.dtype), v)
    x = x + found.reshape(x.shape)
    y = norm(x, p["scale"], p["bias"])
    return x + jax.nn.gelu(y @ p["up"] + p["up_bias"], approximate=False) @ p["down"]


def smooth(x: X, p: dict[str, X]) -> X:
    return jnp.mean(jnp.square(layer(x, p).astype(F32)))


def divided(x: X, p: dict[str, X]) -> X:
    """Of the largest elements: a sort, which no kernel has, between forward and backward."""
    return jnp.sort(jnp.square(layer(x, p).astype(F32)).reshape(-1))[-50_000:].mean()


@pytest.mark.parametrize(("loss", "dtype"), [(smooth, BF16), (divided, F32)],
                         ids=["one kernel, bf16", "several, f32"])
def test_as_right_as_xla(loss: Any, dtype: Any) -> None:
    def step(x: X, p: dict[str, X], moments: dict[str, X]) -> X:
        value, gradients = jax.value_and_grad(loss, argnums=1)(x, p)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g.astype(F32), moments, gradients)
        return value, moments, jax.tree.map(lambda w, m: w - 0.1 * m.astype(w.dtype), p, moments)

    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    made = {n: jax.random.normal(k, s, F32) / (1 if len(s) == 3 else np.sqrt(s[0]))
            for k, (n, s) in zip(keys, SHAPES.items(), strict=True)}
    made["scale"] += 1
    x, *p = (v.astype(dtype).astype(F32) for v in made.values())
    wide = x, dict(zip(list(SHAPES)[1:], p, strict=True)), {n: v * 0.1 for n, v in made.items()
                                                           if n != "x"}
    args = (wide[0].astype(dtype), {n: v.astype(dtype) for n, v in wide[1].items()}, wide[2])
    mono = jaxmono.jit(step)
    assert (mono.explain(*args).kernels > 1) == (loss is divided)
    with jax.default_matmul_precision("highest"):
        wanted = jax.tree.leaves(jax.jit(step)(*wide))
    found, again, xla = (jax.tree.leaves(f(*args)) for f in (mono, mono, jax.jit(step)))
    for ours, same, theirs, exact in zip(found, again, xla, wanted, strict=True):
        a, b, c, e = (np.asarray(v, np.float32) for v in (ours, same, theirs, exact))
        np.testing.assert_array_equal(a, b)
        mine, other = (np.sqrt(np.mean((v - e) ** 2)) for v in (a, c))
        size = np.sqrt(np.mean(e ** 2))
        # Half a last bit of bf16, or of tf32: of a scalar XLA's error may be any.
        assert mine <= 1.2 * other + (2e-3 if dtype is BF16 else 5e-4) * size, (mine, other, size)

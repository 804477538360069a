"""Attention as JAX and Flax write it: scores stay inside a block, in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import graph_of
from thinned import thinned

import jaxmono
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import AttentionForm, Device

BATCH, LENGTH, HEADS, WIDTH = 2, 19, 2, 16


def normal(seed: int, *dims: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), dims, jnp.bfloat16)


def key_mask() -> jax.Array:
    """bool [B, 1, 1, S]: the second sequence is shorter."""
    return jnp.arange(LENGTH) < jnp.array([LENGTH, 11])[:, None, None, None]


def call(*, masked: bool = False, biased: bool = False, **kw: Any) -> tuple[Any, ...]:
    """jax.nn.dot_product_attention and its arguments, [B, S, N, H] each."""
    arrays = {name: normal(i, BATCH, LENGTH, HEADS, WIDTH)
              for i, name in enumerate(("query", "key", "value"))}
    if masked:
        arrays["mask"] = key_mask()
    if biased:
        arrays["bias"] = normal(3, 1, HEADS, LENGTH, LENGTH)
    return lambda x: jax.nn.dot_product_attention(**x, **kw), arrays


def flax_module() -> tuple[Any, ...]:
    module = nnx.MultiHeadAttention(HEADS, HEADS * WIDTH, decode=False, dtype=jnp.bfloat16,
                                    param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    definition, state = nnx.split(module)
    return (lambda s, x, mask: nnx.merge(definition, s)(x, mask=mask), state,
            normal(0, BATCH, LENGTH, HEADS * WIDTH), key_mask())


FORMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "plain": call,
    "mask": lambda: call(masked=True),
    "causal": lambda: call(is_causal=True),
    "bias and lengths": lambda: call(biased=True, key_value_seq_lengths=jnp.array([LENGTH, 7])),
    "nnx.MultiHeadAttention": flax_module,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", thinned(FORMS))
def test_scores_stay_inside_one_kernel(name: str) -> None:
    fn, *args = FORMS[name]()
    plan = make_plan(graph_of(fn, *args), Device())
    assert sum(isinstance(g.sig.form, AttentionForm) for g in plan.groups) == 1
    compiled = jaxmono.jit(fn, interpret=True).lower(*args).compile()
    told = compiled.explain()
    assert told.kernels == 1 and not told.refused, str(told)
    got, wanted = (np.asarray(y, np.float32) for y in (compiled(*args), jax.jit(fn)(*args)))
    np.testing.assert_allclose(got, wanted, atol=0.02 * np.abs(wanted).max())

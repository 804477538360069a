"""Query heads that share keys and values: rows of one tile, however the program repeats them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth
from test_attention import attend, attention_sig, qkv
from thinned import thinned_rows

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.attention_cost import groups
from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32


def causal(scores: Any) -> Any:
    m, n = scores.shape[-2:]
    keep = jnp.arange(m)[:, None] + (n - m) >= jnp.arange(n)
    return jax.nn.softmax(jnp.where(keep, scores, -1e38), -1)


def repeated(q: Any, k: Any, v: Any) -> Any:
    """[B, S, H, D], heads repeated."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = jnp.einsum("bmhd,bnhd->bhmn", q, k, preferred_element_type=F32) / 4
    return jnp.einsum("bhmn,bnhd->bmhd", causal(s).astype(BF16), v)


def broadcast(q: Any, k: Any, v: Any) -> Any:
    """[B, H, S, D], heads broadcast and reshaped."""
    def heads(x: Any) -> Any:
        b, h, n, d = x.shape
        group = q.shape[1] // h
        return jnp.broadcast_to(x[:, :, None], (b, h, group, n, d)).reshape(b, h * group, n, d)

    s = jnp.einsum("bhmd,bhnd->bhmn", q, heads(k)).astype(F32) / 4
    return jnp.einsum("bhmn,bhnd->bhmd", causal(s).astype(BF16), heads(v))


def einsum(q: Any, k: Any, v: Any) -> Any:
    """[B, S, H, D], the group a dimension."""
    b, m, h, d = q.shape
    q = q.reshape(b, m, k.shape[2], h // k.shape[2], d)
    s = jnp.einsum("bmgrd,bngd->bgrmn", q, k, preferred_element_type=F32) / 4
    return jnp.einsum("bgrmn,bngd->bmgrd", causal(s).astype(BF16), v).reshape(b, m, h, d)


def library(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=q.shape[1] == k.shape[1])


def plan(fn: Any, m: int, n: int, heads: int, kept: int, d: int = 16, **kw: Any) -> Plan:
    shapes = [(2, heads, m, d), (2, kept, n, d)] if fn is broadcast else \
        [(2, m, heads, d), (2, n, kept, d)]
    q, k = (Spec(s, BF16) for s in shapes)
    return plan_of(fn, q, k, k, **kw)


FORMS = [repeated, broadcast, einsum, library]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("fn", "queries"), thinned_rows(
    [(f, n) for n in (1, 20, 70) for f in FORMS], 5))
def test_one_stage_and_one_reading_of_the_keys(fn: Any, queries: int) -> None:
    """The planner or the schedule makes rows of the 4 heads of a group."""
    made = plan(fn, queries, 70, 8, 2)
    assert len(made.stages) == len(made.sigs) == 1
    sig = attention_sig(made)
    code = AttentionCode.of(sig, AttentionSchedule(16, 16, 2, 1, "flash", group=groups(sig)[-1]))
    assert (code.form.batch.size, code.form.m.size) == (4, 4 * queries)
    for s in (AttentionSchedule(16, 64, 2, 4, "flash", 1, groups(sig)[-1]),
              AttentionSchedule(32, 32, 2, 4, "flash", 2, groups(sig)[-1]),
              AttentionSchedule(64, 64, 3, 8, "wgmma", 1, groups(sig)[-1]),
              AttentionSchedule(128, 32, 3, 8, "wgmma", 2, groups(sig)[-1])):
        program = build(made, {sig.key: s}, threads=32 * s.warps)
        check_near(made, program, smooth(made.graph), 2e-2)


def test_part_of_a_group() -> None:
    """Schedules may make fewer rows of a group than it has."""
    made = plan(repeated, 20, 40, 8, 2)
    sig = attention_sig(made)
    for group in (1, 2):
        s = AttentionSchedule(32, 32, 2, 4, "flash", 1, group)
        check_near(made, build(made, {sig.key: s}), smooth(made.graph), 2e-2)


def test_heads_with_their_own_keys_have_no_group() -> None:
    assert groups(attention_sig(plan_of(attend, *qkv(20, 40, 16, BF16, heads=4)))) == (1,)


def test_a_bias_of_every_head_stays_its_own() -> None:
    def fn(q: Any, k: Any, v: Any, slope: Any) -> Any:
        k, v = (jnp.repeat(x, 4, axis=1) for x in (k, v))
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k, preferred_element_type=F32) / 4
        s = s + slope[:, None, None] * jnp.arange(k.shape[2])
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(BF16), v)

    made = plan_of(fn, Spec((2, 8, 3, 16), BF16), *[Spec((2, 2, 50, 16), BF16)] * 2,
                   Spec((8,), F32))
    given = smooth(made.graph)
    given[3] = np.linspace(-0.2, 0.2, 8).astype(np.float32)
    sig = attention_sig(made)
    assert groups(sig) == (1, 4)
    for s in (AttentionSchedule(16, 64, 2, 4, "flash", 1, 4),
              AttentionSchedule(64, 64, 3, 8, "wgmma", 1, 4)):
        check_near(made, build(made, {sig.key: s}, threads=32 * s.warps), given, 2e-2)


@pytest.mark.parametrize("fn", FORMS)
def test_decoding_reads_the_keys_of_a_group_once(fn: Any) -> None:
    device = Device()
    made = plan(fn, 1, 2048, 32, 8, 64, device=device)
    (chosen,) = default_schedule(made, cuda_target("sm_90a"), device).sigs.values()
    code = AttentionCode.of(attention_sig(made), chosen)
    assert (code.form.batch.size, code.form.m.size) == (16, 4) and chosen.split > 1

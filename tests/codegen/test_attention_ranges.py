"""Keys that a mask rules out are skipped where that cannot be seen: causal, lengths, windows."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth
from harness import run_program
from test_attention import attention_form, attention_sig, qkv
from thinned import crossed, thinned, thinned_rows

from jaxmono.codegen import attention_flash
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.attention_logits import softmax_of
from jaxmono.fusion.key_range import KeyRange, find_key_range
from jaxmono.fusion.plan import Plan
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
INT = Spec((), jnp.int32)

SCHEDULES = [AttentionSchedule(16, 16, 2, 1, "flash"), AttentionSchedule(32, 32, 3, 4, "flash"),
             AttentionSchedule(16, 16, 2, 1, "flash", 4), AttentionSchedule(64, 64, 2, 8, "wgmma"),
             AttentionSchedule(128, 32, 3, 8, "wgmma"),
             AttentionSchedule(64, 64, 3, 8, "wgmma", 2)]


def attend(mask: Any, q: Any, k: Any, v: Any, small: float = -1e38) -> Any:
    s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) / math.sqrt(q.shape[-1])
    p = jax.nn.softmax(jnp.where(mask, s, small), -1).astype(v.dtype)
    return jnp.einsum("bhmn,bhnd->bhmd", p, v)


def causal(q: Any, k: Any, v: Any, offset: int = 0, **kw: Any) -> Any:
    rows, keys = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])
    return attend(rows + offset >= keys, q, k, v, **kw)


def window(q: Any, k: Any, v: Any) -> Any:
    rows, keys = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])
    return attend((keys <= rows) & (keys > rows - 20), q, k, v)


def filled(q: Any, k: Any, v: Any, pos: Any) -> Any:
    return attend(jnp.arange(k.shape[2]) <= pos, q, k, v)


def lengths(q: Any, k: Any, v: Any, length: Any) -> Any:
    return attend(jnp.arange(k.shape[2]) < length[:, None, None, None], q, k, v, small=-jnp.inf)


def range_of(plan: Plan) -> KeyRange | None:
    sig, form = attention_sig(plan), attention_form(plan)
    softmax = softmax_of(sig.body, form)
    assert softmax is not None
    return find_key_range(sig.body, softmax, form.n)


def run(plan: Plan, s: AttentionSchedule, given: list[Any], wanted: list[Any] | None = None,
        seeds: tuple[int, ...] = (0, 1)) -> None:
    program = build(plan, {attention_sig(plan).key: s}, threads=32 * s.warps)
    if wanted is None:
        check_near(plan, program, given, 2e-2, seeds=seeds, blocks=(4,))
        return
    for seed in seeds:
        for a, b in zip(run_program(program, given, seed=seed), wanted, strict=True):
            np.testing.assert_allclose(a.astype(np.float64), b, rtol=2e-2, atol=1e-2)


@pytest.mark.sampled(3)
@crossed(("s", SCHEDULES), ("fn", [
    causal, window, functools.partial(causal, offset=-3), functools.partial(causal, offset=60),
    functools.partial(causal, offset=-130), functools.partial(causal, offset=-3, small=-math.inf)]))
def test_masks_of_positions(fn: Any, s: AttentionSchedule) -> None:
    """Also with rows that see nothing: all keys then weigh the same, or the row is NaN."""
    plan = plan_of(fn, *qkv(140, 210, 16, BF16))
    assert range_of(plan) is not None
    run(plan, s, smooth(plan.graph))


@pytest.mark.parametrize("s", thinned(SCHEDULES[3:] + SCHEDULES[:3], 6))
def test_positions_from_memory(s: AttentionSchedule) -> None:
    plan = plan_of(filled, *qkv(1, 300, 16, BF16), INT)
    assert range_of(plan) is not None
    program = build(plan, {attention_sig(plan).key: s}, threads=32 * s.warps)
    for pos in (-1, 0, 63, 64, 299, 1000):
        given = [*smooth(plan.graph)[:3], np.asarray(pos, np.int32)]
        check_near(plan, program, given, 2e-2, seeds=(0,), blocks=(4,))
    plan = plan_of(lengths, *qkv(20, 200, 16, BF16, batch=3), Spec((3,), jnp.int32))
    assert range_of(plan) is not None
    run(plan, s, [*smooth(plan.graph)[:3], np.asarray([0, 70, 200], np.int32)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", thinned(SCHEDULES, 3))
def test_skipped_keys_are_not_read(s: AttentionSchedule) -> None:
    """What lies behind the last chunk of the filled keys may be anything."""
    plan = plan_of(filled, *qkv(1, 300, 16, BF16), INT)
    given = [*smooth(plan.graph)[:3], np.asarray(60, np.int32)]
    wanted = evaluate(plan.graph, given, accumulate="f64")
    for x in given[1:3]:
        x[:, :, 64:] = np.nan
    run(plan, s, given, wanted)


def test_what_gives_no_range() -> None:
    """A padding mask beside a causal one that is finite; a mask that is not very small; a bias."""
    def padded(q: Any, k: Any, v: Any, keep: Any, small: float) -> Any:
        rows, keys = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2])
        return attend((rows >= keys) & keep[:, None, None], q, k, v, small=small)

    def plan(small: float) -> Plan:
        return plan_of(functools.partial(padded, small=small), *qkv(40, 40, 16, BF16),
                       Spec((1, 40), jnp.bool_))

    assert range_of(plan(-1e38)) is None
    assert range_of(plan(-math.inf)) is not None
    assert range_of(plan_of(functools.partial(causal, small=-5.0), *qkv(40, 40, 16, BF16))) is None
    given = smooth(plan(-1e38).graph)
    given[3][:, :17] = False  # the first rows see nothing
    run(plan(-1e38), SCHEDULES[0], given)


@pytest.mark.parametrize("s", thinned(SCHEDULES, 6))
def test_as_jax_nn_writes_it(s: AttentionSchedule) -> None:
    def fn(q: Any, k: Any, v: Any, n: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, key_value_seq_lengths=n)

    plan = plan_of(fn, Spec((2, 70, 4, 16), BF16), *[Spec((2, 70, 2, 16), BF16)] * 2,
                   Spec((2,), jnp.int32))
    found = range_of(plan)
    assert found is not None and len(found.bounds) == 2
    run(plan, s, [*smooth(plan.graph)[:3], np.asarray([9, 70], np.int32)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "heads"), thinned_rows([(200, 3), (320, 2), (64, 2), (320, 3)]))
def test_every_tile_is_computed_where_entries_stay_together(
        rows: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fold`: tiles of even and odd number, in rounds of pairs and in what is left of them."""
    monkeypatch.setattr(attention_flash, "_L2_BYTES", 0)
    plan = plan_of(causal, *qkv(rows, rows, 16, BF16, heads=heads))
    given = smooth(plan.graph)
    (wanted,) = evaluate(plan.graph, given, accumulate="f64")
    program = build(plan, {attention_sig(plan).key: AttentionSchedule(64, 64, 2, 8, "wgmma")},
                    threads=256)
    tiles = -(-rows // 64)
    assert ("fold(task" in program.source) == (tiles * heads % 2 == 0 and tiles > 1)
    for blocks in (1, 2, 3, 4, 5, 7):
        (found,) = run_program(program, given, seed=blocks, blocks=blocks)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-2, atol=1e-2)


def test_keys_of_a_tile_by_its_ends() -> None:
    """Bounds that rise from row to row are asked of two rows; others of all."""
    rising = plan_of(window, *qkv(150, 150, 16, BF16))
    empty = plan_of(functools.partial(causal, offset=-3), *qkv(150, 150, 16, BF16))
    falling = plan_of(lambda q, k, v: attend(
        150 - jnp.arange(150)[:, None] >= jnp.arange(150), q, k, v), *qkv(150, 150, 16, BF16))
    for plan, ends in ((rising, True), (empty, False), (falling, False)):
        program = build(plan, {attention_sig(plan).key: SCHEDULES[3]}, threads=256)
        assert ("const int m1" in program.source) == ends
        check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1), blocks=(3,))

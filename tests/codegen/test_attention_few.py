"""Softmax attention of at most 16 rows: schedules, masks, splits, choice, what is read when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth
from test_attention import attend, attention_form, attention_sig, qkv
from thinned import crossed, thinned, thinned_rows

from jaxmono.codegen import attention_few, cuda_target, generate
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
RTOL = {BF16: 2e-2, F16: 4e-3}
H200 = Device()


def few(chunk: int, warps: int = 4, split: int = 1, group: int = 1) -> AttentionSchedule:
    return AttentionSchedule(16, chunk, 1, warps, "few", split, group)


def run(plan: Plan, s: AttentionSchedule, given: list[Any] | None = None, *,
        rtol: float = RTOL[BF16], seeds: Sequence[int] = (0, 1),
        blocks: Sequence[int] = (3,)) -> str:
    program = build(plan, {attention_sig(plan).key: s}, threads=32 * s.warps)
    assert "FewRows<" in program.source
    check_near(plan, program, given or smooth(plan.graph), rtol, seeds=seeds, blocks=blocks)
    return program.source


# warps without keys, several fragments a warp, an odd number of k steps, shares past the last key
SCHEDULES = [few(112), few(128, 8), few(112, 1), few(64, 4, 2), few(32, 4, 4), few(64, 8, 2),
             few(48, 2, 4), few(16, 8, 8)]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("s", thinned(SCHEDULES))
@pytest.mark.parametrize("dtype", thinned([BF16, F16]))
@pytest.mark.parametrize("rows", thinned([1, 4, 9, 16]))
def test_schedules(rows: int, dtype: Any, s: AttentionSchedule) -> None:
    plan = plan_of(attend, *qkv(rows, s.chunk * s.split - 7, 16, dtype, dv=32))
    run(plan, s, rtol=RTOL[dtype], blocks=(4, 16))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("d", "dv"), thinned_rows([
    (8, 128), (200, 40), (256, 256), (80, 112), (5, 3), (24, 208), (64, 24)]))
@pytest.mark.parametrize("s", thinned([few(48, 8, 2), few(80)]))
def test_widths(d: int, dv: int, s: AttentionSchedule) -> None:
    plan = plan_of(attend, *qkv(3, 72, d, BF16, dv=dv))
    run(plan, s, smooth(plan.graph, scale=0.5))


def filled(q: Any, k: Any, v: Any, pos: Any, small: float = -1e38) -> Any:
    keep = jnp.arange(k.shape[2]) <= pos
    s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) / math.sqrt(q.shape[-1])
    p = jax.nn.softmax(jnp.where(keep, s, small), -1).astype(v.dtype)
    return jnp.einsum("bhmn,bhnd->bhmd", p, v)


@pytest.mark.sampled(7)
@crossed(("small", [-1e38, -math.inf, 0.25]),
         (("eager", "s"), [(e, s) for s in (few(32, 4, 4), few(112)) for e in (True, False)]))
def test_caches(s: AttentionSchedule, eager: bool, small: float,
                monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions in memory; -1: all keys weigh the same, or the row is NaN. Blocks without keys."""
    if not eager:
        monkeypatch.setattr(attention_few, "_EAGER_BYTES", 0)
    plan = plan_of(lambda *x: filled(*x, small=small), *qkv(2, 100, 16, BF16), Spec((), jnp.int32))
    program = build(plan, {attention_sig(plan).key: s})
    # A mask that is not far below all scores hides no keys; a task with all keys sees some.
    late = not eager and small < 0 and s.split > 1
    assert ("rows.nothing()" in program.source) is late
    for pos in (-1, 0, 31, 32, 99):
        given = smooth(plan.graph)
        given[3] = np.asarray(pos, np.int32)
        check_near(plan, program, given, RTOL[BF16], seeds=(0, 1), blocks=(3,))


def test_rows_that_see_nothing() -> None:
    """Any mask, and rows of every kind in one tile: NaN where nothing counts."""
    def fn(q: Any, k: Any, v: Any, keep: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32)
        p = jax.nn.softmax(jnp.where(keep, s, -jnp.inf), -1).astype(v.dtype)
        return jnp.einsum("bhmn,bhnd->bhmd", p, v)

    plan = plan_of(fn, *qkv(6, 120, 16, BF16), Spec((6, 120), jnp.bool_))
    given = smooth(plan.graph)
    given[3][:] = False
    for row in range(5):
        given[3][row, row * 24] = True
    for s in (few(128, 2), few(64, 4, 2), few(16, 2, 8)):
        run(plan, s, given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", [few(112), few(64, 4, 2)])
def test_nan_and_infinity(s: AttentionSchedule) -> None:
    plan = plan_of(attend, *qkv(7, 100, 16, BF16))
    given = smooth(plan.graph)
    given[0][0, 0, 3, 5] = np.nan
    given[0][0, 1, 6, 0] = np.inf
    given[1][0, 0, 70, :] = -np.inf
    given[2][0, 1, 99, 2] = np.inf
    run(plan, s, given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keys", [66, 67])
def test_biases_factors_and_odd_keys(keys: int) -> None:
    """Logits that are no multiple of the scores, weights that are multiplied."""
    def fn(q: Any, k: Any, v: Any, bias: Any, drop: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * 0.25
        p = jax.nn.softmax(jnp.tanh(s + bias) * 5, -1) * drop
        return jnp.einsum("bhmn,bhnd->bhmd", p.astype(v.dtype), v)

    plan = plan_of(fn, *qkv(5, keys, 16, BF16, batch=2), Spec((2, 1, 5, keys), F32),
                   Spec((2, 1, 5, keys), F32))
    for s in (few(80), few(64, 4, 2)):
        run(plan, s)


def test_layouts_rotations_and_groups() -> None:
    """Keys [d][key], values [dv][key], computed queries and keys, heads that share keys as rows."""
    def fn(q: Any, k: Any, v: Any, angle: Any) -> Any:
        left, right = q[..., :8], q[..., 8:]
        q = jnp.concatenate([left * angle - right, right * angle + left], -1).astype(BF16)
        s = jnp.einsum("hmd,hdn->hmn", q, k * 2).astype(F32) / 4
        return jnp.einsum("hmn,hdn->hmd", jax.nn.softmax(s, -1).astype(BF16), v)

    plan = plan_of(fn, Spec((3, 2, 16), BF16), Spec((3, 16, 64), BF16), Spec((3, 24, 64), BF16),
                   Spec((8,), F32))
    for s in (few(64), few(32, 4, 2)):
        run(plan, s)

    def repeated(q: Any, k: Any, v: Any) -> Any:
        return attend(q, jnp.repeat(k, 3, 1), jnp.repeat(v, 3, 1))

    plan = plan_of(repeated, *qkv(2, 40, 16, BF16, heads=6)[:1], *qkv(2, 40, 16, BF16)[1:])
    for s in (few(48, group=3), few(32, 4, 2, 3)):
        run(plan, s)


def test_a_cache_that_is_written_in_the_launch() -> None:
    """The row of this step is stored by a stage before, behind which the cache was asked for."""
    def fn(x: Any, w: Any, k: Any, v: Any, pos: Any) -> Any:
        new = (x @ w).reshape(1, 2, 1, 16)
        k = jax.lax.dynamic_update_slice(k, new, (0, 0, pos, 0))
        v = jax.lax.dynamic_update_slice(v, new * 2, (0, 0, pos, 0))
        return filled(new, k, v, pos), k, v

    plan = plan_of(fn, Spec((1, 32), BF16), Spec((32, 32), BF16), *qkv(1, 100, 16, BF16)[1:],
                   Spec((), jnp.int32))
    given = smooth(plan.graph, scale=0.5)
    given[4] = np.asarray(70, np.int32)
    for s in (few(112), few(32, 4, 4)):
        text = run(plan, s, given, seeds=range(4), blocks=(4,))
        assert text.count("_prefetch(") >= 2
        assert "prefetch_l2(" in text


# ---- choice --------------------------------------------------------------------------------------


def test_every_candidate_fits_and_has_keys() -> None:
    for rows, n, d in ((1, 128, 64), (4, 2048, 128), (16, 333, 256), (8, 9000, 64)):
        form = attention_form(plan_of(attend, *qkv(rows, n, d, BF16), device=H200))
        found = list(attention_few.candidates(form, warps=8, shared_bytes=H200.shared_bytes))
        assert found
        for s in found:
            assert attention_few.shared_bytes_of(form, s) <= H200.shared_bytes
            assert (s.split - 1) * s.chunk < n <= s.split * s.chunk


# batch, heads, rows, keys, width: llama (4 query heads a key head: rows), gptj, gpt2, long caches
DECODE = [(1, 8, 4, 128, 64), (16, 8, 4, 128, 64), (1, 16, 1, 128, 256), (1, 12, 1, 128, 64),
          (1, 12, 1, 2048, 64), (2, 8, 16, 1000, 128)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", thinned(DECODE))
def test_decode_steps_choose_it_without_spills(shape: tuple[int, ...]) -> None:
    batch, heads, rows, keys, d = shape
    plan = plan_of(filled, *qkv(rows, keys, d, BF16, batch=batch, heads=heads),
                   Spec((), jnp.int32), device=H200)
    schedule = default_schedule(plan, cuda_target("sm_90a"), H200)
    (chosen,) = schedule.sigs.values()
    assert chosen.family == "few"
    assert chosen.split > 1 or keys * d <= 128 * 64
    program = generate(plan, cuda_target("sm_90a"), H200, "test")
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0


def test_more_rows_or_no_softmax_go_elsewhere() -> None:
    plan = plan_of(attend, *qkv(17, 64, 16, BF16), device=H200)
    assert attention_few.schedule(attention_sig(plan), H200, warps=8, shared_bytes=200000) is None
    plan = plan_of(attend, *qkv(2, 64, 16, F32), device=H200)
    assert attention_few.schedule(attention_sig(plan), H200, warps=8, shared_bytes=200000) is None

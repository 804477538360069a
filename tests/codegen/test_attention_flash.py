"""Softmax attention with its scores in registers: schedules, splits, masks, long rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth
from harness import run_program
from test_attention import attend, attention_form, attention_sig, qkv
from thinned import thinned, thinned_rows

from jaxmono.codegen import attention_flash, attention_logits, cuda_target, generate
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import AttentionForm, Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
RTOL = {BF16: 2e-2, F16: 4e-3}
H200 = Device()


def flash(bq: int, chunk: int, stages: int, warps: int = 4, split: int = 1) -> AttentionSchedule:
    return AttentionSchedule(bq, chunk, stages, warps, "flash", split)


def run(plan: Plan, s: AttentionSchedule | None, given: list[Any] | None = None, *,
        rtol: float = RTOL[BF16], seeds: Sequence[int] = (0, 1),
        blocks: Sequence[int] = (3,)) -> None:
    sigs = {attention_sig(plan).key: s} if s is not None else None
    program = build(plan, sigs, threads=32 * s.warps if s is not None else 128)
    assert "FlashAttention" in program.source
    check_near(plan, program, given or smooth(plan.graph), rtol, seeds=seeds, blocks=blocks)


SCHEDULES = [
    flash(16, 16, 2, 1), flash(16, 64, 2), flash(16, 128, 1), flash(32, 32, 3), flash(64, 16, 2),
    flash(64, 112, 1), flash(64, 128, 1, 8), flash(32, 64, 2, 8), flash(16, 64, 2, 2),
    flash(16, 16, 2, 1, split=4), flash(16, 64, 1, 4, split=2), flash(32, 32, 2, split=2),
    flash(64, 16, 2, split=2), flash(64, 32, 2, 8, split=4)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", thinned(SCHEDULES, 3))
@pytest.mark.parametrize("dtype", thinned([BF16, F16]))
def test_schedules(s: AttentionSchedule, dtype: Any) -> None:
    """Chunks that do not divide the keys, warps and blocks that share rows, tiles past the end."""
    run(plan_of(attend, *qkv(70, 100, 16, dtype, dv=32)), s, rtol=RTOL[dtype], blocks=(4, 5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("d", "dv"), thinned_rows(
    [(8, 128), (80, 112), (200, 40), (24, 208), (256, 256)]))
def test_widths(d: int, dv: int) -> None:
    plan = plan_of(attend, *qkv(20, 72, d, BF16, dv=dv))
    run(plan, flash(16, 32, 2, 2), smooth(plan.graph, scale=0.5))


def test_more_keys_than_fit() -> None:
    """Rows of scores that no shared memory could hold."""
    plan = plan_of(attend, *qkv(3, 5000, 16, BF16))
    run(plan, None, seeds=(0,))


def masked(mask: Any, q: Any, k: Any, v: Any) -> Any:
    s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) / math.sqrt(q.shape[-1])
    p = jax.nn.softmax(jnp.where(mask, s, -jnp.inf), -1).astype(v.dtype)
    return jnp.einsum("bhmn,bhnd->bhmd", p, v)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("s", [flash(16, 16, 2, 1), flash(16, 64, 2), flash(16, 16, 2, 1, split=4),
                               flash(32, 32, 2, split=2)])
def test_rows_that_see_nothing_and_rows_that_begin_late(s: AttentionSchedule) -> None:
    """Chunks without any key that counts, before and behind those with some; whole rows of them."""
    plan = plan_of(lambda keep, q, k, v: masked(keep[None, None], q, k, v),
                   Spec((40, 96), jnp.bool_), *qkv(40, 96, 16, BF16))
    given = smooth(plan.graph)
    given[0][:] = False
    for row in range(40):
        given[0][row, (row * 7) % 96] = True
    given[0][5] = given[0][39] = False
    run(plan, s, given, blocks=(4,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", [flash(16, 16, 2, 1), flash(16, 64, 1, 4, split=2)])
def test_nan_and_infinity(s: AttentionSchedule) -> None:
    """They reach exactly the rows that they reach in the program."""
    plan = plan_of(attend, *qkv(20, 100, 16, BF16))
    given = smooth(plan.graph)
    given[0][0, 0, 3, 5] = np.nan
    given[0][0, 1, 19, 0] = np.inf
    given[1][0, 0, 70, :] = -np.inf  # a NaN, inf or -inf score, by the signs of the query
    given[2][0, 1, 99, 2] = np.inf
    run(plan, s, given, blocks=(4,))


def test_large_logits() -> None:
    """Maxima that grow from chunk to chunk, and a finite mask near the end of the range."""
    def fn(q: Any, k: Any, v: Any, keep: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * jnp.arange(90) * 3
        p = jax.nn.softmax(jnp.where(keep, s, jnp.finfo(F32).min), -1).astype(v.dtype)
        return jnp.einsum("bhmn,bhnd->bhmd", p, v)

    plan = plan_of(fn, *qkv(20, 90, 16, BF16), Spec((20, 90), jnp.bool_))
    given = smooth(plan.graph)
    given[3][7] = False
    for s in (flash(16, 16, 2, 1), flash(16, 16, 2, 1, split=2)):
        run(plan, s, given, rtol=4e-2)


def test_biases_and_odd_keys() -> None:
    """Logits that depend on everything, with and without pairs of neighbours."""
    for keys in (66, 67):
        def fn(q: Any, k: Any, v: Any, bias: Any, slope: Any, keep: Any) -> Any:
            s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * 0.25
            s = s + bias.astype(F32) + slope[:, None, None] * jnp.arange(k.shape[2])
            s = jnp.where(keep[:, None, None] > 0, jnp.tanh(s / 5) * 5, -1e9)
            return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(v.dtype), v)

        plan = plan_of(fn, *qkv(21, keys, 16, BF16, batch=2), Spec((2, 21, keys), BF16),
                       Spec((2,), F32), Spec((2, keys), jnp.int32))
        given = smooth(plan.graph)
        given[5][:, 3] = 1
        run(plan, flash(16, 32, 2, 2), given)


def test_no_less_accurate_than_the_program() -> None:
    """Against f64: weights are rounded before the division instead of behind it."""
    plan = plan_of(attend, *qkv(64, 384, 64, BF16))
    given = smooth(plan.graph)

    def reference(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("bhmd,bhnd->bhmn", q.astype(F32), k.astype(F32)) / math.sqrt(64)
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1), v.astype(F32))

    exact = np.asarray(reference(*map(jnp.asarray, given)), np.float64)
    xla = np.asarray(jax.jit(attend)(*map(jnp.asarray, given)), np.float64)
    error = np.linalg.norm(xla - exact)
    for s in (flash(64, 128, 2, 8), flash(16, 64, 2), flash(16, 64, 2, split=4)):
        program = build(plan, {attention_sig(plan).key: s}, threads=32 * s.warps)
        (found,) = run_program(program, given)
        assert np.linalg.norm(found.astype(np.float64) - exact) <= 1.05 * error


def test_what_is_not_a_softmax_keeps_its_scores() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("md,nd->mn", q, k).astype(F32)
        p = jnp.exp(s - s.mean(-1, keepdims=True)) / (1 + jnp.abs(s).max(-1, keepdims=True))
        return p.astype(v.dtype) @ v

    plan = plan_of(fn, Spec((20, 16), BF16), Spec((40, 16), BF16), Spec((40, 16), BF16))
    sig = attention_sig(plan)
    assert attention_logits.softmax_of(sig.body, attention_form(plan)) is None
    assert "FlashAttention<" not in build(plan).source


# ---- choice --------------------------------------------------------------------------------------


SHAPES = [(16, 12, 128, 128, 64), (1, 12, 128, 128, 64), (1, 12, 512, 512, 64),
          (1, 12, 2048, 2048, 64), (1, 32, 8192, 8192, 128), (1, 4, 100, 333, 80),
          (1, 8, 1024, 1024, 256), (1, 12, 1, 2048, 64), (2, 2, 7, 16, 8)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", thinned(SHAPES, 4))
@pytest.mark.parametrize("arch", thinned(["sm_80", "sm_90"]))
def test_chosen_schedules_compile_without_spills(shape: tuple[int, ...], arch: str) -> None:
    batch, heads, m, n, d = shape
    plan = plan_of(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=m > 1),
                   *[Spec((batch, x, heads, d), BF16) for x in (m, n, n)], device=H200)
    program = generate(plan, cuda_target(arch), H200, "test")
    assert ("FewRows<" if m <= 16 else "FlashAttention<") in program.source
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0


def test_every_candidate_fits_and_few_queries_are_split() -> None:
    plan = plan_of(attend, *qkv(1, 2048, 64, BF16, heads=12), device=H200)
    form = attention_form(plan)
    assert isinstance(form, AttentionForm)
    for s in attention_flash.candidates(form, warps=8, shared_bytes=H200.shared_bytes):
        assert attention_flash.shared_bytes_of(form, s) <= H200.shared_bytes
    schedule = default_schedule(plan, cuda_target("sm_90a"), H200)
    (chosen,) = schedule.sigs.values()
    assert chosen.split >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kib", thinned([99, 227, 163], 3))
def test_what_the_planner_accepts_has_a_schedule(kib: int) -> None:
    rng = np.random.default_rng(kib)
    device = Device(shared_bytes=kib * 1024)
    accepted = 0
    for _ in range(20):
        d, dv = int(rng.integers(1, 257)), int(rng.integers(1, 257))
        plan = plan_of(attend, *qkv(40, 9000, d, BF16, dv=dv), device=device)
        for warps in (4, 8):
            for sig in plan.sigs:
                if sig.kind == "attention":
                    s = attention_flash.schedule(sig, device, warps=warps,
                                                 shared_bytes=device.shared_bytes)
                    assert s is not None, f"heads of {d} and {dv}"
                    accepted += 1
    assert accepted >= 10

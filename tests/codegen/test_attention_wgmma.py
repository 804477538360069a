"""Softmax attention on wgmma with producer warps: schedules, stages around it, lost waits."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_attention
from contraction_harness import build, check_near, dot_sigs, plan_of, smooth
from lost_waits import Case, failure, own_text, removed
from test_attention import attention_sig, qkv
from test_attention_flash import masked
from thinned import thinned, thinned_rows

from jaxmono.codegen import attention_wgmma, cuda_target, generate, headers, nvrtc
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.attention_cost import keys_of
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
RTOL = {BF16: 2e-2, F16: 4e-3}
H200 = Device()
attend = functools.partial(test_attention.attend, scores=F32)  # as models ask for them


def wgmma(bq: int, chunk: int, slots: int, split: int = 1) -> AttentionSchedule:
    return AttentionSchedule(bq, chunk, slots, 8, "wgmma", split)


def run(plan: Plan, s: AttentionSchedule, given: list[Any] | None = None, *,
        rtol: float = RTOL[BF16], seeds: Sequence[int] = (0, 1, 2),
        blocks: Sequence[int] = (3,), dots: DotSchedule | None = None) -> None:
    sigs: dict[str, Any] = {x.key: s for x in plan.sigs if x.kind == "attention"}
    sigs |= {x.key: dots for x in dot_sigs(plan) if dots is not None}
    program = build(plan, sigs, threads=256)
    assert program.threads == 384 and "FlashWgmma<" in program.source
    check_near(plan, program, given or smooth(plan.graph), rtol, seeds=seeds, blocks=blocks)


SCHEDULES = [wgmma(64, 64, 2), wgmma(64, 128, 5), wgmma(64, 256, 2), wgmma(128, 32, 3),
             wgmma(128, 128, 4), wgmma(64, 64, 3, split=4), wgmma(128, 64, 2, split=2)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", thinned(SCHEDULES))
@pytest.mark.parametrize("dtype", thinned([BF16, F16]))
def test_schedules(s: AttentionSchedule, dtype: Any) -> None:
    """Rings of two tiles and of many, tiles past the end, warpgroups and blocks that share rows."""
    run(plan_of(attend, *qkv(150, 300, 24, dtype, dv=40)), s, rtol=RTOL[dtype], blocks=(4, 5))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keys", [65, 77, 80])
def test_a_text_of_one_chunk(keys: int) -> None:
    """As many queries read as many keys: CLIP's."""
    plan = plan_of(attend, *qkv(150, keys, 40, BF16), device=H200)
    run(plan, wgmma(128, 80, 2), seeds=(0, 1))
    code = attention_wgmma.candidates(attention_sig(plan), attention_sig(plan).form,
                                      shared_bytes=H200.shared_bytes)
    assert any(s.chunk == 80 for s in code)


def test_other_lengths_have_no_such_chunk() -> None:
    for keys in (64, 81, 160):
        sig = attention_sig(plan_of(attend, *qkv(150, keys, 40, BF16), device=H200))
        assert all(s.chunk != 80 for s in attention_wgmma.candidates(
            sig, sig.form, shared_bytes=H200.shared_bytes))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", thinned(["bhmd", "bmhd", "bhdm", "mbhd", "dbhm"]))
@pytest.mark.parametrize("s", thinned([wgmma(64, 128, 3), wgmma(128, 64, 3)]))
def test_layouts(layout: str, s: AttentionSchedule) -> None:
    """Queries, keys and values along d or along positions."""
    run(plan_of(lambda q, k, v: attend(q, k, v, layout=layout),
                *qkv(72, 200, 64, BF16, layout=layout)), s, seeds=(0, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("d", "dv"), thinned_rows(
    [(16, 128), (128, 128), (72, 80), (64, 208), (256, 256)]))
def test_widths(d: int, dv: int) -> None:
    plan = plan_of(attend, *qkv(100, 136, d, BF16, dv=dv))
    run(plan, wgmma(128, 32, 2), smooth(plan.graph, scale=0.5), seeds=(0, 1))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", [wgmma(64, 64, 2), wgmma(128, 64, 3), wgmma(64, 64, 2, split=2)])
def test_rows_that_see_nothing_and_rows_that_begin_late(s: AttentionSchedule) -> None:
    plan = plan_of(lambda keep, q, k, v: masked(keep[None, None], q, k, v),
                   Spec((140, 200), jnp.bool_), *qkv(140, 200, 16, BF16))
    given = smooth(plan.graph)
    given[0][:] = False
    for row in range(140):
        given[0][row, (row * 7) % 200] = True
    given[0][5] = given[0][139] = False
    run(plan, s, given, blocks=(4,), seeds=(0, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("slope", "d"), thinned_rows(
    [(0.3, 24), (0.02, 24), (0.3, 80), (40.0, 80), (0.02, 80), (40.0, 24)], 3))
def test_maxima_that_grow(slope: float, d: int) -> None:
    """By less and by more than weights have room for, and past what one multiply-add can subtract;
    from below zero, where floats are not in the order of their bits. Rows of a warp differ."""
    def fn(q: Any, k: Any, v: Any) -> Any:
        rows, keys = jnp.arange(130) % 3, jnp.arange(300)
        s = jnp.einsum("bhmd,bhnd->bhmn", q, k).astype(F32) * 0.25
        s = s + slope * (keys - 150 * rows[:, None] + 40)
        return jnp.einsum("bhmn,bhnd->bhmd", jax.nn.softmax(s, -1).astype(v.dtype), v)

    plan = plan_of(fn, *qkv(130, 300, d, BF16))
    for s in (wgmma(64, 64, 2), wgmma(128, 64, 3)):
        run(plan, s, rtol=4e-2)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("slope", "dtype"), thinned_rows(
    [(0.4, F16), (0.02, BF16), (40.0, F16), (40.0, BF16), (0.02, F16), (3.0, BF16)], 3))
def test_scores_that_grow(slope: float, dtype: Any) -> None:
    """Where logits are scores, weights are made before anybody compares these with the maximum:
    past what f16 and f32 hold, and past what one multiply-add can subtract. Rows of a warp differ;
    chunks are odd and even in number."""
    plan = plan_of(attend, *qkv(130, 300, 24, dtype))
    given = smooth(plan.graph)
    given[0][..., 0] = np.resize([1.0, 0.25, -1.0], 130)
    given[1][..., 0] = slope * (np.arange(300) - 40)
    for s in (wgmma(64, 64, 2), wgmma(128, 32, 3)):
        run(plan, s, given, rtol=4e-2)


@pytest.mark.parametrize("d", thinned([24, 80]))
def test_nan_and_infinity(d: int) -> None:
    """They reach exactly the rows that they reach in the program, in the first chunk and later."""
    plan = plan_of(attend, *qkv(130, 640, d, BF16))
    given = smooth(plan.graph)
    given[0][0, 0, 3, 5] = np.nan
    given[0][0, 1, 79, 0] = np.inf
    given[1][0, 0, 470, :] = -np.inf  # a NaN, inf or -inf score, by the signs of the query
    given[2][0, 1, 599, 2] = np.inf
    for s in (wgmma(64, 64, 2), wgmma(128, 64, 3)):
        run(plan, s, given)


def layer(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    def heads(w: Any) -> Any:
        return (x @ w).reshape(2, -1, 2, 16)

    s = jnp.einsum("bmhd,bnhd->bhmn", heads(wq), heads(wk)).astype(F32) / 4
    y = jnp.einsum("bhmn,bnhd->bmhd", jax.nn.softmax(s, -1).astype(BF16), heads(wv))
    return y.reshape(x.shape) @ wo


@pytest.mark.parametrize("slots", thinned([16, 3]))
def test_between_products(slots: int) -> None:
    """Projections before and behind, in rings of their own; with 16 slots also that of the queries'
    barriers. Twice, so that phases of the second round are not those of the first."""
    def fn(x: Any, *w: Any) -> Any:
        return layer(layer(x, *w), *w)

    plan = plan_of(fn, Spec((2, 40, 32), BF16), *[Spec((32, 32), BF16)] * 4)
    given = smooth(plan.graph, scale=0.4)
    dots = DotSchedule("wgmma", 64, 16, 64, slots, (1, 1, 2))
    run(plan, wgmma(64, 64, 3), given, rtol=6e-2, dots=dots, seeds=(0, 1, 2, 3))
    run(plan, wgmma(128, 64, 2), given, rtol=6e-2, seeds=(0, 1))


def test_unlike_attentions_in_a_stage() -> None:
    """Tasks with other rings side by side, one of them without producers."""
    def fn(*xs: Any) -> Any:
        return tuple(attend(*xs[i:i + 3]) for i in range(0, 9, 3))

    args = [Spec((1, 3, n, d), BF16) for n, d in ((70, 16), (130, 32), (40, 16)) for _ in range(3)]
    plan = plan_of(fn, *args)
    first, second, third = plan.sigs
    sigs = {first.key: wgmma(64, 64, 3), second.key: wgmma(128, 64, 2),
            third.key: AttentionSchedule(32, 64, 2, 8, "flash")}
    program = build(plan, sigs, threads=256)
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2), blocks=(2, 3))


# ---- every wait matters --------------------------------------------------------------------------


@functools.cache
def case(slots: int, hides: bool) -> Case:
    """Of five chunks of keys; with four slots, of heads too wide for exponentials in between."""
    def fn(q: Any, k: Any, v: Any) -> Any:
        i, j = jnp.indices((130, 300))
        return attend(q, k, v, i * 2 + j * 3 != 64 if hides else None)

    plan = plan_of(fn, *qkv(130, 300, 80 if slots == 4 else 32, BF16, heads=3))
    return Case(plan, {attention_sig(plan).key: wgmma(64, 64, slots)}, smooth(plan.graph), 0.04,
                threads=256)


CASES = ((2, False), (3, False), (4, False), (3, True))


STATEMENT = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_mbarrier_arrive"
                       r"|wgmma_fence|wgmma_commit|wgmma_wait<0>)\([^;{}]*\);")


def statements() -> list[Any]:
    """Waits and arrivals of the header, and the fences of its accumulators; not the second
    warpgroup's wait for its turn, which is for the time it saves."""
    found = enumerate(STATEMENT.finditer(own_text("attention_wgmma.cuh")))
    return [pytest.param(i, id=f"{i}-{m[0]}") for i, m in found
            if "mbarrier_wait(&roles->turn" not in m[0]]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("number", thinned(statements(), 4))
def test_every_wait_matters(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = removed("attention_wgmma.cuh", STATEMENT, number)
    # With less than four slots the next task's first keys wait for the last ones of this, and so
    # for what needs the queries.
    assert any(failure(case(*c), monkeypatch, changed) for c in CASES)


@pytest.mark.slow
def test_nothing_fails_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for c in CASES:
        assert failure(case(*c), monkeypatch, lambda text: text) == ""


# ---- choice --------------------------------------------------------------------------------------


SHAPES = [(16, 12, 128, 128, 64), (1, 12, 2048, 2048, 64), (1, 32, 8192, 8192, 128),
          (1, 8, 1024, 1024, 192), (16, 12, 512, 512, 80), (16, 8, 512, 512, 192)]


@pytest.mark.parametrize("shape", thinned(SHAPES, 6))
def test_candidates_compile_for_hopper(shape: tuple[int, ...]) -> None:
    """The choice and the one with most registers: no spills, no products one after the other."""
    batch, heads, m, n, d = shape
    plan = plan_of(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
                   *[Spec((batch, x, heads, d), BF16) for x in (m, n, n)], device=H200)
    sig = attention_sig(plan)
    target = cuda_target("sm_90a")
    found = attention_wgmma.schedule(sig, H200, shared_bytes=H200.shared_bytes)
    assert found is not None
    chosen = found[1]
    assert d == 256 or chosen in default_schedule(plan, target, H200).sigs.values()
    form: Any = sig.form
    every = list(attention_wgmma.candidates(sig, form, shared_bytes=H200.shared_bytes))
    assert chosen in every
    keys = keys_of(sig.body, form)
    most = max(every, key=lambda s: attention_wgmma.registers(form, s, keys))
    for s in {chosen, most}:
        schedule = default_schedule(plan, target, H200)
        kernel = emit(plan, target, H200, "test",
                      type(schedule)(schedule.threads, 1, {sig.key: s}))
        binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
        assert binary.spill_stores == binary.spill_loads == 0, s
        assert not re.search(r"C75\d\d", binary.log), binary.log
        assert kernel.shared_bytes <= H200.shared_bytes


def test_one_query_is_left_to_the_other_family() -> None:
    plan = plan_of(attend, *qkv(1, 2048, 64, BF16, heads=12), device=H200)
    (chosen,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
    assert chosen.family == "few"
    assert math.prod((chosen.split, chosen.chunk)) >= 1024
    program = generate(plan, cuda_target("sm_90a"), H200, "test")
    assert program.min_blocks == 1  # of few rows: the last share waits for tasks in front


@pytest.mark.slow
def test_functions_with_several_calls_keep_their_products_overlapped() -> None:
    """ptxas serialises every wgmma of a function that is called instead of inlined."""
    def fn(x: Any, *w: Any) -> Any:
        for _ in range(2):
            for _ in range(4):
                x = layer(x, *w)
            x = jnp.tanh(x)
        return x

    plan = plan_of(fn, Spec((2, 512, 32), BF16), *[Spec((32, 32), BF16)] * 4, device=H200)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    dots = {x.key: DotSchedule("wgmma", 64, 16, 64, 3, (1, 1, 2)) for x in dot_sigs(plan)}
    sigs = {**schedule.sigs, **dots}
    sigs |= {x.key: wgmma(64, 64, 3) for x in plan.sigs if x.kind == "attention"}
    kernel = emit(plan, target, H200, "test", type(schedule)(schedule.threads, 1, sigs))
    assert re.search(r"JM_CALLED Place \w+_load\(", kernel.source)
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log

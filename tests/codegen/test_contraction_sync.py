"""Every barrier and wait of the contractions matters: without it some thread order goes wrong.

A test removes one statement from the text of a kernel and runs many thread orders (seeds of the
emulator) until a result is wrong or the emulator reports an error. So the emulator would show it
if the generator lost a barrier, and no barrier is there for nothing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lost_waits
import numpy as np
import pytest
from contraction_harness import build, dot_sigs, plan_of, small_integers, smooth, with_dots
from harness import run_program
from lost_waits import Case, Change, failure, own_text, rewritten
from thinned import thinned

from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.fusion.plan import AttentionForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
SYNC = re.compile(r"(?:if constexpr \([^;{}]*\) )?(?:(?:syncthreads|syncwarp)\(\)"
                  r"|cp_async_wait<[^;]*>\(\)|group_barrier<SPLIT>\(arrivals\));")


def case_of(plan: Plan, sigs: dict[str, Any], given: list[Any], rtol: float = 0) -> Case:
    return Case(plan, sigs, given, rtol, seeds=24, blocks=(4, 5))


@functools.cache
def gemm() -> Case:
    """Several tiles a block, a ring shorter than k, two k warps, a stage behind a barrier."""
    plan = plan_of(lambda x, w, u: jnp.clip(x @ w, -2, 2) @ u, Spec((70, 320), BF16),
                   Spec((320, 64), BF16), Spec((64, 24), BF16))
    s = DotSchedule("mma", 32, 24, 64, 2, (1, 1, 4))
    return case_of(plan, with_dots(plan, s), small_integers(plan.graph))


@functools.cache
def bytes_() -> Case:
    """`gemm` of 8-bit integers and floats, rounded again between them."""
    def fn(x: Any, w: Any, u: Any) -> Any:
        y = jnp.clip(jnp.dot(x, w, preferred_element_type=jnp.int32), -2, 2)
        return jnp.dot(y.astype(jnp.float8_e4m3fn), u, preferred_element_type=F32)

    plan = plan_of(fn, Spec((70, 640), jnp.int8), Spec((640, 64), jnp.int8),
                   Spec((64, 32), jnp.float8_e5m2))
    s = DotSchedule("mma", 32, 32, 128, 2, (1, 1, 4))
    return case_of(plan, with_dots(plan, s), small_integers(plan.graph))


@functools.cache
def split_k() -> Case:
    """Of integers, whose sums a counter tells of."""
    plan = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=jnp.int32),
                   Spec((50, 1024), jnp.int8), Spec((1024, 48), jnp.int8))
    s = DotSchedule("mma", 32, 32, 128, 2, (1, 1, 4), 4)
    return case_of(plan, with_dots(plan, s), small_integers(plan.graph, high=1))


@functools.cache
def large_split_k() -> Case:
    """Of more sums than are mailed."""
    plan = plan_of(lambda x, w: x @ w, Spec((100, 512), BF16), Spec((512, 100), BF16))
    s = DotSchedule("mma", 64, 96, 64, 2, (2, 1, 2), 4)
    return case_of(plan, with_dots(plan, s), small_integers(plan.graph, high=1))


@functools.cache
def mailed() -> Case:
    """Sums that are mailed, by blocks that finish rows each and by streams of weights, several
    times through the same words: one Sig in three stages, one in two."""
    def fn(x: Any, y: Any, *weights: Any) -> Any:
        for w in weights[:3]:
            x = jnp.clip(x @ w, -1, 1)
        for w in weights[3:]:
            y = jnp.clip(y @ w, -1, 1)
        return x, y

    plan = plan_of(fn, Spec((50, 512), BF16), Spec((2, 640), BF16),
                   *[Spec((512, 512), BF16)] * 3, *[Spec((640, 640), BF16)] * 2)
    assert len(dot_sigs(plan)) == 2
    wide, few = DotSchedule("mma", 32, 64, 64, 2, (1, 1, 4), 4), DotSchedule(
        "gemv", 2, 64, 64, 2, (1, 1, 4), 4)
    return case_of(plan, {s.key: few if s.body.inputs[0].type.dims[0] == 2 else wide
                          for s in dot_sigs(plan)}, small_integers(plan.graph, high=1))


@functools.cache
def stream() -> Case:
    """Rings shorter than the stream, shares of k, several tiles a block, a stage behind a barrier;
    weights [k][n], in whole rows of a warp, dealt to the block, on tensor cores, and [n][k]."""
    def fn(x: Any, w: Any, v: Any, u: Any, t: Any) -> Any:
        y = jnp.clip(jnp.dot(x, w, preferred_element_type=F32), -2, 2).astype(BF16)
        return (jnp.einsum("mk,nk->mn", y, v), jnp.dot(x, u, preferred_element_type=F32),
                jnp.dot(x, t, preferred_element_type=F32))

    plan = plan_of(fn, Spec((3, 600), BF16), Spec((600, 48), BF16), Spec((40, 48), BF16),
                   Spec((600, 1056), BF16), Spec((600, 512), BF16))
    a, b, d, c = sorted(dot_sigs(plan), key=lambda s: s.body.inputs[-1].type.size)
    sigs = {a.key: DotSchedule("gemv", 3, 12, 64, 2, (1, 4, 1)),
            b.key: DotSchedule("gemv", 3, 8, 64, 2, (1, 1, 4)),
            d.key: DotSchedule("gemv", 3, 128, 64, 2, (1, 1, 4)),
            c.key: DotSchedule("gemv", 3, 88, 64, 2, (1, 1, 4), 4)}
    return case_of(plan, sigs, small_integers(plan.graph, high=1))


@functools.cache
def decode() -> Case:
    """Layers with flags on values in place of barriers, whose streams fit the ring: weights held in
    registers while x comes; few rows, whose sums are dealt to lanes. A stream that does not fit."""
    def fn(x: Any, q: Any, u: Any, *weights: Any) -> Any:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            h = jnp.clip(jnp.einsum("mk,kn->mn", x, w, preferred_element_type=F32), -2, 2)
            y = jnp.einsum("mk,kn->mn", h.astype(BF16), v, preferred_element_type=F32)
            x = jnp.clip(x + y, -3, 3).astype(BF16)
        return x, jnp.dot(q, u, preferred_element_type=F32)

    plan = plan_of(fn, Spec((2, 64), BF16), Spec((2, 1100), BF16), Spec((1100, 48), BF16),
                   *[Spec((64, 160), BF16), Spec((160, 64), BF16)] * 3)
    return case_of(plan, {s.key: DotSchedule("gemv", 2, 16, 64, 2, (1, 1, 4))
                          for s in dot_sigs(plan)}, small_integers(plan.graph, high=1))


@functools.cache
def simt() -> Case:
    plan = plan_of(lambda x, w: jnp.dot(x, w, precision="highest"), Spec((70, 50), F32),
                   Spec((50, 90), F32))
    return case_of(plan, with_dots(plan, DotSchedule("simt", 64, 64, 16, 1, (1, 1, 1))),
                   small_integers(plan.graph))


@functools.cache
def fma() -> Case:
    """As `gemm`, with one set of fragments."""
    plan = plan_of(lambda x, w, u: jnp.dot(jnp.clip(jnp.dot(x, w, precision="highest"), -2, 2), u,
                                           precision="highest"),
                   Spec((70, 320), F32), Spec((320, 64), F32), Spec((64, 40), F32))
    s = DotSchedule("fma", 64, 64, 16, 2, (1, 1, 4))
    return case_of(plan, with_dots(plan, s), small_integers(plan.graph))


@functools.cache
def panel() -> Case:
    """A row prologue whose rows come by cp.async in other pieces than the chain reads them: the
    scale is not aligned. Several tiles a block."""
    def fn(x: Any, scale: Any, w: Any) -> Any:
        y = x.astype(F32)
        r = jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)
        return (y * r * scale[1:]).astype(BF16) @ w

    plan = plan_of(fn, Spec((30, 192), BF16), Spec((193,), F32), Spec((192, 56), BF16))
    s = DotSchedule("mma", 16, 16, 64, 2, (1, 2, 2))
    return case_of(plan, with_dots(plan, s), smooth(plan.graph), 3e-2)


def attend(q: Any, k: Any, v: Any) -> Any:
    s = jnp.einsum("hmd,hnd->hmn", q, k).astype(F32) / 4
    return jnp.einsum("hmn,hnd->hmd", jax.nn.softmax(s, -1).astype(v.dtype), v)


@functools.cache
def heads() -> Case:
    plan = plan_of(attend, *[Spec((5, 37, 32), BF16)] * 3)
    (sig,) = plan.sigs
    return case_of(plan, {sig.key: AttentionSchedule(16, 16, 2, 4)}, smooth(plan.graph), 3e-2)


@functools.cache
def mixed_heads() -> Case:
    """Two attentions in a stage: the queries of one cover the scores of the other."""
    def fn(*xs: Any) -> Any:
        return tuple(attend(*xs[i:i + 3]) for i in range(0, 9, 3))

    args = [Spec((5, n, d), BF16) for n, d in ((37, 16), (24, 128), (38, 16)) for _ in range(3)]
    plan = plan_of(fn, *args)
    assert plan.barriers == 0 and [s.kind for s in plan.sigs] == ["attention"] * 3
    s = AttentionSchedule(16, 16, 2, 4)
    return case_of(plan, {sig.key: s for sig in plan.sigs}, smooth(plan.graph), 3e-2)


@functools.cache
def flash_heads() -> Case:
    """One chunk and several, warps and blocks that share rows; several tasks a block."""
    def fn(*xs: Any) -> Any:
        return tuple(attend(*xs[i:i + 3]) for i in range(0, 12, 3))

    sizes = ((64, 32), (70, 112), (128, 32), (37, 32))  # of 112, columns are staged in parts
    plan = plan_of(fn, *[Spec((5, n, d), BF16) for n, d in sizes for _ in range(3)])
    schedules = {64: (16, 64, 1, 4), 70: (64, 16, 2, 4), 128: (32, 32, 2, 4, "flash", 2),
                 37: (64, 48, 1, 4)}
    sigs = {}
    for sig in plan.sigs:
        assert isinstance(sig.form, AttentionForm)
        s = schedules[sig.form.n.size]
        sigs[sig.key] = AttentionSchedule(*s) if len(s) > 4 else AttentionSchedule(*s, "flash")
    return case_of(plan, sigs, smooth(plan.graph), 3e-2)


@functools.cache
def scaled() -> Case:
    """Weights of 4 bits in both layouts, whose scales come with the first of them."""
    m, n, k, group = 2, 64, 512, 64

    def fn(x: Any, q: Any, s: Any, qt: Any, st: Any) -> Any:
        wide = (q.reshape(-1, group, n).astype(BF16) * s[:, None]).reshape(k, n)
        turned = (qt.reshape(n, -1, group).astype(BF16) * st[..., None]).reshape(n, k)
        return x @ wide, jnp.einsum("mk,nk->mn", x, turned)

    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, n), jnp.int4), Spec((k // group, n), BF16),
                   Spec((n, k), jnp.int4), Spec((n, k // group), BF16))
    sigs = {}
    for sig in plan.sigs:
        columns = DotSchedule("gemv", m, 32, 64, 2, (1, 1, 4))
        rows = DotCode.of(sig, columns).rhs.k_major
        sigs[sig.key] = DotSchedule("gemv", m, 16, 64, 2, (1, 2, 2)) if rows else columns
    return case_of(plan, sigs, smooth(plan.graph), 3e-2)


@functools.cache
def few_heads() -> Case:
    """One block and several that share keys; behind a task, one whose query is where O was."""
    def fn(*xs: Any) -> Any:
        return tuple(attend(*xs[i:i + 3]) for i in range(0, 9, 3))

    sizes = ((64, 12, 64), (70, 3, 32), (128, 1, 32))
    plan = plan_of(fn, *[Spec((5, m if i == 0 else n, d), BF16)
                         for n, m, d in sizes for i in range(3)])
    schedules = {64: (64, 1), 70: (80, 1), 128: (16, 8)}
    sigs = {}
    for sig in plan.sigs:
        assert isinstance(sig.form, AttentionForm)
        chunk, split = schedules[sig.form.n.size]
        sigs[sig.key] = AttentionSchedule(16, chunk, 1, 4, "few", split)
    return case_of(plan, sigs, smooth(plan.graph), 3e-2)


def removed(name: str, number: int) -> Change:
    """Takes statement ``number`` of those that match SYNC out of a header."""
    return lost_waits.removed(name, SYNC, number)


def statements(name: str) -> list[Any]:
    """One parameter for every statement of a header that matches SYNC.

    `cp_async_wait<0>` at the end of a task has nothing left to wait for: the groups are empty.
    """
    return [pytest.param(name, i, id=f"{name}-{i}-{m[0]}")
            for i, m in enumerate(SYNC.finditer(own_text(name))) if m[0] != "cp_async_wait<0>();"]


CASES: dict[str, tuple[Callable[[], Case], ...]] = {
    "gemm.cuh": (gemm,), "gemm_ring.cuh": (gemm, fma), "gemm_fma.cuh": (fma,),
    "gemm_simt.cuh": (simt,), "gemv.cuh": (stream, decode, scaled),
    "gemv_fma.cuh": (stream, decode), "split_k.cuh": (split_k,),
    "attention.cuh": (heads,), "attention_flash.cuh": (flash_heads,),
    "attention_rows.cuh": (flash_heads,), "attention_few.cuh": (few_heads,)}


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("name", "number"), [p for n in CASES for p in thinned(statements(n), 8)])
def test_every_sync_of_the_headers_matters(name: str, number: int,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    change = removed(name, number)
    assert any(failure(case(), monkeypatch, change) != "" for case in CASES[name])


TWO_SETS = statements("gemm_ring.cuh")[2:6]
"""Those of products whose fragments are loaded a step ahead."""


@pytest.mark.parametrize(("name", "number"), thinned(TWO_SETS, 4))
def test_every_sync_matters_for_bytes(name: str, number: int,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(bytes_(), monkeypatch, removed(name, number)) != ""


@pytest.mark.slow
@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", [
    gemm, bytes_, split_k, large_split_k, mailed, stream, decode, simt, fma, panel, heads,
    mixed_heads, flash_heads, few_heads])
def test_nothing_fails_unchanged(case: Callable[[], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(case(), monkeypatch, lambda text: text) == ""


def generated(pattern: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> str:
    """The failure without the statements of the generated functions that match."""
    def change(text: str) -> str:
        end = max(m.end() for m in re.finditer(r"// ==== end of jaxmono/\w+\.cuh =+\n", text))
        changed, count = re.subn(pattern, ";", text[end:])
        assert count > 0
        return text[:end] + changed

    return failure(case, monkeypatch, change)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", [gemm, bytes_, stream, panel, mixed_heads, flash_heads, few_heads])
def test_the_previous_task_must_be_done(case: Callable[[], Case],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = r"syncthreads\(\);  // the previous task is done[^\n]*"
    assert generated(barrier, case(), monkeypatch) != ""


@pytest.mark.parametrize("pattern", [r"cp_async_wait<G::STAGES>\(\);", r"syncwarp\(\);"])
def test_the_rows_of_a_panel_must_have_landed(pattern: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    assert generated(pattern, panel(), monkeypatch) != ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gemm_ring.cuh", "attention.cuh"])
def test_weak_waits_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cp.async group too many in flight."""
    change = rewritten(name, lambda text: text.replace("cp_async_wait<STAGES - 2>",
                                                       "cp_async_wait<STAGES - 1>"))
    assert any(failure(case(), monkeypatch, change) != "" for case in CASES[name])


def test_values_must_have_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    change = rewritten("attention_few.cuh", lambda text: text.replace("cp_async_wait<0>();", ";"))
    assert failure(few_heads(), monkeypatch, change) != ""


def test_a_stream_does_not_read_what_has_not_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    change = rewritten("gemv.cuh", lambda text: text.replace("cp_async_wait<SLOTS - 1>",
                                                             "cp_async_wait<SLOTS>"))
    assert failure(stream(), monkeypatch, change) != ""


@pytest.mark.parametrize("case", [split_k, large_split_k])
def test_a_partner_must_be_waited_for(case: Callable[[], Case],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """split-K without its wait reads partial sums that are not there."""
    change = rewritten("split_k.cuh", lambda text: re.sub(
        r"group_barrier<SPLIT>\(\w+\);", "syncthreads();", text))
    assert failure(case(), monkeypatch, change) != ""


MAIL = {
    "what has come is not looked at": ("return there;\n      }", "return true;\n      }"),
    "zeros are no mail": ("bits == 0 ? 0x80000000u : bits", "bits"),
    "words stay full": ("st_relaxed_gpu(part(c, i), Part{});", "(void)i;"),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("lost", "case"), [
    *((lost, mailed) for lost in MAIL), (next(iter(MAIL)), few_heads)])
def test_mail_is_waited_for_and_taken_out(lost: str, case: Callable[[], Case],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(case(), monkeypatch, rewritten(
        "mailbox.cuh", lambda text: text.replace(*MAIL[lost]))) != ""


@pytest.mark.parametrize("family", ["mma", "gemv"])
def test_mailed_shares_of_nothing_are_plus_zero(family: str) -> None:
    """-0 is sent in place of 0, and must not be seen."""
    rows = 32 if family == "mma" else 2
    plan = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=F32),
                   Spec((rows, 512), BF16), Spec((512, 64), BF16))
    s = DotSchedule("mma", 32, 64, 64, 2, (1, 1, 4), 4) if family == "mma" else \
        DotSchedule("gemv", 2, 64, 64, 2, (1, 1, 4), 4)
    program = build(plan, with_dots(plan, s), threads=128)
    assert "Mailbox" in program.source
    zeros = [np.zeros(x.type.dims, x.type.dtype.numpy) for x in plan.graph.inputs]
    (out,) = run_program(program, zeros, seed=0, blocks=4)
    assert not np.signbit(out).any() and not out.any()

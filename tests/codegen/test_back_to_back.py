"""Back-to-back contractions: what is fused, right results, lost waits, the GPU's compiler."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import build, check_near, plan_of, smooth, wgmma
from harness import DEVICE
from lost_waits import Case, failure, own_text, removed
from thinned import crossed, thinned, thinned_rows

from jaxmono.codegen import back_to_back, cuda_target, headers, nvrtc
from jaxmono.codegen.attention import AttentionSchedule
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()
SMALL = dataclasses.replace(DEVICE, sm_count=2)
"""Two tiles of rows are enough for it."""


def pair(piece: int, slots: int) -> AttentionSchedule:
    return AttentionSchedule(128, piece, slots, 8, "back_to_back")


def resident(piece: int, slots: int) -> AttentionSchedule:
    return dataclasses.replace(pair(piece, slots), resident=True)


def kinds(plan: Plan) -> list[list[str]]:
    return [[g.sig.kind for g in s.groups] for s in plan.stages]


def run(plan: Plan, s: AttentionSchedule, given: list[Any] | None = None, *, rtol: float = 2e-2,
        seeds: Sequence[int] = (0, 1, 2), blocks: Sequence[int] = (1, 3)) -> None:
    program = build(plan, {x.key: s for x in plan.sigs if x.kind == "attention"}, threads=256)
    assert program.threads == 384 and "BackToBack<" in program.source
    check_near(plan, program, given or smooth(plan.graph, scale=0.5), rtol, seeds=seeds,
               blocks=blocks)


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return x + jax.nn.gelu(x @ w1 + b1) @ w2 + b2


def operands(m: int, k: int, n: int, v: int, dtype: Any = BF16) -> list[Any]:
    return [Spec(s, dtype) for s in ((m, k), (k, n), (n,), (n, v), (v,))]


@pytest.mark.sampled(7)
@crossed((("k", "n", "piece", "slots"), [
    (64, 64, 64, 2), (136, 48, 32, 3), (72, 136, 48, 5), (200, 256, 64, 2), (64, 24, 16, 4)]),
    ("dtype", [BF16, F16]))
def test_sizes(k: int, n: int, piece: int, slots: int, dtype: Any) -> None:
    """Columns that 16 and 64 do not divide, pieces of the result, rows past the end, a residual."""
    plan = plan_of(mlp, *operands(300, k, n, k, dtype), device=SMALL)
    assert kinds(plan) == [["attention"]]
    run(plan, pair(piece, slots), rtol=2e-2 if dtype is BF16 else 4e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("k", "n", "piece", "slots"), thinned_rows([
    (136, 48, 32, 3), (64, 64, 64, 2), (200, 128, 128, 2), (72, 136, 48, 2)]))
def test_weights_that_stay(k: int, n: int, piece: int, slots: int) -> None:
    """One block has several tasks; those of both products are loaded once."""
    plan = plan_of(mlp, *operands(700, k, n, k), device=SMALL)
    run(plan, resident(piece, slots), seeds=range(4), blocks=(1, 2))


def test_where_weights_stay() -> None:
    """Where a block has many tasks and there is room for them beside a ring."""
    def chosen(m: int, k: int, n: int) -> AttentionSchedule:
        plan = plan_of(mlp, *operands(m, k, n, k), device=H200)
        (sig,) = plan.sigs
        found = back_to_back.schedule(sig, H200, shared_bytes=H200.shared_bytes)
        assert found is not None
        return found

    assert chosen(100352, 64, 64).resident
    assert not chosen(50176, 64, 64).resident, "three tasks for each block"
    assert not chosen(100352, 512, 128).resident, "more weights than shared memory"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("layout", ["mk,kn,nv", "km,kn,nv", "mk,nk,nv", "mk,kn,vn", "km,nk,vn"])
def test_layouts(layout: str) -> None:
    a, b, c = layout.split(",")
    size = {"m": 264, "k": 72, "n": 80, "v": 40}

    def fn(x: Any, u: Any, w: Any) -> Any:
        h = jax.nn.relu(jnp.einsum(f"{a},{b}->mn", x, u))
        return jnp.einsum(f"mn,{c}->mv", h, w)

    plan = plan_of(fn, *[Spec(tuple(size[d] for d in t), BF16) for t in (a, b, c)], device=SMALL)
    assert kinds(plan) == [["attention"]]
    run(plan, pair(48, 3), seeds=(0, 1))


def test_what_it_reads_is_stored() -> None:
    """Weights in f32, converted as a Flax layer does, and rows that are computed: the pair copies
    what a stage has stored. For rows of 1152 elements that are computed on the way there was no
    room (ResNet-50 b32 with f32 weights)."""
    def fn(x: Any, w1: Any, w2: Any) -> Any:
        return jax.nn.relu(x @ w1.astype(x.dtype)) @ w2.astype(x.dtype)

    def specs(k: int) -> list[Any]:
        return [Spec((300, k), BF16), Spec((k, 128), F32), Spec((128, 64), F32)]

    plan = plan_of(fn, *specs(200), device=SMALL)
    assert kinds(plan) == [["loop"] * 2, ["attention"]]
    run(plan, pair(64, 2), seeds=(0,))
    for k, loops in ((200, 2), (1152, 3)):
        plan = plan_of(lambda x, *w: fn(x * 3, *w), *specs(k), device=SMALL)
        assert kinds(plan) == [["loop"] * loops, ["attention"]]


@pytest.mark.parametrize("turned", [False, True])
def test_nothing_in_between(turned: bool) -> None:
    """Of either side of the second product."""
    def fn(x: Any, u: Any, w: Any) -> Any:
        return w.T @ (x @ u).T if turned else (x @ u) @ w

    plan = plan_of(fn, Spec((264, 72), BF16), Spec((72, 48), BF16), Spec((48, 40), BF16),
                   device=SMALL)
    assert kinds(plan) == [["attention"]]
    run(plan, pair(48, 2), seeds=(0,))


def test_what_the_middle_makes_of_nothing_does_not_count() -> None:
    """Columns past the end are infinite behind the logarithm; NaN inside stays in its row."""
    def fn(x: Any, u: Any, w: Any) -> Any:
        return jnp.log(jnp.abs(x @ u)) @ w

    plan = plan_of(fn, Spec((256, 64), BF16), Spec((64, 24), BF16), Spec((24, 16), BF16),
                   device=SMALL)
    given = smooth(plan.graph)
    given[0][7] = np.nan
    given[0][200, 3] = np.inf
    run(plan, pair(16, 2), given, rtol=3e-2)


def test_convolutions() -> None:
    """A 3x3 behind which a 1x1 follows (Bolt, Table 2), each with bias and activation."""
    def conv(x: Any, w: Any, stride: int, pad: int) -> Any:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2,
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def fn(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return jax.nn.relu(conv(jax.nn.relu(conv(x, w1, 2, 1) + b1), w2, 1, 0) + b2)

    plan = plan_of(fn, Spec((3, 20, 20, 16), F16), Spec((3, 3, 16, 24), F16), Spec((24,), F16),
                   Spec((1, 1, 24, 40), F16), Spec((40,), F16), device=SMALL)
    assert kinds(plan) == [["attention"]]
    run(plan, pair(48, 4), rtol=4e-3)


def test_between_other_products() -> None:
    """Two pairs and what follows them in one kernel: rings of other lengths, weights ahead."""
    def fn(x: Any, *w: Any) -> Any:
        x = jax.nn.relu(x @ w[0]) @ w[1]
        return jax.nn.relu(x @ w[2]) @ w[3]

    plan = plan_of(fn, Spec((260, 64), BF16), *[Spec(s, BF16) for s in (
        (64, 48), (48, 136), (136, 32), (32, 8))], device=SMALL)
    assert kinds(plan) == [["attention"], ["attention"]]
    run(plan, pair(48, 3), smooth(plan.graph, scale=0.3), rtol=4e-2, seeds=range(6))


def test_siblings_whose_weights_stay_load_theirs_for_every_task() -> None:
    """Two pairs of one Sig in a stage, with other weights; a block has tasks of both."""
    def fn(x: Any, u: Any, w: Any, y: Any, v: Any, z: Any) -> Any:
        return jax.nn.relu(x @ u) @ w, jax.nn.relu(y @ v) @ z

    plan = plan_of(fn, *[Spec(s, BF16) for s in ((400, 72), (72, 48), (48, 40))] * 2, device=SMALL)
    assert kinds(plan) == [["attention"] * 2] and len(plan.sigs) == 1
    run(plan, resident(48, 3), seeds=range(4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("product", [
    wgmma(128, 64, 2, (2, 1, 1)), dataclasses.replace(wgmma(128, 64, 3, (2, 1, 1)), resident=True)],
    ids=["ring", "resident"])
def test_weights_stay_beside_another_product(product: DotSchedule) -> None:
    """Whose ring, or whose weights, lie where those of the pair are."""
    def fn(x: Any, u: Any, w: Any, v: Any) -> Any:
        return jax.nn.relu(x @ u) @ w, jnp.tanh(x @ v)

    plan = plan_of(fn, *[Spec(s, BF16) for s in ((400, 72), (72, 48), (48, 40), (72, 56))],
                   device=SMALL)
    assert kinds(plan) == [["attention", "dot"]]
    schedules = {s.key: resident(48, 3) if s.kind == "attention" else product for s in plan.sigs}
    program = build(plan, schedules, threads=256)
    assert "at.fresh = true;  // rings of other lengths" in program.source
    check_near(plan, program, smooth(plan.graph, scale=0.5), 2e-2, seeds=range(4), blocks=(1, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", [pair(64, 2), resident(64, 2)], ids=["ring", "resident"])
def test_a_source_that_an_earlier_stage_makes(schedule: AttentionSchedule) -> None:
    """It may be loaded behind the grid barrier only, which weights need not wait for: other blocks
    make some of a task's rows."""
    def fn(x: Any, v: Any, u: Any, w: Any) -> Any:
        r = jnp.clip(x @ v, -1, 1)
        return jax.nn.relu(r @ u) @ w + r

    plan = plan_of(fn, *[Spec(s, BF16) for s in ((400, 72), (72, 64), (64, 48), (48, 64))],
                   device=SMALL)
    assert kinds(plan) == [["dot"], ["attention"]]
    schedules = {s.key: schedule if s.kind == "attention" else wgmma(64, 64, 2, (1, 1, 2))
                 for s in plan.sigs}
    program = build(plan, schedules, threads=256)
    assert program.source.count("load_c{") == 1 and "BackToBack<" in program.source
    check_near(plan, program, smooth(plan.graph, scale=0.5), 2e-2, seeds=range(6), blocks=(2, 3))


@pytest.mark.parametrize(("why", "fn", "sizes"), [
    ("both are wanted", lambda x, u, w: (h := x @ u, h @ w), (260, 64, 48, 32)),
    ("few rows", lambda x, u, w: jax.nn.relu(x @ u) @ w, (128, 64, 48, 32)),
    ("many columns", lambda x, u, w: jax.nn.relu(x @ u) @ w, (260, 64, 264, 32)),
    ("no 16-byte copies", lambda x, u, w: jax.nn.relu(x @ u) @ w, (260, 60, 48, 32)),
    ("columns mix", lambda x, u, w: jnp.flip(x @ u, 0)[::-1] * (x @ u).sum(0) @ w,
     (260, 64, 48, 32))])
def test_what_is_left_apart(why: str, fn: Any, sizes: tuple[int, ...]) -> None:
    m, k, n, v = sizes
    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, n), BF16), Spec((n, v), BF16), device=SMALL)
    assert "attention" not in str(kinds(plan)), why


def test_gpus_without_wgmma_keep_them_apart() -> None:
    plan = plan_of(mlp, *operands(300, 64, 64, 64),
                   device=dataclasses.replace(SMALL, wgmma=False))
    assert kinds(plan) == [["dot"], ["dot"]]


# ---- every wait matters --------------------------------------------------------------------------


@functools.cache
def case() -> Case:
    plan = plan_of(mlp, *operands(400, 200, 136, 200), device=SMALL)
    return Case(plan, {plan.sigs[0].key: pair(64, 2)}, smooth(plan.graph, scale=0.5), 0.014,
                threads=256)


STATEMENT = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_mbarrier_arrive"
                       r"|wgmma_fence|wgmma_commit|wgmma_wait<0>)\([^;{}]*\);")
COUNT = 7


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", thinned(range(COUNT)))
def test_every_wait_matters(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = removed("back_to_back.cuh", STATEMENT, number)
    assert failure(case(), monkeypatch, changed) != ""


@pytest.mark.slow
def test_nothing_fails_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(STATEMENT.findall(own_text("back_to_back.cuh"))) == COUNT
    assert failure(case(), monkeypatch, lambda text: text) == ""


# ---- the GPU's compiler --------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("m", "k", "n", "v"), thinned_rows([
    (32768, 576, 128, 64), (16384, 256, 64, 16), (16384, 64, 256, 512), (128320, 96, 32, 96)]))
def test_compiles_for_hopper(m: int, k: int, n: int, v: int) -> None:
    """Bolt's Table 1 and the largest that is taken: no spills, no products one after the other."""
    plan = plan_of(lambda x, u, w: jax.nn.relu(jax.nn.relu(x @ u) @ w), Spec((m, k), F16),
                   Spec((k, n), F16), Spec((n, v), F16), device=H200)
    assert kinds(plan) == [["attention"]]
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    (s,) = schedule.sigs.values()
    assert s.family == "back_to_back"
    assert s in back_to_back.candidates(plan.sigs[0], H200, shared_bytes=H200.shared_bytes)
    kernel = emit(plan, target, H200, "test", schedule)
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert binary.spill_stores == binary.spill_loads == 0
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert kernel.shared_bytes <= H200.shared_bytes


def test_producers_wait_for_the_stage_that_tells_where_rows_are() -> None:
    """Where rows begin is read in front of all loads: not before the grid barrier has opened."""
    def fn(x: Any, s: Any, u: Any, w: Any) -> Any:
        y = jax.lax.dynamic_slice(x, ((s * s).sum() * 8, 0), (304, 64))
        return y + jax.nn.gelu(y @ u) @ w

    plan = plan_of(fn, Spec((2400, 64), BF16), Spec((4000,), jnp.int32), Spec((64, 64), BF16),
                   Spec((64, 64), BF16), device=SMALL)
    assert kinds(plan) == [["row"], ["attention"]]
    text = build(plan, {s.key: pair(64, 2) for s in plan.sigs if s.kind == "attention"},
                 threads=256).source
    read = text.index("load_a{p0 + 64 * i0")
    begin = text.rindex("JM_DEVICE Place", 0, read)
    waits = text.index("roles->await_open(at);", begin)
    assert waits < text.index("load<int32_t>(p1", begin) < read

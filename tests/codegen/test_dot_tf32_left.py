"""Products of f32 whose weights are wgmma's left operand, rows by the tensor memory accelerator."""

from __future__ import annotations

import dataclasses
import functools
import re
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    check_near,
    check_rounded,
    dot_sigs,
    in_order,
    plan_of,
    small_integers,
    smooth,
    wgmma,
)
from contraction_harness import run_wgmma as run
from lost_waits import Case, failure, own_text, removed

from jaxmono.codegen import cuda_target, dot_wgmma, headers, nvrtc
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_takes import takes_tf32
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
H200 = Device()


def tile(bm: int, bn: int, slots: int, warps: tuple[int, int, int], split: int = 1) -> DotSchedule:
    return DotSchedule("tf32", bm, bn, 32, slots, warps, split)


TILES = [tile(128, 128, 3, (1, 2, 1)), tile(64, 64, 4, (2, 1, 1)), tile(32, 128, 2, (1, 2, 1)),
         tile(256, 128, 2, (1, 2, 1)), tile(96, 64, 5, (2, 1, 1))]


def layouts(a: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
    pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt)]
    return tuple(jnp.einsum(e, x, y) + bias + c for e, x, y in pairs)


def both_plan() -> Plan:
    return plan_of(layouts, Spec((140, 204), F32), Spec((204, 116), F32), Spec((116, 204), F32),
                   Spec((116,), F32), Spec((140, 116), F32))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", TILES)
def test_both_layouts_of_weights(s: DotSchedule) -> None:
    """Sizes that no tile divides."""
    run(both_plan(), s)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", TILES[:2])
def test_both_operands_are_rounded(s: DotSchedule) -> None:
    """Operands of one sign: what wgmma would cut off them does not average out."""
    plan = both_plan()
    a, b, bt, _, _ = (np.abs(x) for x in smooth(plan.graph))
    given = [a, b, bt, np.zeros(116, np.float32), np.zeros((140, 116), np.float32)]
    check_rounded(plan, in_order(plan, s), given)


@pytest.mark.slow
def test_k_shared_by_blocks() -> None:
    plan = plan_of(lambda a, b: jax.nn.relu(a @ b), Spec((70, 648), F32), Spec((648, 40), F32))
    run(plan, tile(64, 64, 3, (2, 1, 1), split=4))
    run(plan, tile(128, 128, 2, (1, 2, 1), split=2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("large", "band"), [(False, 2), (True, 4)])
def test_low_bands_of_tiles(large: bool, band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows of tiles there are; the last band is not whole."""
    monkeypatch.setattr(dot_wgmma, "_LARGE_BYTES", 64 * 160 * 4 - large)
    plan = plan_of(jnp.matmul, Spec((5 * 64 - 3, 64), F32), Spec((64, 160), F32))
    program = build(plan, in_order(plan, tile(64, 64, 3, (2, 1, 1))), threads=256)
    assert f"min({band}, 5 - band * {band})" in program.source
    check_exact(plan, program, seeds=(0,), blocks=(3,))


@pytest.mark.slow
def test_epilogues() -> None:
    """A bias and a residual, a gelu, outputs of 16 bits; columns that fill no vector."""
    def fn(x: Any, w: Any, b: Any, r: Any, v: Any) -> Any:
        y = x @ w + b
        return jax.nn.gelu(y), (y + r).astype(BF16), (x @ v.T + b[:67]).astype(BF16)

    plan = plan_of(fn, Spec((140, 96), F32), Spec((96, 136), F32), Spec((136,), F32),
                   Spec((140, 136), BF16), Spec((67, 96), F32))
    tiles = tile(64, 128, 3, (1, 2, 1)), tile(96, 128, 3, (1, 2, 1))
    check_near(plan, build(plan, in_order(plan, *tiles), threads=256),
               smooth(plan.graph), 6e-3, seeds=(0, 1))


def test_many_maps() -> None:
    """Twenty matrices one behind the other: more than a block has places for maps."""
    def fn(x: Any, *w: Any) -> Any:
        for i, v in enumerate(w):
            x = jnp.clip(x @ v - i % 2, -2, 2)
        return x

    plan = plan_of(fn, Spec((64, 64), F32), *[Spec((64, 64), F32)] * 20)
    s = tile(64, 64, 3, (2, 1, 1))
    program = build(plan, {g.key: s for g in dot_sigs(plan)}, threads=256)
    assert len(plan.stages) == 20 and "GemmTf32<" in program.source
    check_exact(plan, program, seeds=(0, 1, 2, 3), blocks=(1, 2))


def test_a_map_is_not_made_again_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place for all maps of a block."""
    plan = plan_of(lambda x, y, u, w: (x @ u, y @ w), *[Spec((64, 64), F32)] * 4)
    sigs = {g.key: tile(64, 64, 3, (2, 1, 1)) for g in dot_sigs(plan)}
    given = Case(plan, sigs, small_integers(plan.graph), 0.0, threads=256, blocks=(1,))
    assert failure(given, monkeypatch, lambda text: text) == ""
    assert "under way" in failure(given, monkeypatch, lambda text: text.replace(
        "number % TensorMaps::SLOTS", "number % 1"))


def test_beside_the_other_families() -> None:
    """Rows that lie [k][m], and 16 bits: rings of other tiles in a kernel."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        y = jax.nn.relu(x @ u)
        z = jnp.dot(y.astype(BF16), v, preferred_element_type=F32)
        return y.T @ z, z @ w

    plan = plan_of(fn, Spec((140, 64), F32), Spec((64, 160), F32), Spec((160, 72), BF16),
                   Spec((72, 64), F32))
    sigs = {}
    for sig in dot_sigs(plan):
        form = sig.form
        assert isinstance(form, DotForm)
        code = DotCode.of(sig, wgmma(64, 64, 3, (1, 1, 2)))
        left = takes_tf32(form, code, code.element) is None
        bits = 16 if code.element is not DType.F32 else 32
        sigs[sig.key] = tile(64, 64, 3, (2, 1, 1)) if left else DotSchedule(
            "wgmma", 64, 64, 1024 // bits, 3, (1, 1, 2))
    assert [s.family for s in sigs.values()].count("tf32") == 2
    x, u, _, w = small_integers(plan.graph, high=1)
    v = np.eye(160, dtype=jnp.bfloat16)[np.random.default_rng(1).permutation(160)[:72]].T
    check_exact(plan, build(plan, sigs, threads=256), seeds=(0, 1, 2), blocks=(1, 3),
                inputs=[x, u, v, w])


@pytest.mark.parametrize(("fn", "left", "right", "why"), [
    (lambda x, w: x.T @ w, (128, 64), (128, 64), "next to each other"),
    (lambda x, w: x @ w, (128, 126), (126, 64), "16 bytes"),
    (lambda x, w: jnp.einsum("bmk,bkn->bmn", x, w), (2, 128, 64), (2, 64, 64), "a batch's own"),
    (lambda x, w: x @ jnp.tanh(w), (128, 64), (64, 64), "weights are computed"),
    (lambda x, w: x[::-1] @ w, (128, 64), (64, 64), "backwards"),
    (lambda x, w: jnp.broadcast_to(x, (128, 64)) @ w, (64,), (64, 64), "over each other"),
    (lambda x, w: x[1:] @ w, (129, 64), (64, 64), None),
    (lambda x, w: x[:, 4:68] @ w, (128, 72), (64, 64), None),
])
def test_what_the_accelerator_takes(fn: Any, left: Any, right: Any, why: str | None) -> None:
    plan = plan_of(fn, Spec(left, F32), Spec(right, F32))
    (sig,) = dot_sigs(plan)
    code = DotCode.of(sig, tile(64, 64, 3, (2, 1, 1)))
    assert isinstance(sig.form, DotForm)
    found = takes_tf32(sig.form, code, code.element)
    if why is None:
        assert found is None
        run(plan, tile(64, 64, 3, (2, 1, 1)))
    else:
        assert found is not None and why in found


@pytest.mark.parametrize(("m", "n", "k", "family"), [
    (128, 768, 768, "wgmma"),     # 6.3 us; 7.0 so
    (512, 768, 768, "wgmma"),     # 9.2 us; 10.0 so
    (1280, 768, 768, "tf32"), (1280, 3072, 768, "tf32"), (2048, 2048, 2048, "tf32")])
def test_choices_that_were_timed(m: int, n: int, k: int, family: str) -> None:
    """As kernels of their own on an H100."""
    plan = plan_of(jnp.matmul, Spec((m, k), F32), Spec((k, n), F32), device=H200)
    (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
    assert s.family == family


def test_behind_a_barrier_a_map_costs_nothing() -> None:
    """BERT-base b1: 5.7 % less time so, with a map written while the barrier is waited for."""
    def families(*sizes: int) -> list[str]:
        def fn(x: Any, *w: Any) -> Any:
            for v in w:
                x = jnp.tanh(x @ v)
            return x

        weights = [Spec(s, F32) for s in pairwise(sizes)]
        plan = plan_of(fn, Spec((128, sizes[0]), F32), *weights, device=H200)
        schedule = default_schedule(plan, cuda_target("sm_90a"), H200)
        return [schedule.sigs[g.sig.key].family for g in plan.groups]

    assert families(768, 768) == ["wgmma"]
    assert families(512, 768, 768)[1] == "tf32"


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", [tile(256, 128, 4, (1, 2, 1)), tile(96, 128, 7, (1, 2, 1))])
def test_products_run_while_weights_come(s: DotSchedule) -> None:
    """ptxas lets no product wait for another one, and has registers for the weights."""
    plan = plan_of(lambda x, w, b, r: jax.nn.gelu(x @ w + b) + r, Spec((2048, 768), F32),
                   Spec((768, 768), F32), Spec((768,), F32), Spec((2048, 768), F32), device=H200)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    (sig,) = dot_sigs(plan)
    kernel = emit(plan, target, H200, "test", dataclasses.replace(
        schedule, sigs={**schedule.sigs, sig.key: s}))
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


WAITS = re.compile(r"(?:if \([^;{}]*\) )?(?:mbarrier_\w+|cp_async_mbarrier_arrive|wgmma_wait<\w+>"
                   r"|wgmma_commit|wgmma_fence|ready|fence_proxy_async_all)\([^;{}]*\);")
COUNTS = {"gemm_tf32.cuh": 2, "weights_left.cuh": 11}


@functools.cache
def case() -> Case:
    """Two stages, so that a grid barrier is waited for; three tiles of k for each slot."""
    plan = plan_of(lambda x, u, w: jnp.clip(x @ u, -2, 2) @ w, Spec((128, 192), F32),
                   Spec((192, 192), F32), Spec((192, 128), F32))
    sigs = in_order(plan, *[tile(64, 64, 2, (2, 1, 1))] * 2)
    return Case(plan, sigs, small_integers(plan.graph), 0.0, threads=256)


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("header", "number"),
                         [(x, i) for x, count in COUNTS.items() for i in range(count)])
def test_every_wait_matters(header: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(case(), monkeypatch, removed(header, WAITS, number)) != ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("statement", [r"tensor_map_acquire\(map\);",
                                       r"tensor_map_make\([^;]*\);"])
def test_maps_are_made_and_acquired(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change = removed("tensor_maps.cuh", re.compile(statement), 0)
    assert "it has no map" in failure(case(), monkeypatch, change)


@pytest.mark.parametrize("number", [  # the products are done; the slot is free
    7, pytest.param(8, marks=pytest.mark.slow)])
def test_in_turn(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tile's products wait for those before them, where registers lack."""
    def in_turn(text: str) -> str:
        return "#define JM_IN_TURN\n" + text

    assert failure(case(), monkeypatch, in_turn) == ""
    change = removed("weights_left.cuh", WAITS, number)
    assert failure(case(), monkeypatch, lambda t: in_turn(change(t))) != ""


def test_text_for_racecheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """All consumers give slots back, both roles meet twice."""
    assert failure(case(), monkeypatch, lambda text: "#define JM_RACECHECK\n" + text) == ""


@pytest.mark.slow
def test_nothing_fails_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for header, count in COUNTS.items():
        assert len(WAITS.findall(own_text(header))) == count
    assert failure(case(), monkeypatch, lambda text: text) == ""

"""Products of f32 in the wgmma family, as tf32: in the emulator and through NVRTC."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import models
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
from contraction_harness import (
    run_wgmma as run,
)
from harness import run_program
from lost_waits import Case, failure, removed
from thinned import thinned

from jaxmono.codegen import cuda_target, generate, headers, nvrtc
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.interp import evaluate

Spec = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32
H200 = Device()

TF32 = [dataclasses.replace(x, bk=32) for x in (
    wgmma(64, 48, 3, (1, 1, 2)), wgmma(128, 96, 2, (2, 1, 1)), wgmma(64, 160, 6, (1, 2, 1)),
    wgmma(128, 16, 4, (2, 1, 1)), wgmma(64, 256, 2, (1, 2, 1)), wgmma(128, 128, 3, (2, 1, 1)))]
"""Blocks of 16 and of 32 rows of the right operand, one to three for each producer warp."""


def layouts(a: Any, at: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
    pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt), ("km,kn->mn", at, b), ("km,nk->mn", at, bt)]
    return tuple(jnp.einsum(e, x, y) + bias + c for e, x, y in pairs)


def tf32_plan() -> Plan:
    return plan_of(layouts, Spec((140, 204), F32), Spec((204, 140), F32), Spec((204, 116), F32),
                   Spec((116, 204), F32), Spec((116,), F32), Spec((140, 116), F32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", thinned(TF32))
def test_all_layouts_of_tf32(s: DotSchedule) -> None:
    """Tiles are [m or n][k] in shared memory, whatever the operands are; sizes no tile divides."""
    run(tf32_plan(), s)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", TF32[:2])
def test_tf32_is_rounded_and_not_cut(s: DotSchedule) -> None:
    """Operands of one sign: what wgmma would cut off them does not average out."""
    plan = tf32_plan()
    a, at, b, bt, _, _ = (np.abs(x) for x in smooth(plan.graph))
    given = [a, at, b, bt, np.zeros(116, np.float32), np.zeros((140, 116), np.float32)]
    check_rounded(plan, in_order(plan, s), given)


def test_non_finite_operands_of_tf32() -> None:
    plan = tf32_plan()
    given = [np.abs(x) + np.float32(1) for x in small_integers(plan.graph)]
    nan = np.array([0x7fffffff, 0x7f800001, 0xffffffff], np.uint32).view(np.float32)
    for i, (row, col) in enumerate(((3, 5), (4, 200), (60, 7), (100, 100))):
        for x in (given[0], given[1].T, given[2].T, given[3]):
            x[row, col] = [*nan, np.inf][i]
    given[0][7, 0], given[0][7, 1] = np.inf, -np.inf
    check_exact(plan, build(plan, in_order(plan, TF32[0]), threads=256), inputs=given)


def test_tf32_in_a_batch_with_k_shared_by_blocks() -> None:
    plan = plan_of(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), Spec((2, 70, 648), F32),
                   Spec((2, 648, 40), F32))
    run(plan, dataclasses.replace(wgmma(64, 48, 4, (1, 1, 2), split=4), bk=32))


def test_a_normalised_left_operand_of_tf32() -> None:
    """The consumers round the panel that they compute."""
    plan = plan_of(lambda x, s, b, w: models.norm(x, s, b) @ w, Spec((32, 200), F32),
                   Spec((200,), F32), Spec((200,), F32), Spec((200, 96), F32))
    form = dot_sigs(plan)[0].form
    assert isinstance(form, DotForm) and form.row_prologue
    sigs = in_order(plan, dataclasses.replace(wgmma(64, 48, 3, (1, 1, 2)), bk=32))
    program = build(plan, sigs, threads=256)
    x, s, b, w = smooth(plan.graph)
    check_near(plan, program, [x, s, b, w], 3e-3, seeds=(0, 1, 2))
    x[:] = np.arange(200) % 2  # a row's mean is 1/2: its elements are -1 and 1, but for epsilon
    given = [x, np.full_like(s, 1 + 2**-10 - 2**-13), np.full_like(b, 4), np.abs(w)]
    (found,) = run_program(program, given, seed=1)
    (wanted,) = evaluate(plan.graph, given, accumulate="f64")
    assert np.abs(found / wanted - 1).max() < 2e-4
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    kernel = generate(plan, target, H200, "test", dataclasses.replace(
        schedule, sigs={**schedule.sigs, **sigs}))
    assert kernel.resources["spill_stores"] == 0 and "wgmma_tf32(" in kernel.source


@pytest.mark.slow
def test_tf32_beside_other_types_and_families() -> None:
    """Rings of 16 and of 32 bits in one kernel, and a stage that another family takes."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        y = jax.nn.relu(x @ u)
        return jnp.dot(jax.nn.relu(y.astype(BF16) @ v), w, preferred_element_type=F32), y

    plan = plan_of(fn, Spec((140, 64), F32), Spec((64, 160), F32), Spec((160, 72), BF16),
                   Spec((72, 48), BF16))
    sigs = in_order(plan, dataclasses.replace(wgmma(64, 96, 3, (1, 1, 2)), bk=32),
                    wgmma(128, 48, 4, (2, 1, 1)), DotSchedule("mma", 32, 32, 64, 2, (2, 4, 1)))
    x, u, _, w = small_integers(plan.graph, high=1)
    v = np.eye(160, dtype=w.dtype)[np.random.default_rng(1).permutation(160)[:72]].T
    check_exact(plan, build(plan, sigs, threads=256), seeds=(0, 1, 2, 3), blocks=(1, 3),
                inputs=[x, u, v, w])


def test_which_products_of_f32_are_taken() -> None:
    """All layouts, but at precision HIGHEST. HIGH is tf32 to JAX on a GPU (`jax.lax.Precision`)."""
    def family(m: int = 512, spec: str = "mk,kn->mn", k: int = 512, **kw: Any) -> str:
        shape = {"m": m, "k": k, "n": 512}
        args = [Spec(tuple(shape[c] for c in x), F32) for x in spec.split("->")[0].split(",")]
        plan = plan_of(lambda x, w: jnp.einsum(spec, x, w, **kw), *args, device=H200)
        (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
        return s.family

    for spec in ("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"):
        assert family(spec=spec) == "wgmma"
        assert family(2048, spec) == ("tf32" if spec.startswith("mk") else "wgmma")
    assert family(precision="highest") == "bf16x6" and family(precision="high") == "wgmma"
    assert family(precision=("high", "highest")) == "bf16x6"
    assert family(24) == "mma"
    assert family(2048, "mk,nk->mn", k=510) == "wgmma"  # rows do not begin at 16 bytes


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [
    (1024, 384, 384), (1024, 384, 1536), (4096, 4096, 1024), (3072, 768, 3992)])
@pytest.mark.parametrize("spec", thinned(["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"]))
def test_chosen_tiles_of_tf32_compile_for_hopper(spec: str, m: int, n: int, k: int) -> None:
    shape = {"m": m, "k": k, "n": n}
    args = [Spec(tuple(shape[c] for c in x), F32) for x in spec.split("->")[0].split(",")]

    def fn(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(jnp.einsum(spec, x, w) + b, approximate=False)

    kernel = emit(plan_of(fn, *args, Spec((n,), F32), device=H200), cuda_target("sm_90a"), H200,
                  "test")
    assert "GemmWgmma<float" in kernel.source or (
        "GemmTf32<" in kernel.source and spec.startswith("mk"))
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


def test_wide_tiles_of_tf32_whose_k_is_shared() -> None:
    plan = plan_of(lambda x, w: x @ w, Spec((70, 100), F32), Spec((100, 200), F32))
    s = dataclasses.replace(wgmma(64, 128, 3, (1, 1, 2)), bk=32)
    program = build(plan, in_order(plan, s), threads=256)
    check_near(plan, program, smooth(plan.graph), 2e-3)


def meeting() -> Case:
    """Of integers, in tiles whose right operand comes in blocks of 32 rows and of 16."""
    plan = plan_of(lambda a, b, c: ((a @ b), (a @ c)), Spec((128, 96), F32), Spec((96, 128), F32),
                   Spec((96, 64), F32))
    tiles = (dataclasses.replace(wgmma(128, n, 3, (2, 1, 1)), bk=32) for n in (128, 64))
    return Case(plan, in_order(plan, *tiles), small_integers(plan.graph), 0.0, threads=256)


def test_lanes_meet_before_they_transpose_and_before_they_store(monkeypatch: pytest.MonkeyPatch,
                                                                ) -> None:
    case = meeting()
    assert failure(case, monkeypatch, lambda text: text) == ""
    for number in range(2):
        change = removed("tf32_tile.cuh", re.compile(r"syncwarp\(\);"), number)
        assert failure(case, monkeypatch, change) != ""

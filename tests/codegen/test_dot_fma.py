"""Products of f32 in multiply-adds: at precision HIGHEST, and what XLA makes so at any."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    build,
    check_exact,
    check_near,
    dot_sigs,
    in_order,
    plan_of,
    small_integers,
    smooth,
)
from lost_waits import Case, failure, own_text, removed
from models import graph_of
from thinned import thinned

from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import refusal

Spec = jax.ShapeDtypeStruct
F32, F64 = jnp.float32, jnp.float64
H200 = Device()
HIGHEST = jax.lax.Precision.HIGHEST


def tile(bm: int, bn: int, bk: int, slots: int, warps: tuple[int, int, int],
         split: int = 1) -> DotSchedule:
    return DotSchedule("fma", bm, bn, bk, slots, warps, split)


TILES = [tile(128, 128, 32, 2, (4, 2, 1)), tile(64, 64, 32, 3, (2, 1, 4)),
         tile(16, 64, 32, 4, (1, 1, 8)), tile(128, 128, 16, 3, (2, 2, 2)),
         tile(64, 128, 16, 2, (2, 1, 4)), tile(32, 64, 32, 3, (1, 2, 4), split=2)]
"""Of 8 x 8, 8 x 8, 4 x 8, 16 x 8, 8 x 16 and 8 x 4 sums a thread."""


@pytest.mark.sampled(37)
@pytest.mark.parametrize("layout", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"])
@pytest.mark.parametrize("s", TILES)
def test_all_layouts_of_both_operands(s: DotSchedule, layout: str) -> None:
    """Sizes that no tile divides."""
    size = {"m": 140, "n": 132, "k": 200}
    left, right = (Spec(tuple(size[c] for c in x), F32)
                   for x in layout.split("->")[0].split(","))
    plan = plan_of(lambda x, y: jnp.einsum(layout, x, y, precision=HIGHEST), left, right)
    program = build(plan, in_order(plan, s), threads=256)
    assert "GemmFma<" in program.source
    check_exact(plan, program, seeds=(0, 1, 2), blocks=(2, 4))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("s", TILES)
def test_as_exact_as_f32_is(s: DotSchedule) -> None:
    """Operands of one sign: a product of tf32 would be off by 1e-3 of a summand."""
    plan = plan_of(functools.partial(jnp.matmul, precision=HIGHEST), Spec((70, 203), F32),
                   Spec((203, 66), F32))
    given = [np.abs(x) for x in smooth(plan.graph)]
    check_near(plan, build(plan, in_order(plan, s), threads=256), given, 1e-6, seeds=(0,),
               blocks=(2,))


def test_batches_epilogues_and_odd_rows() -> None:
    """Rows that begin anywhere, a batch, a bias, a residual."""
    def fn(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = jnp.einsum("bmk,bkn->bmn", x, w, precision=HIGHEST) + b
        return jax.nn.relu(y) + r

    plan = plan_of(fn, Spec((3, 70, 45), F32), Spec((3, 45, 67), F32), Spec((67,), F32),
                   Spec((3, 70, 67), F32))
    check_exact(plan, build(plan, in_order(plan, TILES[1]), threads=256), seeds=(0, 1),
                blocks=(3,))


def test_convolutions() -> None:
    def fn(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", precision=HIGHEST,
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    plan = plan_of(fn, Spec((2, 9, 9, 8), F32), Spec((3, 3, 8, 40), F32))
    check_exact(plan, build(plan, in_order(plan, TILES[1]), threads=256), seeds=(0, 1),
                blocks=(2,))


@pytest.mark.parametrize(("m", "n", "k", "family"), [
    (16, 768, 768, "fma"),       # 4.3 us on an H100; 69 element by element
    (128, 768, 768, "bf16x6"), (2048, 2048, 2048, "bf16x6"),
    (1, 768, 768, "gemv"), (4, 3072, 768, "gemv")])
def test_choices(m: int, n: int, k: int, family: str) -> None:
    plan = plan_of(functools.partial(jnp.matmul, precision=HIGHEST), Spec((m, k), F32),
                   Spec((k, n), F32), device=H200)
    (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
    assert s.family == family


def test_other_types_go_element_by_element() -> None:
    """Integers of 32 bits, and f64."""
    for t in (jnp.int32, F64):
        with jax.enable_x64(True):
            plan = plan_of(jnp.matmul, Spec((70, 40), t), Spec((40, 50), t), device=H200)
        (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
        assert s.family == "simt"


@pytest.mark.parametrize(("t", "size", "stays"), [
    (F64, 204, True), (F64, 200, False), (F32, 1024, False), (jnp.int32, 1024, False)])
def test_large_products_of_f64_stay_with_xla(t: Any, size: int, stays: bool) -> None:
    """From 8.4 million multiplications on; of batches all count. Not outer products."""
    with jax.enable_x64(True):
        for batch in (), (2,):
            n = size if not batch else round(size / 2 ** (1 / 3))
            x = Spec((*batch, n, n), t)
            graph = graph_of(functools.partial(jnp.matmul, precision=HIGHEST), x, x)
            found = [r for o in graph.ops if (r := refusal(o)) is not None]
            assert bool(found) == stays and all("large product of f64" in r for r in found)
        outer = graph_of(jnp.outer, Spec((size * size,), t), Spec((size,), t))
        assert not any(map(refusal, outer.ops))


# ---- every wait is needed ------------------------------------------------------------------------

WAITS = re.compile(r"(?:cp_async_wait<[^>]*>|syncthreads|cp_async_commit)\(\);")


@functools.cache
def case(s: DotSchedule) -> Case:
    plan = plan_of(functools.partial(jnp.matmul, precision=HIGHEST), Spec((130, 384), F32),
                   Spec((384, 130), F32))
    return Case(plan, in_order(plan, s), small_integers(plan.graph), 0.0, threads=256, seeds=24)


# 0 and 1 are in prefetch and prologue, 2 to 4 and 11 of one set of fragments, 5 to 9 of two.
@pytest.mark.sampled(17)
@pytest.mark.parametrize(("s", "number"), [
    *((TILES[3], n) for n in (1, 2, 3, 4, 11)), *((TILES[0], n) for n in (1, 5, 6, 7, 8, 9))])
def test_every_wait_matters(s: DotSchedule, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(case(s), monkeypatch, removed("gemm_ring.cuh", WAITS, number)) != ""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", [TILES[0], TILES[3]])
def test_nothing_fails_unchanged(s: DotSchedule, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(WAITS.findall(own_text("gemm_ring.cuh"))) == 12
    assert failure(case(s), monkeypatch, lambda text: text) == ""


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", thinned([
    tile(256, 128, 32, 2, (4, 2, 1)), tile(128, 256, 16, 4, (4, 2, 1)),
    tile(64, 256, 32, 2, (2, 4, 1)), tile(64, 64, 32, 7, (4, 1, 2))]))
def test_nothing_spills(s: DotSchedule) -> None:
    plan = plan_of(lambda x, w, b: jax.nn.relu(jnp.matmul(x, w, precision=HIGHEST) + b),
                   Spec((2048, 768), F32), Spec((768, 768), F32), Spec((768,), F32), device=H200)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    (sig,) = dot_sigs(plan)
    kernel = emit(plan, target, H200, "test", dataclasses.replace(
        schedule, sigs={**schedule.sigs, sig.key: s}))
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert binary.spill_stores == binary.spill_loads == 0

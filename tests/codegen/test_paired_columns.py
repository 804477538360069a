"""Products of which one half gates the other, in the epilogue of one tile (paired_columns.py)."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from contraction_harness import build, check_exact, check_near, dot_sigs, plan_of, smooth, wgmma
from contraction_harness import run_wgmma as run

from jaxmono.codegen import cuda_target, dot_function, dot_wgmma
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion import paired_columns
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
M, K, F = 150, 72, 200


def mma(rows: int, columns: int) -> DotSchedule:
    return DotSchedule("mma", rows, columns, 32, 3, (2, 2, 1))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_columns, "MIN_ROWS", 64)
    monkeypatch.setattr(paired_columns, "MIN_SIZE", 0)
    monkeypatch.setattr(paired_columns, "_SEEN", 1000)


def gated_plan(weights: str = "kn", dtype: Any = BF16, k: int = K, f: int = F) -> Plan:
    """[m, k] times [k, 2 f] or [2 f, k], a bias, the one half times the other plus one."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        u, g = jnp.split(jnp.einsum(f"mk,{weights}->mn", x, w) + b, 2, axis=1)
        return u * jnp.maximum(g, 0) + u

    shape = (k, 2 * f) if weights == "kn" else (2 * f, k)
    return plan_of(fn, Spec((M, k), dtype), Spec(shape, dtype), Spec((2 * f,), dtype))


TILES = (wgmma(128, 128, 3, (2, 1, 1)), wgmma(128, 256, 2, (2, 1, 1)), wgmma(64, 256, 2, (1, 2, 1)),
         wgmma(64, 256, 2, (1, 1, 2)), wgmma(128, 128, 2, (2, 1, 1), lines=2))


@pytest.mark.sampled(13)
@pytest.mark.parametrize("weights", ["kn", "nk"])
@pytest.mark.parametrize("s", TILES)
def test_tiles_of_pairs(s: DotSchedule, weights: str) -> None:
    """Weights [k, n] and [n, k]; tiles that no size divides."""
    plan = gated_plan(weights)
    (sig,) = dot_sigs(plan)
    assert dot_wgmma.cannot_finish(DotCode.of(sig, s)) is None
    run(plan, s)


def test_tiles_that_pair_no_columns() -> None:
    (sig,) = dot_sigs(gated_plan())
    for s in (wgmma(64, 128, 3, (1, 2, 1)), wgmma(128, 160, 2, (2, 1, 1)),
              wgmma(64, 64, 2, (1, 1, 2)), wgmma(128, 128, 2, (2, 1, 1), split=2)):
        assert dot_wgmma.cannot_finish(DotCode.of(sig, s)) is not None
    assert dot_function.cannot_finish(DotCode.of(sig, mma(64, 24))) is not None


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights", ["kn", "nk"])
def test_other_tiles(weights: str) -> None:
    """Of mma.sync, and in multiply-adds."""
    for s in (mma(64, 48), mma(32, 64), DotSchedule("simt", 32, 32, 16, 1, (1, 1, 1))):
        plan = gated_plan(weights, F16, k=40, f=56)
        check_exact(plan, build(plan, {dot_sigs(plan)[0].key: s}), seeds=(0,))


def test_two_results_of_each_pair_and_one_of_one_column() -> None:
    def fn(x: Any, w: Any) -> Any:
        u, g = jnp.split(x @ w, 2, axis=1)
        return u * g, u - g, (u + 1).astype(F32)

    plan = plan_of(fn, Spec((M, K), BF16), Spec((K, 2 * F), BF16))
    assert len(plan.stages) == 1
    run(plan, TILES[0])


def test_a_gelu_of_many_tasks() -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        u, g = jnp.split(x @ w + b, 2, axis=1)
        return u * jax.nn.gelu(g)

    plan = plan_of(fn, Spec((M, K), BF16), Spec((K, 2 * F), BF16), Spec((2 * F,), BF16))
    (sig,) = dot_sigs(plan)
    program = build(plan, {sig.key: TILES[0]}, threads=256)
    check_near(plan, program, smooth(plan.graph), 0.04, blocks=(1, 3))


def test_weights_come_with_constant_distances() -> None:
    plan = plan_of(lambda x, w: (y := x @ w)[:, :1280] * y[:, 1280:], Spec((512, 320), BF16),
                   Spec((320, 2560), BF16), device=Device())
    target = cuda_target("sm_90a")
    source = emit(plan, target, Device(), "test", default_schedule(plan, target, Device())).source
    assert re.search(r"const Paired<bf16, 2560, \d+, false, false, (true|false)> "
                     r"load_b\{p1 \+ 0, p1 \+ 1280, 320, 1280\};", source)
    assert "finish_pairs<8>" in source


@pytest.mark.sampled(11)
@pytest.mark.parametrize("weights", ["kn", "nk"])
@pytest.mark.parametrize("s", [*TILES, mma(64, 48)])
def test_two_matrices(s: DotSchedule, weights: str) -> None:
    def fn(x: Any, v: Any, w: Any) -> Any:
        g, u = (jnp.einsum(f"mk,{weights}->mn", x, y) for y in (v, w))
        return jnp.maximum(g, 0) * (u + 1)

    shape = (K, F) if weights == "kn" else (F, K)
    plan = plan_of(fn, Spec((M, K), BF16), Spec(shape, BF16), Spec(shape, BF16))
    (sig,) = dot_sigs(plan)
    assert sig.form.pairs is not None
    check_exact(plan, build(plan, {sig.key: s}, threads=256 if s.family == "wgmma" else 128),
                seeds=(0, 1), blocks=(1, 3))

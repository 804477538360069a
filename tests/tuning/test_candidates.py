"""Candidates: legal for every shape, different, few, the analytic one first; NVRTC takes them."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from thinned import thinned
from tuning_harness import CONDITIONS, matmul, plan_of, problem_of, spec, with_siblings

from jaxmono.codegen.dot_candidates import LIMIT
from jaxmono.codegen.dot_wgmma_shared import REGISTERS, is_pingpong
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import cuda_target
from jaxmono.fusion.interp import run_plan
from jaxmono.fusion.plan import DotForm
from jaxmono.hlo.interp import evaluate
from jaxmono.tuning import Problem, problems_of
from jaxmono.tuning.alone import alone
from jaxmono.tuning.compiling import Compiled, CompilePool
from jaxmono.tuning.problem import schedule_text

SHAPES = [(1, 768, 768), (4, 768, 3072), (16, 3072, 768), (64, 1024, 1024), (128, 768, 768),
          (512, 1024, 4096), (2048, 768, 768), (4096, 4096, 1024), (33, 200, 72), (129, 72, 1000),
          (1, 8192, 128256)]


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    return jax.nn.gelu(x @ w + b) + r


def check(problem: Problem) -> None:
    """Every candidate becomes a kernel that fits, and waits for no block beyond one wave."""
    assert 1 <= len(problem.candidates) <= LIMIT
    texts = [schedule_text(s) for s in problem.candidates]
    assert len(set(texts)) == len(texts)
    plan = alone(problem.sig, problem.siblings)
    at, form = problem.conditions, problem.sig.form
    assert isinstance(form, DotForm)
    for s in problem.candidates:
        kernel = emit(plan, at.target, at.device, "k",
                      KernelSchedule(at.target.threads, 1, {problem.sig.key: s}))
        assert kernel.shared_bytes <= at.target.shared_bytes
        m, n, k = s.warps
        warpgroups = 1 if is_pingpong(s) else 2
        assert m * n * k == (warpgroups if s.family in ("wgmma", "swapped", *REGISTERS) else 8)
        if s.split_k > 1 and s.family != "gemv":  # whose waits end on any grid
            tiles = form.batch.size * math.ceil(form.m.size / s.bm) * math.ceil(form.n.size / s.bn)
            assert problem.siblings * tiles * s.split_k <= at.device.sm_count


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("siblings", [1, 3])
def test_candidates_are_legal(shape: tuple[int, int, int], siblings: int) -> None:
    m, k, n = shape
    problem = with_siblings(problem_of(matmul, spec(m, k), spec(k, n)), siblings)
    check(problem)
    assert len(problem.candidates) >= 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(512, 2048, 200), (512, 1024, 4096), (2048, 768, 768)])
@pytest.mark.parametrize("siblings", [1, 3])
def test_candidates_of_f32_are_legal(shape: tuple[int, int, int], siblings: int) -> None:
    m, k, n = shape
    f32 = {"dtype": jnp.float32}
    problem = with_siblings(problem_of(matmul, spec(m, k, **f32), spec(k, n, **f32)), siblings)
    check(problem)
    assert "tf32" in {s.family for s in problem.candidates}


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_candidates_are_legal_on_other_targets(dtype: Any, arch: str) -> None:
    at = dataclasses.replace(CONDITIONS, target=cuda_target(arch))
    args = (spec(128, 768, dtype=dtype), spec(768, 768, dtype=dtype))
    check(problem_of(matmul, *args, conditions=at))


def test_the_analytic_choice_is_first_and_rules_of_the_hardware_hold() -> None:
    for shape in SHAPES:
        m, k, n = shape
        plan = plan_of(matmul, spec(m, k), spec(k, n))
        (p,) = problems_of(plan, CONDITIONS)
        chosen = default_schedule(plan, CONDITIONS.target, CONDITIONS.device).sigs[p.sig.key]
        assert p.candidates[0] == chosen
    large = problem_of(matmul, spec(4096, 4096), spec(4096, 4096))
    assert max(s.bm * s.bn for s in large.candidates) >= 128 * 192
    assert {s.family for s in large.candidates} == {"wgmma"}  # mma: 2.5x in its model, 2.0x timed
    small = problem_of(matmul, spec(1, 768), spec(768, 768))
    assert all(s.bm <= 16 for s in small.candidates)


@pytest.mark.parametrize(("m", "k", "n", "family", "bn", "split"), [
    (1, 768, 3072, "gemv", 32, 1),     # 3.2 us; 24 columns, an even share: 4.3 us
    (1, 8192, 2048, "gemv", 128, 8),   # 10.4 us; 16 columns, not split: 12.5 us
    (16, 1024, 1024, "mma", 32, 1),    # 3.6 us; 8 columns: 4.5 us
    (16, 2048, 2048, "swapped", 64, 4),  # 5.6 us; mma of 16 columns: 7.0 us
    (64, 768, 768, "mma", 32, 1),      # 3.5 us; 24 columns: 4.2 us
    (64, 1024, 4096, "wgmma", 32, 1),  # 4.9 us; swapped of 64: 5.1 us
    (128, 768, 768, "wgmma", 16, 1),   # 3.3 us; mma of 32 columns: 4.1 us
    (4, 768, 768, "mma", 16, 1),       # 2.9 us; gemv of 8 columns: 3.3 us
    (128, 8192, 2048, "wgmma", 128, 4)])  # of 64 rows; 128 rows of 64 columns: 5 % more
def test_choices_that_were_timed(m: int, k: int, n: int, family: str, bn: int, split: int) -> None:
    """As kernels of their own on an H200, weights [k][n] from memory."""
    s = problem_of(matmul, spec(m, k), spec(k, n)).candidates[0]
    assert (s.family, s.bn, s.split_k) == (family, bn, split)


def test_normalisation_epilogue_and_exact_products() -> None:
    def norm(x: Any, w: Any) -> Any:
        y = x - x.mean(-1, keepdims=True)
        return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)) @ w

    check(problem_of(norm, spec(128, 768), spec(768, 768)))
    check(problem_of(layer, spec(128, 768), spec(768, 768), spec(768), spec(128, 768)))
    exact = problem_of(lambda x, w: jnp.matmul(x, w, precision="highest"),
                       spec(64, 64, dtype=jnp.float32), spec(64, 64, dtype=jnp.float32))
    check(exact)
    assert {s.family for s in exact.candidates} == {"fma", "bf16x6"}
    whole = plan_of(jnp.matmul, spec(64, 64, dtype=jnp.int32), spec(64, 64, dtype=jnp.int32))
    assert problems_of(whole, CONDITIONS) == (), "one schedule: nothing to measure"


def test_what_is_no_contraction_or_empty_is_not_tuned() -> None:
    assert problems_of(plan_of(lambda x: jnp.tanh(x).sum(-1), spec(8, 64)), CONDITIONS) == ()
    empty = plan_of(lambda x, w: (x @ w, jnp.tanh(x)), spec(0, 64), spec(64, 64))
    assert problems_of(empty, CONDITIONS) == ()


@pytest.mark.parametrize("siblings", [1, 3])
def test_alone_computes_what_the_group_does(siblings: int) -> None:
    """The one-stage plan, interpreted; its copies share the left operand."""
    f32 = {"dtype": jnp.float32}
    problem = problem_of(layer, spec(4, 8, **f32), spec(8, 16, **f32), spec(16, **f32),
                         spec(4, 16, **f32))
    plan = alone(problem.sig, siblings)
    assert len(plan.groups) == siblings and plan.barriers == 0
    assert len(plan.graph.inputs) == 1 + 3 * siblings
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.dims).astype(np.float32) for v in plan.graph.inputs]
    found = run_plan(plan, inputs)
    wanted = evaluate(plan.graph, inputs)
    assert len(found) == siblings
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_an_update_in_place_stays_one() -> None:
    def f(cache: Any, x: Any, w: Any, i: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, (x @ w)[None], (i, 0, 0))

    plan = plan_of(f, spec(8, 16, 64), spec(16, 64), spec(64, 64), spec(dtype=jnp.int32))
    updates = [p for p in problems_of(plan, CONDITIONS) if len(p.sig.body.inputs) == 4]
    for p in updates:
        assert [b.alias for b in alone(p.sig, 2).outputs] != [None, None]
    assert updates, "the update is fused into the product"


def test_schedule_texts_are_canonical() -> None:
    s = problem_of().candidates[0]
    assert json.loads(schedule_text(s)) == {"type": "DotSchedule",
                                            **json.loads(json.dumps(dataclasses.asdict(s)))}
    with pytest.raises(TypeError, match="a schedule is a dataclass"):
        schedule_text({"bm": 1})


# ---- keys --------------------------------------------------------------------------------------


def variant(**changes: Any) -> Callable[[], Problem]:
    return lambda: problem_of(conditions=dataclasses.replace(CONDITIONS, **changes))


F32 = {"dtype": jnp.float32}
PRODUCT = spec(64, 64, **F32), spec(64, 64, **F32)


OTHERS: dict[str, Callable[[], Problem]] = {
    "driver": variant(driver="580.2"),
    "generator": variant(generator="newer"),
    "compiler": variant(compiler="13.4"),
    "device": variant(device=dataclasses.replace(CONDITIONS.device, name="Other GPU")),
    "sm_count": variant(device=dataclasses.replace(CONDITIONS.device, sm_count=114)),
    "target": variant(target=cuda_target("sm_80")),
    "siblings": lambda: with_siblings(problem_of(), 2),
    "dtype": lambda: problem_of(matmul, spec(64, 64), spec(64, 64)),
    "columns": lambda: problem_of(matmul, spec(64, 128, **F32), spec(128, 64, **F32)),
    "rows": lambda: problem_of(matmul, spec(128, 64, **F32), spec(64, 64, **F32)),
    "layout": lambda: problem_of(lambda x, w: x @ w.T, *PRODUCT),
    "epilogue": lambda: problem_of(lambda x, w: jnp.tanh(x @ w), *PRODUCT),
    "result dtype": lambda: problem_of(lambda x, w: (x @ w).astype(jnp.bfloat16), *PRODUCT),
    "batch": lambda: problem_of(jnp.matmul, spec(2, 64, 64, **F32), spec(2, 64, 64, **F32)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_keys_differ_when_anything_differs(what: str) -> None:
    assert OTHERS[what]().key != problem_of().key


def test_equal_content_has_equal_keys() -> None:
    def renamed(left: Any, right: Any) -> Any:
        return jnp.matmul(left, right)

    assert problem_of(renamed, *PRODUCT).key == problem_of(matmul, *PRODUCT).key


# ---- NVRTC -------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", thinned(
    [(128, 768, 768), (1, 768, 768), (2048, 768, 3072)], 3))
def test_nvrtc_compiles_candidates_without_spills(shape: tuple[int, int, int],
                                                  every: bool) -> None:
    """Of every family the best, or of the best one only; and the last of all."""
    pytest.importorskip("cuda.bindings.nvrtc")
    m, k, n = shape
    problem = problem_of(layer, spec(m, k), spec(k, n), spec(n), spec(m, n))
    by_family = {s.family: s for s in reversed(problem.candidates)}
    best = list(by_family.values()) if every else [problem.candidates[0]]
    chosen = [*best, problem.candidates[-1]]
    plan, pool = alone(problem.sig), CompilePool(2)
    try:
        waiting = [pool.submit(plan, problem, s) for s in chosen]
        for s, kernel in zip(chosen, waiting, strict=True):
            made = kernel.result(time.monotonic() + 120)
            assert isinstance(made, Compiled), f"{s}: {made}"
            assert made.launch["max_blocks"] >= 1
    finally:
        pool.close()

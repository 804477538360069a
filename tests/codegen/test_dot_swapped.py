"""wgmma with the weights on the left: few rows, in the emulator and through NVRTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
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
    handovers,
    in_order,
    plan_of,
    small_integers,
    smooth,
)
from jax import lax
from thinned import thinned

from jaxmono.codegen import compile as compiling
from jaxmono.codegen import cuda_target, headers, nvrtc
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_swapped import candidates_swapped
from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES, ROLES_BYTES, shared_bytes
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.codegen.program import Program
from jaxmono.fusion.plan import Device, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()


def swapped(bm: int, bn: int, slots: int, split: int = 1) -> DotSchedule:
    return DotSchedule("swapped", bm, bn, 64, slots, (1, 2, 1) if bn == 128 else (1, 1, 2), split)


def made(plan: Plan, *schedules: DotSchedule) -> Program:
    program = build(plan, in_order(plan, *schedules), threads=256)
    assert "GemmSwapped<" in program.source and program.threads == 384
    return program


def run(plan: Plan, *schedules: DotSchedule, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    check_exact(plan, made(plan, *schedules), seeds=seeds, blocks=(1, 3))


def product(x: Any, w: Any, spec: str = "mk,kn->mn") -> Any:
    return jnp.einsum(spec, x, w, preferred_element_type=F32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", thinned([
    swapped(16, 64, 3), swapped(32, 128, 2), swapped(48, 64, 2, 2), swapped(16, 128, 3, 2)]))
def test_all_layouts_of_both_operands(s: DotSchedule) -> None:
    """[m,k] or [k,m] times [k,n] or [n,k], sizes that no tile divides, a bias and a residual."""
    def fn(a: Any, at: Any, b: Any, bt: Any, bias: Any, c: Any) -> Any:
        pairs = [("mk,kn->mn", a, b), ("mk,nk->mn", a, bt), ("km,kn->mn", at, b),
                 ("km,nk->mn", at, bt)]
        return tuple(product(x, y, e) + bias + c for e, x, y in pairs)

    m, k, n = 24, 328, 168
    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, m), BF16), Spec((k, n), BF16),
                   Spec((n, k), BF16), Spec((n,), F32), Spec((m, n), F32))
    run(plan, s)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", [swapped(32, 64, 3), swapped(32, 128, 2, 2), swapped(32, 64, 2, 4)])
def test_computed_rows(s: DotSchedule) -> None:
    """silu(gate) * up of earlier stages: the consumers make a panel of it; the last split of k has
    fewer tiles than the others."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        gate, up = jnp.maximum(x @ u, 0), x @ v
        return product(gate * up, w)

    m, k = 20, 584
    plan = plan_of(fn, Spec((m, 64), BF16), Spec((64, k), BF16), Spec((64, k), BF16),
                   Spec((k, 136), BF16))
    assert len(plan.stages) == 2
    program = made(plan, s)
    assert "G::fill(" in program.source
    check_near(plan, program, smooth(plan.graph, scale=0.3), 2e-2, seeds=(0, 1, 2), blocks=(2, 4))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("m", [9, 16, 50, 64])
def test_rows_of_every_number_in_half_precision(m: int) -> None:
    plan = plan_of(product, Spec((m, 136), F16), Spec((136, 104), F16))
    run(plan, swapped((m + 15) // 16 * 16, 64, 2), seeds=(0, 1))


def test_a_batch_of_products() -> None:
    plan = plan_of(lambda x, w: product(x, w, "bmk,bkn->bmn"), Spec((3, 12, 72), BF16),
                   Spec((3, 72, 80), BF16))
    run(plan, swapped(16, 64, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("s", [swapped(16, 64, 3), swapped(16, 128, 2, 2)])
def test_epilogues(s: DotSchedule) -> None:
    """gelu behind a bias per column; silu(x w) * u; a residual; columns that are transposed."""
    def fn(x: Any, w: Any, b: Any, u: Any, r: Any) -> Any:
        y = product(x, w)
        return (jax.nn.gelu(y + b).astype(BF16), (jax.nn.silu(y) * u).astype(BF16),
                y.astype(BF16) + r, y.T)

    m, k, n = 16, 520, 136
    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, n), BF16), Spec((n,), F32),
                   Spec((m, n), BF16), Spec((m, n), BF16))
    check_near(plan, made(plan, s), smooth(plan.graph, scale=0.2), 2e-2, seeds=(0, 1, 2),
               blocks=(2, 4))


def test_a_cache_is_updated_in_place() -> None:
    def fn(cache: Any, x: Any, w: Any, at: Any) -> Any:
        return lax.dynamic_update_slice(cache, (x @ w).reshape(16, 1, 2, 64), (0, at, 0, 0))

    plan = plan_of(fn, Spec((16, 6, 2, 64), BF16), Spec((16, 72), BF16), Spec((72, 128), BF16),
                   Spec((), jnp.int32))
    given = small_integers(plan.graph)
    given[3] = np.asarray(4, np.int32)
    check_exact(plan, made(plan, swapped(16, 64, 2)), seeds=(0, 1, 2), inputs=given, blocks=(1, 3))


def test_not_a_number_and_infinity() -> None:
    """They stay in their row and column, at the edges of tiles and of k as well."""
    plan = plan_of(product, Spec((20, 200), BF16), Spec((200, 136), BF16))
    x, w = small_integers(plan.graph)
    x[1, 199], x[19, 0] = np.nan, np.inf
    w[63, 3], w[64, 135], w[199, 64] = np.inf, np.nan, -np.inf
    program = made(plan, swapped(32, 64, 2, 2))
    check_near(plan, program, [x, w], 1e-6, seeds=(0, 1), blocks=(2, 4))


# ---- barriers ----------------------------------------------------------------------------------


def three_stages() -> Plan:
    """A ring shorter than k, several tasks a block, rows that the launch computes, of which the
    last product's are a panel."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        y = jnp.clip(x @ u, -2, 2)
        gate, up = jnp.clip(y @ v, -2, 2), jnp.clip(y @ w, -2, 2)
        return gate, up, product(gate * up, v.T)

    return plan_of(fn, Spec((16, 72), BF16), Spec((72, 200), BF16), Spec((200, 264), BF16),
                   Spec((200, 264), BF16))


def test_barriers_between_stages_and_unlike_products_side_by_side() -> None:
    plan = three_stages()
    program = made(plan, swapped(16, 64, 2))
    assert len(plan.stages) == 3 and "rings of other lengths" not in program.source
    check_exact(plan, program, seeds=tuple(range(6)), blocks=(1, 2, 5))


def test_beside_and_behind_other_families() -> None:
    """A ring of its own beside mma's; weights that are loaded while rows are normalised."""
    def fn(x: Any, u: Any, s: Any, v: Any, w: Any) -> Any:
        y = (x @ u).astype(F32)
        z = (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * s).astype(BF16)
        return z, z @ v, product(z, w)

    plan = plan_of(fn, Spec((48, 64), BF16), Spec((64, 136), BF16), Spec((136,), F32),
                   Spec((136, 200), BF16), Spec((136, 72), BF16))
    assert [len(s.groups) for s in plan.stages] == [1, 1, 2]
    mma = DotSchedule("mma", 16, 64, 64, 2, (1, 4, 2))
    for last in (mma, swapped(48, 128, 3)):
        program = made(plan, mma, swapped(48, 64, 2), last)
        assert handovers(program) == [(True, False), (False, True)]  # mma used it, too
        assert "rings of other lengths" in program.source
        check_near(plan, program, smooth(plan.graph, scale=0.3), 2e-2, seeds=(0, 1, 2, 3),
                   blocks=(1, 3))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("change", [
    pytest.param(lambda s: s.replace("if (at.closed()) meet();", ""), id="ready"),
    pytest.param(lambda s: s.replace("  fence_proxy_async();\n  syncthreads();\n}",
                                     "  fence_proxy_async();\n}"), id="panel"),
    pytest.param(lambda s: s.replace("syncthreads();\n    constexpr int PER_ROW = BN", "constexpr "
                                     "int PER_ROW = BN"), id="sums"),
    pytest.param(lambda s: s.replace("f(r, c, x.x, NoEarly{});\n    }\n    syncthreads();",
                                     "f(r, c, x.x, NoEarly{});\n    }"), id="next task"),
])
def test_without_a_barrier_some_order_goes_wrong(change: Callable[[str], str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(source: str) -> str:
        text = headers.bundle(source)
        assert change(text) != text
        return change(text)

    plan = three_stages()
    with monkeypatch.context() as patched:
        patched.setattr(compiling, "bundle", changed)
        program = made(plan, swapped(16, 64, 2))
    with pytest.raises((AssertionError, RuntimeError)):
        check_exact(plan, program, seeds=tuple(range(24)), blocks=(2,))


# ---- choice ------------------------------------------------------------------------------------


def mlp(rows: int) -> Plan:
    def fn(x: Any, g: Any, u: Any, d: Any, r: Any) -> Any:
        return (jax.nn.silu(x @ g) * (x @ u)) @ d + r

    k, n = 2048, 8192
    return plan_of(fn, Spec((rows, k), BF16), Spec((k, n), BF16), Spec((k, n), BF16),
                   Spec((n, k), BF16), Spec((rows, k), BF16), device=H200)


def families(plan: Plan, arch: str = "sm_90a") -> set[str]:
    chosen = default_schedule(plan, cuda_target(arch), H200).sigs.values()
    return {s.family for s in chosen if isinstance(s, DotSchedule)}


def test_streams_of_weights_past_few_rows_are_chosen() -> None:
    assert families(mlp(16)) == families(mlp(24)) == {"swapped"}
    assert "swapped" in families(mlp(8))
    assert "swapped" not in families(mlp(2)) | families(mlp(16), "sm_80")
    # What its last product reads is computed: 128 rows of that are stored first.
    assert families(mlp(128)) == {"wgmma"}
    small = plan_of(lambda a, b: a @ b, Spec((16, 256), BF16), Spec((256, 256), BF16), device=H200)
    assert families(small) == {"mma"}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 24, 48])
def test_chosen_tiles_compile_for_hopper(rows: int) -> None:
    """No spills, no products that the assembler had to put one after the other."""
    kernel = emit(mlp(rows), cuda_target("sm_90a"), H200, "test")
    assert "GemmSwapped<" in kernel.source and kernel.shared_bytes <= H200.shared_bytes
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


@pytest.mark.parametrize("computed", [False, True])
def test_shared_memory_of_every_candidate_fits(computed: bool) -> None:
    for m, n, k in ((9, 512, 64), (16, 2048, 8192), (33, 1000, 768), (64, 8192, 2048)):
        plan = plan_of(lambda x, w: x @ w, Spec((m, k), BF16), Spec((k, n), BF16))
        (sig,) = dot_sigs(plan)
        found = candidates_swapped(1, m, n, k, device=H200, shared_bytes=H200.shared_bytes,
                                   k_major=(True, n % 8 != 0), computed=computed, blocks=132)
        assert found
        for _, s in found:
            code = DotCode.of(sig, s)
            if computed:
                code = replace(code, lhs=replace(code.lhs, param=None))
            assert LOW_BYTES < shared_bytes(code) <= H200.shared_bytes - ROLES_BYTES

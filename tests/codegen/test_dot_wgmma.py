"""The wgmma family as stages of generated kernels, in the emulator and through NVRTC."""

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
    dot_sigs,
    every_layout,
    handovers,
    in_order,
    plan_of,
    small_integers,
    smooth,
    wgmma,
)
from contraction_harness import (
    run_wgmma as run,
)
from lost_waits import Case, failure
from thinned import crossed

from jaxmono.codegen import cuda_target, dot_wgmma, generate, headers, nvrtc
from jaxmono.codegen.dot import DotCode
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_schedule_wgmma import choose_wgmma
from jaxmono.codegen.dot_wgmma_shared import LOW_BYTES, ROLES_BYTES, shared_bytes
from jaxmono.codegen.generate import default_schedule, emit
from jaxmono.fusion.plan import Device, DotForm, Plan

Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
H200 = Device()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("rows", "large", "band"),
                         [(16, False, 2), (17, False, 2), (18, True, 16)])
def test_bands_of_many_rows_of_tiles(rows: int, large: bool, band: int,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile once, where the last band is not whole, either; a third of them a block."""
    monkeypatch.setattr(dot_wgmma, "_LARGE_BYTES", 64 * 80 * 2 - large)
    p = plan_of(lambda x, w: x @ w, Spec((rows * 64 - 5, 64), BF16), Spec((64, 80), BF16))
    made = build(p, in_order(p, wgmma(64, 32, 2, (1, 1, 2))), threads=256)
    assert f"min({band}, {rows} - band * {band})" in made.source
    check_exact(p, made, seeds=(0,), blocks=(3,))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("s", [
    wgmma(64, 48, 3, (1, 1, 2)), wgmma(128, 96, 2, (2, 1, 1)), wgmma(64, 128, 3, (1, 2, 1)),
    wgmma(64, 48, 2, (1, 1, 2), lines=2), wgmma(64, 128, 2, (1, 2, 1), lines=2)])
def test_all_layouts_of_both_operands(s: DotSchedule) -> None:
    """[m,k] or [k,m] times [k,n] or [n,k], sizes that no tile divides, a bias and a residual."""
    run(every_layout(136), s)


def test_a_batch_of_products_in_half_precision() -> None:
    plan = plan_of(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), Spec((3, 70, 72), F16),
                   Spec((3, 72, 40), F16))
    run(plan, wgmma(64, 48, 4, (1, 1, 2)))


def test_products_behind_products() -> None:
    """Three stages with other rings in the same shared memory, barriers between them."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return jax.nn.relu(jax.nn.relu(x @ u) @ v) @ w

    plan = plan_of(fn, Spec((70, 64), BF16), Spec((64, 160), BF16), Spec((160, 72), BF16),
                   Spec((72, 48), BF16))
    assert len(plan.stages) == 3
    sigs = in_order(plan, wgmma(64, 96, 2, (1, 1, 2)), wgmma(128, 48, 4, (2, 1, 1)),
                  wgmma(64, 16, 2, (1, 1, 2)))
    x, u, _, w = small_integers(plan.graph, high=1)
    # Columns of v with a single 1: what the second product gives stays exact in bf16.
    v = np.eye(160, dtype=x.dtype)[np.random.default_rng(1).permutation(160)[:72]].T
    check_exact(plan, build(plan, sigs, threads=256), seeds=(0, 1, 2, 3), blocks=(1, 3),
                inputs=[x, u, v, w])


@pytest.mark.slow
def test_unlike_products_side_by_side() -> None:
    """Tasks of one stage with different rings: producers wait for the consumers between them."""
    def fn(x: Any, u: Any, y: Any, v: Any) -> Any:
        return x @ u, jnp.tanh(jnp.dot(y, v, preferred_element_type=F32)) * 0

    plan = plan_of(fn, Spec((130, 136), BF16), Spec((136, 96), BF16), Spec((64, 72), BF16),
                   Spec((72, 200), BF16))
    assert len(plan.stages) == 1
    run(plan, wgmma(64, 48, 3, (1, 1, 2)), wgmma(64, 64, 2, (1, 1, 2)), seeds=(0, 1, 2, 3))
    run(plan, wgmma(64, 48, 3, (1, 1, 2)), DotSchedule("mma", 32, 32, 64, 2, (2, 4, 1)))


@pytest.mark.slow
def test_rings_of_other_lengths_in_turn() -> None:
    """A block's next task may have a shorter ring: both sides begin at its first slot."""
    def fn(x: Any, u: Any, v: Any) -> Any:
        return (jnp.dot(x, u, preferred_element_type=F32),
                jnp.dot(x, v, preferred_element_type=F32))

    plan = plan_of(fn, Spec((200, 320), BF16), Spec((320, 96), BF16), Spec((320, 56), BF16))
    assert len(plan.stages) == 1
    for rings in ((4, 2), (2, 4)):
        run(plan, *(wgmma(64, 48, slots, (1, 1, 2)) for slots in rings), seeds=(0, 1))
    for lines in ((1, 2), (2, 1)):  # as many slots, of other sizes
        run(plan, *(wgmma(64, 48, 2, (1, 1, 2), lines=x) for x in lines), seeds=(0, 1))


def test_only_the_first_task_of_a_mixed_stage_is_loaded_early() -> None:
    """Behind a stage without tiles the first task's weights come early; shared memory for the ones
    after it is the producers' only when the consumers are done with the task before."""
    def fn(x: Any, u: Any, s: Any, b: Any, v: Any, w: Any) -> Any:
        y = models.norm((x @ u).astype(F32), s, b).astype(BF16)
        return y, y @ v, jnp.dot(y, w, preferred_element_type=F32)

    plan = plan_of(fn, Spec((260, 64), BF16), Spec((64, 160), BF16), Spec((160,), F32),
                   Spec((160,), F32), Spec((160, 16), BF16), Spec((160, 96), BF16))
    assert [len(s.groups) for s in plan.stages] == [1, 1, 2]
    # The larger slots come second: the first of them lies over two of those before.
    sigs = in_order(plan, wgmma(64, 48, 2, (1, 1, 2)), wgmma(64, 16, 3, (1, 1, 2)),
                  wgmma(64, 96, 2, (1, 1, 2)))
    program = build(plan, sigs, threads=256)
    assert handovers(program) == [(True, False), (False, True)]
    assert "if (t != block_id()) roles->meet();" in program.source
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=tuple(range(8)), blocks=(1, 2))


def test_small_tiles_have_two_lines_of_k_in_a_slot() -> None:
    """Where at least five of those fit, or all of a task."""
    def depth(m: int, n: int, k: int, itemsize: int = 2) -> int:
        found = choose_wgmma(1, m, n, k, itemsize, device=H200, shared_bytes=H200.shared_bytes,
                             row_prologue=False, k_major=(True, False))
        assert found is not None
        return found[1].bk * itemsize

    assert depth(128, 768, 768) == 256
    assert depth(1024, 1024, 1024) == depth(128, 768, 768, itemsize=4) == 128


def test_rings_of_short_tasks_hold_several() -> None:
    def slots(m: int) -> int:
        found = choose_wgmma(1, m, 64, 64, device=H200, shared_bytes=H200.shared_bytes,
                             row_prologue=False, k_major=(True, False))
        assert found is not None
        return found[1].stages

    assert slots(128 * 132) == 2  # one task for each block
    assert slots(128 * 132 * 5) == 4


def test_a_normalised_left_operand() -> None:
    def fn(x: Any, s: Any, b: Any, w: Any) -> Any:
        return models.norm(x.astype(F32), s, b).astype(BF16) @ w

    plan = plan_of(fn, Spec((32, 200), BF16), Spec((200,), F32), Spec((200,), F32),
                   Spec((200, 96), BF16))
    form = dot_sigs(plan)[0].form
    assert isinstance(form, DotForm) and form.row_prologue
    program = build(plan, in_order(plan, wgmma(64, 48, 3, (1, 1, 2))), threads=256)
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2))


def test_weights_are_loaded_while_a_stage_without_tiles_runs() -> None:
    def fn(x: Any, u: Any, s: Any, b: Any, v: Any) -> Any:
        y = models.norm((x @ u).astype(F32), s, b).astype(BF16)
        return y, y @ v

    plan = plan_of(fn, Spec((70, 64), BF16), Spec((64, 80), BF16), Spec((80,), F32),
                   Spec((80,), F32), Spec((80, 48), BF16))
    for slots, awaited in ((3, True), (2, False)):  # another ring; the same, in which tiles go on
        sigs = in_order(plan, wgmma(64, 48, 2, (1, 1, 2)), wgmma(64, 48, slots, (1, 1, 2)))
        program = build(plan, sigs, threads=256)
        assert handovers(program) == [(awaited, False), (False, True)]
        assert program.source.count("at.slot = 0;") == 2 * awaited
        check_near(plan, program, smooth(plan.graph), 2e-2, seeds=(0, 1, 2))


def test_tiles_go_on_in_a_ring_that_stages_share() -> None:
    """Blocks with a task in one stage only, an epilogue in between; neither where a stage between
    them uses shared memory otherwise."""
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ u) @ v) @ w

    plan = plan_of(fn, Spec((130, 256), BF16), Spec((256, 192), BF16), Spec((192, 48), BF16),
                   Spec((48, 96), BF16))
    tile = wgmma(64, 48, 3, (1, 1, 2))
    program = build(plan, in_order(plan, tile, tile, tile), threads=256)
    assert handovers(program) == [(False, True)] * 2
    check_near(plan, program, smooth(plan.graph), 2e-2, seeds=tuple(range(8)), blocks=(1, 4, 7))
    other = build(plan, in_order(plan, tile, wgmma(64, 48, 2, (1, 1, 2)), tile), threads=256)
    assert handovers(other) == [(True, True)] * 2
    check_near(plan, other, smooth(plan.graph), 2e-2, seeds=(0, 1), blocks=(4,))


def test_shared_memory_is_handed_over_at_a_loop_s_end() -> None:
    """Where only the last trip is followed by another ring."""
    def fn(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    plan = plan_of(fn, Spec((70, 96), BF16), *[Spec((96, 96), BF16)] * 4, Spec((96, 200), BF16))
    assert [(x.start, x.period, x.trips) for x in plan.loops] == [(0, 1, 4)]
    tile = wgmma(64, 48, 3, (1, 1, 2))
    for last, frees in ((wgmma(64, 96, 2, (1, 1, 2)), True), (tile, False)):
        program = build(plan, in_order(plan, tile, last), threads=256)
        assert handovers(program) == [(False, True), (frees, True)]
        assert ("if (trip == 3) roles->meet();" in program.source) is frees
        check_near(plan, program, smooth(plan.graph, scale=0.3), 1e-1, seeds=(0, 1, 2),
                   blocks=(1, 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [
    pytest.param(lambda s: s.replace("roles->grid_barrier<true, ", "roles->grid_barrier<false, ")
                 .replace(" roles->meet();", ""), id="handed over"),
    pytest.param(lambda s: s.replace("roles->grid_barrier<true, true>",
                                     "roles->grid_barrier<true, false>")
                 .replace("if (at.closed()) meet();", ""), id="opened")])
def test_every_meeting_matters(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(lambda x, u, v: jnp.tanh(x @ u) @ v, Spec((130, 64), BF16),
                   Spec((64, 192), BF16), Spec((192, 96), BF16))
    sigs = in_order(plan, wgmma(64, 48, 3, (1, 1, 2)), wgmma(64, 96, 2, (1, 1, 2)))
    case = Case(plan, sigs, smooth(plan.graph), 2e-2, threads=256)
    assert failure(case, monkeypatch, lambda s: s) == ""
    assert failure(case, monkeypatch, change) != ""


def test_hopper_takes_large_products_and_leaves_small_ones() -> None:
    def sizes(m: int) -> Plan:
        return plan_of(lambda a, b: a @ b, Spec((m, 768), BF16), Spec((768, 3072), BF16),
                       device=H200)

    def families(m: int, arch: str) -> set[str]:
        plan = sizes(m)
        return {s.family for s in default_schedule(plan, cuda_target(arch), H200).sigs.values()}

    assert families(2048, "sm_90a") == families(128, "sm_90a") == {"wgmma"}
    assert families(1, "sm_90a") == {"gemv"}
    assert families(24, "sm_90a") == {"swapped"}  # 16 rows: 4.4 us, mma 4.7
    assert families(24, "sm_90") == families(2048, "sm_90") == families(2048, "sm_80") == {"mma"}


@pytest.mark.sampled(5)
@crossed(("m", [64, 128, 2048]), (("n", "k"), [(768, 768), (768, 3072), (3072, 768)]))
def test_chosen_tiles_compile_for_hopper(m: int, n: int, k: int) -> None:
    """No spills, no products that the assembler had to put one after the other."""
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = jnp.dot(x, w, preferred_element_type=F32) + b
        return jax.nn.gelu(y, approximate=False).astype(BF16)

    plan = plan_of(fn, Spec((m, k), BF16), Spec((k, n), BF16), Spec((n,), F32), device=H200)
    program = generate(plan, cuda_target("sm_90a"), H200, "test")
    assert program.resources["spill_stores"] == program.resources["spill_loads"] == 0
    assert "registers_increase" in program.source
    assert program.shared_bytes <= H200.shared_bytes


def test_shared_memory_of_every_choice_fits() -> None:
    for m in (33, 64, 100, 128, 512, 2048):
        for n in (16, 100, 768, 3072):
            for k in (64, 768, 3072):
                found = choose_wgmma(1, m, n, k, device=H200, shared_bytes=H200.shared_bytes,
                                     row_prologue=False, k_major=(True, False))
                assert found is not None
                plan = plan_of(lambda a, b: a @ b, Spec((m, k), BF16), Spec((k, n), BF16))
                code = DotCode.of(dot_sigs(plan)[0], found[1])
                assert LOW_BYTES < shared_bytes(code) <= H200.shared_bytes - ROLES_BYTES


def test_a_kernel_without_such_products_has_no_producers() -> None:
    plan = plan_of(lambda a, b: a @ b, Spec((1, 768), BF16), Spec((768, 768), BF16), device=H200)
    kernel = emit(plan, cuda_target("sm_90a"), H200, "test")
    assert kernel.threads == 256 and "Roles" not in kernel.source


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "wide"), [(128, False), (256, True)])
def test_wide_tiles_keep_nothing_that_can_be_found_again(n: int, wide: bool) -> None:
    """Of 128 sums a thread; what is made of the block's and the thread's number would spill."""
    plan = plan_of(lambda x, w: x @ w, Spec((256, 128), BF16), Spec((128, n), BF16), device=H200)
    tile = {s.key: wgmma(128, n, 3, (2, 1, 1)) for s in dot_sigs(plan)}
    program = build(plan, tile, threads=256)
    assert ("#define JM_WIDE_TILES" in program.source) is wide


def test_products_overlap_although_a_function_has_several_call_sites() -> None:
    """ptxas waits for each product before the next (C7510) where one is behind a call."""
    def fn(x: Any, *w: Any) -> Any:
        for act, u, v in zip((jax.nn.gelu, jax.nn.relu, jax.nn.gelu), w[::2], w[1::2], strict=True):
            x = act(x @ u) @ v + x
        return x

    plan = plan_of(fn, Spec((2048, 768), BF16),
                   *[Spec(s, BF16) for s in ((768, 3072), (3072, 768)) * 3], device=H200)
    kernel = emit(plan, cuda_target("sm_90a"), H200, "test")
    assert "GemmWgmma<" in kernel.source
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


# ---- 8-bit floats ------------------------------------------------------------------------------

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def bytes_plan(a: Any, b: Any, spec: str = "mk,nk->mn", times: int = 1, **kw: Any) -> Plan:
    shape = {"m": 136 * times, "k": 624, "n": 112 * times}
    args = [Spec(tuple(shape[c] for c in x), t)
            for x, t in zip(spec.split("->")[0].split(","), (a, b), strict=True)]
    def fn(x: Any, w: Any, c: Any) -> Any:
        return jnp.einsum(spec, x, w, preferred_element_type=F32, **kw) + c

    return plan_of(fn, *args, Spec((112 * times,), F32), device=H200)


@pytest.mark.sampled(7)
@crossed(("pair", [(E4M3, E5M2), (E4M3, E4M3), (E5M2, E4M3), (E5M2, E5M2)]), ("s", [
    wgmma(64, 48, 3, (1, 1, 2)), wgmma(128, 96, 2, (2, 1, 1)), wgmma(64, 128, 3, (1, 2, 1)),
    wgmma(64, 48, 3, (1, 1, 2), 2)]))
def test_bytes(s: DotSchedule, pair: tuple[Any, Any]) -> None:
    """128 of k a tile, of which the last one is partly there."""
    s = dataclasses.replace(s, bk=128)
    plan = bytes_plan(*pair)
    run(plan, s, seeds=(0, 1))
    check_near(plan, build(plan, in_order(plan, s), threads=256), smooth(plan.graph), 1e-5)


def test_bytes_in_a_batch_with_a_residual() -> None:
    def fn(x: Any, w: Any, r: Any) -> Any:
        y = jnp.einsum("bmk,bnk->bmn", x, w, preferred_element_type=F32) + r.astype(F32)
        return y.astype(E4M3), y.astype(BF16)

    plan = plan_of(fn, Spec((2, 70, 96), E4M3), Spec((2, 48, 96), E4M3), Spec((2, 70, 48), BF16))
    run(plan, dataclasses.replace(wgmma(64, 48, 2, (1, 1, 2)), bk=128))


def test_which_bytes_are_taken() -> None:
    """Neighbouring k in both operands, and no precision asked for."""
    def family(spec: str = "mk,nk->mn", **kw: Any) -> str:
        plan = bytes_plan(E4M3, E5M2, spec, 8, **kw)
        (s,) = default_schedule(plan, cuda_target("sm_90a"), H200).sigs.values()
        return s.family

    assert family() == "wgmma"
    assert {family(precision="highest"), family("km,nk->mn")} == {"mma"}
    assert family("mk,kn->mn") == "bytes"


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "k"), [
    (512, 3072, 4096), (2048, 3072, 768), (4096, 4096, 4096)])
def test_chosen_tiles_of_bytes_compile_for_hopper(m: int, n: int, k: int) -> None:
    def fn(x: Any, w: Any, b: Any) -> Any:
        y = jnp.einsum("mk,nk->mn", x, w, preferred_element_type=F32) * b
        return jax.nn.gelu(y, approximate=False).astype(BF16)

    plan = plan_of(fn, Spec((m, k), E4M3), Spec((n, k), E5M2), Spec((n,), F32), device=H200)
    kernel = emit(plan, cuda_target("sm_90a"), H200, "test")
    assert "GemmWgmma<F8Pair<f8e4m3, f8e5m2>" in kernel.source
    binary = nvrtc.compile_cuda(headers.bundle(kernel.source), "sm_90a")
    assert not re.search(r"C75\d\d", binary.log), binary.log
    assert binary.spill_stores == binary.spill_loads == 0


def test_what_differs_by_column_is_requested_before_the_sums() -> None:
    """A factor by column, of which a tile reads a few lines, into L1; not a residual, nor one by
    row."""
    def fn(x: Any, w: Any, scale: Any, other: Any, factor: Any) -> Any:
        return (x @ w * scale) * factor[:, None] + other

    shapes = ((2048, 768), (768, 3072), (3072,), (2048, 3072), (2048,))
    plan = plan_of(fn, *(Spec(s, BF16) for s in shapes), device=H200)
    source = emit(plan, cuda_target("sm_90a"), H200, "test").source
    before = source[source.index("G::Accumulators"):source.index("G::consume<")]
    assert re.findall(r"prefetch_l1\((\w+)", before) == ["p2"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("bn", "warps", "split"), [
    (32, (2, 1, 1), 1), (96, (2, 1, 1), 1), (160, (2, 1, 1), 1), (128, (1, 1, 2), 1),
    (192, (2, 1, 1), 2)])
def test_sums_that_nothing_is_read_beside_leave_by_shuffles(
        bn: int, warps: tuple[int, int, int], split: int) -> None:
    """Whole rows, those in chunks, halves of a tile, shares of one; the edges of both sides."""
    plan = plan_of(lambda x, w: jax.nn.relu(x @ w), Spec((150, 520), BF16), Spec((520, 232), BF16))
    s = wgmma(64 * warps[0], bn * warps[1], 2, warps, split)
    assert "return NoReads{};" in build(plan, in_order(plan, s), threads=256).source
    run(plan, s, seeds=(0,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [104, 96])
def test_requests_of_a_bias_stay_inside_it(n: int) -> None:
    """Of 96 columns a tile of the second row begins inside a line; 104 end inside a tile."""
    plan = plan_of(lambda x, w, b: x @ w + b, Spec((136, 64), BF16), Spec((64, n), BF16),
                   Spec((n,), F32))
    run(plan, wgmma(128, 48, 2, (2, 1, 1)), seeds=(0,))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("bn", [128, 160, 192, 256])
def test_wide_tiles_whose_k_is_shared(bn: int) -> None:
    """Each warpgroup finishes half of the columns; k with a rest, edges, a bias and a residual."""
    def fn(x: Any, w: Any, bias: Any, other: Any) -> Any:
        return jax.nn.relu(x @ w + bias + other)

    plan = plan_of(fn, Spec((136, 200), BF16), Spec((200, 264), BF16), Spec((264,), F32),
                   Spec((136, 264), BF16))
    run(plan, wgmma(64, bn, 3, (1, 1, 2)), seeds=(0, 1))


def test_wide_tiles_whose_k_is_shared_twice() -> None:
    """Among warpgroups, and among blocks."""
    plan = plan_of(lambda x, w, b: x @ w + b, Spec((70, 520), BF16), Spec((520, 200), BF16),
                   Spec((200,), F32))
    run(plan, wgmma(64, 192, 3, (1, 1, 2), 2), seeds=(0,))


def test_behind_a_barrier_producers_are_ahead() -> None:
    """64x768x768: alone it is mma (3.5 us), in a model wgmma."""
    x, w = Spec((64, 768), BF16), Spec((768, 768), BF16)
    alone = plan_of(lambda x, w: x @ w, x, w, device=H200)
    model = plan_of(lambda x, w, u: jax.nn.relu(x @ w) @ u, x, w, w, device=H200)
    target = cuda_target("sm_90a")
    families = [[default_schedule(plan, target, H200).sigs[s.key].family for s in dot_sigs(plan)]
                for plan in (alone, model)]
    assert families == [["mma"], ["mma", "wgmma"]]


def test_the_widest_tiles_leave_a_residual_that_is_an_input() -> None:
    """Requested early it takes registers that 256 columns of sums do not leave. (Of 16 bits, it
    comes through the ring: test_epilogue_source.py.)"""
    def fn(x: Any, w: Any, bias: Any, other: Any) -> Any:
        return x @ w + bias + other.astype(BF16)

    specs = [Spec(s, BF16) for s in ((1280, 768), (768, 3072), (3072,))]
    plan = plan_of(fn, *specs, Spec((1280, 3072), F32), device=H200)
    target = cuda_target("sm_90a")
    schedule = default_schedule(plan, target, H200)
    (sig,) = dot_sigs(plan)
    for bn, early in ((192, True), (256, False)):
        s = wgmma(128, bn, 3, (2, 1, 1))
        source = emit(plan, target, H200, "test", dataclasses.replace(
            schedule, sigs={**schedule.sigs, sig.key: s})).source
        assert ("early.x0 = load<float, 8>(p3 + " in source) is early

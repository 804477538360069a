"""Values with flags in place of barriers: of this launch, waited for, where all can have them."""

from __future__ import annotations

import importlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import models
import numpy as np
import pytest
from contraction_harness import build, check_exact, dot_sigs, plan_of, small_integers, smooth
from harness import run_program
from lost_waits import rewritten
from test_guarded_loads import ptx

from benchmarks.workloads.loops import ctc
from jaxmono.codegen import Program, calls, cuda_target, generate, headers
from jaxmono.codegen import compile as compiling
from jaxmono.codegen.dot_gemv_shape import GRANULE
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.open_borders import apart
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.sig_code import code_for
from jaxmono.fusion.plan import Device, Plan
from jaxmono.hlo.interp import evaluate

generating = importlib.import_module("jaxmono.codegen.generate")
Spec = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def layers(t: Any = BF16, rows: int = 1, *, alike: bool = False) -> Plan:
    """Three with a residual each, over sums that small integers keep exact. ``alike``: all layers
    have the same code; elsewhere each finds its weights in one array of all."""
    def step(x: Any, *weights: Any) -> Any:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            h = jnp.clip(jnp.einsum("mk,kn->mn", x, w, preferred_element_type=F32,
                                    precision="highest"), -2, 2).astype(t)
            x = jnp.clip(x + jnp.einsum("mk,nk->mn", h, v, preferred_element_type=F32,
                                        precision="highest"), -3, 3).astype(t)
        return x

    def stacked(x: Any, w: Any) -> Any:
        return step(x, *w)

    weights = [Spec((64, 160), t)] * 6 if alike else [Spec((6, 64, 160), t)]
    return plan_of(step if alike else stacked, Spec((rows, 64), t), *weights)


def schedules(plan: Plan, split: int = 1) -> dict[str, DotSchedule]:
    return {s.key: DotSchedule("gemv", s.form.m.size, 16, GRANULE, 2, (1, 4, 1), split)
            for s in dot_sigs(plan)}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("t", "rows"), [(BF16, 1), (F16, 2), (F32, 1)])
def test_layers_keep_one_barrier(t: Any, rows: int) -> None:
    """The one behind which launches are counted. Words of 16 bits with half an epoch, and of 32."""
    plan = layers(t, rows)
    program = build(plan, schedules(plan))
    assert (program.stages, program.barriers) == (6, 1)
    assert program.cooperative and "behind no barrier" in program.plan_text
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=tuple(range(5)),
                blocks=(1, 2, 3, 7))


def wrong_launches(plan: Plan, program: Program, rtol: float = 0.0) -> list[int]:
    """Launches, each with other inputs and the words of the one before, that went wrong."""
    wrong: list[int] = []
    for seed in range(12):
        given = small_integers(plan.graph, seed=seed, high=1)
        wanted = evaluate(plan.graph, given, accumulate="f64")
        try:
            found = run_program(program, given, blocks=4, seed=seed % 5)
        except RuntimeError:  # a deadlock
            return [*wrong, seed]
        near = np.abs(found[0].astype(np.float64) - wanted[0].astype(np.float64)).max()
        wrong += [] if near <= rtol * np.abs(wanted[0]).max() else [seed]
    return wrong


def test_values_are_of_this_launch() -> None:
    plan = layers()
    assert not wrong_launches(plan, build(plan, schedules(plan)))
    plan = normalised()
    assert not wrong_launches(plan, build(plan, schedules(plan)), 0.1)


def dot(x: Any, w: Any) -> Any:
    return jnp.clip(jnp.einsum("mk,kn->mn", x, w, preferred_element_type=F32,
                               precision="highest"), -2, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["rows of a product", "columns of rows"])
def test_nobody_waits_for_what_a_pad_puts_in_place(kind: str) -> None:
    """Outside of a buffer nothing is ever written. Rows of a product are asked for before it is
    known which of them are inside: a barrier stays there."""
    def step(x: Any, w: Any, v: Any, u: Any) -> Any:
        y = dot(x, w)
        wide = jnp.pad(y, ((1, 1), (0, 0)))
        if kind == "columns of rows":
            return y * wide.sum(axis=0), jnp.pad(y, ((0, 0), (3, 2))).max(axis=1)
        z = jax.lax.conv_general_dilated(
            wide[None], v, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
            precision="highest")[0]
        return dot(jnp.clip(z, -2, 2), u)

    plan = plan_of(step, Spec((2, 64), F32), Spec((64, 16), F32), Spec((3, 16, 32), F32),
                   Spec((32, 16), F32))
    program = build(plan)
    opened = 1 if kind == "columns of rows" else 2
    assert (program.stages, program.barriers) == (3, 1)
    assert f"stage {opened}, behind no barrier" in program.plan_text
    given = small_integers(plan.graph, high=1)
    for seed in range(3):
        found = run_program(program, given, blocks=3, seed=seed)
        for a, b in zip(found, evaluate(plan.graph, given, accumulate="f64"), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_layers_have_mailboxes_of_their_own() -> None:
    """In each trip of a loop, and behind it, words that no other stage of the launch has used."""
    plan = layers(F32, alike=True)
    split = schedules(plan, split=2)
    assert apart(plan, KernelSchedule(sigs=split)) == set()
    program = build(plan, split)
    assert len(re.findall(r"_mail\.words[^,)]*trip", program.source)) >= 1
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=tuple(range(5)),
                blocks=(1, 3))


def test_mail_between_two_uses_needs_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mailbox in each layer: what a slow block has not emptied must not be written."""
    monkeypatch.setattr(calls, "_OWN_MAIL_BYTES", 0)
    plan = layers(F32, alike=True)
    split = schedules(plan, split=2)
    assert apart(plan, KernelSchedule(sigs=split)) == {(0, 2), (1, 3), (2, 4), (3, 5)}
    program = build(plan, split)
    assert "Mailbox" in program.source and program.barriers == 2
    check_exact(plan, program, inputs=small_integers(plan.graph, high=1), seeds=tuple(range(5)),
                blocks=(1, 3))


def normalised() -> Plan:
    """A normalisation as a stage, others while x is staged, a source of the epilogue, and a vector
    that an element-wise stage reads."""
    def step(x: Any, s: Any, b: Any, w: Any, v: Any) -> Any:
        y = models.norm(x.astype(F32), s, b).astype(BF16)
        for i in range(2):
            h = jnp.tanh((models.norm(y.astype(F32), s, b).astype(BF16) @ w[i]).astype(F32))
            y = y + h.astype(BF16) @ v[i]
        return y, jnp.cumsum(y.astype(F32), axis=1)

    return plan_of(step, Spec((1, 128), BF16), Spec((128,), F32), Spec((128,), F32),
                   Spec((2, 128, 96), BF16), Spec((2, 96, 128), BF16))


def waits(text: str) -> list[str]:
    """The innermost loops of PTX that read what other blocks write, without order."""
    lines = text.splitlines()
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"(\$\w+):", line))}
    loops = [(labels[m[1]], i) for i, line in enumerate(lines)
             if (m := re.search(r"\bbra(?:\.uni)? \s*(\$\w+);", line)) and labels[m[1]] < i]
    inner = [(a, b) for a, b in loops
             if not any((a, b) != (c, d) and a <= c and d <= b for c, d in loops)]
    found = ["\n".join(lines[a:b]) for a, b in inner]
    return [x for x in found if "ld.relaxed.gpu" in x]


def test_lanes_that_wait_go_on_together() -> None:
    """Of lanes that each wait for themselves ptxas may let parts pass the next barrier of the block
    one by one, which counts a warp twice then: kernels hung. Flagged values of all readers; mail.
    """
    plan = plan_of(decode_step, Spec((1, 768), BF16), Spec((768,), F32), Spec((768,), F32),
                   Spec((3, 768, 3072), BF16), Spec((3, 3072, 768), BF16), device=Device())
    source = generating.emit(plan, cuda_target("sm_90a"), Device(), "step").source
    assert "wait_for_all(" in source
    found = waits(ptx(headers.bundle(source)))
    assert len(found) > 3
    for loop in found:
        assert "vote.sync.all" in loop, loop


def ctc_loss() -> Plan:
    """Loops in which some lanes of a warp have nothing to wait for (columns at the border)."""
    return plan_of(ctc, Spec((2, 12, 8), F32), Spec((2, 4), F32), device=Device())


@pytest.mark.parametrize("blocks", [1, 3])
def test_lanes_do_not_wait_with_those_of_a_later_trip(
        blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an H200, where the gradient of CTC's loss hung: lanes without anything to wait for went
    on, up to the same wait of a later trip, and were together there with those behind them. Or up
    to a barrier of the block, which they pass without these."""
    plan = ctc_loss()
    given = smooth(plan.graph)
    program = build(plan, {})
    text = program.source[program.source.index("struct Params"):]
    assert text.count("open border") > 8 and text.count("syncwarp();") > 8
    wanted = evaluate(plan.graph, given)
    for seed in range(6):
        for a, b in zip(run_program(program, given, blocks=blocks, seed=seed), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    monkeypatch.setattr(calls.Unit, "waits", False)
    apart = build(plan, {})
    with pytest.raises(RuntimeError, match=r"deadlock|in parts"):
        for seed in range(6):
            run_program(apart, given, blocks=blocks, seed=seed)


def test_rows_and_loops_around_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as with barriers."""
    plan = normalised()
    program = build(plan, schedules(plan))
    assert program.barriers < program.stages - 2 and "_norm_dot" in program.source
    monkeypatch.setattr(generating, "open_borders", lambda plan, schedule: plan)
    other = build(plan, schedules(plan))
    assert other.barriers == other.stages - 1
    for seed in range(6):
        given = smooth(plan.graph, seed)
        for a, b in zip(run_program(program, given, blocks=3, seed=seed),
                        run_program(other, given, blocks=3, seed=seed), strict=True):
            np.testing.assert_array_equal(a, b)


def test_nan_and_infinities_are_values() -> None:
    plan = layers(F32)
    program = build(plan, schedules(plan))
    given = smooth(plan.graph)
    given[0][0, 3] = np.nan
    (found,) = run_program(program, given, blocks=3)
    assert np.isnan(found).all()


NORM = "a look in place of the wait"
CHANGES = {
    NORM: ("flagged.cuh", "if (!asked.all_there(at.epoch)) asked.ask(at);\n"
                          "        return asked.all_there(at.epoch);", "return true;"),
    "x not waited for": ("gemv.cuh", "for (int i = 0; i < HELD; ++i) all &= there(words[i]);", ";"),
    "launches not counted": ("flagged.cuh", "&flags->state.launches, epoch",
                             "&flags->state.launches, 0u"),
    "a flag for all launches": ("flagged.cuh", "(at.epoch & A::Bits::EPOCH_MASK)", "1u"),
    "a value in place of its flag": ("flagged.cuh", "<< A::Bits::VALUE_AT", ""),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lost", CHANGES)
def test_every_part_matters(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new = CHANGES[lost]
    change = rewritten(name, lambda text: text.replace(old, new))
    monkeypatch.setattr(compiling, "bundle", lambda source: change(headers.bundle(source)))
    plan, rtol = (normalised(), 0.1) if lost == NORM else (layers(), 0.0)
    assert wrong_launches(plan, build(plan, schedules(plan)), rtol)


def test_large_values_and_other_families_keep_their_barriers() -> None:
    def step(x: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ v) @ w

    plan = plan_of(step, Spec((256, 256), BF16), Spec((256, 256), BF16), Spec((256, 256), BF16))
    program = build(plan, {})
    assert program.barriers == program.stages - 1 and "Flagged" not in program.source


def decode_step(x: Any, s: Any, b: Any, w: Any, v: Any) -> Any:
    for i in range(3):
        h = jax.nn.gelu(models.norm(x.astype(F32), s, b).astype(BF16) @ w[i])
        x = x + h @ v[i]
    return x


@pytest.mark.slow
def test_a_decode_step_compiles_without_spills() -> None:
    plan = plan_of(decode_step, Spec((1, 768), BF16), Spec((768,), F32), Spec((768,), F32),
                   Spec((3, 768, 3072), BF16), Spec((3, 3072, 768), BF16), device=Device())
    program = generate(plan, cuda_target("sm_90a"), Device(), "step")
    assert "flagged" in program.source and program.barriers < program.stages - 1
    assert not program.resources["spill_stores"]


def test_what_a_thread_takes_much_of_has_no_flags() -> None:
    """It would wait for each vector in turn."""
    def fn(x: Any, w: Any) -> Any:
        return jnp.argmax((x @ w).astype(F32), -1), jnp.max(x @ w[:, :64], -1) + 1

    for n, flags in ((2048, True), (8192, False)):
        plan = plan_of(fn, Spec((1, 64), BF16), Spec((64, n), BF16), device=Device())
        (row,) = (s for s in plan.sigs if s.kind == "row" and "reduce" in s.name)
        code = code_for(row)
        schedule = generating.default_schedule(plan, cuda_target("sm_90a"), Device()).sigs[row.key]
        assert code.can_flag(row, schedule, False, 0) is flags, schedule


def test_what_is_read_at_many_places_has_no_flags() -> None:
    """An element would wait for each of them in turn."""
    def fn(x: Any) -> Any:
        y = jax.nn.softmax(x, -1)
        sums = jnp.cumsum(y.reshape(4, 350, 2), 1).reshape(4, 700)
        return jax.nn.softmax(sums, -1), jax.nn.softmax(y * 2, -1)

    source = build(plan_of(fn, Spec((4, 700), F32)), {}).source
    (cumulative,) = (line for line in source.splitlines() if "_prefetch(" not in line
                     and re.match(r"JM_\w+ void f\d+_row_slice_\w+\(", line))
    # The sums of the pieces before, and the elements of the own one.
    assert "Flagged<float> p0, const float* __restrict__ p1" in cumulative

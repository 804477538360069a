"""Contractions with prologues, epilogues and row prologues, in the emulator against f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contraction_harness import (
    Array,
    build,
    check_exact,
    check_near,
    dot_sigs,
    plan_of,
    small_integers,
    smooth,
    with_dots,
)
from harness import DEVICE, run_program
from jax import lax
from thinned import thinned_rows

from jaxmono.codegen.dot import operand_type
from jaxmono.codegen.dot_schedule import DotSchedule, choose_mma
from jaxmono.fusion.fold import RING_BYTES
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.types import DType

Spec = jax.ShapeDtypeStruct
BF16, F16, F32, F64 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64


@pytest.fixture
def x64() -> Any:
    with jax.enable_x64(True):
        yield


def dot_form(plan: Plan, i: int = 0) -> DotForm:
    form = dot_sigs(plan)[i].form
    assert isinstance(form, DotForm)
    return form


def test_float_types_and_result_types() -> None:
    """Every operand type on the tensor cores with every result type."""
    def fn(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return (a @ b, jnp.dot(a, b, preferred_element_type=F32),
                c @ d, jnp.dot(c, d, preferred_element_type=F32),
                e @ f, jnp.dot(e, f, precision="highest"), jnp.dot(e, f, precision="high"))

    args = [Spec(s, t) for t in (BF16, F16, F32) for s in ((21, 48), (48, 40))]
    plan = plan_of(fn, *args)
    kinds = {operand_type(s.form) for s in dot_sigs(plan) if isinstance(s.form, DotForm)}
    assert kinds == {DType.BF16, DType.F16, DType.F32, None}
    check_exact(plan, build(plan))


def test_double_precision(x64: Any) -> None:
    plan = plan_of(lambda a, b, c, d: (a @ b, jnp.dot(c, d, preferred_element_type=F64)),
                   Spec((19, 33), F64), Spec((33, 17), F64), Spec((5, 40), F32),
                   Spec((40, 24), F32))
    check_near(plan, build(plan), smooth(plan.graph), 1e-14)


def test_integer_types() -> None:
    """s8 to s32 and to s8, s32, u8, u32 (wrapping), pred as s32."""
    def fn(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return (jnp.dot(a, b, preferred_element_type=jnp.int32), jnp.dot(a, b), jnp.dot(c, d),
                jnp.dot(e, f), jnp.dot(e, f, preferred_element_type=jnp.uint32),
                jnp.dot(a.astype(jnp.int32) * 40000, b.astype(jnp.int32) * 50000))

    plan = plan_of(fn, *[Spec(s, t) for t in (jnp.int8, jnp.int32, jnp.uint8)
                         for s in ((18, 40), (40, 21))])
    program = build(plan)
    rng = np.random.default_rng(3)
    given = [rng.integers(np.iinfo(v.type.dtype.numpy).min, np.iinfo(v.type.dtype.numpy).max,
                          v.type.dims, dtype=v.type.dtype.numpy, endpoint=True)
             for v in plan.graph.inputs]
    check_exact(plan, program, inputs=given)


def test_mixed_operand_types() -> None:
    """Operands of different types, results narrower than either, an explicit algorithm."""
    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        def dot(x: Any, y: Any, t: Any, precision: Any = None) -> Any:
            return lax.dot_general(x, y, (((1,), (0,)), ((), ())), precision=precision,
                                   preferred_element_type=t)

        return (dot(a, b, F32), dot(b.T, a.T, BF16), dot(c, d, F32), dot(b.T, b, F16),
                dot(a, a.T, F16), dot(a, a.T, F32, lax.DotAlgorithmPreset.BF16_BF16_F32),
                dot(b.T, b, F32, lax.DotAlgorithmPreset.BF16_BF16_F32_X3))

    plan = plan_of(fn, Spec((18, 40), BF16), Spec((40, 24), F32), Spec((18, 33), jnp.int8),
                   Spec((33, 24), F32))
    kinds = [operand_type(s.form) for s in dot_sigs(plan) if isinstance(s.form, DotForm)]
    assert {None, DType.F32, DType.BF16} <= set(kinds)
    check_exact(plan, build(plan))


def test_precision_of_f32() -> None:
    """HIGHEST is f32; DEFAULT is tf32, which keeps 10 bits of an operand and no less."""
    def fn(a: Any, b: Any) -> Any:
        return jnp.dot(a, b, precision="highest"), a @ b

    plan = plan_of(fn, Spec((33, 400), F32), Spec((400, 20), F32))
    program = build(plan)
    given = smooth(plan.graph)
    wanted = evaluate(plan.graph, given, accumulate="f64")
    high, low = run_program(program, given)
    size = np.abs(wanted[0]).mean()
    assert np.abs(high - wanted[0]).max() < 3e-6 * size
    assert 1e-5 * size < np.abs(low - wanted[1]).max() < 5e-3 * size


def test_non_finite_operands() -> None:
    """NaN and infinities spread over their row and column, as in a plain sum of products."""
    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a @ b, c @ d, jnp.dot(c, d, precision="highest")

    plan = plan_of(fn, Spec((20, 70), BF16), Spec((70, 19), BF16), Spec((20, 70), F32),
                   Spec((70, 19), F32))
    given = [np.abs(x) + np.asarray(1, x.dtype) for x in small_integers(plan.graph)]
    for x in (given[0], given[2]):
        x[3, 5], x[4, 69], x[7, 0], x[7, 1] = np.nan, np.inf, np.inf, -np.inf
    for w in (given[1], given[3]):
        w[69, 2] = 0
    check_exact(plan, build(plan), inputs=given)


# ---- epilogues ---------------------------------------------------------------------------------


def test_epilogues() -> None:
    """Bias, residual, both gelus, several outputs of one dot, reshaped and transposed outputs."""
    def fn(x: Any, w: Any, b: Any, r: Any, u: Any, v: Any) -> Any:
        y = x @ w + b
        z = x @ u
        s = (x @ v).reshape(3, 11, 4, 6)
        return (jax.nn.gelu(y, approximate=False), y + r, jax.nn.gelu(z), z.T,
                s.transpose(2, 0, 1, 3), jnp.abs(s[1:, :, 2]))

    plan = plan_of(fn, Spec((33, 40), F32), Spec((40, 24), F32), Spec((24,), F32),
                   Spec((33, 24), F32), Spec((40, 37), F32), Spec((40, 24), F32))
    assert sum(len(s.body.outputs) for s in dot_sigs(plan)) == 6
    check_near(plan, build(plan), smooth(plan.graph, scale=0.5), 5e-3)


def test_epilogues_are_exact() -> None:
    """The same kinds of index, with integers: one misplaced element shows."""
    def fn(x: Any, w: Any, b: Any, r: Any, u: Any) -> Any:
        y = x @ w + b
        z = x @ u
        return (y, jnp.maximum(y, 0).T + r, (y * 2).reshape(11, 3, 8, 3).transpose(3, 1, 0, 2),
                z[::-1, 5:32], jnp.pad(z, ((1, 0), (0, 2))), z.astype(jnp.float16),
                jnp.where(z > 0, z, -z).astype(jnp.int8))

    plan = plan_of(fn, Spec((33, 40), BF16), Spec((40, 24), BF16), Spec((24,), BF16),
                   Spec((24, 33), BF16), Spec((40, 37), BF16))
    program = build(plan)
    given = small_integers(plan.graph, high=1)
    check_exact(plan, program, inputs=given, seeds=(0, 1, 2))


def test_split_k_epilogue() -> None:
    """The rows that a split finishes: bias by row and column, transposed second output."""
    def fn(x: Any, w: Any, b: Any, c: Any) -> Any:
        y = jnp.dot(x, w, preferred_element_type=F32) + b + c[:, None]
        return y, y.T

    plan = plan_of(fn, Spec((45, 256), BF16), Spec((256, 40), BF16), Spec((40,), F32),
                   Spec((45,), F32))
    s = DotSchedule("mma", 32, 40, 64, 2, (2, 1, 2), 4)
    check_exact(plan, build(plan, with_dots(plan, s)), seeds=(0, 1, 2), blocks=(4, 6))


def test_update_in_place() -> None:
    """A projection writes its rows into a cache that lives in the output's buffer."""
    def fn(cache: Any, x: Any, w: Any, pos: Any) -> Any:
        new = (x @ w).reshape(1, 4, 2, 24)
        return lax.dynamic_update_slice(cache, new.transpose(0, 2, 1, 3), (0, 0, pos, 0))

    plan = plan_of(fn, Spec((1, 2, 16, 24), BF16), Spec((4, 40), BF16), Spec((40, 48), BF16),
                   Spec((), jnp.int32))
    program = build(plan)
    assert program.aliases == ((0, 0),)
    for pos in (0, 3, 12, 15, -2):
        given = small_integers(plan.graph)
        given[3] = np.asarray(pos, np.int32)
        check_exact(plan, program, inputs=given)


def test_dots_that_read_each_other() -> None:
    """Stages of dots; an operand is a transposed and reshaped result."""
    def fn(x: Any, w: Any, u: Any) -> Any:
        y = jnp.clip(x @ w, -2, 2).reshape(4, 9, 2, 16)
        z = jnp.einsum("abcd,aecd->acbe", y, y[:, ::-1])
        return jnp.clip(z, -2, 2).reshape(4, 2, 81) @ u, y.transpose(2, 0, 3, 1)

    plan = plan_of(fn, Spec((36, 24), BF16), Spec((24, 32), BF16), Spec((81, 8), BF16))
    assert plan.barriers >= 2
    check_exact(plan, build(plan), seeds=(0, 1, 2, 3))


# ---- row prologues -----------------------------------------------------------------------------


def layer_norm(x: Any, s: Any, b: Any) -> Any:
    y = x.astype(F32)
    c = y - y.mean(-1, keepdims=True)
    r = lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    return (c * r * s + b).astype(x.dtype)


def rms_norm(x: Any, s: Any, b: Any) -> Any:
    y = x.astype(F32)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * s).astype(x.dtype) + b * 0


def softmax(x: Any, s: Any, b: Any) -> Any:
    del s, b
    return jax.nn.softmax(x.astype(F32), -1).astype(x.dtype)


def norm_plan(norm: Callable[..., Any], rows: int, k: int, n: int, dtype: Any, *,
              stored: bool = False, batch: int = 0) -> Plan:
    def fn(x: Any, s: Any, b: Any, w: Any, u: Any) -> Any:
        h = norm(x, s, b)
        out = h @ w, jnp.maximum(h @ u, 0)
        return (*out, h) if stored else out

    lead = (batch, rows) if batch else (rows,)
    plan = plan_of(fn, Spec((*lead, k), dtype), Spec((k,), F32),
                   Spec((k,), dtype if norm is rms_norm else F32), Spec((k, n), dtype),
                   Spec((k, n + 8), dtype), device=Device(sm_count=4))
    assert plan.barriers == 0
    assert all(dot_form(plan, i).row_prologue for i in range(2))
    return plan


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("norm", "dtype", "rtol", "k"), thinned_rows(
    [(norm, t, rtol, k) for t, rtol in ((BF16, 2e-2), (F32, 4e-3)) for k in (64, 96, 37)
     for norm in (layer_norm, rms_norm, softmax)], 4))
def test_row_prologue(norm: Any, dtype: Any, rtol: float, k: int) -> None:
    """Rows copied by cp.async (k a multiple of 8) or read where they are (37)."""
    plan = norm_plan(norm, 21, k, 24, dtype, stored=k != 64)
    check_near(plan, build(plan), smooth(plan.graph), rtol, seeds=(0, 1, 2))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("schedule", [
    DotSchedule("mma", 16, 8, 64, 2, (1, 1, 4)), DotSchedule("mma", 32, 16, 32, 3, (2, 2, 1)),
    DotSchedule("mma", 64, 32, 64, 4, (4, 1, 1)), DotSchedule("mma", 16, 32, 16, 2, (1, 4, 1))])
def test_row_prologue_schedules(schedule: DotSchedule) -> None:
    """Rows that warps share unevenly, a panel longer than k, several column tiles."""
    plan = norm_plan(layer_norm, 29, 104, 40, BF16, stored=True)
    program = build(plan, with_dots(plan, schedule))
    check_near(plan, program, smooth(plan.graph), 2e-2, blocks=(3,))


def test_row_prologue_of_two_operands() -> None:
    """A residual inside the norm: two buffers are read at every element, none is copied."""
    def fn(x: Any, r: Any, s: Any, b: Any, w: Any) -> Any:
        return layer_norm(x + r, s, b) @ w

    plan = plan_of(fn, Spec((19, 64), BF16), Spec((19, 64), BF16), Spec((64,), F32),
                   Spec((64,), F32), Spec((64, 24), BF16))
    assert dot_form(plan).row_prologue
    check_near(plan, build(plan), smooth(plan.graph), 2e-2)


def test_row_prologue_with_batches_and_non_finite_rows() -> None:
    plan = norm_plan(softmax, 9, 48, 24, F32, batch=3)
    given = smooth(plan.graph)
    given[0][0, 2, 5], given[0][1, 1, 7], given[0][2, 8] = np.nan, np.inf, -np.inf
    given[0][1, 3, 9] = -np.inf  # one masked column: fine
    check_near(plan, build(plan), given, 4e-3)


def test_layers_in_a_loop() -> None:
    """Panels whose weights are requested before the barrier; stages rolled into a loop; tiles that
    a block runs first (with the request) and later ones (without)."""
    def fn(x: Any, *ws: Any) -> Any:
        for w, u in zip(ws[::2], ws[1::2], strict=True):
            one, zero = jnp.ones(64, F32), jnp.zeros(64, F32)
            x = x + jnp.maximum(layer_norm(x, one, zero) @ w, 0) @ u
        return x

    plan = plan_of(fn, Spec((29, 64), BF16), *[Spec((64, 72), BF16), Spec((72, 64), BF16)] * 4)
    assert plan.loops and sum(f.form.row_prologue for f in plan.sigs
                              if isinstance(f.form, DotForm)) >= 1
    s = {sig.key: DotSchedule("mma", 16, 24 if sig.form.row_prologue else 32, 64, 2, (1, 1, 4),
                              1 if sig.form.row_prologue else 2)
         for sig in dot_sigs(plan) if isinstance(sig.form, DotForm)}
    program = build(plan, s)
    assert "_prefetch(" in program.source
    given = smooth(plan.graph)
    given[1:] = [(w * np.asarray(0.1, w.dtype)).astype(w.dtype) for w in given[1:]]
    check_near(plan, program, given, 2e-2, seeds=(0, 1, 2, 3), blocks=(3, 5))


@pytest.mark.parametrize("kib", [99, 227])
def test_every_folded_norm_has_a_tile(kib: int) -> None:
    """The longest rows that the planner folds leave room for a ring, with 4 warps and with 8."""
    shared = kib * 1024
    for itemsize in (2, 4):
        k = (shared // 2 - RING_BYTES) // 16 // itemsize
        for warps in (4, 8):
            for n in (1, 8, 30, 768):
                s = choose_mma(1, 128, n, k, itemsize, device=DEVICE, warps=warps,
                               shared_bytes=shared, row_prologue=True)
                assert s.bm >= 16


def test_results_do_not_depend_on_the_grid() -> None:
    """The same bits with any number of blocks and any order of threads: fixed orders of sums."""
    def fn(x: Any, w: Any) -> Any:
        return x @ w

    plan = plan_of(fn, Spec((40, 500), F32), Spec((500, 48), F32))
    program = build(plan, with_dots(plan, DotSchedule("mma", 16, 24, 32, 3, (1, 1, 4), 2)))
    given: list[Array] = smooth(plan.graph)
    (first,) = run_program(program, given)
    for seed, blocks in ((1, 2), (2, 3), (3, 8)):
        (again,) = run_program(program, given, seed=seed, blocks=blocks)
        assert first.tobytes() == again.tobytes()

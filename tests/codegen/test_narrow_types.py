"""Contractions of 8-bit integers and floats on the tensor cores, and 8-bit floats as values."""

from __future__ import annotations

import dataclasses
import functools
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
    graph_of,
    plan_of,
    small_integers,
    smooth,
    with_dots,
)
from emulated import emulate
from harness import run_program
from jax import lax
from thinned import crossed, thinned

from jaxmono.codegen import cuda_target, generate
from jaxmono.codegen.dot import operand_type
from jaxmono.codegen.dot_schedule import DotSchedule, _candidates, choose_mma
from jaxmono.codegen.generate import default_schedule
from jaxmono.fusion.plan import Device, DotForm, Plan
from jaxmono.fusion.support import refusal
from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.types import DType
from jaxmono.tuning.gpu_worker import as_numbers, random_values

Spec = jax.ShapeDtypeStruct
S8, U8, S32 = jnp.int8, jnp.uint8, jnp.int32
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
FLOATS = (E4M3, E5M2)
H200 = Device()


def full_range(plan: Plan, seed: int = 0) -> list[Array]:
    """Integers of the whole range, floats from a normal distribution."""
    rng = np.random.default_rng(seed)
    out: list[Array] = []
    for v, a in zip(plan.graph.inputs, smooth(plan.graph, seed), strict=True):
        t = v.type.dtype
        if t.is_integer:
            info = np.iinfo(t.numpy)
            a = rng.integers(info.min, info.max, v.type.dims, t.numpy, endpoint=True)
            a.flat[: a.size // 4] = info.min  # -128 * -128 most of all
        out.append(np.asarray(a))
    return out


def bytes_on_tensor_cores(plan: Plan) -> bool:
    forms = [s.form for s in dot_sigs(plan)]
    kinds = [operand_type(f) for f in forms if isinstance(f, DotForm)]
    return bool(kinds) and all(t is not None and t.itemsize == 1 for t in kinds)


LAYOUTS = [
    ("mk,kn->mn", (33, 96), (96, 48)), ("mk,nk->mn", (33, 96), (48, 96)),
    ("km,kn->mn", (96, 48), (96, 80)), ("km,nk->mn", (160, 32), (48, 160)),
    ("bmk,bkn->bmn", (3, 20, 64), (3, 64, 32)), ("bkm,bnk->bmn", (2, 64, 16), (2, 24, 64)),
    ("mk,kn->mn", (19, 37), (37, 21)), ("km,kn->mn", (37, 19), (37, 5)),  # nothing aligned
    ("mk,kn->mn", (1, 64), (64, 80)), ("mk,kn->mn", (5, 1040), (1040, 16)),
    ("mk,kn->mn", (40, 16), (16, 1)), ("mhk,hkn->mn", (17, 3, 32), (3, 32, 40))]


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("spec", "a", "b"), LAYOUTS)
def test_integers_are_exact(spec: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    plan = plan_of(lambda x, w: jnp.einsum(spec, x, w, preferred_element_type=S32),
                   Spec(a, S8), Spec(b, S8))
    assert bytes_on_tensor_cores(plan)
    given = full_range(plan)
    program = build(plan)
    wanted = np.einsum(spec, *(x.astype(np.int64) for x in given), optimize=True)
    for seed in range(3):
        np.testing.assert_array_equal(run_program(program, given, seed=seed)[0], wanted)


NAMES = {S8: "int8_t", U8: "uint8_t", E4M3: "f8e4m3", E5M2: "f8e5m2"}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("pair", [(S8, S8), (S8, U8), (U8, S8), (U8, U8), (E4M3, E4M3),
                                  (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_products_of_fragments(pair: tuple[Any, Any]) -> None:
    """The instruction by itself, with the fragments of the PTX ISA: a [16][32], b [8][32]."""
    a, b = (NAMES[t] for t in pair)
    acc = "uint32_t" if pair[0] in (S8, U8) else "float"
    kernel = emulate(f"""
#include "jaxmono/mma.cuh"
using namespace jaxmono;
struct Params {{ void* buf[3]; }};
extern "C" __global__ void test_kernel(const __grid_constant__ Params p) {{
  const int g = lane_id() / 4, t = lane_id() % 4;
  const auto* x = static_cast<const uint32_t*>(p.buf[0]);
  const auto* y = static_cast<const uint32_t*>(p.buf[1]);
  uint32_t a[1][4], b[1][2];
  for (int i = 0; i < 4; ++i) a[0][i] = x[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
  for (int i = 0; i < 2; ++i) b[0][i] = y[g * 8 + t + i * 4];
  {acc} d[1][1][4] = {{}}, e[1][1][4] = {{}};
  mma_m16n8k32<{a}, {b}>(d[0][0], a[0], b[0]);
  MmaTraits<{a}, {b}>::mma(e, a, b);
  for (int i = 0; i < 4; ++i) {{
    const int at = (g + i / 2 * 8) * 8 + 2 * t + i % 2;
    static_cast<{acc}*>(p.buf[2])[at] = d[0][0][i];
    static_cast<{acc}*>(p.buf[2])[128 + at] = e[0][0][i];
  }}
}}
JAXMONO_EMULATE_MAIN(test_kernel, Params, 3, 32, 0)
""")
    rng = np.random.default_rng(0)
    top = 4 if acc == "float" else 256
    x, y = (rng.integers(-top if t in FLOATS else 0, top, (r, 32)).astype(t)
            for t, r in zip(pair, (16, 8), strict=True))
    out = np.zeros((2, 16, 8), np.float32 if acc == "float" else np.int32)
    kernel.run([x, y, out], blocks=1)
    wanted = x.astype(np.float64) @ y.astype(np.float64).T
    np.testing.assert_array_equal(out, np.broadcast_to(wanted, out.shape))


@pytest.mark.sampled(7)
@crossed(("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn"]),
         ("pair", [(E4M3, E5M2), (E4M3, E4M3), (E5M2, E4M3), (E5M2, E5M2)]))
def test_floats(spec: str, pair: tuple[Any, Any]) -> None:
    """Exact with small integers; with all magnitudes as f32 sums are."""
    lhs, rhs = spec.split("->")[0].split(",")
    size = {"m": 33, "k": 96, "n": 48} if lhs == "mk" else {"m": 48, "k": 96, "n": 32}
    args = [Spec(tuple(size[c] for c in s), t) for s, t in zip((lhs, rhs), pair, strict=True)]
    plan = plan_of(lambda x, w: (jnp.einsum(spec, x, w, preferred_element_type=F32),
                                 jnp.einsum(spec, x, w, preferred_element_type=BF16)), *args)
    assert bytes_on_tensor_cores(plan)
    program = build(plan)
    check_exact(plan, program, seeds=(0, 1, 2))
    found = run_program(program, smooth(plan.graph))
    wide = [x.astype(np.float64) for x in smooth(plan.graph)]
    wanted = np.einsum(spec, *wide)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1].astype(np.float64), wanted, rtol=5e-3, atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("m", "k", "n"), [(19, 37, 21), (1, 48, 33), (3, 200, 1)])
def test_unaligned_floats(m: int, k: int, n: int) -> None:
    plan = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=F32),
                   Spec((m, k), E4M3), Spec((k, n), E5M2))
    check_exact(plan, build(plan))


def test_not_a_number_stays_in_its_row() -> None:
    plan = plan_of(lambda x, w: jnp.dot(x, w, preferred_element_type=F32),
                   Spec((20, 64), E4M3), Spec((64, 32), E5M2))
    x, w = small_integers(plan.graph)
    x[3, 5], x[4, 0], w[63, 7], w[0, 9] = np.nan, 448, np.inf, np.nan
    (found,) = run_program(build(plan), [x, w])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(found).any() and np.isinf(found).any()


def quantised(x: Any, w: Any, row: Any, column: Any, bias: Any) -> Any:
    y = jnp.dot(x, w, preferred_element_type=S32)
    y = y.astype(F32) * row[:, None] * column + bias
    return jax.nn.relu(y).astype(BF16)


def test_dequantising_epilogue() -> None:
    plan = plan_of(quantised, Spec((37, 96), S8), Spec((96, 64), S8), Spec((37,), F32),
                   Spec((64,), F32), Spec((64,), F32))
    assert plan.barriers == 0 and bytes_on_tensor_cores(plan)
    check_near(plan, build(plan), full_range(plan), 5e-3)


def test_a_quantising_layer() -> None:
    """Rows are scaled and rounded to bytes in one epilogue or prologue, multiplied in the next."""
    def fn(x: Any, w: Any, v: Any, t: Any) -> Any:
        scale = jnp.abs(x).max(-1, keepdims=True) / 127
        q = jnp.clip(jnp.round(x / scale), -127, 127).astype(S8)
        y = jnp.dot(q, w, preferred_element_type=S32).astype(F32) * scale
        z = jnp.clip(y * t, -448, 448).astype(E4M3)
        return y, jnp.dot(z, v, preferred_element_type=F32)

    plan = plan_of(fn, Spec((20, 64), F32), Spec((64, 48), S8), Spec((48, 32), E4M3),
                   Spec((48,), F32))
    assert bytes_on_tensor_cores(plan)
    given = full_range(plan)
    found = run_program(build(plan), given)
    wanted = [np.asarray(y) for y in jax.jit(fn)(*given)]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-5 * np.abs(wanted[0]).max())
    # A last bit of y may move an element by one code, a sixteenth of it.
    assert np.abs(found[1] - wanted[1]).max() <= 0.02 * np.abs(wanted[1]).max()


def test_sums_wrap() -> None:
    """k * 128 * 128 passes 2^31 at k = 131072; narrower results keep the lowest bits."""
    k = 131072 + 64
    plan = plan_of(lambda x, w: jnp.einsum("mk,nk->mn", x, w, preferred_element_type=S32),
                   Spec((2, k), S8), Spec((16, k), S8))
    x, w = np.full((2, k), -128, np.int8), np.full((16, k), -128, np.int8)
    x[1, ::7] = 127
    given = [x, w]
    wanted = (x.astype(np.int64) @ w.T.astype(np.int64)).astype(np.int32)
    assert wanted.min() < 0
    np.testing.assert_array_equal(run_program(build(plan), given)[0], wanted)


def test_signs_and_result_types() -> None:
    def fn(a: Any, b: Any, c: Any, d: Any) -> Any:
        def dot(x: Any, y: Any, t: Any) -> Any:
            return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=t)

        return dot(a, b, S8), dot(c, d, U8), dot(c, d, S32), dot(c, d, jnp.uint32), dot(a, b, S32)

    plan = plan_of(fn, Spec((18, 48), S8), Spec((48, 32), S8), Spec((18, 48), U8),
                   Spec((48, 32), U8))
    assert bytes_on_tensor_cores(plan)
    check_exact(plan, build(plan), inputs=full_range(plan))


@pytest.mark.sampled(7)
@crossed(("s", [
    DotSchedule("mma", 32, 32, 128, 2, (1, 1, 4), 2), DotSchedule("mma", 64, 32, 128, 2, (4, 1, 1)),
    DotSchedule("mma", 16, 64, 128, 3, (1, 4, 1), 4), DotSchedule("mma", 32, 96, 256, 2, (2, 2, 1)),
    DotSchedule("mma", 32, 16, 256, 2, (2, 1, 2), 2)]),
    ("types", [(S8, S8, S32), (E4M3, E5M2, F32)]))
def test_tiles_and_split_k(s: DotSchedule, types: tuple[Any, Any, Any]) -> None:
    lhs, rhs, out = types
    plan = plan_of(lambda x, w, u: (jnp.dot(x, w, preferred_element_type=out),
                                    jnp.einsum("km,nk->mn", x.T, u, preferred_element_type=out)),
                   Spec((70, 1040), lhs), Spec((1040, 48), rhs), Spec((48, 1040), rhs))
    program = build(plan, with_dots(plan, s))
    check_exact(plan, program, inputs=full_range(plan) if out is S32 else None, seeds=(0, 1, 2))


def test_candidates_fit_bytes() -> None:
    """Columns come 16 at a time, k 32 at a time; a tile always exists."""
    for m, n, k in ((1, 1, 1), (1, 8, 4096), (128, 768, 768), (2048, 4096, 4096), (17, 9, 33)):
        for s in _candidates(m, n, k, 1, 8, False, True):
            assert s.bn // (8 * s.warps[1]) % 2 == 0 and s.bk % (32 * s.warps[2]) == 0
        s = choose_mma(1, m, n, k, 1, device=H200, warps=8, shared_bytes=H200.shared_bytes)
        assert s.family == "mma"


@pytest.mark.slow
@pytest.mark.parametrize("arch", thinned(["sm_90a", "sm_80"]))
@pytest.mark.parametrize("types", thinned([(S8, S8), (E4M3, E4M3), (E5M2, E4M3)], keep=3))
def test_widest_tiles_compile_without_spills(arch: str, types: tuple[Any, Any]) -> None:
    out = S32 if types[0] is S8 else F32

    def fn(x: Any, w: Any, u: Any, b: Any) -> Any:
        def tail(y: Any) -> Any:
            return jax.nn.gelu(y.astype(F32) * b[0] + b, approximate=False).astype(BF16)

        return (tail(jnp.dot(x, w, preferred_element_type=out)),
                tail(jnp.einsum("km,nk->mn", x.T, u, preferred_element_type=out)))

    plan = plan_of(fn, Spec((256, 1024), types[0]), Spec((1024, 384), types[1]),
                   Spec((384, 1024), types[1]), Spec((384,), F32))
    target = cuda_target(arch)
    device = dataclasses.replace(H200, shared_bytes=target.shared_bytes)
    chosen = default_schedule(plan, target, device)
    widest: dict[int, tuple[int, DotSchedule]] = {}
    for s in _candidates(256, 384, 1024, 1, 8, False, False):
        rows, columns = s.bm // (16 * s.warps[0]), s.bn // (8 * s.warps[1])
        if columns > widest.get(rows, (0, s))[0]:
            widest[rows] = columns, dataclasses.replace(s, stages=3)
    for _, s in widest.values():
        sigs = {x.key: s if x.kind == "dot" else chosen.sigs[x.key] for x in plan.sigs}
        found = generate(plan, target, device, "test",
                         dataclasses.replace(chosen, sigs=sigs)).resources
        assert found["spill_stores"] == found["spill_loads"] == 0, s


# ---- values ------------------------------------------------------------------------------------


def same(a: Array, b: Array) -> bool:
    """Bit by bit; any NaN for any other."""
    with np.errstate(invalid="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
    bits = f"u{a.dtype.itemsize}"
    return bool(((a.view(bits) == b.view(bits)) | (np.isnan(x) & np.isnan(y))).all())


def codes(t: Any) -> Array:
    return np.arange(256, dtype=np.uint8).view(t)


def hard_floats() -> Array:
    """Corner cases, all magnitudes, and what lies between two 8-bit floats."""
    rng = np.random.default_rng(0)
    corners = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 448, 464, np.nextafter(464, 500), -464,
               480, 57344, 61440, np.nextafter(61440, 0), -61440, 65536, 1e30, 2.0 ** -9,
               2.0 ** -10, 2.0 ** -10 * 1.001, 2.0 ** -16, 2.0 ** -17, 2.0 ** -17 * 1.001, 1e-40]
    values = [np.array(corners)]
    for t in FLOATS:
        x = codes(t).astype(np.float64)
        x = np.sort(x[np.isfinite(x)])
        middle = (x[1:] + x[:-1]) / 2  # of two neighbours: to even
        values += [middle, np.nextafter(middle.astype(np.float32), np.float32(np.inf)),
                   np.nextafter(middle.astype(np.float32), np.float32(-np.inf))]
    values.append(rng.standard_normal(3000) * 10.0 ** rng.uniform(-9, 7, 3000))
    flat = np.concatenate(values).astype(np.float32)
    return flat[: flat.size // 16 * 16]


def compare_with_xla(fn: Any, *given: Array) -> None:
    plan = plan_of(fn, *[Spec(x.shape, x.dtype) for x in given])
    found = run_program(build(plan), given)
    wanted = jax.tree.leaves(jax.jit(fn)(*given))
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert same(a, np.asarray(b)), (i, given, a, b)


@pytest.mark.parametrize("t", FLOATS)
def test_every_code_converts_as_in_xla(t: Any) -> None:
    wide = (F32, BF16, F16, S32, S8, U8, jnp.bool_, *FLOATS)
    compare_with_xla(lambda x: tuple(x.astype(w) for w in wide), codes(t))


@pytest.mark.parametrize("t", FLOATS)
def test_conversions_round_as_in_xla(t: Any) -> None:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        x = hard_floats()
        halves = np.arange(65536, dtype=np.uint16)
        given = [x, x.astype(np.float64) * (1 + 1e-12), halves.view(np.float16), halves.view(BF16),
                 np.arange(-700, 700, dtype=np.int32), np.arange(-128, 128).astype(np.int8)]
        compare_with_xla(lambda *xs: tuple(x.astype(t) for x in xs), *given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("t", FLOATS)
def test_arithmetic_is_rounded_by_every_op(t: Any) -> None:
    """Overflow in the middle of an expression included."""
    a, b = (np.ascontiguousarray(x) for x in np.broadcast_arrays(codes(t)[:, None], codes(t)[::7]))

    def fn(x: Any, y: Any) -> Any:
        return (x + y, x * y, (x * y) * y, (x + y) - y, jnp.maximum(x, y), -x, jnp.abs(x),
                (x * y).astype(F32), (x + y) > y, jnp.where(x > y, x, y + y), x / y,
                jnp.floor(x * y))

    compare_with_xla(fn, a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("t", FLOATS)
def test_movement_literals_and_rows(t: Any) -> None:
    table = codes(t)[:12].reshape(3, 4)
    scale = np.asarray(1.5, t)

    def fn(x: Any, y: Any) -> Any:
        z = jnp.concatenate([x, y], 0)[::-1].T
        rows = jax.nn.softmax(x.astype(F32), -1).astype(t)
        padded = jnp.pad(y, ((0, 1), (2, 2)), constant_values=0.5)
        taken = jnp.take(x, jnp.array([4, 0, 2]), axis=0)
        bits = lax.bitcast_convert_type(lax.bitcast_convert_type(y, U8) ^ U8(0x80), t)
        return (z, rows, padded, taken, bits, jnp.asarray(table)[:, :2] + y[:3, :2],
                x * scale, lax.iota(t, 16))

    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((5, 32)).astype(t), rng.standard_normal((7, 32)).astype(t)
    plan = plan_of(fn, Spec(x.shape, t), Spec(y.shape, t))
    found = run_program(build(plan), [x, y])
    wanted = [np.asarray(v) for v in jax.jit(fn)(x, y)]
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if i == 1:  # exp differs in the last digits of f32: at most one code apart
            assert np.abs(a.view(np.int8).astype(int) - b.view(np.int8)).max() <= 1
        else:
            assert same(a, b), i


def test_row_statistics_into_bytes() -> None:
    """The usual scaling of activations: the largest magnitude of a row, then a conversion."""
    def fn(x: Any) -> Any:
        wide = x.astype(F32)
        scale = jnp.abs(wide).max(-1, keepdims=True) / 448
        return (wide / scale).astype(E4M3), scale[:, 0]

    plan = plan_of(fn, Spec((9, 256), BF16))
    given = smooth(plan.graph)
    found = run_program(build(plan), given)
    wanted = jax.jit(fn)(*given)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)
    apart = found[0].view(np.int8).astype(int) - np.asarray(wanted[0]).view(np.int8)
    assert np.abs(apart).max() <= 1 and (apart != 0).mean() < 0.01


@pytest.mark.parametrize("t", FLOATS)
def test_the_profiler_knows_the_codes(t: Any) -> None:
    name = DType.of(t).value
    np.testing.assert_array_equal(as_numbers(codes(t).view(np.uint8), name),
                                  codes(t).astype(np.float64))
    drawn = random_values(name, 4096)
    assert drawn.nbytes == 4096 and np.isfinite(as_numbers(drawn, name)).all()
    assert 0.8 < as_numbers(drawn, name).std() / random_values("f32", 1 << 16).std() < 1.2


def test_reductions_are_refused_with_a_reason() -> None:
    graph = graph_of(lambda x: lax.reduce(x, jnp.asarray(0, E5M2), lax.max, (1,)),
                     Spec((4, 8), E5M2))
    (op,) = [o for o in graph.ops if isinstance(o, ops.Reduce)]
    assert refusal(op) == "reductions in 8-bit floats are not generated yet"
    assert op.results[0].type.dtype is DType.F8E5M2


@pytest.mark.parametrize(("n", "layout", "taken"), [
    (2056, "kn", False), (2056, "nk", True), (2064, "kn", True)])
def test_rows_of_weights_need_pieces(n: int, layout: str, taken: bool) -> None:
    """Others would be multiplied as f16."""
    fn = functools.partial(jnp.einsum, f"mk,{layout}->mn", preferred_element_type=F32)
    weights = Spec(tuple({"n": n, "k": 1024}[d] for d in layout), E4M3)
    lowered = jax.jit(fn).lower(Spec((1024, 1024), E4M3), weights)
    graph = import_module(lowered.compiler_ir("stablehlo")).graph
    reasons = [r for o in graph.ops if (r := refusal(o))]
    assert not reasons if taken else "multiple of 16 bytes" in reasons[0]


@pytest.mark.parametrize(("spec", "m", "taken"), [
    ("mk,nk->mn", 1024, True), ("mk,kn->mn", 1024, True), ("km,kn->mn", 1024, False),
    ("km,kn->mn", 16, True)])
def test_large_products_need_neighbours(spec: str, m: int, taken: bool) -> None:
    """Hopper's fast product of 8-bit floats reads only rows whose k are neighbours."""
    left, right = (Spec(tuple({"m": m, "n": 2048, "k": 1024}[d] for d in dims), E4M3)
                   for dims in spec.split("->")[0].split(","))
    fn = functools.partial(jnp.einsum, spec, preferred_element_type=F32)
    graph = import_module(jax.jit(fn).lower(left, right).compiler_ir("stablehlo")).graph
    reasons = [r for o in graph.ops if (r := refusal(o))]
    assert not reasons if taken else "transpose that" in reasons[0]

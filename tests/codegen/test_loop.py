"""Element-wise groups and movement, as kernels of the interpreter against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import DEVICE, check, compile_graph, run_program
from harness_graphs import ALL, FLOATS, INTEGERS, data, graph, value
from thinned import crossed, thinned

from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.loop_schedule import LoopSchedule
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import interpret_target
from jaxmono.fusion import make_plan
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

S32 = DType.S32


def run(inputs: list[Value], make: Callable[..., Any], *arrays: Any, **kw: Any) -> Any:
    g = graph(inputs, make)
    given = arrays or [data(v, i) for i, v in enumerate(inputs)]
    return check(g, given, **kw)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.value)
def test_add_of_every_type(dtype: DType) -> None:
    def make(b: Builder, *xs: Value) -> tuple[Value, ...]:
        return tuple(b.elementwise("add", x, x) for x in xs)

    run([value((size,), dtype) for size in (1, 7, 1024)], make)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
def test_float_chain_with_nan_and_infinities(dtype: DType) -> None:
    def make(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        t = b.elementwise("tanh", b.elementwise("multiply", x, y))
        e = b.elementwise("exponential", b.elementwise("negate", b.elementwise("abs", t)))
        big = b.compare("GT", x, y)
        return (e, b.elementwise("select", big, t, e), b.elementwise("maximum", x, y),
                b.elementwise("is_finite", x, type=TensorType(x.type.shape, DType.PRED)),
                b.elementwise("floor", x), b.elementwise("sign", y))

    run([value((3, 40), dtype), value((3, 40), dtype)], make)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.value)
def test_integer_chain(dtype: DType) -> None:
    def make(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        return (b.elementwise("divide", x, y), b.elementwise("remainder", x, y),
                b.elementwise("xor", b.elementwise("multiply", x, y), b.elementwise("not", x)),
                b.elementwise("shift_left", x, y), b.elementwise("shift_right_logical", x, y),
                b.elementwise("popcnt", x), b.compare("LE", x, y))

    run([value((129,), dtype), value((129,), dtype)], make)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", thinned(ALL), ids=lambda d: d.value)
def test_convert_to_every_type(source: DType) -> None:
    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        return tuple(b.convert(x, t) for t in ALL if t is not source)

    run([value((64,), source)], make)


def test_narrow_convert_rounds_between_ops() -> None:
    """f32 -> bf16 -> f32 in the program drops bits; it is no identity."""
    x = value((256,))
    g = graph([x], lambda b, x: b.convert(b.convert(x, DType.BF16), DType.F32))
    a = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    (out,) = run_program(compile_graph(g), [a])
    np.testing.assert_array_equal(out, a.astype(DType.BF16.numpy).astype(np.float32))
    assert (out != a).any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda d: d.value)
def test_a_conversion_that_is_only_stored_is_the_stores(dtype: DType) -> None:
    """Where the rounded value is read, too, that is what is read."""
    x = value((256,))
    only = graph([x], lambda b, x: b.convert(b.elementwise("add", x, x), dtype))

    again = graph([x], lambda b, x: b.convert(b.convert(x, dtype), DType.F32))
    wanted = "rounded<" + dtype.value
    assert wanted not in compile_graph(only).source.rpartition("// loop")[2]
    assert wanted in compile_graph(again).source.rpartition("// loop")[2]
    run([x], lambda b, x: b.convert(b.elementwise("add", x, x), dtype))


def test_narrow_chain_is_closer_than_rounding_every_op() -> None:
    x, y, z = (value((512,), DType.BF16) for _ in range(3))
    g = graph([x, y, z], lambda b, x, y, z: b.elementwise(
        "subtract", b.elementwise("add", x, y), z))
    arrays = [data(v, i, special=False) for i, v in enumerate((x, y, z))]
    (out,) = run_program(compile_graph(g), arrays)
    a, b, c = (x.astype(np.float64) for x in arrays)
    exact = a + b - c
    stepwise = (arrays[0] + arrays[1]) - arrays[2]
    ours = np.abs(out.astype(np.float64) - exact).max()
    assert ours < np.abs(stepwise.astype(np.float64) - exact).max()


def test_comparison_of_an_unrounded_value_sees_the_rounded_one() -> None:
    """x + y == bf16(x + y) holds, though the sum is still in f32 registers."""
    x, y = value((256,), DType.BF16), value((256,), DType.BF16)

    def make(b: Builder, x: Value, y: Value) -> Value:
        s = b.elementwise("add", x, y)
        again = b.convert(b.convert(s, DType.F32), DType.BF16)
        return b.compare("EQ", s, again)

    arrays = [data(v, i, special=False) for i, v in enumerate((x, y))]
    (out,) = run_program(compile_graph(graph([x, y], make)), arrays)
    assert out.all()


def test_bitcast_of_an_unrounded_value() -> None:
    x = value((128,), DType.BF16)

    def make(b: Builder, x: Value) -> Value:
        s = b.elementwise("add", x, x)
        return b.emit1(ops.BitcastConvert, TensorType((128,), DType.U16), operand=s)

    run([x], make, data(x, special=False))  # NaN payloads are nobody's promise


@pytest.mark.parametrize("shape", [(4, 24), (5, 7), (1, 33)])
def test_movement(shape: tuple[int, int]) -> None:
    m, n = shape

    def make(b: Builder, x: Value, row: Value) -> tuple[Value, ...]:
        t = b.transpose(x, (1, 0))
        r = b.elementwise("add", x, b.broadcast_in_dim(row, shape, (1,)))
        flat = b.reshape(r, (m * n,))
        rev = b.emit1(ops.Reverse, x.type, operand=x, dimensions=(1,))
        return (t, flat, rev, b.slice(x, (0, n // 3), (m, n), (1, 2)))

    run([value(shape), value((n,))], make)


@pytest.mark.parametrize("extent", [8, 5])
def test_concatenate(extent: int) -> None:
    def make(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        return (b.elementwise("negate", b.concatenate([x, y, x], 1)), b.concatenate([x, y], 0))

    run([value((3, extent)), value((3, extent))], make)


@pytest.mark.parametrize("low,high,interior", [((1, 0), (0, 8), (0, 0)), ((0, -1), (2, 3), (1, 2))])
def test_pad(low: tuple[int, int], high: tuple[int, int], interior: tuple[int, int]) -> None:
    shape = tuple(lo + hi + n + (n - 1) * i for lo, hi, n, i in
                  zip(low, high, (3, 16), interior, strict=True))

    def make(b: Builder, x: Value) -> Value:
        c = b.constant(np.float32(np.inf))
        p = b.emit1(ops.Pad, TensorType(shape, DType.F32), operand=x, padding_value=c, low=low,
                    high=high, interior=interior)
        return b.elementwise("abs", p)

    run([value((3, 16))], make)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("start", [-3, 0, 2, 100])
@pytest.mark.parametrize("index", [DType.S32, DType.S64, DType.U8])
def test_dynamic_slice_clamps(start: int, index: DType) -> None:
    def make(b: Builder, x: Value, i: Value, j: Value) -> Value:
        s = b.emit1(ops.DynamicSlice, TensorType((2, 8), DType.F32), operand=x,
                    start_indices=(i, j), slice_sizes=(2, 8))
        return b.elementwise("tanh", s)

    x, i, j = value((5, 16)), value((), index), value((), index)
    near = np.asarray(max(start, 0) if index is DType.U8 else start, index.numpy)
    run([x, i, j], make, data(x), near, np.asarray(3, index.numpy))


@pytest.mark.parametrize("start", [-1, 1, 9])
def test_dynamic_update_slice(start: int) -> None:
    def make(b: Builder, x: Value, u: Value, i: Value) -> Value:
        zero = b.constant(np.int32(0))
        y = b.emit1(ops.DynamicUpdateSlice, x.type, operand=x, update=u, start_indices=(i, zero))
        return b.elementwise("add", y, y)

    x, u, i = value((6, 8)), value((2, 8)), value((), S32)
    run([x, u, i], make, data(x), data(u, 1), np.int32(start))


def test_update_in_place_writes_only_the_update() -> None:
    def make(b: Builder, x: Value, u: Value, i: Value) -> Value:
        zero = b.constant(np.int32(0))
        twice = b.elementwise("add", u, u)
        return b.emit1(ops.DynamicUpdateSlice, x.type, operand=x, update=twice,
                       start_indices=(i, zero))

    x, u, i = value((64, 8)), value((1, 8)), value((), S32)
    program = run([x, u, i], make, data(x), data(u, 1), np.int32(17))
    assert program.aliases == ((0, 0),)
    assert program.max_blocks == 1


def test_gather_rows_and_indices_as_values() -> None:
    def make(b: Builder, table: Value, ids: Value) -> tuple[Value, ...]:
        rows = b.emit1(
            ops.Gather, TensorType((6, 16), DType.F32), operand=table, start_indices=ids,
            offset_dims=(1,), collapsed_slice_dims=(0,), operand_batching_dims=(),
            start_indices_batching_dims=(), start_index_map=(0,), index_vector_dim=1,
            slice_sizes=(1, 16))
        return (b.elementwise("add", rows, rows), b.elementwise("add", ids, ids))

    table, ids = value((10, 16)), value((6, 1), S32)
    run([table, ids], make, data(table), np.array([[3], [0], [-2], [9], [12], [5]], np.int32))


def test_gather_along_the_vectorised_dimension() -> None:
    """Every lane reads its own index."""
    def make(b: Builder, x: Value, ids: Value) -> Value:
        g = b.emit1(
            ops.Gather, TensorType((64,), DType.F32), operand=x, start_indices=ids,
            offset_dims=(), collapsed_slice_dims=(0,), operand_batching_dims=(),
            start_indices_batching_dims=(), start_index_map=(0,), index_vector_dim=1,
            slice_sizes=(1,))
        return b.elementwise("negate", g)

    x, ids = value((30,)), value((64, 1), S32)
    run([x, ids], make, data(x), np.random.default_rng(0).integers(-5, 40, (64, 1), np.int32))


def test_iota_and_constants() -> None:
    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        i = b.iota((4, 12), DType.BF16, 1)
        j = b.iota((4, 12), S32, 0)
        table = b.constant(np.array([1.5, np.nan, -np.inf, -0.0, 1e-45, 3.4e38, 0.1, 7, 8, 9, 10,
                                     11], np.float32))
        nan = b.splat(np.nan, x.type)
        t = b.elementwise("add", x, b.broadcast_in_dim(table, (4, 12), (1,)))
        half = b.constant(np.array([[0.5], [1.5], [2.5], [-1]], DType.F16.numpy))
        return (i, j, t, b.elementwise("maximum", x, nan),
                b.broadcast_in_dim(half, (4, 12), (0, 1)),
                b.splat(-(2**63), TensorType((8,), DType.S64)),
                b.splat(2**64 - 1, TensorType((8,), DType.U64)))

    run([value((4, 12))], make)


def test_scalar_and_one_element() -> None:
    run([value(()), value(())], lambda b, x, y: b.elementwise("atan2", x, y))


def test_total_order() -> None:
    def make(b: Builder, x: Value, y: Value) -> Value:
        return b.compare("LT", x, y, "TOTALORDER")

    for dtype in (DType.F32, DType.BF16):
        run([value((200,), dtype), value((200,), dtype)], make)


@pytest.mark.parametrize("lanes,unroll", [(1, 1), (1, 3), (2, 2), (8, 4)])
def test_every_schedule_computes_the_same(lanes: int, unroll: int) -> None:
    """Any unrolling, with sizes that end inside a task."""
    g = graph([value((7, 88), DType.BF16), value((88,), DType.BF16)], lambda b, x, y: b.elementwise(
        "multiply", x, b.broadcast_in_dim(y, (7, 88), (1,))))
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: LoopSchedule(lanes, unroll) for s in plan.sigs})
    check(g, [data(v, i) for i, v in enumerate(g.inputs)], plan=plan, schedule=schedule)


@pytest.mark.parametrize("lanes", [2, 4])
def test_lanes_that_differ_are_computed_one_by_one(lanes: int) -> None:
    """Vectors across a branch, a transposition, a table and an index of every lane's own."""
    def make(b: Builder, x: Value, y: Value, t: Value, i: Value) -> tuple[Value, ...]:
        z = b.concatenate([x, y], 1)
        p = b.emit1(ops.Pad, TensorType((4, 16), DType.F32), operand=x,
                    padding_value=b.constant(np.float32(2)), low=(0, 3), high=(0, 3),
                    interior=(0, 0))
        s = b.emit1(ops.DynamicSlice, z.type, operand=t, start_indices=(i, i),
                    slice_sizes=(4, 16))
        r = b.emit1(ops.Reverse, z.type, operand=z, dimensions=(1,))
        row = b.broadcast_in_dim(b.iota((4,), DType.F32, 0), (4, 16), (0,))
        return tuple(b.elementwise("add", a, b.elementwise("tanh", c)) for a, c in
                     ((z, p), (s, r), (b.transpose(b.slice(t, (0, 0), (16, 4)), (1, 0)), row)))

    g = graph([value((4, 10)), value((4, 6)), value((17, 20)), value((), S32)], make)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: LoopSchedule(lanes, 1) for s in plan.sigs})
    given = [*(data(v, i) for i, v in enumerate(g.inputs[:3])), np.int32(3)]
    check(g, given, plan=plan, schedule=schedule)


IMAGE, KERNEL = (2, 16, 9, 11), (24, 16, 3, 3)


def turned(*order: int) -> Callable[..., Value]:
    return lambda b, x: b.transpose(x, order)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "shape", "make", "lanes", "order"), [
    (DType.BF16, IMAGE, turned(0, 2, 3, 1), 8, (0, 3, 1, 2)),  # channels last
    (DType.F32, IMAGE, turned(0, 2, 3, 1), 4, (0, 3, 1, 2)),
    (DType.F64, IMAGE, turned(0, 2, 3, 1), 2, (0, 3, 1, 2)),
    (DType.BF16, KERNEL, turned(0, 2, 3, 1), 8, (0, 3, 1, 2)),  # two vectors of 9 taps
    (DType.BF16, (40, 70), turned(1, 0), 8, (1, 0)),
    (DType.BF16, (12, 70), turned(1, 0), 4, (1, 0)),
    (DType.BF16, (13, 70), turned(1, 0), 1, ()),  # rows of what is stored begin anywhere
    (DType.BF16, (40, 30, 8), turned(1, 0, 2), 8, ()),  # wide loads as it is
    (DType.F32, IMAGE, lambda b, x: b.pad(b.transpose(x, (0, 2, 3, 1)), b.constant(0, DType.F32),
                                          (0, 1, 2, 0), (0, 0, 1, 4), (0, 0, 0, 0)),
     4, (0, 3, 1, 2)),
    (DType.F32, (2, 3, 9, 11), lambda b, x: b.pad(
        b.transpose(x, (0, 2, 3, 1)), b.constant(0, DType.F32), (0, 1, 2, 0), (0, 0, 1, 1),
        (0, 0, 0, 0)), 4, (3, 0, 1, 2)),
    (DType.F16, (40, 70), lambda b, x: (lambda y: (b.elementwise("tanh", y), y))(
        b.transpose(x, (1, 0))), 8, (1, 0)),
    (DType.F32, (40, 40), lambda b, x: b.elementwise("add", x, b.transpose(x, (1, 0))),
     4, (1, 0)),
])
def test_turned_sources_are_read_in_their_order(dtype: DType, shape: tuple[int, ...], make: Any,
                                                lanes: int, order: tuple[int, ...]) -> None:
    g = graph([value(shape, dtype)], make)
    plan = make_plan(g, DEVICE)
    chosen = default_schedule(plan, interpret_target(), DEVICE).sigs[plan.sigs[0].key]
    assert (chosen.lanes, chosen.order) == (lanes, order)
    check(g, [data(v, i) for i, v in enumerate(g.inputs)], plan=plan)


@pytest.mark.parametrize(("channels", "low", "lanes"), [(3, 0, 4), (3, 1, 4), (5, 1, 8), (8, 0, 8)])
def test_channels_padded_to_a_vector_are_found_once_per_vector(channels: int, low: int,
                                                               lanes: int) -> None:
    """An image of 3 channels padded to 4: one search for the pixel, narrow loads, one store."""
    shape = (2, 7, 9, lanes)

    def make(b: Builder, x: Value) -> Value:
        return b.emit1(ops.Pad, TensorType(shape, DType.BF16), operand=x,
                       padding_value=b.constant(0, DType.BF16), low=(0, 1, 1, low),
                       high=(0, 1, 1, lanes - channels - low), interior=(0, 0, 0, 0))

    g = graph([value((2, 5, 7, channels), DType.BF16)], make)
    plan = make_plan(g, DEVICE)
    (schedule,) = default_schedule(plan, interpret_target(), DEVICE).sigs.values()
    assert schedule.lanes == lanes
    check(g, [data(g.inputs[0])])


@pytest.mark.parametrize("dtype", [DType.F16, DType.S8], ids=lambda d: d.value)
@pytest.mark.parametrize("low", [(1, 1, 0), (-1, 2, 0), (0, 0, 3)], ids=str)
def test_padded_copies_load_without_branches(dtype: DType, low: tuple[int, ...]) -> None:
    """Behind a branch a load waits for the one before it; outside, the first element is read."""
    def make(b: Builder, x: Value) -> Value:
        return b.pad(x, b.constant(3, dtype), low, (1, 1, 2), (0, 0, 0))

    x = value((6, 9, 14), dtype)
    body = _functions(run([x], make, data(x, special=dtype is not DType.S8)).source)
    assert "const bool inside" in body and "} else {" not in body


def test_what_is_computed_of_a_pad_loads_without_branches() -> None:
    """No copy: the pad is part of a group, element by element or as a vector."""
    def make(b: Builder, x: Value) -> Value:
        return b.elementwise("tanh", b.pad(x, b.constant(3, DType.F32), (1, 2), (1, 3), (0, 0)))

    body = _functions(run([value((6, 9), DType.F32)], make).source)
    assert "PaddedVec<" not in body and "const bool inside" in body
    assert "? " in body and "} else {" not in body


@pytest.mark.sampled(2)
@crossed((("channels", "low", "pieces"), [
    (46, 0, "8, 2"), (46, 2, "8, 2"), (45, 0, "8, 1"), (20, 0, "8, 4"), (20, 4, "8, 4"),
    (3, 0, "4, 1"), (24, 0, "8, 8"), (56, -8, "8, 8"), (51, -3, "8, 1")]), ("unroll", [1, 3]))
def test_padded_copies_are_of_pieces(channels: int, low: int, pieces: str, unroll: int) -> None:
    """One search and one store per vector; loads as wide as addresses and the border allow."""
    lanes = int(pieces[0])
    wide = -(-(channels + low) // lanes) * lanes

    def make(b: Builder, x: Value) -> Value:
        padded = b.pad(x, b.constant(3, DType.BF16), (0, 1, 2, low),
                       (0, 1, 0, wide - channels - low), (0, 0, 1, 0))
        return b.emit1(ops.Stored, padded.type, operand=padded)

    g = graph([value((2, 3, 5, channels), DType.BF16)], make)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: LoopSchedule(lanes, unroll) for s in plan.sigs})
    program = check(g, [data(g.inputs[0])], plan=plan, schedule=schedule)
    body = _functions(program.source)
    assert f"PaddedVec<bf16, {pieces}> out[{unroll}]" in body
    (chosen,) = default_schedule(plan, interpret_target(), DEVICE).sigs.values()
    assert chosen.lanes == lanes


@pytest.mark.parametrize(("width", "taken", "low", "high", "pieces"), [
    (24, 22, (1, 0), (0, 2), "8, 2"),  # rows lie aligned, the border is at 22
    (25, 24, (1, 0), (0, 0), "8, 1")])  # no border within a vector, but rows of 25
def test_pieces_fit_addresses_and_the_border(width: int, taken: int, low: tuple[int, int],
                                             high: tuple[int, int], pieces: str) -> None:
    def make(b: Builder, x: Value) -> Value:
        return b.pad(b.slice(x, (0, 0), (6, taken)), b.constant(2, DType.F16), low, high, (0, 0))

    assert f"PaddedVec<f16, {pieces}>" in run([value((6, width), DType.F16)], make).source


def test_padded_copies_of_what_the_kernel_wrote() -> None:
    def make(b: Builder, x: Value) -> Value:
        y = b.elementwise("tanh", x)
        y = b.emit1(ops.Stored, y.type, operand=y)
        z = b.pad(y, b.constant(-1, DType.F16), (1, 0), (0, 2), (0, 0))
        return b.emit1(ops.Stored, z.type, operand=z)

    assert "PaddedVec<f16, 8, 2>" in run([value((9, 14), DType.F16)], make).source


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.value)
def test_padded_copies_of_every_type(dtype: DType) -> None:
    def make(b: Builder, x: Value) -> Value:
        return b.pad(x, b.constant(1, dtype), (1, 0), (1, 2), (0, 0))

    x = value((5, 14), dtype)
    assert "PaddedVec<" in _functions(run([x], make).source) or dtype.itemsize > 8


def _functions(source: str) -> str:
    """What was generated, without the device headers."""
    return source[source.index("JM_DEVICE void f0_"):source.index('extern "C"')]


def test_only_16_bit_quotients_are_approximate() -> None:
    def source(dtype: DType, numerator: float | None) -> str:
        def make(b: Builder, x: Value, y: Value) -> Value:
            a = x if numerator is None else b.splat(numerator, x.type)
            return b.elementwise("divide", a, y)

        return _functions(run([value((64,), dtype), value((64,), dtype)], make).source)

    assert "v_narrow_divide(" in source(DType.BF16, None)
    assert "v_narrow_reciprocal(" in source(DType.F16, 1.0)
    assert "v_narrow_divide(" in source(DType.F16, 3.0)
    assert "v_divide(" in source(DType.F32, None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "divisor"), [
    (DType.F32, 6.0), (DType.F32, -768.0 / 7), (DType.F32, 3 * 2.0 ** -99),
    (DType.F32, 2.0 ** 98 / 3), (DType.BF16, 6.0), (DType.BF16, 3 * 2.0 ** -99),
    (DType.F16, 6.0), (DType.F16, -768.0 * 3)])
def test_quotients_by_a_literal_are_products(dtype: DType, divisor: float) -> None:
    x = value((64,), dtype)
    dividends = (data(x, special=False).astype(np.float64) * divisor).astype(dtype.numpy)
    dividends[:5] = [np.nan, np.inf, -np.inf, -0.0, 0.0]
    made = _functions(run([x], lambda b, x: b.elementwise("divide", x, b.splat(
        divisor, x.type)), dividends).source)
    assert "v_multiply(" in made and "divide(" not in made


@pytest.mark.parametrize(("dtype", "divisor"), [
    (DType.F64, 6.0), (DType.F32, 0.0), (DType.F32, np.inf), (DType.F32, np.nan),
    (DType.F32, 3e38), (DType.F32, 3e-38), (DType.BF16, 0.0)])
def test_other_quotients_by_a_literal_stay(dtype: DType, divisor: float) -> None:
    made = _functions(run([value((64,), dtype)], lambda b, x: b.elementwise("divide", x, b.splat(
        divisor, x.type))).source)
    assert "divide(" in made and "v_multiply(" not in made


def test_16_bit_quotients_by_one_number_have_the_whole_range() -> None:
    """Where a reciprocal would be subnormal or infinite, and where it would not."""
    rows = np.array([1e-39, 3e38, 6.0, 0.0, np.inf, np.nan, -1e-31, -2.0], np.float32)
    columns = np.array([0.0, 1.0, -3e38, 1e-39, np.inf, np.nan, 7.0, 2e30] * 2, np.float32)

    def make(b: Builder, x: Value, y: Value) -> Value:
        return b.elementwise("divide", b.broadcast_in_dim(x, (8, 16), (1,)),
                             b.broadcast_in_dim(y, (8, 16), (0,)))

    bf16 = DType.BF16
    program = run([value((16,), bf16), value((8,), bf16)], make, columns.astype(bf16.numpy),
                  rows.astype(bf16.numpy))
    assert "v_narrow_divide(" in _functions(program.source)

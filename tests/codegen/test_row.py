"""Row groups: every tier, every reducer, odd sizes, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import DEVICE, check, compile_graph, run_program
from harness_graphs import ALL, FLOATS, data, graph, value
from thinned import thinned

from jaxmono.codegen.generate import default_schedule
from jaxmono.codegen.row_schedule import RowSchedule, choose_row, lanes_to_a_row
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device, RowForm
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType

F32, S32 = DType.F32, DType.S32
H200 = Device()


def start(b: Builder, kind: str, dtype: DType) -> Value:
    """The usual initial value of a reduction."""
    if kind in ("maximum", "minimum"):
        low, high = ((-np.inf, np.inf) if dtype.is_float else (0, 1) if dtype is DType.PRED
                     else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max))
        return b.constant(low if kind == "maximum" else high, dtype)
    if kind == "and":
        return b.constant(np.invert(np.zeros((), dtype.numpy)))
    return b.constant({"add": 0, "multiply": 1, "or": 0}[kind], dtype)


def softmax(b: Builder, x: Value) -> Value:
    m, n = x.type.dims
    wide = b.convert(x, F32)
    most = b.reduce(wide, start(b, "maximum", F32), "maximum", (1,))
    e = b.elementwise("exponential", b.elementwise(
        "subtract", wide, b.broadcast_in_dim(most, (m, n), (0,))))
    total = b.reduce(e, b.constant(0, F32), "add", (1,))
    y = b.elementwise("divide", e, b.broadcast_in_dim(total, (m, n), (0,)))
    return b.convert(y, x.type.dtype)


def layer_norm(b: Builder, x: Value, scale: Value, bias: Value) -> tuple[Value, ...]:
    m, n = x.type.dims
    inv = b.broadcast_in_dim(b.constant(1.0 / n, F32), (m,), ())
    wide = b.convert(x, F32)
    mean = b.elementwise("multiply", b.reduce(wide, b.constant(0, F32), "add", (1,)), inv)
    centred = b.elementwise("subtract", wide, b.broadcast_in_dim(mean, (m, n), (0,)))
    var = b.elementwise("multiply", b.reduce(b.elementwise("square", centred), b.constant(0, F32),
                                             "add", (1,)), inv)
    eps = b.broadcast_in_dim(b.constant(1e-5, F32), (m,), ())
    r = b.elementwise("rsqrt", b.elementwise("add", var, eps))
    y = b.elementwise("multiply", centred, b.broadcast_in_dim(r, (m, n), (0,)))
    y = b.elementwise("multiply", y, b.broadcast_in_dim(b.convert(scale, F32), (m, n), (1,)))
    y = b.elementwise("add", y, b.broadcast_in_dim(b.convert(bias, F32), (m, n), (1,)))
    return b.convert(y, x.type.dtype), mean


def argmax(b: Builder, x: Value, dim: int = 1) -> tuple[Value, ...]:
    """As jnp.argmax lowers: the first NaN, else the first largest element."""
    shape = tuple(n for i, n in enumerate(x.type.dims) if i != dim)
    i = b.iota(x.type.dims, S32, dim)
    t = x.type.dtype
    av, ai, bv, bi = (value((), d) for d in (t, S32, t, S32))
    r = Builder()
    nan = r.compare("NE", av, av)
    better = r.elementwise("or", r.compare("GT", av, bv), nan)
    same = r.compare("EQ", av, bv)
    first = r.elementwise("and", same, r.compare("LT", ai, bi))
    take = r.elementwise("or", better, first)
    out = (r.elementwise("select", better, av, bv), r.elementwise("select", take, ai, bi))
    body = Graph((av, ai, bv, bi), tuple(r.ops), out)
    return b.emit(ops.Reduce, [TensorType(shape, t), TensorType(shape, S32)], args=(x, i),
                  inits=(b.constant(-np.inf, t), b.constant(0, S32)), body=body, dimensions=(dim,))


def tiers(columns: int) -> list[RowSchedule]:
    out = [RowSchedule("warp", g, lanes) for g, lanes in ((1, 1), (4, 1), (32, 1), (32, 4))]
    out += [RowSchedule("block", 64, 1), RowSchedule("block", 64, 2), RowSchedule("block", 32, 1),
            RowSchedule("slice", 32, 1), RowSchedule("thread", 1, 1),
            RowSchedule("warp", 32, 1, keep_words=0), RowSchedule("block", 64, 1, keep_words=0)]
    return [s for s in out if s.tier in ("slice", "thread") or columns % s.lanes == 0]


def each_tier(g: Graph, columns: int, **kw: Any) -> None:
    plan = make_plan(g, DEVICE)
    assert all(isinstance(s.form, RowForm) for s in plan.sigs), "the plan is not made of rows"
    for s in tiers(columns):
        check(g, [data(v, i, special=kw.get("special", True)) for i, v in enumerate(g.inputs)],
              plan=plan, schedule=KernelSchedule(64, 1, {x.key: s for x in plan.sigs}))


@pytest.mark.parametrize("shape", thinned([(5, 37), (67, 8)]))
def test_softmax_in_every_tier(shape: tuple[int, int]) -> None:
    each_tier(graph([value(shape)], softmax), shape[1])


@pytest.mark.parametrize("dtype", thinned([DType.BF16, F32]), ids=lambda d: d.value)
def test_layer_norm_in_every_tier(dtype: DType) -> None:
    g = graph([value((9, 96), dtype), value((96,), dtype), value((96,), dtype)], layer_norm)
    each_tier(g, 96, special=False)


def test_reductions_of_a_sweep_are_combined_at_once() -> None:
    def several(b: Builder, x: Value) -> tuple[Value, ...]:
        zero = b.constant(0, F32)
        total = b.reduce(x, zero, "add", (1,))
        squares = b.reduce(b.elementwise("square", x), zero, "add", (1,))
        return (total, squares, b.reduce(x, start(b, "maximum", F32), "maximum", (1,)),
                *argmax(b, x))

    g = graph([value((6, 96))], several)
    each_tier(g, 96, special=False)  # two NaNs: either may be the argmax
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule("block", 64, 1) for s in plan.sigs})
    assert compile_graph(g, plan=plan, schedule=schedule).source.count("= combine_block<") == 1


@pytest.mark.slow
def test_argmax_in_every_tier() -> None:
    each_tier(graph([value((6, 24))], argmax), 24)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", thinned(ALL), ids=lambda d: d.value)
def test_reducers_of_every_type(dtype: DType) -> None:
    kinds = ["maximum", "minimum", "add", "multiply"]
    if not dtype.is_float:
        kinds += ["and", "or"]

    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        return tuple(b.reduce(x, start(b, k, dtype), k, (1,)) for k in kinds)

    x = value((7, 33), dtype)
    scale = 1.0 if dtype is DType.F16 else 2.0
    g = graph([x], make)
    check(g, [data(x, special=False, scale=scale)])
    check(g, [data(x, special=True, scale=scale)])


@pytest.mark.parametrize(("kind", "dtype", "commutes"), [
    ("add", F32, True), ("multiply", DType.F64, True), ("maximum", F32, False),
    ("maximum", DType.S32, True), ("and", DType.PRED, True), (None, F32, False)])
def test_lanes_keep_their_order_where_it_shows(kind: str | None, dtype: DType,
                                               commutes: bool) -> None:
    """Of equal bits a float's maximum is not (+0, -0), and what argmax keeps of two alike."""
    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        return (b.reduce(x, start(b, kind, dtype), kind, (1,)),) if kind else argmax(b, x)

    source = compile_graph(graph([value((3, 40), dtype)], make)).source
    assert f"COMMUTES = {str(commutes).lower()};" in source
    assert f"COMMUTES = {str(not commutes).lower()};" not in source


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)])
def test_any_dimensions(dims: tuple[int, ...]) -> None:
    check(graph([value((5, 34, 12))], lambda b, x: b.reduce(x, start(b, "add", F32), "add", dims)),
          [data(value((5, 34, 12)), special=False)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("tier", ["slice", "thread"])
def test_lanes_with_vectors_of_rows(tier: str, lanes: int) -> None:
    """Lanes have rows of their own; row values and accumulators are vectors."""
    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        m, n = x.type.dims
        most = b.reduce(x, start(b, "maximum", F32), "maximum", (0,))
        y = b.elementwise("subtract", x, b.broadcast_in_dim(most, (m, n), (1,)))
        return b.elementwise("exponential", y), *argmax(b, y, 0)

    g = graph([value((21, 140))], make)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule(tier, 32, lanes) for s in plan.sigs})
    check(g, [data(g.inputs[0])], plan=plan, schedule=schedule, seeds=(0, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("shape", "tier"), [((201, 40), "slice"), ((3, 2311), "warp"),
                                             ((2, 9001), "block")])
def test_the_last_of_many_fragments_stands_behind_the_others(shape: tuple[int, int],
                                                             tier: str) -> None:
    """A test in each turn would keep their loads from being on their way together."""
    def make(b: Builder, x: Value) -> tuple[Value, ...]:
        over = 0 if tier == "slice" else 1
        most = b.reduce(x, start(b, "maximum", F32), "maximum", (over,))
        y = b.elementwise("subtract", x, b.broadcast_in_dim(most, x.type.dims, (1 - over,)))
        return b.elementwise("exponential", y), *argmax(b, y, over)

    g = graph([value(shape)], make)
    plan = make_plan(g, DEVICE)
    group = 64 if tier == "block" else 32
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule(tier, group, 1) for s in plan.sigs})
    text = compile_graph(g, plan=plan, schedule=schedule).source
    text = text[text.rindex("\n// row "):]
    assert "#pragma unroll 32" in text and " || " not in text
    check(g, [data(g.inputs[0], special=False)], plan=plan, schedule=schedule, seeds=(0, 1))


def test_loads_in_front_of_a_rows_outputs_take_few_registers() -> None:
    def make(b: Builder, x: Value, *more: Value) -> Value:
        y = b.elementwise("subtract", x, b.broadcast_in_dim(
            b.reduce(x, start(b, "maximum", F32), "maximum", (0,)), x.type.dims, (1,)))
        for v in more:
            y = b.elementwise("multiply", y, v)
        return y

    g = graph([value((201, 40)) for _ in range(7)], make)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule("slice", 32, 1) for s in plan.sigs})
    text = compile_graph(g, plan=plan, schedule=schedule).source
    assert "ahead1[32]" in text and "ahead2[" not in text
    check(g, [data(v, i, special=False) for i, v in enumerate(g.inputs)], plan=plan,
          schedule=schedule)


def test_what_stays_in_registers_is_read_and_written_by_whole_loops() -> None:
    """An array whose index is not known when it is compiled lies in memory."""
    g = graph([value((4, 640)), value((640,)), value((640,))], layer_norm)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule("warp", 32, 1) for s in plan.sigs})
    text = compile_graph(g, plan=plan, schedule=schedule).source
    text = text[text.rindex("// ==== end of jaxmono/"):]
    assert "row0[f" in text and "#pragma unroll\n" in text and "#pragma unroll 32" not in text


def test_what_takes_the_place_of_what_it_is_made_of_needs_no_room_beside_it() -> None:
    """64 columns of a thread: x until exp(x - max) is there. A row's mean needs x - mean as well as
    x itself, which is read a third time: 128."""
    def deviations(b: Builder, x: Value) -> Value:
        def total(v: Value) -> Value:
            return b.broadcast_in_dim(b.reduce(v, start(b, "add", F32), "add", (1,)), x.type.dims,
                                      (0,))

        d = b.elementwise("subtract", x, total(x))
        norm = total(b.elementwise("multiply", d, d))
        return b.elementwise("add", b.elementwise("divide", d, norm), x)

    def text(make: Callable[..., Value]) -> str:
        g = graph([value((4, 2048))], make)
        plan = make_plan(g, DEVICE)
        schedule = KernelSchedule(64, 1, {s.key: RowSchedule("warp", 32, 1) for s in plan.sigs})
        source = check(g, [data(g.inputs[0], special=False)], plan=plan, schedule=schedule).source
        return source[source.rindex("// ==== end of jaxmono/"):]

    assert "row0[64]" in text(softmax) and "row1[64]" in text(softmax)
    assert text(softmax).count("load_ro<") == 1
    assert "row0[" not in text(deviations)


def test_initial_value_counts_once() -> None:
    def make(b: Builder, x: Value, i: Value) -> tuple[Value, ...]:
        return (b.reduce(x, i, "add", (1,)), b.reduce(x, i, "maximum", (1,)),
                b.reduce(x, i, "multiply", (1,)))

    x, i = value((3, 50)), value(())
    for first in (100.0, np.nan, -0.0):
        check(graph([x, i], make), [data(x, special=False), np.float32(first)])


def test_sum_of_negative_zeros_is_negative_zero() -> None:
    x, i = value((2, 40)), value(())
    g = graph([x, i], lambda b, x, i: b.reduce(x, i, "add", (1,)))
    (out,) = run_program(compile_graph(g), [np.full((2, 40), -0.0, np.float32), np.float32(-0.0)])
    assert np.signbit(out).all()


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_nan_wins(kind: str) -> None:
    a = np.arange(120, dtype=np.float32).reshape(3, 40)
    a[1, 17] = np.nan
    g = graph([value((3, 40))], lambda b, x: b.reduce(x, start(b, kind, F32), kind, (1,)))
    (out,) = run_program(compile_graph(g), [a])
    assert np.isnan(out).tolist() == [False, True, False]


def test_full_reduction_of_a_long_vector() -> None:
    x = value((10_007,))
    g = graph([x], lambda b, x: b.reduce(x, b.constant(0, F32), "add", (0,)))
    check(g, [data(x, special=False)], rtol=1e-4)


def test_one_row_over_two_dimensions_of_columns() -> None:
    def make(b: Builder, x: Value) -> Value:
        t = b.transpose(x, (0, 2, 1))
        s = b.reduce(t, b.constant(0, F32), "add", (1, 2))
        return b.elementwise("subtract", t, b.broadcast_in_dim(s, (4, 6, 10), (0,)))

    check(graph([value((4, 10, 6))], make), [data(value((4, 10, 6)), special=False)])


def test_guards_inside_rows() -> None:
    """A concatenation and a pad of the columns, whose elements come from short buffers."""
    def make(b: Builder, x: Value, y: Value) -> Value:
        z = b.concatenate([x, y], 1)
        p = b.emit1(ops.Pad, TensorType((5, 30), F32), operand=z, padding_value=b.constant(1, F32),
                    low=(0, 3), high=(0, 7), interior=(0, 0))
        return softmax(b, p)

    x, y = value((5, 8)), value((5, 12))
    check(graph([x, y], make), [data(x), data(y, 1)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
def test_results_do_not_depend_on_the_order_of_threads(dtype: DType) -> None:
    x = value((11, 200), dtype)
    g = graph([x], lambda b, x: b.reduce(x, b.constant(0, dtype), "add", (1,)))
    program = compile_graph(g)
    a = data(x, special=False)
    (first,) = run_program(program, [a])
    for seed in (1, 2):
        (again,) = run_program(program, [a], seed=seed, blocks=1 + seed)
        assert first.tobytes() == again.tobytes()


def test_tier_follows_the_layout() -> None:
    def tier(shape: tuple[int, ...], dims: tuple[int, ...]) -> str:
        g = graph([value(shape)], lambda b, x: b.reduce(x, b.constant(0, F32), "add", dims))
        plan = make_plan(g, DEVICE)
        (sig,) = plan.sigs
        return default_schedule(plan, interpret_target(), DEVICE).sigs[sig.key].tier

    assert tier((64, 96), (1,)) == "warp"
    assert tier((64, 96), (0,)) == "slice"
    assert tier((3, 1 << 20), (0,)) == "thread"
    assert tier((200, 1 << 20), (0,)) == "slice"
    assert tier((2, 4096), (1,)) == "block"
    assert tier((4096,), (0,)) == "block"


def test_few_rows_that_nobody_reads_as_neighbours_are_for_blocks() -> None:
    """Sums of random numbers: 64 rows would be the lanes of two warps."""
    def tier(rows: int, columns: int) -> str:
        def make(b: Builder) -> Value:
            x = b.convert(b.iota((rows, columns), S32, 1), F32)
            return b.reduce(b.elementwise("sine", x), b.constant(0, F32), "add", (1,))

        plan = make_plan(graph([], make), Device())
        (sig,) = plan.sigs
        return default_schedule(plan, interpret_target(), Device()).sigs[sig.key].tier

    assert tier(64, 4096) == "block"
    assert tier(65536, 300) == "slice"


def test_rows_to_a_warp_take_the_fewest_turns() -> None:
    """Of 8 x 132 warps; 768 columns of bf16, 8 to a lane."""
    def rows_at_a_time(rows: int, cols: int = 768) -> int:
        return 32 // lanes_to_a_row(32, rows, cols, 8, 8 * 132)

    assert rows_at_a_time(128) == rows_at_a_time(1056) == 1
    assert rows_at_a_time(2048) == 2  # one turn of two instead of two turns
    assert rows_at_a_time(3152) == 1  # three turns of one: two of two would take longer
    assert rows_at_a_time(4096) == 2
    assert rows_at_a_time(4096, cols=2048) == 1  # a thread has no registers for more


def test_lanes_have_no_idle_pieces_of_short_rows() -> None:
    """12 pieces of a row of 96: for 8 lanes two each, half of them for nothing; for 4 three."""
    assert lanes_to_a_row(8, 50176, 96, 8, 8 * 132) == 4
    assert lanes_to_a_row(8, 64, 96, 8, 8 * 132) == 8
    assert lanes_to_a_row(1, 50176, 0, 8, 8 * 132) == 1  # of no columns


def test_three_wide_vectors_that_are_kept_are_six_narrow_ones() -> None:
    """Of kernels that only stream, and not of sums, which keep nothing."""
    def chosen(make: Any, cols: int, *, streaming: bool = True) -> tuple[int, int]:
        plan = make_plan(graph([value((50176, cols), DType.BF16)], make), H200)
        s = choose_row(plan.sigs[0], H200, threads=256, streaming=streaming)
        return s.group, s.lanes

    def summed(b: Builder, x: Value) -> Value:
        return b.reduce(x, start(b, "maximum", DType.BF16), "maximum", (1,))

    assert chosen(softmax, 96) == (8, 4)
    assert chosen(softmax, 192) == (16, 4)
    assert chosen(softmax, 128) == (8, 8)
    assert chosen(softmax, 96, streaming=False) == chosen(summed, 96) == (4, 8)


def test_more_rows_than_blocks_go_two_to_a_block() -> None:
    def group(rows: int, cols: int) -> tuple[int, int]:
        plan = make_plan(graph([value((rows, cols))], softmax), H200)
        s = choose_row(plan.sigs[0], H200, threads=256)
        assert s.tier == "block"
        return s.group, s.lanes

    assert group(128, 768) == (256, 4)  # three quarters of the threads, once
    assert group(128, 704) == (256, 2)
    assert group(197, 768) == (128, 4)
    assert group(265, 4096)[0] == 256  # three turns or two
    assert group(197, 16384)[0] == 256  # half of the threads could not keep a row


@pytest.mark.parametrize(("rows", "cols", "group"), [
    (197, 768, 256), (512, 1504, 256), (512, 768, 32), (600, 1504, 32)])
def test_heavy_rows_have_a_block_each_where_several_run(rows: int, cols: int, group: int) -> None:
    """Of kernels that only stream; a row of few elements is a warp's."""
    plan = make_plan(graph([value((rows, cols))], softmax), H200)
    assert choose_row(plan.sigs[0], H200, threads=256, streaming=True).group == group
    assert choose_row(plan.sigs[0], H200, threads=256).group == (128 if rows == 197 else 32)


@pytest.mark.parametrize(("kind", "dtype"), [("add", F32), ("maximum", DType.BF16)])
def test_a_long_row_of_any_length_is_for_all_multiprocessors(kind: str, dtype: DType) -> None:
    """Padded with what changes nothing; all elements of the row are negative."""
    x = value(((1 << 17) + 29,), dtype)
    g = graph([x], lambda b, x: b.reduce(x, start(b, kind, dtype), kind, (0,)))
    plan = make_plan(g, H200)
    program = compile_graph(g, plan=plan)
    given = -np.random.default_rng(0).integers(1, 3, x.type.dims).astype(dtype.numpy)
    (out,) = run_program(program, [given])
    assert len(plan.stages) == 2 and out == (given.sum() if kind == "add" else -1)


def squares(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
    """A sum of products for each row, and one of the rows' own values."""
    each = b.elementwise("multiply", x, b.elementwise("tanh", y))
    return (b.reduce(each, b.constant(0, F32), "add", (1,)),
            b.reduce(y, start(b, "maximum", F32), "maximum", (1,)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize(("cols", "group", "lanes"), [(16, 4, 4), (64, 16, 4), (8, 1, 8),
                                                      (24, 8, 4)])
def test_several_short_rows_at_a_time(cols: int, group: int, lanes: int, places: int) -> None:
    g = graph([value((72, cols)), value((72, cols))], squares)
    plan = make_plan(g, DEVICE)
    schedule = KernelSchedule(64, 1, {s.key: RowSchedule("warp", group, lanes, places=places)
                                      for s in plan.sigs})
    check(g, [data(v, i) for i, v in enumerate(g.inputs)], plan=plan, schedule=schedule)


def test_many_short_rows_are_taken_several_at_a_time() -> None:
    def chosen(rows: int, cols: int, make: Any = squares, inputs: int = 2) -> RowSchedule:
        g = graph([value((rows, cols))] * inputs, make)
        (sig,) = make_plan(g, H200).sigs
        return choose_row(sig, H200, 256)

    assert chosen(65536, 64).places == 4
    assert chosen(3_145_728, 16).places == 4
    assert chosen(8192, 64).places == 1  # few
    assert chosen(65537, 64).places == 1  # four do not divide them
    assert chosen(65536, 512).places == 1  # more than a load each
    assert chosen(65536, 64, softmax, 1).places == 1  # kept between sweeps

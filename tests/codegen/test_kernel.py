"""Whole kernels: stages and barriers, shared functions, loops over tables, aliases, NVRTC."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from harness import DEVICE, check, compile_graph, run_program
from harness_graphs import data, graph, value
from thinned import thinned_rows

from jaxmono.codegen import CodegenError, cuda_target
from jaxmono.codegen.generate import emit, generate, identifier
from jaxmono.codegen.kernel import emit_kernel
from jaxmono.codegen.program import A_BLOCK_A_TASK
from jaxmono.codegen.schedule import KernelSchedule
from jaxmono.codegen.target import arch_of, interpret_target
from jaxmono.fusion import make_plan
from jaxmono.fusion.plan import Device
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

F32 = DType.F32


def mix(b: Builder, x: Value, w: Value) -> Value:
    """One layer that needs the whole previous one: reduces over both dimensions in turn."""
    m, n = x.type.dims
    zero = b.constant(0, F32)
    y = b.elementwise("tanh", b.elementwise("add", x, w))
    s = b.reduce(y, zero, "add", (1,))
    y = b.elementwise("subtract", y, b.broadcast_in_dim(s, (m, n), (0,)))
    t = b.reduce(y, zero, "maximum", (0,))
    return b.elementwise("multiply", y, b.broadcast_in_dim(t, (m, n), (1,)))


def layers(depth: int, shape: tuple[int, int] = (12, 40)) -> Graph:
    def make(b: Builder, x: Value, *ws: Value) -> Value:
        for w in ws:
            x = mix(b, x, w)
        return x

    return graph([value(shape) for _ in range(depth + 1)], make)


def arrays(g: Graph) -> list[np.ndarray]:
    return [data(v, i, special=False, scale=0.3) for i, v in enumerate(g.inputs)]


def test_stages_in_every_thread_order() -> None:
    g = layers(2)
    program = check(g, arrays(g), seeds=(0, 1, 2), rtol=1e-4)
    assert program.stages >= 3 and program.barriers >= 1
    assert program.cooperative
    assert program.scratch_bytes > 0


def test_depth_changes_neither_functions_nor_length() -> None:
    def text(depth: int) -> str:
        target = interpret_target()
        source = emit(make_plan(layers(depth), DEVICE), target, DEVICE, "k").source
        return re.sub(r"^//.*\n", "", source, flags=re.M)

    six, twelve = text(6), text(12)
    functions = re.compile(r"^JM_DEVICE void f\d+", re.M)
    assert len(functions.findall(six)) == len(functions.findall(twelve))
    body = six[six.index('extern "C"'):].count("\n")
    assert body == twelve[twelve.index('extern "C"'):].count("\n")
    assert "for (int trip = 0;" in six


def test_rolled_loop_computes_the_same() -> None:
    g = layers(7)
    program = compile_graph(g)
    assert "for (int trip = 0;" in program.source
    given = arrays(g)
    (wanted,) = evaluate(g, given)
    for seed in (0, 3):
        (found,) = run_program(program, given, seed=seed)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_a_launch_leaves_the_kernel_reusable() -> None:
    g = layers(2)
    program, given = compile_graph(g), arrays(g)
    (first,) = run_program(program, given)
    for blocks in (1, 3, 4):
        (again,) = run_program(program, given, blocks=blocks)
        np.testing.assert_array_equal(first, again)


def test_groups_of_one_function_share_a_stage() -> None:
    """Three independent row groups: one function, one table, one stage."""
    def make(b: Builder, *xs: Value) -> tuple[Value, ...]:
        return tuple(b.reduce(b.elementwise("exponential", x), b.constant(0, F32), "add", (1,))
                     for x in xs)

    g = graph([value((9, 40)) for _ in range(3)], make)
    program = check(g, arrays(g))
    assert program.stages == 1
    assert len(re.findall(r"^JM_DEVICE void f\d+_", program.source, re.M)) == 1
    assert "const int group = " in program.source


def test_one_launch_updates_an_argument_in_place() -> None:
    from jaxmono.hlo import ops

    def make(b: Builder, cache: Value, x: Value, i: Value) -> tuple[Value, ...]:
        new = b.elementwise("tanh", x)
        zero = b.constant(np.int32(0))
        out = b.emit1(ops.DynamicUpdateSlice, cache.type, operand=cache, update=new,
                      start_indices=(i, zero))
        return (out, b.reduce(out, b.constant(0, F32), "add", (0,)))

    cache, x, i = value((50, 16)), value((1, 16)), value((), DType.S32)
    g = graph([cache, x, i], make)
    check(g, [data(cache, special=False), data(x, special=False), np.int32(30)], seeds=(0, 1),
          rtol=1e-4)


def test_readable() -> None:
    source = emit(make_plan(layers(1), DEVICE), interpret_target(), DEVICE, "k").source
    assert source.startswith("// plan main: ")
    assert "// tanh" in source and "model.py:7 (layer)" in source
    assert "// stage 0: " in source


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_same_text_compiles_for_gpus_without_spills(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    g = layers(3, (64, 768))
    program = generate(make_plan(g, Device()), cuda_target(arch), Device(), "mix")
    assert program.resources["registers"] > 0
    assert program.resources["spill_stores"] == 0
    assert program.resources["static_shared"] == 0


@pytest.mark.parametrize(("columns", "bounds"), thinned_rows([(128, (4,)), (1984, (1, 2, 4))]))
def test_kernels_that_only_move_data_share_an_sm(columns: int, bounds: tuple[int, ...]) -> None:
    """One block has too few loads in flight; but a long row in registers must not spill."""
    pytest.importorskip("cuda.bindings.nvrtc")

    def softmax(b: Builder, x: Value) -> Value:
        top = b.reduce(x, b.constant(-np.inf, F32), "maximum", (1,))
        y = b.elementwise("subtract", x, b.broadcast_in_dim(top, x.type.dims, (0,)))
        y = b.elementwise("exponential", y)
        total = b.reduce(y, b.constant(0, F32), "add", (1,))
        return b.elementwise("divide", y, b.broadcast_in_dim(total, x.type.dims, (0,)))

    plan = make_plan(graph([value((8192, columns))], softmax), Device())
    assert len(plan.stages) == 1
    program = generate(plan, cuda_target("sm_90a"), Device(), "softmax")
    assert any(f"__launch_bounds__(256, {bound})" in program.source for bound in bounds)
    assert program.blocks_per_sm in (1, A_BLOCK_A_TASK) and not program.resources["spill_stores"]
    assert program.blocks_per_sm == A_BLOCK_A_TASK or 1 in bounds
    small = make_plan(graph([value((64, columns))], softmax), Device())  # fits one block per SM
    assert generate(small, cuda_target("sm_90a"), Device(), "softmax").blocks_per_sm == 1
    waiting = make_plan(layers(3, (8192, 768)), Device())  # all blocks must be resident
    assert generate(waiting, cuda_target("sm_90a"), Device(), "mix").blocks_per_sm == 1


def test_a_loop_alone_has_a_block_a_task() -> None:
    """Behind another stage blocks wait for each other, so they are as many as fit."""
    pytest.importorskip("cuda.bindings.nvrtc")

    def power(b: Builder, x: Value) -> Value:
        return b.elementwise("exponential", x)

    def total(b: Builder, x: Value) -> Value:
        return b.reduce(power(b, x), b.constant(0, F32), "add", (0, 1))

    def blocks(make: Callable[[Builder, Value], Value], stages: int) -> int:
        plan = make_plan(graph([value((8192, 2048))], make), Device())
        assert len(plan.stages) == stages
        return generate(plan, cuda_target("sm_90a"), Device(), "loop").blocks_per_sm

    assert (blocks(power, 1), blocks(total, 2)) == (A_BLOCK_A_TASK, 8)


def test_names_become_identifiers() -> None:
    assert identifier("jit(f)/layer 1") == "jit_f_layer_1"
    assert identifier("1st") == "k_1st"


def test_architectures() -> None:
    assert arch_of(9, 0) == "sm_90a"
    assert arch_of(8, 0) == "sm_80"
    with pytest.raises(CodegenError, match="sm_12345"):
        cuda_target("sm_12345")
    with pytest.raises(CodegenError, match=r"7\.0 is not supported"):
        arch_of(7, 0)


def test_a_schedule_without_an_entry_is_refused() -> None:
    with pytest.raises(CodegenError, match="no entry for"):
        emit_kernel(make_plan(layers(1), DEVICE), KernelSchedule(), "k")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "overlaps"), [("sm_80", False), ("sm_90a", True)])
def test_a_launch_overlaps_where_no_block_waits_for_another(arch: str, overlaps: bool) -> None:
    """What a block touches comes behind `launch_order`; a cooperative launch never overlaps."""
    def made(g: Graph) -> tuple[str, bool, bool]:
        p = generate(make_plan(g, DEVICE), cuda_target(arch), DEVICE, "k")
        return p.source[p.source.index('extern "C"'):], p.overlaps, p.cooperative

    alone = graph([value((64, 64))], lambda b, x: b.elementwise("tanh", x))
    matrix = graph([value((256, 256), DType.BF16), value((256, 256), DType.BF16)],
                   lambda b, x, w: b.dot_general(x, w, batch=((), ()), contract=((1,), (0,)),
                                                 dtype=DType.BF16))
    for g in (alone, matrix):
        text, found, cooperative = made(g)
        assert (found, cooperative) == (overlaps, False)
        assert text.count("launch_order();") == 1
        before, behind = text.split("launch_order();")
        assert not re.search(r"\bf\d+_|pointer<|num_blocks|prefetch", before)
        assert re.search(r"\bf\d+_", behind)
    text, found, cooperative = made(layers(1))
    assert cooperative and not found and "launch_order" not in text

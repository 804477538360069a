"""Passes keep the meaning of whole programs, and reach a fixed point that verifies."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest
from programs import random_program, reference
from thinned import thinned

from jaxmono.hlo import ops
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.interp import evaluate
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes import (
    canonicalise,
    common_subexpressions,
    constant_folding,
    dead_code,
    simplify,
)
from jaxmono.hlo.passes.pipeline import PASSES
from jaxmono.hlo.rewrite import Builder, binary_body, fresh, replace_values, subgraph
from jaxmono.hlo.types import DType, SymDim, TensorType
from jaxmono.hlo.verify import verify

F32, S32, PRED = DType.F32, DType.S32, DType.PRED


def value(dtype: DType, *shape: int) -> Value:
    return Value(TensorType(shape, dtype))


def names(graph: Graph) -> list[str]:
    """Opcodes (kinds, where elementwise) in order, without constants."""
    return [o.kind if isinstance(o, ops.Elementwise) else o.opcode for o in graph.ops
            if not isinstance(o, ops.Constant)]


def graph_of(inputs: list[Value], b: Builder, *outputs: Value) -> Graph:
    return Graph(tuple(inputs), tuple(b.ops), outputs)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", thinned(range(60), 6))
def test_passes_keep_random_programs(seed: int) -> None:
    program = random_program(seed)
    lowered = jax.jit(program.fun, keep_unused=True).lower(*program.args)
    graph = import_module(lowered.compiler_ir("stablehlo")).graph
    before = evaluate(graph, program.args)
    for run in PASSES:
        new = run(graph)
        verify(new)
        for a, b in zip(before, evaluate(new, program.args), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            if a.dtype.kind in "iub":
                np.testing.assert_array_equal(a, b, err_msg=f"{run.__name__}\n{program}")
            elif not any(isinstance(o, ops.DotGeneral) for o in graph.ops):
                # NumPy's own vector loops differ in the last bit by alignment.
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64),
                                           rtol=4 * max(program.eps), atol=1e-30,
                                           err_msg=f"{run.__name__}\n{program}")
        graph = new
    simple = simplify(graph)
    verify(simple)
    assert simplify(simple) is simple
    program.check(evaluate(simple, program.args), reference(program))


def test_a_layer_of_batch_one_has_neither_size_one_dimensions_nor_transposed_operands() -> None:
    def layer(x: jax.Array, w: jax.Array, k: jax.Array) -> jax.Array:
        h = (x @ w).reshape(1, 8, 2, 4).transpose(0, 2, 1, 3)
        return jax.nn.softmax(h @ k.transpose(0, 1, 3, 2)) + 1.0

    args = [np.ones(s, np.float32) for s in ((1, 8, 8), (8, 8), (1, 2, 8, 4))]
    lowered = jax.jit(layer).lower(*args)
    simple = simplify(import_module(lowered.compiler_ir("stablehlo")).graph)
    for op in simple.ops:
        if not isinstance(op, ops.Reshape):
            assert all(1 not in v.type.shape for v in (*op.inputs, *op.results)), op
    assert "transpose" not in names(simple)


def test_every_pass_returns_the_same_graph_when_nothing_changes() -> None:
    x, b = value(F32, 4, 8), Builder()
    graph = graph_of([x], b, b.elementwise("tanh", x))
    for run in PASSES:
        assert run(graph) is graph
    assert simplify(graph) is graph


def test_dead_code_keeps_effects() -> None:
    x, b = value(F32, 4), Builder()
    b.elementwise("tanh", x)
    b.emit(ops.CustomCall, [], args=(x,), target="print", has_side_effect=True)
    out = b.elementwise("negate", x)
    assert names(dead_code(graph_of([x], b, out))) == ["custom_call", "negate"]


def test_common_subexpressions_look_at_attributes_regions_and_types() -> None:
    x, y, b = value(F32, 4, 4), value(F32, 4, 4), Builder()
    zero = b.constant(0.0, F32)
    same = [b.reduce(x, zero, "add", [0]), b.reduce(x, zero, "add", [0])]
    other = [b.reduce(x, zero, "add", [1]), b.reduce(x, zero, "maximum", [0])]
    swapped = [b.elementwise("add", x, y), b.elementwise("add", y, x)]
    ordered = [b.elementwise("subtract", x, y), b.elementwise("subtract", y, x)]
    casts = [b.convert(x, S32), b.convert(x, DType.S8)]
    graph = common_subexpressions(graph_of([x, y], b, *same, *other, *swapped, *ordered, *casts))
    out = graph.outputs
    assert out[0] is out[1] and len(set(out[:4])) == 3
    assert out[4] is out[5] and out[6] is not out[7] and out[8] is not out[9]


def test_common_subexpressions_compare_nested_regions_exactly() -> None:
    x, i, b = value(F32, 4), value(S32), Builder()

    def branch(kind: str, captured: Value) -> Graph:
        inner = Builder()
        out = inner.elementwise(kind, captured)
        return Graph((), tuple(inner.ops), (out,))

    def case(*kinds: str) -> Value:
        return b.emit1(ops.Case, x.type, index=i, branches=tuple(branch(k, x) for k in kinds))

    cases = [case("tanh", "sine"), case("tanh", "sine"), case("sine", "tanh")]
    out = common_subexpressions(graph_of([x, i], b, *cases)).outputs
    assert out[0] is out[1] and out[0] is not out[2]


def test_constant_folding_keeps_splats_small() -> None:
    b = Builder()
    scalar = b.elementwise("multiply", b.constant(3.0, F32), b.constant(2.0, F32))
    wide = b.broadcast_in_dim(scalar, (1000, 1000), ())
    graph = constant_folding(graph_of([], b, b.elementwise("negate", wide)))
    (literal,) = dead_code(graph).ops
    assert isinstance(literal, ops.Constant)
    assert literal.value.shape == (1000, 1000) and literal.value.strides == (0, 0)
    assert literal.value[0, 0] == -6.0


def test_constant_folding_leaves_large_results() -> None:
    b = Builder()
    table = b.constant(np.arange(65, dtype=np.float32))
    out = b.elementwise("negate", table)
    assert names(constant_folding(graph_of([], b, out))) == ["negate"]


def of_places(n: int, dtype: DType) -> tuple[Builder, Value]:
    """5 minus a place, as a number."""
    b = Builder()
    places = b.elementwise("subtract", b.constant(np.full(n, 5)), b.emit1(
        ops.Iota, TensorType((n,), DType.S64), dimension=0))
    return b, b.convert(places, dtype)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_numbers_of_a_few_places_become_literals(dtype: DType) -> None:
    b, x = of_places(64, dtype)
    out = b.elementwise("exponential", b.elementwise("multiply", x, b.splat(0.5, x.type)))
    made = dead_code(constant_folding(graph_of([], b, out)))
    (literal,) = made.ops
    assert isinstance(literal, ops.Constant)
    np.testing.assert_allclose(literal.value, np.exp((5 - np.arange(64)) / 2), 1e-6)


def test_other_numbers_of_places_are_computed() -> None:
    """Those of more places, of 16 bits (whose ops are not rounded one by one), and of an input;
    integers and what is only converted, with which later passes count."""
    b, x = of_places(65, DType.F32)
    assert "negate" in names(constant_folding(graph_of([], b, b.elementwise("negate", x))))
    b, x = of_places(64, DType.BF16)
    assert "negate" in names(constant_folding(graph_of([], b, b.elementwise("negate", x))))
    b, x = of_places(64, DType.F32)
    y = Value(x.type)
    out = b.elementwise("multiply", b.elementwise("add", x, y), x)
    assert names(dead_code(constant_folding(graph_of([y], b, out)))).count("iota") == 1
    b, x = of_places(64, DType.F32)
    assert "iota" in names(constant_folding(graph_of([], b, x)))


def test_empty_results_become_literals() -> None:
    x, b = value(F32, 0, 4), Builder()
    out = b.elementwise("tanh", x)
    total = b.reduce(out, b.constant(0.0, F32), "add", [0])
    graph = simplify(graph_of([x], b, out, total))
    assert names(graph) == []
    assert [a.shape for a in evaluate(graph, [np.zeros((0, 4), np.float32)])] == [(0, 4), (4,)]


def test_regions_are_simplified() -> None:
    x, i, b = value(F32, 1 << 17), value(S32), Builder()  # too much to compute both
    inner = Builder()
    doubled = inner.elementwise("negate", inner.elementwise("negate", x))
    branch = Graph((), tuple(inner.ops), (doubled,))
    out = b.emit1(ops.Case, x.type, index=i, branches=(branch, branch))
    (op,) = simplify(graph_of([x, i], b, out)).ops
    assert isinstance(op, ops.Case)
    assert all(not g.ops and g.outputs == (x,) for g in op.branches)


def test_canonical_dot_and_reduce() -> None:
    x, y, b = value(F32, 1, 4, 1, 8), value(F32, 1, 8, 5), Builder()
    dot = b.dot_general(x, y, batch=((0,), (0,)), contract=((3,), (1,)), dtype=F32)
    outer = b.dot_general(dot, dot, batch=((0, 1, 2, 3), (0, 1, 2, 3)), contract=((), ()),
                          dtype=F32)
    total = b.reduce(outer, b.constant(0.0, F32), "add", [0, 3])
    graph = dead_code(simplify(canonicalise(graph_of([x, y], b, total))))
    (made,) = [o for o in graph.ops if isinstance(o, ops.DotGeneral)]
    assert made.result.type.shape == (4, 5) and made.lhs_batch == ()
    (reduced,) = [o for o in graph.ops if isinstance(o, ops.Reduce)]
    assert reduced.args[0].type.shape == (4, 5) and reduced.dimensions == (1,)
    assert "multiply" in names(graph)


def test_symbolic_dimensions_pass_through() -> None:
    x, b = Value(TensorType((SymDim("n"), 1, 8), F32)), Builder()
    turned = b.transpose(b.transpose(x, [2, 1, 0]), [2, 1, 0])
    twice = [b.elementwise("tanh", x), b.elementwise("tanh", x)]
    graph = simplify(graph_of([x], b, turned, b.reshape(x, x.type.shape), *twice))
    assert names(graph) == ["transpose", "transpose", "tanh"]


# rewrite.py


def test_subgraph_is_self_contained() -> None:
    x, w, b = value(F32, 4, 4), value(F32, 4, 4), Builder()
    a = b.elementwise("tanh", x)
    c = b.elementwise("add", a, w)
    d = b.reduce(c, b.constant(0.0, F32), "add", [1])
    e = b.elementwise("negate", c)
    graph = graph_of([x, w], b, d, e)
    chosen = [graph.producer[v] for v in (d, c)]
    sub, captured = subgraph(graph, chosen)
    assert [v.type for v in captured] == [a.type, w.type, TensorType((), F32)]
    assert captured[0] is a and captured[1] is w
    assert [v.type for v in sub.outputs] == [c.type, d.type] and not sub.captures
    assert not {v for o in sub.ops for v in o.results} & {c, d}
    verify(sub)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    got = evaluate(sub, [np.tanh(data[0]), data[1], np.float32(0)])
    want = evaluate(graph, data)
    np.testing.assert_allclose(got[1], want[0], rtol=1e-6)
    with pytest.raises(ValueError, match="neither computed nor used"):
        subgraph(graph, chosen, [e])


def test_subgraph_takes_captures_of_regions() -> None:
    x, i, b = value(F32, 4), value(S32), Builder()
    hidden, inner = b.elementwise("tanh", x), Builder()
    negated = inner.elementwise("negate", hidden)
    branch = Graph((), tuple(inner.ops), (negated,))
    out = b.emit1(ops.Case, x.type, index=i, branches=(branch,))
    graph = graph_of([x, i], b, out)
    sub, captured = subgraph(graph, [graph.producer[out]])
    assert captured == (i, hidden) and not sub.captures


def test_replace_values_and_fresh() -> None:
    x, y, b = value(F32, 4), value(F32, 4), Builder()
    a = b.elementwise("tanh", x)
    c = b.elementwise("negate", a)
    graph = graph_of([x, y], b, c)
    swapped = replace_values(graph, {x: y, a: x})
    assert swapped.ops[1].inputs == (y,)  # a is x, and x is y
    copy = fresh(graph)
    assert not {*copy.inputs, *copy.outputs} & {*graph.inputs, *graph.outputs}
    assert names(copy) == names(graph)


RULES: dict[str, tuple[Callable[[Builder, Value], Value], list[str]]] = {
    # Exact identities go, whatever the input.
    "multiply by 1": (lambda b, x: b.elementwise("multiply", b.splat(1.0, x.type), x), []),
    "add -0.0": (lambda b, x: b.elementwise("add", x, b.splat(-0.0, x.type)), []),
    "subtract 0.0": (lambda b, x: b.elementwise("subtract", x, b.splat(0.0, x.type)), []),
    "divide by 1": (lambda b, x: b.elementwise("divide", x, b.splat(1.0, x.type)), []),
    "max -inf": (lambda b, x: b.elementwise("maximum", b.splat(-np.inf, x.type), x), []),
    "negate twice": (lambda b, x: b.elementwise("negate", b.elementwise("negate", x)), []),
    "min itself": (lambda b, x: b.elementwise("minimum", x, x), []),
    "divide by 8": (lambda b, x: b.elementwise("divide", x, b.splat(8.0, x.type)),
                    ["multiply"]),
    "barrier": (lambda b, x: b.emit1(ops.OptimizationBarrier, x.type, args=(x,)), []),
    "bf16 and back": (lambda b, x: b.convert(b.convert(b.convert(x, DType.F64), F32), F32), []),
    # These are not, for -0, NaN, infinities or by rounding, and stay.
    "add 0.0": (lambda b, x: b.elementwise("add", x, b.splat(0.0, x.type)), ["add"]),
    "multiply by 0": (lambda b, x: b.elementwise("multiply", x, b.splat(0.0, x.type)),
                      ["multiply"]),
    "max inf": (lambda b, x: b.elementwise("maximum", x, b.splat(np.inf, x.type)), ["maximum"]),
    "subtract itself": (lambda b, x: b.elementwise("subtract", x, x), ["subtract"]),
    "divide by 3": (lambda b, x: b.elementwise("divide", x, b.splat(3.0, x.type)), ["divide"]),
    "divide by 2**-140": (lambda b, x: b.elementwise("divide", x, b.splat(2.0**-140, x.type)),
                          ["divide"]),
    "through bf16": (lambda b, x: b.convert(b.convert(x, DType.BF16), F32),
                     ["convert", "convert"]),
    "square": (lambda b, x: b.elementwise("square", x), ["square"]),
    # Movement
    "transpose back": (lambda b, x: b.transpose(b.transpose(x, [1, 0]), [1, 0]), []),
    "transpose cycles": (lambda b, x: b.transpose(b.transpose(
        b.reshape(x, [2, 2, 8]), [1, 2, 0]), [0, 2, 1]), ["reshape", "transpose"]),
    "broadcast of a cycle": (lambda b, x: b.broadcast_in_dim(b.transpose(
        b.reshape(x, [2, 2, 8]), [1, 2, 0]), [2, 3, 8, 2], [0, 2, 3]),
        ["reshape", "broadcast_in_dim"]),
    "reshape chain": (lambda b, x: b.reshape(b.reshape(b.reshape(x, [32]), [2, 16]), [4, 8]),
                      []),
    "keepdims": (lambda b, x: b.broadcast_in_dim(b.reshape(b.reduce(
        x, b.constant(0.0, F32), "add", [1]), [4, 1]), [4, 8], [0, 1]),
        ["reduce", "broadcast_in_dim"]),
    "transposed broadcast": (lambda b, x: b.broadcast_in_dim(b.transpose(x, [1, 0]), [3, 8, 4],
                                                             [1, 2]), ["broadcast_in_dim"]),
    "slice of slice": (lambda b, x: b.slice(b.slice(x, [1, 0], [4, 8], [1, 2]), [1, 1], [3, 3]),
                       ["slice"]),
    "slice of concatenate": (lambda b, x: b.slice(b.concatenate([x, x], 0), [4, 0], [8, 8]), []),
    "concatenate of concatenate": (lambda b, x: b.concatenate([b.concatenate([x, b.elementwise(
        "tanh", x)], 1), x, b.concatenate([x, x], 1)], 1), ["tanh", "concatenate"]),
    "concatenate of many": (lambda b, x: b.concatenate([b.concatenate([x] * 20, 0)] * 2, 0),
                            ["concatenate", "concatenate"]),
    "concatenate of another dimension": (lambda b, x: b.concatenate(
        [b.concatenate([x, x], 0), b.concatenate([x, x], 0)], 1), ["concatenate", "concatenate"]),
    "reverse twice": (lambda b, x: b.emit1(ops.Reverse, x.type, operand=b.emit1(
        ops.Reverse, x.type, operand=x, dimensions=(0,)), dimensions=(0,)), []),
    "crop": (lambda b, x: b.emit1(ops.Pad, TensorType((2, 8), F32), operand=x,
                                  padding_value=b.constant(0.0, F32), low=(-1, 0),
                                  high=(-1, 0), interior=(0, 0)), ["slice"]),
    "static dynamic_slice": (lambda b, x: b.emit1(
        ops.DynamicSlice, TensorType((2, 8), F32), operand=x, slice_sizes=(2, 8),
        start_indices=(b.constant(9, S32), b.constant(5, S32))), ["slice"]),
    # Contractions
    "dot of transpose": (lambda b, x: b.dot_general(
        b.transpose(x, [1, 0]), x, batch=((), ()), contract=((1,), (0,)), dtype=F32),
        ["dot_general"]),
    "dot of swapped free dimensions": (lambda b, x: b.dot_general(
        b.transpose(b.reshape(x, [2, 2, 8]), [1, 0, 2]), x, batch=((), ()),
        contract=((2,), (1,)), dtype=F32), ["reshape", "transpose", "dot_general"]),
    "transpose of dot": (lambda b, x: b.transpose(b.dot_general(
        x, b.elementwise("tanh", x), batch=((), ()), contract=((1,), (1,)), dtype=F32), [1, 0]),
        ["tanh", "dot_general"]),
    "dot of a scaled input": (lambda b, x: b.dot_general(
        b.elementwise("multiply", b.splat(-4.0, x.type), x), b.elementwise("tanh", x),
        batch=((), ()), contract=((1,), (1,)), dtype=F32), ["tanh", "dot_general", "multiply"]),
    "dot of half an input": (lambda b, x: b.dot_general(  # twice the sum may be infinite
        b.elementwise("multiply", b.splat(0.5, x.type), x), b.elementwise("tanh", x),
        batch=((), ()), contract=((1,), (1,)), dtype=F32), ["multiply", "tanh", "dot_general"]),
    "dot of three times an input": (lambda b, x: b.dot_general(
        b.elementwise("multiply", x, b.splat(3.0, x.type)), b.elementwise("tanh", x),
        batch=((), ()), contract=((1,), (1,)), dtype=F32), ["multiply", "tanh", "dot_general"]),
    "dot of a scaled value": (lambda b, x: b.dot_general(
        b.elementwise("multiply", b.elementwise("tanh", x), b.splat(2.0, x.type)), x,
        batch=((), ()), contract=((1,), (1,)), dtype=F32), ["tanh", "multiply", "dot_general"]),
    "dot of nothing": (lambda b, x: b.dot_general(
        b.slice(x, [0, 0], [4, 0]), b.slice(x, [0, 0], [4, 0]), batch=((), ()),
        contract=((1,), (1,)), dtype=F32), []),
    "reduce of transpose": (lambda b, x: b.reduce(b.transpose(x, [1, 0]), b.constant(0.0, F32),
                                                  "add", [0]), ["reduce"]),
    "reduce of one": (lambda b, x: b.reduce(b.reshape(x, [4, 1, 8]), b.constant(-np.inf, F32),
                                            "maximum", [1]), []),
    # Predicates and control
    "select": (lambda b, x: b.elementwise("select", b.constant(True, PRED), x, b.splat(
        0.0, x.type)), []),
    "select not": (lambda b, x: b.elementwise("select", b.elementwise(
        "not", b.compare("LT", x, b.splat(0.0, x.type))), x, b.splat(1.0, x.type)),
        ["compare", "select"]),
    # softplus
    "select of NaN": (lambda b, x: b.elementwise("select", b.compare("NE", x, x), b.elementwise(
        "add", x, x), b.elementwise("maximum", b.splat(0.0, x.type), x)), ["maximum"]),
    "select of no NaN": (lambda b, x: b.elementwise("select", b.compare("EQ", x, x), b.elementwise(
        "exponential", b.elementwise("negate", x)), x), ["negate", "exponential"]),
    "select where NaN ends": (lambda b, x: b.elementwise("select", b.compare("NE", x, x), b.splat(
        0.0, x.type), x), ["compare", "select"]),
    "select where NaN may end": (lambda b, x: b.elementwise("select", b.compare("NE", x, x), x,
        b.elementwise("power", x, b.splat(0.0, x.type))), ["compare", "power", "select"]),
    "select of less": (lambda b, x: b.elementwise("select", b.compare("LE", x, x), x,
        b.elementwise("negate", x)), ["compare", "negate", "select"]),
    "and true": (lambda b, x: b.elementwise("and", b.compare("EQ", x, x), b.splat(
        True, TensorType((4, 8), PRED))), ["compare"]),
    "known case": (lambda b, x: b.emit1(ops.Case, x.type, index=b.constant(5, S32), branches=(
        Graph((), (), (x,)), Graph((), (), (x,)))), []),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    make, want = RULES[name]
    x, b = value(F32, 4, 8), Builder()
    graph = graph_of([x], b, make(b, x))
    verify(graph)
    simple = simplify(graph)
    verify(simple)
    assert names(simple) == want
    data = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38]
    if "dot" not in name:
        data.reshape(-1)[:len(special)] = special
    (before,), (after,) = evaluate(graph, [data]), evaluate(simple, [data])
    if "dot" in name:
        np.testing.assert_allclose(before, after, rtol=1e-6)
    else:
        np.testing.assert_array_equal(before, after)
        np.testing.assert_array_equal(np.signbit(before), np.signbit(after))


@pytest.mark.parametrize(("a", "b", "c", "kept"), [
    (DType.S8, F32, DType.U8, 2), (DType.S8, S32, DType.U8, 1), (DType.S32, F32, DType.F64, 2),
    (DType.U8, DType.BF16, F32, 1), (DType.BF16, F32, DType.BF16, 0), (PRED, F32, S32, 1),
    (DType.S16, DType.F16, DType.S16, 2), (DType.F16, DType.BF16, F32, 2),
])
def test_convert_chains(a: DType, b: DType, c: DType, kept: int) -> None:
    x, builder = value(a, 4), Builder()
    graph = graph_of([x], builder, builder.convert(builder.convert(x, b), c))
    simple = simplify(graph)
    assert names(simple) == ["convert"] * kept
    low = 0 if a is PRED else -1 if a.is_signed else 3
    data = np.array([low, 0, 1, 1], np.float32).astype(a.numpy)
    np.testing.assert_array_equal(evaluate(graph, [data])[0], evaluate(simple, [data])[0])


def test_binary_body_is_one_op() -> None:
    body = binary_body("maximum", F32)
    verify(body)
    assert names(body) == ["maximum"]

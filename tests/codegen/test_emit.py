"""The text of emitted bodies, and what the emitter refuses."""

from __future__ import annotations

import numpy as np
import pytest
from harness_graphs import graph, value

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.index_code import VarCode, index_code
from jaxmono.codegen.names import literal
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

ROW, COL = Var("row", 64), Var("col", 96)
AT = (Index.of(ROW), Index.of(COL))


def emitter(g: Graph, lanes: int = 4, **kw: bool) -> tuple[Writer, BodyEmitter]:
    w = Writer()
    return w, BodyEmitter(w, g, {v: f"p{i}" for i, v in enumerate(g.inputs)}, lane=COL,
                          lanes=lanes, var_names={ROW: "row", COL: "c"}, **kw)


def test_text_of_a_vectorised_chain() -> None:
    def make(b: Builder, x: Value, y: Value) -> Value:
        s = b.elementwise("add", x, b.broadcast_in_dim(y, (64, 96), (0,)))
        return b.elementwise("multiply", s, s)

    g = graph([value((64, 96)), value((64,))], make)
    w, em = emitter(g)
    x = em.emit(g.outputs[0], AT)
    em.store("r0", AT[0] * 96 + AT[1], x, DType.F32)
    assert w.text().splitlines() == [
        "const Vec<float, 4> v0 = load<float, 4>(p0 + 96 * row + c);",
        "const float v1 = load<float>(p1 + row);",
        "const Vec<float, 4> v2 = v_add(v0, v1);  // add  model.py:7 (layer)",
        "const Vec<float, 4> v3 = v_multiply(v2, v2);  // multiply",
        "store<float, 4>(r0 + 96 * row + c, v3);",
    ]
    assert em.emit(g.outputs[0], AT) == x, "a value is computed once"


def test_no_variable_hides_a_type() -> None:
    """The seventeenth loop over a row's fragments was ``for (int f16 = ...)``."""
    w = Writer()
    assert [w.fresh("f") for _ in range(18)][15:] == ["f15", "f17", "f18"]


def test_bound_value_at_another_index_is_refused() -> None:
    g = graph([value((64, 96))], lambda b, x: b.elementwise("exponential", b.transpose(
        b.elementwise("tanh", x), (1, 0))))
    tanh = g.ops[0].results[0]
    w, em = emitter(g)
    em.bind(tanh, AT, "acc")
    with pytest.raises(CodegenError, match="at hand at another index"):
        em.emit(g.outputs[0], AT)
    assert em.emit(g.outputs[0], (AT[1], AT[0])).vector
    assert "acc" in w.text()


def test_custom_loads_see_the_first_lane() -> None:
    g = graph([value((64, 96))], lambda b, x: b.elementwise("negate", b.elementwise("tanh", x)))
    w, em = emitter(g)
    em.bind_load(g.ops[0].results[0], lambda at, n: f"scores<{n}>({em.code(at[1])})")
    em.emit(g.outputs[0], AT)
    assert "v0 = scores<4>(c);" in w.text()
    assert "p0" not in w.text()


def test_ops_without_code_are_refused_by_name_and_line() -> None:
    g = graph([value((64, 96))], lambda b, x: b.emit(
        ops.Sort, x.type, args=(x,), comparator=Graph((), (), ()), dimension=1,
        is_stable=True)[0])
    _, em = emitter(g)
    with pytest.raises(CodegenError, match=r"cannot generate sort \(model.py:7 \(layer\)\)"):
        em.emit(g.outputs[0], AT)


def test_deep_chains_do_not_recurse() -> None:
    def make(b: Builder, x: Value) -> Value:
        for _ in range(3000):
            x = b.elementwise("negate", x)
        return x

    g = graph([value((64, 96))], make)
    w, em = emitter(g)
    em.emit(g.outputs[0], AT)
    assert len(w.lines) == 3001


def test_reduce_is_inlined_only_where_asked() -> None:
    g = graph([value((64, 96, 3))], lambda b, x: b.reduce(x, b.constant(0, DType.F32), "add", (2,)))
    _, em = emitter(g)
    with pytest.raises(CodegenError, match="not at hand"):
        em.emit(g.outputs[0], AT)
    w, em = emitter(g, inline_reduces=True)
    em.emit(g.outputs[0], AT)
    assert "for (int r0 = 0; r0 < 3; ++r0) {" in w.text()


def test_row_chain_on_custom_sources_and_sinks() -> None:
    """As a contraction uses it: scores from shared memory, results back to it, one warp a row."""
    def make(b: Builder, x: Value) -> Value:
        most = b.reduce(x, b.constant(-np.inf, DType.F32), "maximum", (1,))
        e = b.elementwise("exponential", b.elementwise(
            "subtract", x, b.broadcast_in_dim(most, (64, 96), (0,))))
        return e

    g = graph([value((64, 96))], make)
    w = Writer()
    em = BodyEmitter(w, g, {}, lane=COL, lanes=1, var_names={ROW: "row"})
    em.bind_load(g.inputs[0], lambda at, n: f"smem_scores[{em.code(at[1])}]")
    emit_row_chain(em, COL, [RowOutput(g.outputs[0], AT)],
                   lambda i, x: em.w.line(f"probs[{em.code(AT[1])}] = {x};"))
    text = w.text()
    assert text.count("smem_scores[") == 1, "the row stays in registers"
    assert "combine_warp<" in text
    assert "probs[c1] = v" in text


def test_division_of_possibly_negative_indices_rounds_down() -> None:
    names = {ROW: VarCode("row")}

    def dynamic(d: object) -> str:
        raise AssertionError(d)

    assert index_code(Index.of(ROW) * -1 // 7, names, dynamic) == "floordiv<7>(-1 * row)"
    assert index_code(Index.of(ROW) % 7, names, dynamic) == "umod<7>(row)"
    big = Index.of(Var("i", 1 << 33))
    assert index_code(big * 2, {Var("i", 1 << 33): VarCode("i")}, dynamic) == "2 * (long long)i"


def test_literals_are_exact() -> None:
    assert literal(0.1, DType.F32) == "0.1f"
    assert literal(-0.0, DType.F64) == "(-0.0)"
    assert literal(np.nan, DType.F32) == "bitcast<float>(uint32_t(0x7fc00000u))"
    assert literal(-(2**31), DType.S32) == "(-2147483647 - 1)"
    assert literal(-5, DType.S8) == "int8_t(-5)"
    for x in np.random.default_rng(0).standard_normal(200).astype(np.float32):
        assert np.float32(literal(x, DType.F32).strip("()f")) == x

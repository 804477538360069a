"""The printed form of Graphs, and that parsing inverts it exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hlo_programs import lower, programs
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmono.hlo import ops
from jaxmono.hlo.fingerprint import fingerprint
from jaxmono.hlo.importer import import_module
from jaxmono.hlo.ir import Graph, Loc, Value
from jaxmono.hlo.parse import ParseError, parse
from jaxmono.hlo.print import op_text, to_text
from jaxmono.hlo.types import DType, SymDim, TensorType
from jaxmono.hlo.verify import verify

PROGRAMS = programs()

SAMPLE = """\
graph main(%0: f32[2,8], %1: f32[8], %2: s32[]) {
  %3 = f32[2,8] broadcast_in_dim(%1) {dimensions=[1]}
  %4 = f32[2,8] add(%0, %3)  // model.py:12 (jit(f)/add)
  %5 = f32[] constant() {value=f32[]<-0.0>}
  %6 = f32[2] reduce(%4; %5) {dimensions=[1]}  // model.py:13
    body(%7: f32[], %8: f32[]) {
      %9 = f32[] add(%7, %8)
      return %9
    }
  %10 = f32[2] case(%2)
    branches() {
      return %6
    }
    branches() {
      %11 = f32[2] exponential(%6) {accuracy="mode<HIGHEST>"}  // <unknown> (exp)
      return %11
    }
  %12, %13 = f32[2,2], s32[2,2] top_k(%4) {k=2}
  custom_call(%10) {target="my target", has_side_effect=true, config="{\\"a\\": 1}"}
  %14, %15 = s32[], f32[2] while(%2, %10)
    cond(%16: s32[], %17: f32[2]) {
      %18 = pred[] constant() {value=pred[]<true>}
      return %18
    }
    body(%19: s32[], %20: f32[2]) {
      %21 = f32[2] maximum(%20, %10)
      return %19, %21
    }
  return %12, %13, %12, %0, %15
}
"""


def test_sample_round_trips():
    graph = parse(SAMPLE)
    assert to_text(graph) == SAMPLE
    verify(graph)
    assert graph.ops[1].loc == Loc("model.py", 12, "jit(f)/add")
    assert graph.ops[-1].body.captures == (graph.ops[4].result,)


def test_values_of_one_region_are_not_visible_in_another_to_verify():
    with pytest.raises(ValueError, match="before its definition"):
        verify(parse(SAMPLE.replace("maximum(%20, %10)", "select(%18, %20, %10)")))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_round_trip(name):
    fun, args = PROGRAMS[name]
    graph = import_module(lower(fun, *args)).graph
    text = to_text(graph)
    again = parse(text)
    assert to_text(again) == text
    assert fingerprint(again) == fingerprint(graph)
    verify(again)
    bare = to_text(graph, locs=False)
    assert all(o.loc == Loc() for o in parse(bare).walk())
    assert to_text(parse(bare), locs=False) == bare


def constant(value: np.ndarray) -> Graph:
    v = Value(TensorType(value.shape, DType.of(value.dtype)))
    return Graph((), (ops.Constant(results=(v,), value=value),), (v,))


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from([d for d in DType if d not in (DType.OPAQUE, DType.S4, DType.U4)]),
       shape=st.lists(st.integers(0, 5), max_size=3), data=st.data())
def test_any_bits_of_a_constant_round_trip(dtype, shape, data):
    size = int(np.prod(shape)) * dtype.itemsize
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype is DType.PRED:
        raw = bytes(b & 1 for b in raw)
    value = np.frombuffer(raw, dtype.numpy).reshape(shape)
    again = parse(to_text(constant(value))).ops[0].value
    assert again.dtype == value.dtype
    assert again.shape == value.shape
    assert np.ascontiguousarray(again).tobytes() == raw


@pytest.mark.parametrize(("value", "text"), [
    (np.float32(0.1), "f32[]<0.1>"),
    (np.array([1.5, np.inf, np.nan], np.float16), "f16[3]<1.5, inf, nan>"),
    (np.array(0x7FC1, np.uint16).view(DType.BF16.numpy), "bf16[]<0x7FC1>"),
    (np.broadcast_to(np.float32(2), (10**6, 10**6)), "f32[1000000,1000000]<splat 2.0>"),
    (np.full((2, 2), -0.0), "f64[2,2]<splat -0.0>"),
    (np.array([0.0, -0.0]), "f64[2]<0.0, -0.0>"),
    (np.arange(3, dtype=DType.S4.numpy), "s4[3]<0, 1, 2>"),
    (np.zeros((0, 3), np.int8), "s8[0,3]<>"),
    (np.float64(1e300), "f64[]<1e+300>"),
    (np.arange(20, dtype=np.uint8), "u8[20]<base64 AAECAwQFBgcICQoLDA0ODxAREhM=>"),
])
def test_constants_are_readable(value, text):
    value = np.asarray(value)
    assert f"value={text}" in to_text(constant(value))


def test_elided_text_is_short_and_does_not_parse():
    text = to_text(constant(np.arange(1000)), elide=True)
    assert "s64[1000]<...>" in text
    with pytest.raises(ParseError, match=r"line 2.*elided"):
        parse(text)


def test_symbolic_dimensions_and_opaque_types_round_trip():
    text = ("graph g(%0: f32[b,2*b,?0], %1: opaque[]) {\n"
            "  %2 = f32[b,2*b,?0] negate(%0)\n  return %2, %1\n}\n")
    graph = parse(text)
    assert graph.inputs[0].type.shape[0] == SymDim("b")
    assert to_text(graph) == text


def test_a_region_prints_alone_with_its_captures():
    loop = parse(SAMPLE).ops[5]
    assert isinstance(loop, ops.TopK)
    branch = parse(SAMPLE).ops[4].branches[1]
    text = to_text(branch, locs=False)
    assert text == ('graph branches() captures(%0: f32[2]) {\n'
                    '  %1 = f32[2] exponential(%0) {accuracy="mode<HIGHEST>"}\n'
                    "  return %1\n}\n")
    assert to_text(parse(text), locs=False) == text


def test_numbering_does_not_depend_on_hints():
    graph = parse(SAMPLE)
    for v in graph.inputs:
        v.hint = "name"
    assert to_text(graph) == SAMPLE


@pytest.mark.parametrize("loc", [
    Loc("a file.py", 3, "f (x)"), Loc("", 0, "only name"), Loc("a:1 (b", 4), Loc("a\nb", 1, "\t"),
    Loc("c:\\x.py", 7, "é"), Loc('a\\"b"', 1, 'say "x"'),
])
def test_odd_locations_round_trip(loc):
    graph = parse("graph g(%0: f32[]) {\n  %1 = f32[] negate(%0)\n  return %1\n}\n")
    graph = dataclasses.replace(graph, ops=(dataclasses.replace(graph.ops[0], loc=loc),))
    text = to_text(graph)
    assert len(text.splitlines()) == 4
    assert parse(text).ops[0].loc == loc
    assert to_text(parse(text)) == text


def test_one_op_as_text():
    assert op_text(parse(SAMPLE).ops[1]) == (
        "%2 = f32[2,8] add(%0: f32[2,8], %1: f32[2,8])  // model.py:12 (jit(f)/add)")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("add(%0, %3)", "add(%0, %99)", "line 3: expected a value that is defined above"),
    ("add(%0, %3)", "adds(%0, %3)", "line 3: expected the name of an op, found 'adds'"),
    ("dimensions=[1]}", "dimension=[1]}", r"attribute of broadcast_in_dim \(dimensions\)"),
    (" {dimensions=[1]}", "", "the attribute dimensions of broadcast_in_dim"),
    ("reduce(%4; %5)", "reduce(%4)", r"operands for \(args, inits\)"),
    ("%4 = f32[2,8]", "%4 = g32[2,8]", "no known element type"),
    ("%4 = f32[2,8]", "%3 = f32[2,8]", "defined twice"),
    ("f32[]<-0.0>", "f32[]<zero>", "line 4"),
    ("return %12", "ret$urn %12", "line 29: cannot read"),
    ("    cond(", "    condition(", "the region cond of while"),
])
def test_parse_errors_name_the_line(old, new, message):
    assert SAMPLE.count(old) >= 1
    with pytest.raises(ParseError, match=message):
        parse(SAMPLE.replace(old, new, 1))

"""The verifier refuses malformed Graphs and names the op, its line and the rule."""

from __future__ import annotations

import dataclasses

import pytest

from jaxmono.hlo import infer
from jaxmono.hlo.ir import REGISTRY, Graph
from jaxmono.hlo.parse import parse
from jaxmono.hlo.verify import HloError, verify

INPUTS = ("%0: f32[4,8], %1: f32[8,4], %2: s32[4,2], %3: f32[], %4: s32[], %5: pred[4,8], "
          "%6: c64[4,8], %7: u64[2], %8: f32[2,8,8,3], %9: f32[3,3,3,5], %10: bf16[4,8]")
REDUCER = """
  body(%50: f32[], %51: f32[]) {
    %52 = f32[] add(%50, %51)
    return %52
  }"""
GATHER = ("gather(%0, %2) {offset_dims=[1], collapsed_slice_dims=[0], operand_batching_dims=[], "
          "start_indices_batching_dims=[], start_index_map=[0, 1], index_vector_dim=1, "
          "slice_sizes=[1, 3]}")
SCATTER = ("scatter(%0; %2; %20) {update_window_dims=[1], inserted_window_dims=[0], "
           "input_batching_dims=[], scatter_indices_batching_dims=[], "
           "scatter_dims_to_operand_dims=[0, 1], index_vector_dim=1}" + REDUCER)
CONV = ("convolution(%8, %9) {window_strides=[2, 1], padding=[[1, 1], [0, 0]], "
        "lhs_dilation=[1, 2], rhs_dilation=[1, 1], window_reversal=[false, false], "
        "input_batch=0, input_feature=3, input_spatial=[1, 2], kernel_input_feature=2, "
        "kernel_output_feature=3, kernel_spatial=[0, 1], output_batch=0, output_feature=3, "
        "output_spatial=[1, 2], feature_group_count=1, batch_group_count=1}")
DOT = "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]"
WINDOW = ("reduce_window(%0; %3) {window_dimensions=[2, 2], window_strides=[1, 2], "
          "base_dilations=[1, 1], window_dilations=[1, 1], padding=[[0, 1], [0, 0]]}" + REDUCER)
NARROW_SORT = """%30 = f32[4,8] sort(%0) {dimension=1, is_stable=true}
  comparator(%50: f32[]) {
    return %50
  }"""
NUMERIC_WHILE = """%30 = f32[] while(%3)
  cond(%50: f32[]) {
    return %50
  }
  body(%51: f32[]) {
    return %51
  }"""


def graph(line: str) -> Graph:
    before = ""
    if "%20" in line.split("=", 1)[1]:
        before = "  %20 = f32[4,3] slice(%0) {start_indices=[0, 0], limit_indices=[4, 3], " \
                 "strides=[1, 1]}\n"
    return parse(f"graph main({INPUTS}) {{\n{before}  {line}\n  return\n}}\n")


GOOD = [
    "%30 = f32[4,8] add(%0, %0)",
    "%30 = f32[4,8] abs(%6)",
    "%30 = pred[4,8] is_finite(%0)",
    "%30 = f32[4,8] select(%5, %0, %0)",
    "%30 = f32[4,8] clamp(%3, %0, %0)",
    "%30 = pred[4,8] compare(%0, %0) {direction=LT, compare_type=TOTALORDER}",
    "%30 = s32[4,3] iota() {dimension=1}",
    "%30 = s8[4,8,4] bitcast_convert(%0)",
    "%30 = f32[8,4,8] broadcast_in_dim(%0) {dimensions=[1, 2]}",
    "%30 = f32[2,16] reshape(%0)",
    "%30 = f32[8,4] transpose(%0) {permutation=[1, 0]}",
    "%30 = f32[2,3] slice(%0) {start_indices=[1, 0], limit_indices=[3, 8], strides=[1, 3]}",
    "%30 = f32[2,8] dynamic_slice(%0, %4, %4) {slice_sizes=[2, 8]}",
    "%30 = f32[7,9] pad(%0, %3) {low=[-1, 0], high=[1, 1], interior=[1, 0]}",
    "%30 = f32[4,16] concatenate(%0, %0) {dimension=1}",
    f"%30 = f32[4,3] {GATHER}",
    f"%30 = f32[4,8] {SCATTER}",
    f"%30 = f32[4] reduce(%0; %3) {{dimensions=[1]}}{REDUCER}",
    f"%30 = f32[4,4] {WINDOW}",
    "%30 = f32[4,3,2] window(%0) {dimensions=[1], sizes=[2], strides=[2], dilations=[3]}",
    f"%30 = f32[4,4] dot_general(%0, %1) {{{DOT}}}",
    f"%30 = f32[2,4,13,5] {CONV}",
    "%30, %31 = f32[4,2], s32[4,2] top_k(%0) {k=2}",
    "%30, %31 = u64[2], u32[9] rng_bit_generator(%7) {algorithm=PHILOX}",
    "%30, %31 = f32[4,8], f32[] optimization_barrier(%0, %3)",
    "custom_call(%0) {target=x, has_side_effect=true}",
]
BAD = [
    ("%30 = f32[4,8] add(%0, %1)", r"second operand is f32\[8,4\], has to be f32\[4,8\]"),
    ("%30 = f32[8,4] add(%0, %0)", r"result 0 has type f32\[8,4\], has to have f32\[4,8\]"),
    ("%30 = bf16[4,8] add(%0, %0)", "result 0"),
    ("%30 = f32[4,8] and(%0, %0)", "and does not take f32"),
    ("%30 = f32[4,8] add(%0)", "no elementwise kind of 1 operands"),
    ("%30 = f32[4,8] select(%0, %0, %0)", "type of pred"),
    ("%30 = f32[4,8] clamp(%4, %0, %0)", "type of low"),
    ("%30 = pred[4,8] compare(%0, %0) {direction=LT, compare_type=SIGNED}", "does not fit f32"),
    ("%30 = pred[4,8] compare(%0, %0) {direction=LESS, compare_type=FLOAT}", "no direction"),
    ("%30 = f32[2] constant() {value=f32[3]<1.0, 2.0, 3.0>}", "result 0"),
    ("%30 = s32[4,3] iota() {dimension=2}", "leaves the range"),
    ("%30 = s8[4,8] convert(%3)", "result 0"),
    ("%30 = s8[4,8] bitcast_convert(%0)", "result 0"),
    ("%30 = f32[4,9] broadcast_in_dim(%0) {dimensions=[0, 1]}", "cannot become"),
    ("%30 = f32[4,8] broadcast_in_dim(%0) {dimensions=[0, 0]}", "repeats a dimension"),
    ("%30 = f32[5,8] reshape(%0)", "32 elements"),
    ("%30 = f32[8,4] transpose(%0) {permutation=[1, 1]}", "repeats a dimension"),
    ("%30 = f32[2,9] slice(%0) {start_indices=[1, 0], limit_indices=[3, 9], strides=[1, 1]}",
     r"\[0:9\] leaves dimension 1 of size 8"),
    ("%30 = f32[2,8] slice(%0) {start_indices=[1, 0], limit_indices=[3, 8], strides=[1, 0]}",
     "has to be >= 1"),
    ("%30 = f32[2,9] dynamic_slice(%0, %4, %4) {slice_sizes=[2, 9]}", "slice size 9"),
    ("%30 = f32[2,8] dynamic_slice(%0, %3, %3) {slice_sizes=[2, 8]}", "has to be an integer"),
    ("%30 = f32[4,8] dynamic_update_slice(%0, %1, %4, %4)", "does not fit dimension 0"),
    ("%30 = f32[7,9] pad(%0, %4) {low=[-1, 0], high=[1, 1], interior=[1, 0]}", "padding_value"),
    ("%30 = f32[4,12] concatenate(%0, %1) {dimension=1}", "other dimensions"),
    ("%30 = f32[4,8] reverse(%0) {dimensions=[2]}", "leaves the range"),
    (f"%30 = f32[4,3] {GATHER.replace('[0, 1], index', '[0], index')}", "index vectors have 2"),
    (f"%30 = f32[4,3] {GATHER.replace('[1, 3]', '[1, 9]')}", "slice size 9"),
    (f"%30 = f32[4,8] {SCATTER.replace('update_window_dims=[1]', 'update_window_dims=[0]')}",
     "scatter dimensions of updates"),
    (f"%30 = f32[4] reduce(%0; %3) {{dimensions=[2]}}{REDUCER}", "leaves the range"),
    (f"%30 = f32[4] reduce(%0; %4) {{dimensions=[1]}}{REDUCER}", "element type of an init"),
    (f"%30 = bf16[4] reduce(%10; %3) {{dimensions=[1]}}{REDUCER}", "has to be bf16"),
    (f"%30 = f32[4,5] {WINDOW}", "result 0"),
    ("%30 = f32[4,4,2] window(%0) {dimensions=[1], sizes=[2], strides=[2], dilations=[3]}",
     "result 0"),
    ("%30 = f32[4,3] window(%0) {dimensions=[1], sizes=[], strides=[2], dilations=[3]}",
     "sizes has 0 entries"),
    (f"%30 = f32[4,4] dot_general(%0, %0) {{{DOT}}}", "contract sizes of rhs"),
    (f"%30 = f32[4,4] dot_general(%0, %1) {{{DOT}, precision=[BEST, HIGH]}}", "precision"),
    (f"%30 = f32[2,4,12,5] {CONV}", "result 0"),
    (f"%30 = f32[2,4,13,5] {CONV.replace('group_count=1', 'group_count=2', 1)}",
     "input features is 3, has to be 6"),
    ("%30, %31 = f32[4,9], s32[4,9] top_k(%0) {k=9}", "k = 9"),
    ("%30 = f32[4,8] top_k(%0) {k=8}", "number of results is 1, has to be 2"),
    ("%30, %31 = u64[2], u32[9] rng_bit_generator(%7) {algorithm=FAST}", "no algorithm"),
    (NARROW_SORT, "inputs of comparator"),
    ("%30 = f32[4,8] case(%4)\n branches() {\n return %1\n}", "outputs of a branch"),
    ("%30 = f32[4,8] case(%3)\n branches() {\n return %0\n}", "index has to be s32 or pred"),
    (NUMERIC_WHILE, "outputs of cond"),
]


@pytest.mark.parametrize("line", GOOD)
def test_accepts(line):
    verify(graph(line))


@pytest.mark.parametrize(("line", "message"), BAD)
def test_refuses(line, message):
    with pytest.raises(HloError, match=message) as e:
        verify(graph(line))
    assert e.value.op is not None
    assert f"in: %{len(set(e.value.op.uses))}" in str(e.value)


def test_the_message_names_the_source_line_and_the_operand_types():
    place = r"add\(%0: f32\[4,8\], %1: f32\[8,4\]\)  // model.py:7 \(f\)"
    with pytest.raises(HloError, match=place):
        verify(graph("%30 = f32[4,8] add(%0, %1)  // model.py:7 (f)"))


def test_every_op_has_a_rule():
    assert set(infer.RULES) == set(REGISTRY.values())


def sample() -> Graph:
    return parse("graph g(%0: f32[2]) {\n  %1 = f32[2] negate(%0)\n  %2 = f32[2] add(%0, %1)\n"
                 "  return %2\n}\n")


def test_use_before_definition():
    g = sample()
    with pytest.raises(HloError, match="before its definition"):
        verify(dataclasses.replace(g, ops=g.ops[::-1]))


def test_undefined_output():
    g = sample()
    with pytest.raises(HloError, match="output 0 of g"):
        verify(dataclasses.replace(g, ops=g.ops[:1]))


def test_double_definition():
    g = sample()
    with pytest.raises(HloError, match="defined already"):
        verify(dataclasses.replace(g, ops=(*g.ops, g.ops[0])))
    with pytest.raises(HloError, match="defined twice"):
        verify(dataclasses.replace(g, inputs=g.inputs * 2))


def test_attributes_have_to_be_plain():
    g = graph("%30 = f32[8,4] transpose(%0) {permutation=[1, 0]}")
    op = dataclasses.replace(g.ops[0], permutation=[1, 0])
    with pytest.raises(HloError, match="attribute permutation"):
        verify(dataclasses.replace(g, ops=(op,)))


def test_captures_only_where_allowed():
    g = graph("%30 = f32[] case(%4)\n branches() {\n %31 = f32[] negate(%3)\n return %31\n}")
    verify(g)
    branch = g.ops[0].branches[0]
    verify(branch, allow_captures=True)
    with pytest.raises(HloError, match="before its definition"):
        verify(branch)


def test_symbolic_dimensions_are_let_through():
    verify(parse("graph g(%0: f32[b]) {\n  %1 = f32[b] negate(%0)\n  return %1\n}\n"))

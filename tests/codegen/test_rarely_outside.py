"""Pads of computed values: without a branch where few elements are outside."""

from __future__ import annotations

import pytest
from harness import check
from harness_graphs import data, graph, value

from jaxmono.codegen.program import Program
from jaxmono.hlo.ir import Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

BRANCH, CHOICE = "} else {", "const bool inside"


def padded(shape: tuple[int, ...], high: tuple[int, ...], dtype: DType = DType.F32) -> Program:
    """tanh(x) * y, padded behind; not of zeros, so that what is outside is seen."""
    def make(b: Builder, x: Value, y: Value) -> Value:
        made = b.elementwise("multiply", b.elementwise("tanh", x), y)
        made = b.pad(made, b.constant(3, dtype), [0] * len(shape), high, [0] * len(shape))
        return b.elementwise("negate", made)

    g = graph([value(shape, dtype), value(shape, dtype)], make)
    return check(g, [data(v, i) for i, v in enumerate(g.inputs)])


def text(program: Program) -> str:
    """The functions of the Sigs."""
    return program.source[program.source.rindex("struct Params"):]


@pytest.mark.parametrize(("shape", "high"), [((63, 5), (1, 0)), ((16, 30), (0, 2)),
                                             ((40, 60), (0, 4))], ids=str)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=lambda d: d.value)
def test_few_elements_outside_take_no_branch(shape: tuple[int, ...], high: tuple[int, ...],
                                             dtype: DType) -> None:
    """NaN and Inf are among what is read in place of what is outside."""
    body = text(padded(shape, high, dtype))
    assert CHOICE in body and BRANCH not in body


def test_many_elements_outside_keep_the_branch() -> None:
    """Half of them: what would be computed there is not worth it."""
    body = text(padded((16, 30), (0, 30)))
    assert BRANCH in body


def test_what_is_cropped_does_not_count_as_inside() -> None:
    def make(b: Builder, x: Value) -> Value:
        made = b.elementwise("exponential", b.elementwise("tanh", x))
        made = b.pad(made, b.constant(3, DType.F32), (0, -56), (0, 56), (0, 0))
        return b.elementwise("negate", made)

    g = graph([value((16, 112))], make)
    assert BRANCH in text(check(g, [data(g.inputs[0])]))


def test_a_pad_within_a_pad_keeps_its_branch() -> None:
    def make(b: Builder, x: Value) -> Value:
        zero = b.constant(0, DType.F32)
        inner = b.elementwise("tanh", b.elementwise("negate", x))
        inner = b.elementwise("exponential", b.pad(inner, zero, (0, 1), (0, 1), (0, 0)))
        return b.elementwise("negate", b.pad(inner, zero, (1, 0), (1, 0), (0, 0)))

    g = graph([value((60, 62))], make)
    body = text(check(g, [data(g.inputs[0])]))
    assert CHOICE in body and BRANCH in body

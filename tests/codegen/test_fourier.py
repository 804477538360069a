"""Transforms of lines that a block has in shared memory: radices, lines of a task, steps of longer
ones, in any order of threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness import check, compile_graph, run_program

from jaxmono.codegen.fourier import radices
from jaxmono.hlo import ops
from jaxmono.hlo.infer.transform import infer_fourier
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.fourier import STEP, longest
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType, TensorType


def graph(dims: tuple[int, ...], axis: int, *, parts: int = 2, dtype: DType = DType.F32,
          **fields: Any) -> Graph:
    """One op, of arguments that are computed on the way."""
    b, inputs = Builder(), [Value(TensorType(dims, dtype)) for _ in range(parts)]
    op = ops.Fourier(results=(), args=tuple(b.elementwise("negate", v) for v in inputs), axis=axis,
                     **{"kept": dims[axis], **fields})
    made = b.emit1(ops.Fourier, *infer_fourier(op), args=op.args, **op.attributes)
    return Graph(tuple(inputs), tuple(b.ops), (made,), "lines")


def arrays(g: Graph) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(v.type.dims).astype(v.type.dtype.numpy) for v in g.inputs]


@pytest.mark.parametrize("n", [1, 2, 13, 16, 400, 768, 1000, 1001, 4096, 8192, 30030])
def test_radices(n: int) -> None:
    found = radices(n)
    assert math.prod(found) == n and max(found) <= 16
    assert len(found) == {400: 3, 768: 3, 1000: 3, 1001: 3, 4096: 3, 8192: 4, 30030: 4}.get(n, 1)


def test_a_large_prime_has_none() -> None:
    with pytest.raises(ValueError, match="34 has a large prime factor"):
        radices(34)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 26, 64, 240, 1001,
                               2048])
@pytest.mark.parametrize("back", [False, True])
def test_lengths(n: int, back: bool) -> None:
    g = graph((3, n), 1, back=back, divisor=n if back else 1)
    check(g, arrays(g), rtol=3e-6 * math.sqrt(n))


@pytest.mark.parametrize(("dims", "axis"), [((2, 40, 24), 1), ((48, 5), 0), ((3, 15, 2, 3), 1)])
def test_columns(dims: tuple[int, ...], axis: int) -> None:
    """Tasks whose lines are not all there, of several arrays."""
    g = graph(dims, axis)
    assert ", true, true, false, " in check(g, arrays(g), rtol=3e-5).source


def test_the_first_ones_and_real_parts_alone() -> None:
    for fields in ({"kept": 33}, {"kept": 33, "real": True}, {"real": True},
                   {"kept": 5, "real": True}):
        for parts in (1, 2):
            g = graph((7, 64), 1, parts=parts, **fields)
            check(g, arrays(g), rtol=3e-5)


@pytest.mark.parametrize("back", [False, True])
def test_a_step_of_a_longer_one(back: bool) -> None:
    g = graph((2, 8, 12, 3), 1, twist=96, back=back)
    assert "turned<float, 96, " in check(g, arrays(g), rtol=3e-5).source


@pytest.mark.parametrize("n", [2, 4, 6, 30, 32, 400, 1024])
def test_real_numbers_as_pairs(n: int) -> None:
    there = graph((23, n), 1, parts=1, kept=n // 2 + 1)
    assert ("F::real<" in check(there, arrays(there), rtol=3e-5).source) == (n > 2)
    back = graph((23, n // 2 + 1), 1, kept=n, back=True, divisor=n, real=True, half=True)
    assert "pair_of<" in check(back, arrays(back), rtol=3e-5).source


def test_f64() -> None:
    g = graph((3, 360), 1, dtype=DType.F64)
    check(g, arrays(g), rtol=1e-12)


@pytest.mark.parametrize("n", [14, 240, 4096])
@pytest.mark.parametrize("pairs", [False, True])
def test_any_order_of_threads(n: int, pairs: bool) -> None:
    """One pass, two and three; tasks one after the other in a block."""
    n *= 1 + pairs
    g = graph((40000 // n if n < 4096 else 20, n), 1, parts=2 - pairs,
              kept=n // 2 + 1 if pairs else n)
    check(g, arrays(g), rtol=1e-3, seeds=(1, 2, 3))


def test_roots_are_exact() -> None:
    """No error grows with the length: of a constant nothing is left but the first element."""
    g = graph((1, 8192), 1, parts=1)
    (found,) = run_program(compile_graph(g), [np.ones((1, 8192), np.float32)])
    assert found[0, 0, 0] == -8192 and np.abs(found[0, 1:]).max() < 4e-3


@pytest.mark.parametrize(("kilobytes", "most"), [(227, 8192), (163, 8192), (99, 4096), (64, 2048)])
def test_lines_fit_every_gpus_blocks(kilobytes: int, most: int) -> None:
    assert longest(DType.F32, kilobytes << 10) == most == 2 * longest(DType.F64, kilobytes << 10)
    assert STEP[DType.F32] <= most and STEP[DType.F64] <= most // 2

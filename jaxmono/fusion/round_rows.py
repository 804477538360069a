"""What a convolution of f32 reads is rounded to tf32 where it is written.

    x = relu(dot(...) + b)                  x' = reduce_precision(relu(dot(...) + b), 8, 10)
    y = dot(window(pad(x)), w)    ──►       y  = dot(window(pad(x')), w)

wgmma cuts the low bits of an f32 off, so its operands in shared memory have to be rounded by
somebody: by the tensor memory accelerator, which knows no rows that are gathered, or by threads,
which then pass every k tile through shared memory twice more. In the epilogue before, an element is
rounded once, and each of the window's taps finds it so. The product is the same: it rounds anyway.

Rows that a strided slice takes out of an image are gathered, too: the projection of a ResNet's
block that halves the image. Products whose rows the accelerator knows do not ask for the rounding,
but read what is rounded for others. What yet others read stays as it was, and is stored besides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.plan import Device
from jaxmono.fusion.support import exact_matrix, exact_product, matrix_dtype
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

EXPONENT_BITS, MANTISSA_BITS = 8, 10
"""Of tf32."""
MIN_ROWS, MIN_COLUMNS = 32, 40
"""Of products with the weights on the left (codegen/dot_schedule_tf32.py): a tile has 64 columns of
these; with fewer than 40 more than a third of it is empty."""
_PIECE = 4
"""Elements that are copied at a time."""
DISTANCES = 30
"""That there are bits for, of all bounds of a row; the two above these are those of rows and
columns that are outside (device/gathered.cuh)."""
_ROUNDS = (ops.Elementwise, ops.Convert, ops.DotGeneral, ops.ReduceWindow,
           ops.Scan, ops.Stored)
"""Whose results a rounding joins, unless what others read of them is wanted much earlier."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """A product, the views between it and what it reads, in order, and that. ``asks``: its rows lie
    at no constant distance there, so it is a convolution, or reads part of an image."""

    dot: ops.DotGeneral
    chain: tuple[Op, ...]
    root: Value
    asks: bool


def round_rows(graph: Graph, device: Device) -> tuple[Graph, tuple[str, ...]]:
    """``graph`` with such roundings, itself if it has none; and of convolutions whose tiles are
    rounded one by one, why. No warpgroup multiplies: nothing is done."""
    if not device.wgmma:
        return graph, ()
    found = {o: r for o in graph.ops if isinstance(o, ops.DotGeneral) and (r := _reading(graph, o))}
    readers = {step for o, r in found.items() for step in (*r.chain, o)}
    why = {o: _refusal(graph, r, readers, device) for o, r in found.items() if r.asks}
    roots = {found[o].root for o, reason in why.items() if not reason}
    refused = {f"what the convolution of {o.loc} reads is not rounded where it is written: {reason}"
               : None for o, reason in why.items() if found[o].root not in roots}
    if not roots:
        return graph, tuple(refused)
    out: list[Op] = []
    made: dict[Value, Value] = {}
    for o in graph.ops:
        r = found.get(o) if isinstance(o, ops.DotGeneral) else None
        if r is None or r.root not in roots:
            out.append(o)
            continue
        if r.root not in made:
            steps = _rounding(graph, r.root)
            made[r.root] = steps[-1].results[0]
            out.extend(steps)
        for step in r.chain:
            if step.results[0] not in made:
                clone = step.clone(made, fresh_results=True)
                made[step.results[0]] = clone.results[0]
                out.append(clone)
        out.append(r.dot.clone({r.dot.lhs: made[r.dot.lhs]}))
    return dead_code(Graph(graph.inputs, tuple(out), graph.outputs, graph.name)), tuple(refused)


def moved(graph: Graph, value: Value) -> Value:
    """What ``value`` has all its bits from: behind copies of the same elements."""
    while isinstance(o := graph.producer.get(value), ops.Reshape | ops.Transpose | ops.Stored):
        value = o.operand
    return value


def is_rounded(graph: Graph, value: Value) -> bool:
    """Whether ``value`` has the bits of tf32 only."""
    o = graph.producer.get(moved(graph, value))
    return isinstance(o, ops.ReducePrecision) and o.exponent_bits == EXPONENT_BITS \
        and o.mantissa_bits == MANTISSA_BITS


def _rounding(graph: Graph, root: Value) -> list[Op]:
    """What rounds ``root``: where its elements are computed, if it is a copy; while they are
    copied, if they are an input's, or padded."""
    b = Builder(graph.producer[root].loc)
    value, copies = root, list[Op]()
    while isinstance(o := graph.producer.get(value), ops.Reshape | ops.Transpose | ops.Stored):
        copies.append(o)
        value = o.operand
    if copies and not isinstance(o, _ROUNDS):
        copies = copies[:1]
        value = copies[0].inputs[0]
    value = b.emit1(ops.ReducePrecision, value.type, operand=value,
                    exponent_bits=EXPONENT_BITS, mantissa_bits=MANTISSA_BITS)
    for o in reversed(copies):
        (value,) = b.append(o.clone({o.inputs[0]: value}, fresh_results=True))
    return b.ops


def _reading(graph: Graph, dot: ops.DotGeneral) -> _Reading | None:
    """None if it multiplies no tf32."""
    chain: list[Op] = []
    value, asks = dot.lhs, False
    while isinstance(o := graph.producer.get(value),
                     (ops.Window, ops.Slice, ops.Pad, ops.Transpose, ops.Reshape)):
        chain.append(o)
        asks |= _takes_rows_apart(o)
        value = o.operand
    dims = dot_dims(dot)
    if matrix_dtype(dot) is not DType.F32 or not dot.result.type.size \
            or exact_product(dot) or exact_matrix(dims.m, dims.n, dims.k):
        return None
    return _Reading(dot, tuple(reversed(chain)), value, asks)


def _takes_rows_apart(o: Op) -> bool:
    """Whether rows that lay one behind the other lie at several distances behind ``o``."""
    if isinstance(o, ops.Window):
        return math.prod(o.sizes) > 1
    if not isinstance(o, ops.Slice):
        return False
    sizes, dims = o.result.type.dims[:-1], o.operand.type.dims
    steps = [step * math.prod(dims[d + 1:]) for d, step in enumerate(o.strides[:-1])]
    rows = [(n, step) for n, step in zip(sizes, steps, strict=True) if n > 1]
    return any(far != n * near for (_, far), (n, near) in itertools.pairwise(rows))


def _refusal(graph: Graph, r: _Reading, readers: Collection[Op], device: Device) -> str:
    """Why ``r`` does not ask for the rounding; "" if it does."""
    dims, root = dot_dims(r.dot), r.root
    made_by = graph.producer.get(root)
    if not isinstance(made_by, _ROUNDS):
        what = "an input" if made_by is None else f"the result of {made_by.opcode}"
        return f"it is {what}, which no stage computes element by element"
    if dims.batch > 1 or dims.m < MIN_ROWS or dims.n < MIN_COLUMNS:
        return f"a batch of {dims.batch} of {dims.m} x {dims.n} is no tile of such rows"
    if reason := _scattered(graph, r):
        return reason
    alone = root not in graph.outputs and all(
        u in readers and (not isinstance(u, ops.DotGeneral) or u.rhs is not root)
        for u in graph.users.get(root, ()))
    # tf32 has half the rate of 16 bits.
    product_us = 4.0 * dims.m * dims.n * dims.k / device.matrix_flops_per_us
    if not alone and product_us <= root.type.nbytes / device.read_bytes_per_us:
        return "others read it, too, and to store it twice takes as long as the product"
    return ""


def _scattered(graph: Graph, r: _Reading) -> str:
    """Why its rows cannot be copied by pieces (codegen/gathered.py); "" if they can: along k these
    lie next to each other, zeros around them, and bits tell which taps are padding."""
    d, distances = r.dot.lhs_contract[-1], 0
    for o in reversed(r.chain):
        if isinstance(o, ops.Transpose):
            d = o.permutation[d]
        elif isinstance(o, ops.Reshape):
            dims, after = o.operand.type.dims, math.prod(o.result.type.dims[d + 1:])
            same = [e for e, size in enumerate(dims) if size == o.result.type.dims[d]
                    and math.prod(dims[e + 1:]) == after]
            if not same:
                return "its elements along k are no dimension of their own"
            d = same[-1]
        elif isinstance(o, ops.Slice):
            if o.result.type.dims[d] != o.operand.type.dims[d]:
                return "it is a part along k"
        elif isinstance(o, ops.Pad):
            fill = graph.producer.get(o.padding_value)
            if any(o.interior) or not isinstance(fill, ops.Constant) or fill.value.any():
                return "there are holes in it, or other numbers than zeros around it"
        elif isinstance(o, ops.Window):
            if d >= len(o.operand.type.dims):
                return "its elements along k are taps"
            distances += sum((n - 1) * step + 1
                             for n, step in zip(o.sizes, o.dilations, strict=True))
    if d != len(r.root.type.dims) - 1:
        return "its elements along k lie apart in memory"
    if (size := r.root.type.dims[d]) % _PIECE:
        return f"{size} elements along k are no multiple of {_PIECE}"
    return f"taps are {distances} elements apart" if distances > DISTANCES else ""

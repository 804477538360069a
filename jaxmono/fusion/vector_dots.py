"""Contractions that XLA computes exactly in f32, as what XLA makes of them.

    f32[M] dot(x[M, K], v[K])      ──►  reduce_add[1](x * broadcast(v))
    f32[M, N] dot(x[M, 1], y[1, N])  ──►  broadcast(x) * broadcast(y)

A GPU's default precision lets both round the operands of a matrix product to tf32. But XLA first
turns products with a vector, and outer products, into multiplications (`support.exact_product`),
so that a program's gradient of a bias or its scores have f32's own digits; sums that nearly cancel
lose all of tf32's. Attention's two contractions stay: their scores never leave a block.

A row times a matrix that is an input stays a contraction: weights [K, N] are streamed past it in
f32 (codegen/dot_gemv.py), where a sum over K of each column by itself would read them line by line
for every few columns. GPT-2's decode step of f32 took 3338 us so on an H100, 5 times XLA's.

So are products of many small matrices (poses of robots, rotations of points), each of which would
be a task of its own: a call with seven stages of 4096 of 4 x 4 took 208 us on an H200, and 42 so.

Products with a vector that sum a handful of elements are written so in every float type, summed in
f32 as they would be: they are part of a row, and need no stage of their own.

    f16[2464, 1] dot(x[2464, 4], w[4, 1])  ──►  dot(y, v[1, 4])     one row group, no barrier
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.support import exact_product
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

SMALL = 1 << 18
"""Multiplications up to which the contraction's own ordinary arithmetic costs no more than a
stage's latency: such products with a vector stay contractions, exact as they are."""
LONG = 64
"""Summed elements of a row from which on it does: a tile goes through them 16 at a time, in as many
blocks as there are 64 rows (256 x 400 by a vector took 25 of the 46 us of DeepFM b256 on an H100).
"""

FEW = 8
"""Summed elements up to which any product with a vector is one of elements."""
MANY = ((FEW, 256), (16, 2048))
"""Most rows and columns, and products of such matrices from which on they are no contraction: a
block takes one at a time. 4096 of 16x16 took 24.6 us of an H200 so, as elements 7.6; XLA 5.4."""
IN_TURN = 4
"""Of which a sum that has vectors along another dimension is no reduce. One of two rows of 1024
elements for each of 512 tokens took 36 us of an H100 as a reduce, 4096 tasks of a scalar a thread.
"""

THIN = 256
"""Rows, or columns, of such a sum's matrix beside one of a few, from which on it is one of
elements."""


def exact_dots(graph: Graph) -> tuple[ops.DotGeneral, ...]:
    """The contractions of ``graph`` that `as_products` is for."""
    weights = set(graph.inputs)
    found: list[ops.DotGeneral] = []
    for o in graph.ops:
        if isinstance(o, (ops.Transpose, ops.Reshape)) and o.operand in weights:
            weights.add(o.result)
        if isinstance(o, ops.DotGeneral) and (_few(o) or _small_matrices(o) or _thin(o) or (
                _large(o) and exact_product(o) and not _streamed(o, weights))):
            found.append(o)
    return tuple(found)


def as_products(graph: Graph, dots: Iterable[ops.DotGeneral], groups: Iterable[Draft]) -> Graph:
    """``graph`` with ``dots`` as multiplications and sums, but for those inside an attention.

    Args:
      dots: of `exact_dots`.
      groups: the drafts of ``graph``.
    """
    kept = {o for d in groups if d.kind == "attention" for o in d.ops}
    chosen = {o for o in dots if o not in kept}
    if not chosen:
        return graph
    b, behind = Builder(), dict[Value, int]()  # thin products that an element is made of
    kept_once: dict[Value, Value] = {}
    for o in graph.ops:
        b.loc = o.loc
        if not isinstance(o, ops.DotGeneral) or o not in chosen:
            b.append(o)
            made = 0 if isinstance(o, (ops.Stored, ops.DotGeneral, ops.Reduce)) else max(
                (behind.get(v, 0) for v in o.uses), default=0)
            behind.update(dict.fromkeys(o.results, made))
            continue
        if _thin(o):  # else each gate of a circuit is made of two elements of the one before
            for v in o.inputs:
                if behind.get(v) and v not in kept_once:
                    kept_once[v] = b.emit1(ops.Stored, v.type, operand=v)
            behind[o.result] = 1
            o = replace(o, lhs=kept_once.get(o.lhs, o.lhs), rhs=kept_once.get(o.rhs, o.rhs))
        for product in _product(o):
            b.append(product)
    return Graph(graph.inputs, tuple(b.ops), graph.outputs, graph.name)


def _large(o: ops.DotGeneral) -> bool:
    dims = dot_dims(o)
    return (min(dims.m, dims.n) > 1 or (dims.n == 1 and dims.k > LONG)
            or dims.batch * dims.m * dims.n * dims.k > SMALL)


def _streamed(o: ops.DotGeneral, weights: Container[Value]) -> bool:
    dims = dot_dims(o)
    return dims.m == 1 and min(dims.n, dims.k) > FEW and o.rhs in weights


def _few(o: ops.DotGeneral) -> bool:
    dims = dot_dims(o)
    kinds = {v.type.dtype for v in (o.lhs, o.rhs, o.result)}
    return (kinds <= {DType.BF16, DType.F16, DType.F32} and min(dims.m, dims.n) == 1
            and max(dims.m, dims.n) > 1 and 0 < dims.k <= FEW)


def _small_matrices(o: ops.DotGeneral) -> bool:
    """Whether there are many, each of few elements."""
    dims = dot_dims(o)
    kinds = {v.type.dtype for v in (o.lhs, o.rhs, o.result)}
    return (kinds <= {DType.BF16, DType.F16, DType.F32} and len(o.lhs_contract) == 1
            and min(dims.m, dims.n, dims.k) > 0 and any(
                max(dims.m, dims.n, dims.k) <= most and dims.batch >= many for most, many in MANY))


def _thin(o: ops.DotGeneral) -> bool:
    """Whether a small matrix is multiplied by a long one, of which a sum has a few elements: a gate
    of a circuit on all states of the other qubits. It moves bytes, and tiles would be empty."""
    dims = dot_dims(o)
    kinds = {v.type.dtype for v in (o.lhs, o.rhs, o.result)}
    return (kinds == {DType.F32} and len(o.lhs_contract) == 1 and 0 < dims.k <= IN_TURN
            and 1 < min(dims.m, dims.n) <= IN_TURN and max(dims.m, dims.n) >= THIN)


def _product(o: ops.DotGeneral) -> list[Op]:
    """Over (batch, left, right, contracted) dimensions of which each operand has its own; those
    of one element are left out, so that a vector has none."""
    b = Builder(o.loc)
    dims = dot_dims(o)
    lhs, rhs = o.lhs.type.dims, o.rhs.type.dims
    space = [*(lhs[d] for d in o.lhs_batch), *(lhs[d] for d in dims.lhs_free),
             *(rhs[d] for d in dims.rhs_free), *(lhs[d] for d in o.lhs_contract)]
    nb, nl, nr = len(o.lhs_batch), len(dims.lhs_free), len(dims.rhs_free)
    last = len(space) - len(o.lhs_contract)
    whole = [d for d, size in enumerate(space) if size != 1]
    left = [*range(nb), *range(nb, nb + nl), *range(last, len(space))]
    right = [*range(nb), *range(nb + nl, nb + nl + nr), *range(last, len(space))]
    factors = [_spread(b, v, order, at, space, whole) for v, order, at in (
        (o.lhs, (*o.lhs_batch, *dims.lhs_free, *o.lhs_contract), left),
        (o.rhs, (*o.rhs_batch, *dims.rhs_free, *o.rhs_contract), right))]
    summed = [i for i, d in enumerate(whole) if d >= last]
    if len(summed) == 1 and (_small_matrices(o) or _thin(o)
                             or (dims.k <= IN_TURN and _lies_apart(o))):
        made = _sum_of_products(b, factors)
        b.append(ops.Reshape(results=o.results, loc=o.loc,
                             operand=b.convert(made, o.result.type.dtype)))
        return b.ops
    made = b.elementwise("multiply", *(b.convert(x, DType.F32) for x in factors))
    if summed:
        made = b.reduce(made, b.constant(0, DType.F32), "add", summed)
    made = b.convert(made, o.result.type.dtype)
    b.append(ops.Reshape(results=o.results, loc=o.loc, operand=made))
    return b.ops


def _lies_apart(o: ops.DotGeneral) -> bool:
    """Whether the summed elements lie apart, and neighbours in memory are sums side by side: those
    of the two best experts' results."""
    dims = dot_dims(o)
    v, contract = (o.lhs, o.lhs_contract) if dims.m >= dims.n else (o.rhs, o.rhs_contract)
    return contract[-1] != v.type.rank - 1 and v.type.dims[-1] >= LONG


def _sum_of_products(b: Builder, factors: list[Value]) -> Value:
    """Over the last dimension, one element after the other: vectors lie along another."""
    total: Value | None = None
    for i in range(factors[0].type.dims[-1]):
        parts: list[Value] = []
        for x in factors:
            *rest, _ = x.type.dims
            none = [0] * len(rest)
            part = b.slice(x, (*none, i), (*rest, i + 1), (1,) * x.type.rank)
            parts.append(b.convert(b.reshape(part, rest), DType.F32))
        made = b.elementwise("multiply", *parts)
        total = made if total is None else b.elementwise("add", total, made)
    assert total is not None
    return total


def _spread(b: Builder, v: Value, order: Iterable[int], at: list[int], space: list[int],
            whole: list[int]) -> Value:
    """``v``, its dimensions in ``order`` standing at ``at`` of ``space``, over ``whole`` of it."""
    moved = b.transpose(v, tuple(order))
    kept = [d for d in at if space[d] != 1]
    moved = b.reshape(moved, [space[d] for d in kept])
    return b.broadcast_in_dim(moved, [space[d] for d in whole], [whole.index(d) for d in kept])

"""Contractions as matrix products: which index of each operand one (batch, m, n, k) needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.fusion.plan import DotForm
from jaxmono.hlo import ops


class DotDims(NamedTuple):
    """Dimension lists of a dot_general and the sizes of its flattened axes."""

    lhs_free: tuple[int, ...]
    rhs_free: tuple[int, ...]
    batch: int
    m: int
    n: int
    k: int


@lru_cache(maxsize=1024)
def dot_dims(op: ops.DotGeneral) -> DotDims:
    """Those of an op: asked for some 15000 times in a training step."""
    lhs, rhs = op.lhs.type.dims, op.rhs.type.dims
    lhs_free = tuple(d for d in range(len(lhs)) if d not in (*op.lhs_batch, *op.lhs_contract))
    rhs_free = tuple(d for d in range(len(rhs)) if d not in (*op.rhs_batch, *op.rhs_contract))
    return DotDims(lhs_free, rhs_free, math.prod(lhs[d] for d in op.lhs_batch),
                   math.prod(lhs[d] for d in lhs_free), math.prod(rhs[d] for d in rhs_free),
                   math.prod(lhs[d] for d in op.lhs_contract))


def operand_index(op: ops.DotGeneral, side: str, batch: Index, free: Index, k: Index) -> IndexMap:
    """Index of ``op.lhs`` or ``op.rhs`` for flattened batch, free and contracting positions.

    Free and contracting dimensions are flattened row-major in their order (the contracting ones
    in the order in which both operands list them).
    """
    dims = dot_dims(op)
    if side == "lhs":
        value, b, f, c = op.lhs, op.lhs_batch, dims.lhs_free, op.lhs_contract
    else:
        value, b, f, c = op.rhs, op.rhs_batch, dims.rhs_free, op.rhs_contract
    shape = value.type.dims
    at = [Index()] * len(shape)
    for dimensions, offset in ((b, batch), (f, free), (c, k)):
        _place(at, shape, dimensions, offset)
    return tuple(at)


def result_index(op: ops.DotGeneral, batch: Index, m: Index, n: Index) -> IndexMap:
    """Index of the result for flattened batch, lhs-free and rhs-free positions."""
    dims = dot_dims(op)
    lhs, rhs = op.lhs.type.dims, op.rhs.type.dims
    return (*delinearize(batch, [lhs[d] for d in op.lhs_batch]),
            *delinearize(m, [lhs[d] for d in dims.lhs_free]),
            *delinearize(n, [rhs[d] for d in dims.rhs_free]))


def both_columns(columns: Var) -> tuple[Index, Index]:
    """The two columns of a product that an element of ``columns`` takes: one of each half."""
    return Index.of(columns), Index.of(columns) + columns.size


def demanded(form: DotForm) -> tuple[IndexMap, ...]:
    """Where every element stored over (batch, rows, columns) demands the dot: once, at all rows of
    its window, or at two columns."""
    b, n, first = Index.of(form.batch), Index.of(form.n), Index.of(form.rows) * form.taps
    at = (n,) if form.pairs is None else both_columns(form.pairs)
    return tuple(result_index(form.dot, b, first + t, x) for t in range(form.taps) for x in at)


def _place(at: list[Index], shape: Sequence[int], dimensions: Sequence[int],
           offset: Index) -> None:
    for d, i in zip(dimensions, delinearize(offset, [shape[d] for d in dimensions]), strict=True):
        at[d] = i


def dot_vars(op: ops.DotGeneral) -> tuple[Var, Var, Var, Var]:
    """Vars batch, m, n, k of a contraction."""
    dims = dot_dims(op)
    return Var("b", dims.batch), Var("m", dims.m), Var("n", dims.n), Var("k", dims.k)


def start_dot(state: State, op: ops.DotGeneral) -> Draft:
    """A new draft around one contraction."""
    b, m, n, _ = dot_vars(op)
    pot = 1 + max(map(state.pot_of, (op.lhs, op.rhs, *state.after.get(op, ()))))
    draft = Draft("dot", pot, domain=(b, m, n), anchor=op)
    draft.at[op.result] = result_index(op, Index.of(b), Index.of(m), Index.of(n))
    state.drafts.append(draft)
    state.claim(draft, op)
    return draft

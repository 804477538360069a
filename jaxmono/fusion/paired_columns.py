"""Contractions of which one half gates the other (GEGLU, SwiGLU, GLU): gated where it is computed.

    y = dot(x, w) + b               [m, 2 f]      y' = dot(x, w') + b'   8 columns of each half
    z = y[:, :f] * gelu(y[:, f:])   [m, f]   ──►  z  = of both           the same stage
                                                                         in turns

`order_columns` puts columns of the right operand that meet next to each other (an index, not a
copy): 8 of the one half, 8 of the other, as many as a fragment of the tensor cores has. `place_pair`
lets both slices, and with them what comes behind, join the contraction's draft: an element of its
domain then takes two columns of n. y is never stored: of Stable Diffusion's UNet these are 42 MB,
written and read (CUTLASS has two weights for this, in its example 45, "dual GEMM").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmono.fusion.demand import demands
from jaxmono.fusion.dots import PAIR, dot_dims, paired
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

MIN_ROWS = 256
"""With fewer the weights' way from memory decides, and other kernels than tiles of wgmma, which do
not pair columns, are as fast."""
MIN_SIZE = 1 << 19
"""Elements of a product. Smaller ones are shared by blocks or warpgroups with parts of k, which do
not pair columns."""
_TYPES = (DType.BF16, DType.F16)


def halves_of(graph: Graph, value: Value) -> tuple[ops.Slice, ...]:
    """The slices that read ``value``, if these are two, of the halves of its last dimension, the
    first one's first; empty if not."""
    users = tuple(dict.fromkeys(graph.users.get(value, ())))
    read = [u for u in users if isinstance(u, ops.Slice)]
    if len(read) != 2 or len(read) != len(users) or value in graph.outputs:
        return ()
    low, high = sorted(read, key=lambda o: o.start_indices)
    whole = value.type.dims
    half = whole[-1] // 2
    if half % PAIR or 2 * half != whole[-1] or any(s != 1 for o in read for s in o.strides) \
            or low.limit_indices != (*whole[:-1], half) or high.limit_indices != whole \
            or any(low.start_indices) or high.start_indices != (*low.start_indices[:-1], half):
        return ()
    return low, high


def takes_pairs(o: ops.DotGeneral, columns: int) -> bool:
    """Whether tiles of wgmma, which pair columns, take a contraction if it has so many."""
    dims = dot_dims(o)
    return o.lhs.type.dtype is o.rhs.type.dtype and o.lhs.type.dtype in _TYPES \
        and not o.rhs_batch and len(dims.rhs_free) == 1 and dims.m >= MIN_ROWS \
        and dims.m * columns >= MIN_SIZE and columns % (2 * PAIR) == 0


def are_alike(o: ops.DotGeneral, other: ops.DotGeneral) -> bool:
    """Whether two contractions differ only in their right operands, which lie alike."""
    def what(d: ops.DotGeneral) -> tuple[object, ...]:
        return (d.lhs, d.rhs.type, d.lhs_batch, d.rhs_batch, d.lhs_contract, d.rhs_contract,
                d.precision, d.algorithm, d.result.type)

    return o is not other and what(o) == what(other)


def order_columns(o: ops.DotGeneral) -> list[Op]:
    """[k, 2 f] -> [k, f / 8, 2, 8], and its result back again."""
    b, (free,) = Builder(o.loc), dot_dims(o).rhs_free
    rhs = b.reshape(_turned(b, o.rhs, free, (2, dot_dims(o).n // (2 * PAIR), PAIR)),
                    o.rhs.type.dims)
    b.append(ops.Reshape(results=o.results, loc=o.loc, operand=_in_halves(b, o, rhs)))
    return b.ops


def join_columns(o: ops.DotGeneral, other: ops.DotGeneral) -> list[Op]:
    """Both contractions as one, of 8 columns of each in turns; their results are its halves."""
    b, (free,) = Builder(o.loc), dot_dims(o).rhs_free
    dims, (*rows, n) = o.rhs.type.dims, o.result.type.dims
    apart = (*dims[:free], n // PAIR, 1, PAIR, *dims[free + 1:])
    both = b.concatenate([b.reshape(d.rhs, apart) for d in (o, other)], free + 1)
    rhs = b.reshape(both, (*dims[:free], 2 * n, *dims[free + 1:]))
    whole = b.reshape(_in_halves(b, o, rhs), (*rows, 2 * n))
    none = [0] * len(rows)
    for i, d in enumerate((o, other)):
        b.append(ops.Slice(results=d.results, loc=d.loc, operand=whole,
                           start_indices=(*none, i * n), limit_indices=(*rows, (i + 1) * n),
                           strides=(1,) * (len(rows) + 1)))
    return b.ops


def _in_halves(b: Builder, o: ops.DotGeneral, rhs: Value) -> Value:
    """``o`` of another right operand, [..., f / 8, 2, 8], as [..., 2, f / 8, 8]."""
    b.loc = o.loc
    made = b.dot_general(o.lhs, rhs, batch=(o.lhs_batch, o.rhs_batch),
                         contract=(o.lhs_contract, o.rhs_contract),
                         dtype=o.result.type.dtype, precision=o.precision, algorithm=o.algorithm)
    n = made.type.dims[-1]
    return _turned(b, made, made.type.rank - 1, (n // (2 * PAIR), 2, PAIR))


def _turned(b: Builder, v: Value, d: int, sizes: tuple[int, int, int]) -> Value:
    """``v`` with dimension d as these three, the first two of them in the other order."""
    dims = v.type.dims
    order = [*range(d), d + 1, d, *range(d + 2, v.type.rank + 2)]
    return b.transpose(b.reshape(v, (*dims[:d], *sizes, *dims[d + 1:])), order)


# ---- pairs in a contraction's draft -------------------------------------------------------------


def place_pair(state: State, op: Op) -> bool:
    """Lets both halves of what ``op`` slices join the contraction's draft that made it; False if
    that cannot be. From then on nothing else of the draft has a place."""
    if not isinstance(op, ops.Slice) or op in state.banned or "gated" in state.without:
        return False
    draft, value = state.owner_of(op.operand), op.operand
    if draft is None or draft.kind != "dot" or draft.taps > 1 or draft.paired \
            or value not in draft.at or not state.device.wgmma \
            or not isinstance(draft.anchor, ops.DotGeneral) \
            or not takes_pairs(draft.anchor, draft.domain[2].size):
        return False
    halves = halves_of(state.graph, value)
    if not halves:
        return False
    b, m, n = draft.domain
    columns = Var("h", n.size // 2)
    index = _place(halves, draft.at[value], n, columns)
    if index is None or draft.stored or draft.reduced or any(
            v is not value and not _only_inside(state, draft, v) for v in draft.at):
        return False
    draft.domain, draft.paired = (b, m, columns), True
    draft.at.clear()
    for o in halves:
        draft.at[o.result] = index
        state.claim(draft, o)
    return True


def _only_inside(state: State, draft: Draft, v: Value) -> bool:
    return v not in state.outputs_set() and all(
        draft.has(u) for u in state.graph.users.get(v, ()))


def _place(halves: Sequence[ops.Slice], at: IndexMap, n: Var, columns: Var) -> IndexMap | None:
    """Where in each half the pair ``columns`` is; None if its elements are not those of its two
    columns of ``n``."""
    if n.size % (2 * PAIR):
        return None
    both = [tuple(i.substitute({n: x}) for i in at) for x in paired(Index.of(columns))]
    index = both[0]
    for o, there in zip(halves, both, strict=True):
        (need,) = demands(o, index) or (None,)
        if need is None or need.index != there:
            return None
    return index

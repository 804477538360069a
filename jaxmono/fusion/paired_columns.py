"""Contractions of which one half gates the other (GEGLU, SwiGLU, GLU): gated where it is computed.

    y = dot(x, w) + b               [m, 2 f]
    z = y[:, :f] * gelu(y[:, f:])   [m, f]   ──►   one stage, y is never stored

    u, g = dot(x, v), dot(x, w)     [m, f]         y = dot(x, v | w)    [m, 2 f]
    z = u * silu(g)                          ──►   z = of its halves

`place_pair` lets the slices that are the halves of y, and with them what comes behind, join the
contraction's draft: an element of its domain then takes two columns of n. A tile has columns of
both halves, and a thread the sums of both columns (codegen/dot_wgmma.py). `join_columns` makes one
contraction of two (a choice of the buffer for each piece, not a copy).

Of Stable Diffusion's UNet y has 42 MB; as two products half of it was written and read. CUTLASS has
this for two weights (its example 45, "dual GEMM").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.fusion import cost
from jaxmono.fusion.dots import both_columns, dot_dims
from jaxmono.fusion.draft import State
from jaxmono.fusion.indexing import Var
from jaxmono.fusion.plan import Device
from jaxmono.fusion.sliced import is_read_whole, join_slices, place_in, sliced_draft
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

MIN_ROWS = 256
"""With fewer the weights' way from memory decides, and other kernels than tiles of wgmma, which do
not pair columns, are as fast."""
MIN_SIZE = 1 << 20
"""Elements of a product. Smaller ones are shared by blocks or warpgroups with parts of k, which do
not pair columns."""
MOST_K = 2048
"""Of more summed elements products take so long that what is stored beside them costs nothing:
4096x14336x4096 1.00 to 1.07 of the time of two products (H100)."""
WIDTHS = (128, 256)
"""Columns of a tile of pairs. Of each half it has lines of 128 bytes then; with 96 and 160 columns,
which have not, products took 1.2 to 1.7 times as long (and with halves in turns by 8 columns 1.6 to
3.4)."""
_TILES = (96, 128, 160, 192, 256)
"""The same of other products, that keep the GPU busy."""
_SEEN = 1 / 3
"""Part of the time of storing the one product that is saved at least: the rest runs beside other
blocks' products. Of 8192x1280x320 0.6, 2048x2560x640 0.5, 512x8192x2048 0.56, 2048x8192x2048
0.37."""
PIECE = 8
"""Columns of 16 bits that are copied at a time, of which both halves are multiples."""
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
    if half % PIECE or 2 * half != whole[-1] or any(s != 1 for o in read for s in o.strides) \
            or low.limit_indices != (*whole[:-1], half) or high.limit_indices != whole \
            or any(low.start_indices) or high.start_indices != (*low.start_indices[:-1], half):
        return ()
    return low, high


def why_apart(o: ops.DotGeneral, columns: int, device: Device) -> str:
    """Why a contraction with so many columns does not have them in pairs; empty if it can, and
    that takes less time than two of half of them, of which a third reads both."""
    dims = dot_dims(o)
    summed = o.rhs_contract
    if not device.wgmma or o.lhs.type.dtype is not o.rhs.type.dtype \
            or o.lhs.type.dtype not in _TYPES:
        return "tiles of wgmma of 16-bit elements have pairs of columns"
    if o.rhs_batch or len(dims.rhs_free) != 1 or columns % (2 * PIECE) \
            or summed != tuple(range(summed[0], summed[0] + len(summed))):
        return f"they are no columns of a matrix, in pieces of {PIECE}"
    if dims.m < MIN_ROWS or columns < min(WIDTHS) or dims.m * columns < MIN_SIZE:
        return f"{dims.m} rows of {columns} columns are few"
    if dims.k > MOST_K:
        return f"what is stored costs little beside products of {dims.k} summed elements"
    return "" if _pays(dims.m, columns, dims.k, device) else \
        f"{dims.m} x {columns} in tiles of {' or '.join(map(str, WIDTHS))} columns takes longer"


def _pays(m: int, n: int, k: int, device: Device) -> bool:
    """Whether tiles of `WIDTHS` are not so many rounds more that storing half of the columns, and
    a stage more, take less."""
    def rounds(columns: int, widths: Sequence[int]) -> int:
        rows = math.ceil(m / 128)
        return min(math.ceil(rows * math.ceil(columns / w) / device.sm_count) * w for w in widths)

    more = rounds(n, WIDTHS) - 2 * rounds(n // 2, _TILES)
    of_one = 2 * 128 * k * device.sm_count / device.matrix_flops_per_us
    return more * of_one < _SEEN * cost.stored_us(m * n // 2 * 2, device)


def are_alike(o: ops.DotGeneral, other: ops.DotGeneral) -> bool:
    """Whether two contractions differ only in their right operands, which lie alike."""
    def what(d: ops.DotGeneral) -> tuple[object, ...]:
        return (d.lhs, d.rhs.type, d.lhs_batch, d.rhs_batch, d.lhs_contract, d.rhs_contract,
                d.precision, d.algorithm, d.result.type)

    return o is not other and what(o) == what(other)


def join_columns(o: ops.DotGeneral, other: ops.DotGeneral) -> list[Op]:
    """Both contractions as one, whose halves are their results."""
    b, (free,) = Builder(o.loc), dot_dims(o).rhs_free
    whole = b.dot_general(
        o.lhs, b.concatenate([o.rhs, other.rhs], free), batch=(o.lhs_batch, o.rhs_batch),
        contract=(o.lhs_contract, o.rhs_contract), dtype=o.result.type.dtype,
        precision=o.precision, algorithm=o.algorithm)
    *rows, n = o.result.type.dims
    none = [0] * len(rows)
    for i, d in enumerate((o, other)):
        b.append(ops.Slice(results=d.results, loc=d.loc, operand=whole,
                           start_indices=(*none, i * n), limit_indices=(*rows, (i + 1) * n),
                           strides=(1,) * (len(rows) + 1)))
    return b.ops


# ---- pairs in a contraction's draft -------------------------------------------------------------


def place_pair(state: State, op: Op) -> bool:
    """Lets both halves of what ``op`` slices join the contraction's draft that made it; False if
    that cannot be. From then on nothing else of the draft has a place."""
    found = sliced_draft(state, op)
    if found is None or found[0].anchor not in state.paired:
        return False
    draft, value = found
    halves = halves_of(state.graph, value)
    if not halves or not state.banned.isdisjoint(halves) or is_read_whole(state, draft, value):
        return False
    b, m, n = draft.domain
    columns = Var("h", n.size // 2)
    index = place_in(halves, [tuple(i.substitute({n: x}) for i in draft.at[value])
                              for x in both_columns(columns)])
    if index is None:
        return False
    draft.paired = True
    join_slices(state, draft, halves, index, (b, m, columns))
    return True

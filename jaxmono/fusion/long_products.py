"""Contractions of a long dimension into few tiles, in shares that a reduce adds up.

    y[m, n] = dot(x[k, m], g[k, n])        p[s, m, n] = dot(x[(s, i), m], g[(s, i), n])
                                    ──►    y = p[0] + p[1] + ...

The gradient of a small layer's weights sums over all rows: 65536 of them into 64 x 64 elements, one
tile. Blocks that share a tile (`split_k` of the generator) are eight at most, each of which hands
its sums to the others; here a tile of each share goes to one of the multiprocessors, and a stage
adds the sums. Those of one-hot rows (k-means, segments) are computed on the way as often as
otherwise.
"""

from __future__ import annotations

import math

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.plan import Device
from jaxmono.fusion.share_k import apart
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.rewrite import Builder, binary_body
from jaxmono.hlo.types import DType

TILE = 128
"""Rows and columns of a typical tile."""
TOGETHER = 8
"""Blocks that share a tile at most, without this."""
MIN_K = 8192
"""Fewer are as many k tiles of a share as a tile takes to begin and end."""
SHARE = 512
"""Elements of k of a share at least."""
MIN_SIDE = 9
"""Rows and columns. Products of fewer are streams (codegen/dot_gemv.py), which have shares."""


def long_products(graph: Graph, device: Device) -> Graph:
    """``graph`` with such contractions in shares; itself if it has none."""
    out: list[Op] = []
    for o in graph.ops:
        shares = _shares(o, device) if isinstance(o, ops.DotGeneral) else 1
        out += _in_shares(o, shares) if isinstance(o, ops.DotGeneral) and shares > 1 else [o]
    if len(out) == len(graph.ops):
        return graph
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name)


def _shares(o: ops.DotGeneral, device: Device) -> int:
    d = dot_dims(o)
    if o.lhs_batch or not o.lhs_contract or d.k < MIN_K or min(d.m, d.n) < MIN_SIDE \
            or not o.result.type.dtype.is_float:
        return 1
    tiles = math.ceil(d.m / TILE) * math.ceil(d.n / TILE)
    if 2 * tiles * TOGETHER > device.sm_count:
        return 1
    most = min(device.sm_count // tiles, d.k // SHARE)
    major = o.lhs.type.dims[o.lhs_contract[0]]
    return next((s for s in range(most, TOGETHER, -1) if major % s == 0), 1)


def _in_shares(o: ops.DotGeneral, shares: int) -> list[Op]:
    b, dtype = Builder(o.loc), o.result.type.dtype
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    (lhs, left), (rhs, right) = (apart(b, v, over, shares) for v, over in (
        (o.lhs, o.lhs_contract), (o.rhs, o.rhs_contract)))
    made = b.dot_general(lhs, rhs, batch=((left[0] - 1,), (right[0] - 1,)), contract=(left, right),
                         dtype=wide, precision=o.precision, algorithm=o.algorithm)
    zero = b.constant(0, wide)
    if dtype is wide:
        b.append(ops.Reduce(results=o.results, loc=o.loc, args=(made,), inits=(zero,),
                            body=binary_body("add", wide), dimensions=(0,)))
    else:
        b.append(ops.Convert(results=o.results, loc=o.loc,
                             operand=b.reduce(made, zero, "add", (0,))))
    return b.ops

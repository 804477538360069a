"""What a convolution of f32 reads is rounded to tf32 where it is written.

    x = relu(dot(...) + b)                  x' = reduce_precision(relu(dot(...) + b), 8, 10)
    y = dot(window(pad(x)), w)    ──►       y  = dot(window(pad(x')), w)

wgmma cuts the low bits of an f32 off, so its operands in shared memory have to be rounded by
somebody: by the tensor memory accelerator, which knows no rows that are gathered, or by threads,
which then pass every k tile through shared memory twice more. In the epilogue before, an element is
rounded once, and each of the window's taps finds it so. The product is the same: it rounds anyway.

What others read stays as it was, and is stored besides.
"""

from __future__ import annotations

import math

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
"""Of products that take such rows (codegen/dot_schedule_tf32.py)."""
_PIECE = 4
"""Channels that are copied at a time."""
_ROUNDS = (ops.Elementwise, ops.Convert, ops.DotGeneral, ops.ReduceWindow, ops.Stored)
"""Whose results are rounded in the stage that makes them."""


def round_rows(graph: Graph, device: Device) -> Graph:
    """``graph`` with such roundings; itself if it has none, or if no warpgroup multiplies."""
    if not device.wgmma:
        return graph
    inside = {o: chain for o in graph.ops if isinstance(o, ops.DotGeneral)
              and (chain := _chain(graph, o)) and _takes(o)}
    readers = {o for chain in inside.values() for o in chain}
    roots = {chain[0].uses[0] for dot, chain in inside.items()
             if _pays(graph, dot, chain[0].uses[0], readers, device)}
    if not roots:
        return graph
    out: list[Op] = []
    made: dict[Value, Value] = {}
    for o in graph.ops:
        chain = inside.get(o, ()) if isinstance(o, ops.DotGeneral) else ()
        if not chain or chain[0].uses[0] not in roots:
            out.append(o)
            continue
        root = chain[0].uses[0]
        if root not in made:
            steps = _rounding(graph, root)
            made[root] = steps[-1].results[0]
            out.extend(steps)
        for step in chain:
            if step.results[0] not in made:
                clone = step.clone(made, fresh_results=True)
                made[step.results[0]] = clone.results[0]
                out.append(clone)
        assert isinstance(o, ops.DotGeneral)
        out.append(o.clone({o.lhs: made[o.lhs]}))
    return dead_code(Graph(graph.inputs, tuple(out), graph.outputs, graph.name))


def is_rounded(graph: Graph, value: Value) -> bool:
    """Whether ``value`` has the bits of tf32 only; reshapes do not change them."""
    o = graph.producer.get(value)
    while isinstance(o, ops.Reshape | ops.Stored):
        o = graph.producer.get(o.operand)
    return isinstance(o, ops.ReducePrecision) and o.exponent_bits == EXPONENT_BITS \
        and o.mantissa_bits == MANTISSA_BITS


def _rounding(graph: Graph, root: Value) -> list[Op]:
    """What rounds ``root``: what is stored as a padded copy, before it is."""
    made_by = graph.producer[root]
    b = Builder(made_by.loc)
    copied = made_by.operand if isinstance(made_by, ops.Stored) else root
    found = b.emit1(ops.ReducePrecision, root.type, operand=copied,
                    exponent_bits=EXPONENT_BITS, mantissa_bits=MANTISSA_BITS)
    if isinstance(made_by, ops.Stored):
        b.append(made_by.clone({copied: found}, fresh_results=True))
    return b.ops


def _chain(graph: Graph, dot: ops.DotGeneral) -> tuple[Op, ...]:
    """The views between what a convolution reads and its product, in order; empty if it reads no
    windows of more than an element, or nothing that a stage before it makes."""
    chain: list[Op] = []
    value, taps = dot.lhs, 1
    while isinstance(o := graph.producer.get(value),
                     (ops.Window, ops.Pad, ops.Transpose, ops.Reshape)):
        chain.append(o)
        taps *= math.prod(o.sizes) if isinstance(o, ops.Window) else 1
        value = o.operand
    channels = value.type.dims[-1] if value.type.dims else 0
    made = isinstance(o, _ROUNDS) and value.type.size > 0
    return tuple(reversed(chain)) if taps > 1 and made and channels % _PIECE == 0 else ()


def _takes(dot: ops.DotGeneral) -> bool:
    dims = dot_dims(dot)
    return (matrix_dtype(dot) is DType.F32 and dims.batch == 1 and dims.m >= MIN_ROWS
            and dims.n >= MIN_COLUMNS and not exact_product(dot)
            and not exact_matrix(dims.m, dims.n, dims.k))


def _pays(graph: Graph, dot: ops.DotGeneral, root: Value, readers: set[Op],
          device: Device) -> bool:
    """Whether only convolutions read ``root``, or a product takes longer than to store it twice."""
    alone = root not in graph.outputs and all(u in readers for u in graph.users.get(root, ()))
    dims = dot_dims(dot)
    product_us = 4.0 * dims.m * dims.n * dims.k / device.matrix_flops_per_us
    return alone or product_us > root.type.nbytes / device.read_bytes_per_us

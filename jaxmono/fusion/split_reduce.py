"""Long reduces with few rows in two steps, so that more than a few multiprocessors work.

    f32[] reduce_add(x[1000000])   ──►   f32[250] reduce_add(x[250, 4000]);  f32[] reduce_add(...)

Only where the order of the operations does not matter more than it does for any parallel reduce:
one associative op on f32, f64 or integers. The first step starts from the op's neutral element,
the second from the program's own start value.
"""

from __future__ import annotations

import math

import numpy as np

from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.rewrite import Builder, binary_kind
from jaxmono.hlo.types import DType, TensorType

MIN_COLUMNS = 1 << 17
"""A row this long takes one multiprocessor much longer than one more stage."""


def split_reduces(graph: Graph, device: Device) -> Graph:
    """``graph`` with such reduces split; itself if it has none."""
    out: list[Op] = []
    changed = False
    for o in graph.ops:
        made = _split(o, device) if isinstance(o, ops.Reduce) else None
        out.extend(made or (o,))
        changed = changed or made is not None
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name) if changed else graph


def _split(o: ops.Reduce, device: Device) -> list[Op] | None:
    start = _neutral(o)
    if start is None:
        return None
    shape = o.args[0].type.dims
    columns = math.prod(shape[d] for d in o.dimensions)
    rows = o.args[0].type.size // max(columns, 1)
    if columns < MIN_COLUMNS or rows * 2 > device.sm_count:
        return None
    axis = max(o.dimensions, key=lambda d: shape[d])
    parts = _parts(shape[axis], 2 * device.sm_count // max(rows, 1))
    if parts < 8:
        return None
    b = Builder(o.loc)
    x = b.reshape(o.args[0], (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1:]))
    first = tuple(d if d < axis else d + 1 for d in o.dimensions)
    kept = [d for d in range(len(shape) + 1) if d not in first]
    t = TensorType(tuple(x.type.dims[d] for d in kept), x.type.dtype)
    partial = b.emit1(ops.Reduce, t, args=(x,), inits=(b.constant(start, t.dtype),), body=o.body,
                      dimensions=first)
    b.append(ops.Reduce(results=o.results, loc=o.loc, args=(partial,), inits=o.inits,
                        body=o.body, dimensions=(kept.index(axis),)))
    return b.ops


def _parts(size: int, most: int) -> int:
    """The largest divisor of ``size`` up to ``most``."""
    return next((p for p in range(min(most, size), 1, -1) if size % p == 0), 1)


def _neutral(o: ops.Reduce) -> object | None:
    """The neutral element of a reduce by one associative op."""
    kind, t = binary_kind(o.body), o.args[0].type.dtype
    if not _wide(t):
        return None
    if kind == "add":
        return -0.0 if t.is_float else 0  # -0 + x is x, also for x = -0
    if kind == "multiply":
        return 1
    if kind in ("maximum", "minimum"):
        low, high = (-np.inf, np.inf) if t.is_float else _limits(t)
        return low if kind == "maximum" else high
    return None


def _wide(t: DType) -> bool:
    return t in (DType.F32, DType.F64) or t.is_integer


def _limits(t: DType) -> tuple[int, int]:
    info = np.iinfo(t.numpy)
    return int(info.min), int(info.max)


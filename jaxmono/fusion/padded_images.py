"""Convolutions that copy an image into shared memory once need no padded copy of it in memory.

    x' = stored(pad(x, channels))   k' = stored(pad(k, channels))       a stage, a barrier
    y  = dot(window(x'), k')        ──►   y = dot(window(pad(x)), pad(k))

The importer's copies (hlo/passes/rules/alignment.py) are read for every tap: wide loads pay for
them. Where the image stays in shared memory while the taps pass (codegen/image.py) an element is
loaded once, and loads of 4 or 8 bytes cost less than a stage: 128x14x19x46 by 5x7 takes 12.9 us of
an H200 in place of 15.3.
"""

from __future__ import annotations

import math

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

MIN_ROWS = 2048
"""Places of all images: of fewer, tiles are too few for the family."""
MAX_CHANNELS, STEP = 64, 16
"""Of more channels, 4 bytes at a time, copies pay: Bolt's rows with 174 take 15.6 and 29.2 us so,
28.8 and 62.3 without."""
MAX_COLUMNS, MAX_POSITIONS = 256, 512
"""Of a tile, and of the box around 16 x 8 places that it copies: two images of 64 channels and the
weights of three taps then fit shared memory."""


def padded_images(graph: Graph, device: Device) -> Graph:
    """``graph`` without such copies, itself if it has none. Only warpgroups know such images."""
    out: list[Op] = []
    for o in graph.ops:
        made = _read(graph, o) if isinstance(o, ops.DotGeneral) and device.wgmma else None
        out.extend([o] if made is None else made)
    return graph if len(out) == len(graph.ops) else dead_code(
        Graph(graph.inputs, tuple(out), graph.outputs, graph.name))


def _read(graph: Graph, dot: ops.DotGeneral) -> list[Op] | None:
    """The product without copies of its operands; None if it needs them, or others do."""
    window, weights = graph.producer.get(dot.lhs), graph.producer.get(dot.rhs)
    if not isinstance(window, ops.Window) or any(s != 1 for s in window.strides) \
            or math.prod(window.sizes) == 1:
        return None
    image = graph.producer.get(window.operand)
    if not isinstance(image, ops.Stored) or not isinstance(weights, ops.Stored) \
            or not all(len(graph.users.get(c.result, ())) == 1 for c in (image, weights)):
        return None
    x, k = graph.producer.get(image.operand), graph.producer.get(weights.operand)
    if not isinstance(x, ops.Pad) or not isinstance(k, ops.Pad) \
            or k.result.type.dims[-2:-1] != x.result.type.dims[-1:] \
            or not {x.operand, k.operand} <= set(graph.inputs):
        return None  # the channels are not in front of the columns; what is computed is copied
    channels, dims = x.operand.type.dims[-1], dot_dims(dot)
    padded = channels + -channels % STEP
    if _is_reduced(graph, dot.result) or not _shares_margins(window, x):
        return None
    around = [(t - 1) * d for t, d in zip(window.sizes, window.dilations, strict=True)]
    fits = (x.result.type.dtype in (DType.BF16, DType.F16) and channels % 2 == 0
            and padded <= MAX_CHANNELS and not any(x.interior) and min(*x.low, *x.high) >= 0
            and x.low[-1] == 0 and (16 + sum(around[:-1])) * (8 + around[-1]) <= MAX_POSITIONS
            and dims.batch == 1 and dims.m >= MIN_ROWS and dims.n % 8 == 0
            and dims.n <= MAX_COLUMNS)
    if not fits:
        return None
    b, more = Builder(dot.loc), padded - x.result.type.dims[-1]
    places = b.window(_padded(b, x, more, -1), window.dimensions, window.sizes, window.strides,
                      window.dilations)
    taps = _padded(b, k, more, -2)
    return [*b.ops, dot.clone({dot.lhs: places, dot.rhs: taps})]


def _is_reduced(graph: Graph, value: Value) -> bool:
    """Whether something reduces what is made of each element, or reads it in windows: that may
    begin in the product's epilogue, of which tiles of an image know pools of 2 x 2 only."""
    seen, todo = set[Op](), [value]
    while todo:
        users = [u for u in graph.users.get(todo.pop(), ()) if u not in seen]
        seen.update(users)
        if any(isinstance(u, ops.Reduce | ops.ReduceWindow | ops.Slice) for u in users):
            return True
        todo += [r for u in users for r in u.results
                 if isinstance(u, ops.Elementwise | ops.Convert | ops.Compare | ops.Reshape
                               | ops.Transpose)]
    return False


def _shares_margins(window: ops.Window, pad: ops.Pad) -> bool:
    """Whether there are no more places than a line and its margin have, down and across."""
    dims = zip(window.dimensions, window.sizes, window.dilations, strict=True)
    for d, taps, apart in dims:
        out, size = window.result.type.dims[d], pad.operand.type.dims[d]
        if out > size + margin(out, taps, apart, pad.low[d], size):
            return False
    return True


def margin(places: int, taps: int, apart: int, low: int, size: int) -> int:
    """Zeros behind a line of ``size`` places, ``low`` in front of it, that serve its taps and those
    of the next line."""
    return max(places + (taps - 1) * apart - low - size, low, 0)


def _padded(b: Builder, pad: ops.Pad, more: int, dimension: int) -> Value:
    """With so many zeros more behind the channels."""
    high = list(pad.high)
    high[dimension] += more
    return b.pad(pad.operand, pad.padding_value, pad.low, high, pad.interior)

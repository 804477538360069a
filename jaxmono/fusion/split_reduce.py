"""Long reduces with few rows in two steps, so that more than a few multiprocessors work.

    f32[] reduce_add(x[1000000])   ──►   f32[250] reduce_add(x[250, 4000]);  f32[] reduce_add(...)
    f32[] reduce_add(x[1000003])   ──►   the same of pad(x), with the op's neutral element
    bf16[] reduce_add(x)           ──►   bf16(f32[] reduce_add(f32(x)))   and that in two steps
    f32[32] add(x[4096, 32, 10])   ──►   f32[16, 32, 10] add(x[16, 256, 32, 10]);  f32[32] add(...)

Only where the order of the operations does not matter more than it does for any parallel reduce:
one associative op on floats or integers. The first step starts from the op's neutral element, the
second from the program's own start value. Sums and products of 16 bits are f32 until they are
whole: what a reduce has in hand is so in any case, and XLA makes those of bf16 f32, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder, binary_body, binary_kind
from jaxmono.hlo.types import DType, TensorType

MIN_COLUMNS, MIN_BESIDE = 1 << 15, 1 << 17
"""A row this long takes one multiprocessor longer than one more stage (the softmax's two reduces
of 50257, 29 us of an H200), so do rows side by side that have so many elements."""

MIN_PARTS = 8
"""Of a row."""

_PARTS = 2, 16
"""Of all rows for each multiprocessor, at most; of the only row of a graph without contractions,
whose kernel has several blocks on one. A token drawn of 50257 logits took 3.9 us of an H100 and
3.4, of 128256 5.8 and 4.4. A softmax of 16 rows of 50257 in as many parts took 25 us for 22."""

_SIDE_BY_SIDE, _TASKS = 32, 4
"""Rows that lie side by side (the columns of a matrix, say) are shared out by the lanes of a warp,
so that a task has so many of them: of 100352 x 256 eight multiprocessors read all, in 5 ms. Tasks
for each multiprocessor, of those that are split."""

MIN_APART = 1 << 21
"""Elements, a few of a row beside a few of the next one in memory, as the channels of groups lie: a
first step that sums places only reads whole lines. 64 groups of 4096 places of 10 channels took
10.5 us in one step, of 1024 places of 20 channels 5, as long as two."""

_MOST_BESIDE = 128
"""Elements of a row that lie one behind the other: with more, one step reads lines as well."""

_PIECE = 8
"""Elements, of which the parts of a padded row are multiples: loads of 16 or 32 bytes."""


def split_reduces(graph: Graph, device: Device, besides: Collection[Op] = (),
                  ) -> tuple[Graph, tuple[str, ...]]:
    """``graph`` with such reduces split, but for ``besides``, itself if it has none; and for long
    ones with few rows that are not, why."""
    streams = only_streams(graph)
    out: list[Op] = []
    refused: dict[str, None] = {}
    changed = False
    for o in graph.ops:
        made: list[Op] | str = [o]
        if isinstance(o, ops.Reduce) and o not in besides \
                and (found := how_many(o, device, streams))[1]:
            made = _split(o, *found)
            changed = changed or not isinstance(made, str)
        if isinstance(made, str):
            refused[f"the long reduce of {o.loc} is not split: {made}"] = None
            made = [o]
        out.extend(made)
    split = Graph(graph.inputs, tuple(out), graph.outputs, graph.name) if changed else graph
    return split, tuple(refused)


def only_streams(graph: Graph) -> bool:
    """Whether no contraction is in it: several blocks are on a multiprocessor."""
    return not any(isinstance(o, (ops.DotGeneral, ops.Convolution)) for o in graph.ops)


def how_many(o: ops.Reduce, device: Device, streams: bool) -> tuple[int, int, tuple[int, ...]]:
    """The least and the most parts into which a long reduce with few rows goes, 0 if it is none;
    dimensions that only the second step reduces. ``streams``: no contraction is in the graph."""
    shape = o.args[0].type.dims
    columns = math.prod(shape[d] for d in o.dimensions)
    rows = o.args[0].type.size // max(columns, 1)
    later = _apart(o)
    if later and 0 < rows < device.sm_count and o.args[0].type.size >= MIN_APART:
        most = _TASKS * device.sm_count * _SIDE_BY_SIDE // (rows * shape[-1])
        if _parts(max(shape[d] for d in o.dimensions if d not in later), most) > 1:
            return 2, most, later
    if columns >= MIN_COLUMNS and 0 < rows * MIN_PARTS <= 2 * device.sm_count:
        few, many = (n * device.sm_count for n in _PARTS)
        axis = max(shape[d] for d in o.dimensions)
        alone = streams and rows == 1 and axis >= many * _PIECE  # a shorter one is not padded
        return MIN_PARTS, many if alone else few // rows, ()
    tasks = math.ceil(rows / _SIDE_BY_SIDE)
    if shape and len(shape) - 1 not in o.dimensions and 0 < 2 * tasks <= device.sm_count \
            and columns * min(rows, _SIDE_BY_SIDE) >= MIN_BESIDE:
        return 2, _TASKS * device.sm_count // tasks, ()
    return 0, 0, ()


def _apart(o: ops.Reduce) -> tuple[int, ...]:
    """The last dimension of a reduce, if it is small, lies beside rows and there are others."""
    shape = o.args[0].type.dims
    last = len(shape) - 1
    beside = last in o.dimensions and last - 1 not in o.dimensions and len(o.dimensions) > 1
    return (last,) if beside and shape[last] <= _MOST_BESIDE else ()


def _split(o: ops.Reduce, least: int, most: int, later: tuple[int, ...]) -> list[Op] | str:
    """``o`` in two steps, the first one of ``least`` to ``most`` parts a row, or why it is in
    one. ``later``: dimensions that only the second step reduces."""
    start, shape = neutral(o), o.args[0].type.dims
    if start is None:
        return why_ordered(o)
    axis = max((d for d in o.dimensions if d not in later), key=lambda d: shape[d])
    b, whole = Builder(o.loc), o
    o = in_f32(b, o, o.args)
    x, parts = in_parts(b, o.args[0], axis, most, start)
    if parts < least:
        return f"its longest dimension, {shape[axis]}, has no {least} parts"
    first = tuple(d if d < axis else d + 1 for d in o.dimensions if d not in later)
    kept = [d for d in range(len(shape) + 1) if d not in first]
    t = TensorType(tuple(x.type.dims[d] for d in kept), x.type.dtype)
    partial = b.emit1(ops.Reduce, t, args=(x,), inits=(b.constant(start, t.dtype),), body=o.body,
                      dimensions=first)
    second = kept.index(axis), *(kept.index(d + 1) for d in later)
    b.append(ops.Reduce(results=o.results, loc=o.loc, args=(partial,), inits=o.inits,
                        body=o.body, dimensions=second))
    rounded(b, whole, o)
    return b.ops


def in_parts(b: Builder, x: Value, axis: int, most: int, fill: object) -> tuple[Value, int]:
    """``x`` with dimension ``axis`` as two, of parts and of what is in one, padded with ``fill`` if
    need be; and how many parts these are, ``most`` at most."""
    shape = x.type.dims
    parts, length = part_sizes(shape[axis], most)
    if missing := parts * length - shape[axis]:
        none = [0] * len(shape)
        high = [missing if d == axis else 0 for d in range(len(shape))]
        x = b.pad(x, b.constant(fill, x.type.dtype), none, high, none)
    return b.reshape(x, (*shape[:axis], parts, length, *shape[axis + 1:])), parts


def part_sizes(size: int, most: int) -> tuple[int, int]:
    """Into how many parts, ``most`` at most, a dimension of ``size`` goes, and of how many each;
    of more elements than it has, perhaps."""
    parts = _parts(size, most)
    if parts >= most // 2 or size < most * _PIECE:
        return parts, size // parts
    length = math.ceil(size / most / _PIECE) * _PIECE
    return math.ceil(size / length), length


def in_f32(b: Builder, o: ops.Reduce, args: tuple[Value, ...]) -> ops.Reduce:
    """``o`` of ``args``, not yet appended; in f32, of one result, where partial results of 16 bits
    would be rounded (see `rounded`)."""
    kind, t = binary_kind(o.body), o.results[0].type
    if kind not in ("add", "multiply") or t.dtype not in (DType.F16, DType.BF16):
        return dataclasses.replace(o, args=args)
    return ops.Reduce(results=(Value(TensorType(t.dims, DType.F32)),), loc=o.loc,
                      args=(b.convert(args[0], DType.F32),),
                      inits=(b.convert(o.inits[0], DType.F32),),
                      body=binary_body(kind, DType.F32), dimensions=o.dimensions)


def rounded(b: Builder, o: ops.Reduce, wide: ops.Reduce) -> None:
    """Appends what makes ``o``'s result of that of ``wide``, its `in_f32`."""
    if wide.results != o.results:
        b.append(ops.Convert(results=o.results, loc=o.loc, operand=wide.results[0]))


def _parts(size: int, most: int) -> int:
    """The largest divisor of ``size`` up to ``most``."""
    return next((p for p in range(min(most, size), 1, -1) if size % p == 0), 1)


def neutral(o: ops.Reduce) -> object | None:
    """The neutral element of a reduce by one associative op."""
    kind, t = binary_kind(o.body), o.args[0].type.dtype
    if kind in ("maximum", "minimum") and t is not DType.PRED:
        low, high = (-np.inf, np.inf) if t.is_float else _limits(t)
        return low if kind == "maximum" else high
    if kind == "add":
        return -0.0 if t.is_float else 0  # -0 + x is x, also for x = -0
    if kind == "multiply":
        return 1
    if kind in ("or", "and") and not t.is_float:
        return 0 if kind == "or" else np.invert(np.zeros((), t.numpy))
    return None


def why_ordered(o: ops.Reduce) -> str:
    """Why a reduce has no neutral element here."""
    kind = binary_kind(o.body)
    if len(o.args) > 1 or kind is None:
        return "its body is more than one op"
    return f"{kind} is no sum, product, minimum, maximum, and, or"


def _limits(t: DType) -> tuple[int, int]:
    info = np.iinfo(t.numpy)
    return int(info.min), int(info.max)


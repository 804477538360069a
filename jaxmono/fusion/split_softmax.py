"""Long softmaxes of few rows: parts of a row have a largest value and a sum of their own.

    m = max(x)                             p = max(x[part])              one step of the parts
    s = sum(exp(x - m))           ──►      q = sum(exp(x[part] - p))
                                           m = max(p)                    one of the rows
                                           s = sum(q * exp(p - m))

Both in two steps, one behind the other, as `split_reduce` has them, are four stages that wait for
each other, and each of a GPU's multiprocessors reads its part twice. (The same sums as in attention
that goes through its keys once: Milakov and Gimelshein, Online normalizer calculation for softmax.)

A sum that the program rounds to 16 bits and then spreads along the row is spread first: stored for
the row's readers it stays f32, as within one group (codegen/narrowed.py). Rounded there, bf16 rows
of few different values had an error of 0.28 % where XLA's was 0.19.

A part whose largest value is not finite is summed without it. Where it is -inf the part's factor is
0, as its sum; where it is not, the sum is what it was: infinite, or not a number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from jaxmono.fusion.plan import Device
from jaxmono.fusion.split_reduce import (
    how_many,
    in_f32,
    in_parts,
    only_streams,
    part_sizes,
    rounded,
)
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes import dead_code
from jaxmono.hlo.rewrite import Builder, binary_kind
from jaxmono.hlo.types import DType, TensorType

_NARROW = DType.BF16, DType.F16
_CHOICES = frozenset({"abs", "and", "is_finite", "not", "or", "select"})
"""What a shift may be made of a maximum by: another number where it is not finite."""


@dataclass(frozen=True)
class _Softmax:
    """``total`` = sum(exp(x - shift)) over the one dimension of ``largest`` = max(x), of which
    ``shift`` is computed. x may be widened in both; ``difference``, ``power``: types of x - shift
    and of its exponential."""

    x: Value
    largest: ops.Reduce
    total: ops.Reduce
    shift: Value
    difference: DType
    power: DType


def split_softmaxes(graph: Graph, device: Device, besides: Collection[Op] = ()) -> Graph:
    """``graph`` with such softmaxes split, but for reduces ``besides``; itself if it has none."""
    streams, found = only_streams(graph), dict[Op, tuple[_Softmax, int]]()
    for o in graph.ops:
        if isinstance(o, ops.Reduce) and o not in besides \
                and (s := _softmax(graph, o)) is not None and s.largest not in found \
                and s.largest not in besides:
            least, most, later = how_many(o, device, streams)
            (axis,) = o.dimensions
            if most and not later and part_sizes(s.x.type.dims[axis], most)[0] >= least:
                found[s.largest] = s, most
    if not found:
        return graph
    b, totals = Builder(), dict[Op, tuple[_Softmax, Value, Value]]()
    for o in graph.ops:
        b.loc = o.loc
        if o in found:
            s, most = found[o]
            p, q = _in_parts(b, s, most)
            totals[s.total] = s, p, q
            b.append(replace(s.largest, args=(b.convert(p, s.largest.args[0].type.dtype),)))
        elif o in totals:
            _add_up(b, *totals[o])
        elif isinstance(o, ops.BroadcastInDim) \
                and (wide := _rounded_total(graph, o.operand, totals)) is not None:
            spread = b.broadcast_in_dim(wide, o.result.type.dims, o.dimensions)
            b.append(ops.Convert(results=o.results, loc=o.loc, operand=spread))
        else:
            b.append(o)
    return dead_code(Graph(graph.inputs, tuple(b.ops), graph.outputs, graph.name))


def _rounded_total(graph: Graph, v: Value, totals: Collection[Op]) -> Value | None:
    """The f32 value of which ``v`` is the 16 bits, if that is one of these sums."""
    o = graph.producer.get(v)
    if not isinstance(o, ops.Convert) or o.operand.type.dtype is not DType.F32 \
            or v.type.dtype not in _NARROW:
        return None
    total = graph.producer.get(o.operand)
    while isinstance(total, ops.BroadcastInDim | ops.Reshape):
        total = graph.producer.get(total.operand)
    return o.operand if total in totals else None


def _softmax(graph: Graph, total: ops.Reduce) -> _Softmax | None:
    """The softmax of which a reduce is the sum."""
    if binary_kind(total.body) != "add" or len(total.dimensions) != 1 \
            or total.args[0].type.dtype not in (DType.F32, *_NARROW):
        return None
    power = graph.producer.get(_unwidened(graph, total.args[0]))
    if not isinstance(power, ops.Elementwise) or power.kind != "exponential":
        return None
    difference = graph.producer.get(_unwidened(graph, power.args[0]))
    if not isinstance(difference, ops.Elementwise) or difference.kind != "subtract":
        return None
    x, shift = (_unwidened(graph, v) for v in difference.args)
    spread, kept = graph.producer.get(shift), total.results[0].type.dims
    over = tuple(i for i in range(x.type.rank) if i not in total.dimensions)
    if not isinstance(spread, ops.BroadcastInDim) or spread.dimensions != over \
            or spread.operand.type.dims != kept:
        return None
    largest = _largest(graph, spread.operand)
    if largest is None or largest.dimensions != total.dimensions \
            or _unwidened(graph, largest.args[0]) is not x:
        return None
    return _Softmax(x, largest, total, spread.operand, difference.result.type.dtype,
                    power.result.type.dtype)


def _unwidened(graph: Graph, v: Value) -> Value:
    while isinstance(o := graph.producer.get(v), ops.Convert) \
            and o.operand.type.dtype in _NARROW and o.result.type.dtype is DType.F32:
        v = o.operand
    return v


def _largest(graph: Graph, v: Value) -> ops.Reduce | None:
    """The only maximum that a row's shift is computed of, element by element: 0 where it is not
    finite, perhaps."""
    todo, found, seen = [v], set[ops.Reduce](), {v}
    while todo:
        o = graph.producer.get(todo.pop())
        if isinstance(o, ops.Reduce) and binary_kind(o.body) == "maximum":
            found.add(o)
        elif isinstance(o, ops.Compare | ops.Convert) \
                or (isinstance(o, ops.Elementwise) and o.kind in _CHOICES):
            new = [x for x in o.inputs if x not in seen]
            seen.update(new)
            todo += new
        elif not isinstance(o, ops.Constant):
            return None
    return found.pop() if len(found) == 1 else None


def _in_parts(b: Builder, s: _Softmax, most: int) -> tuple[Value, Value]:
    """Of each part of a row, the largest and the sum without it; both like the rows, with the parts
    where the reduced dimension was."""
    (axis,) = s.total.dimensions
    x, _ = in_parts(b, s.x, axis, most, -np.inf)
    p = b.reduce(x, b.constant(-np.inf, x.type.dtype), "maximum", (axis + 1,))
    finite = b.elementwise("is_finite", p, type=TensorType(p.type.dims, DType.PRED))
    shift = b.elementwise("select", finite, p, b.splat(0.0, p.type))
    over = [i for i in range(x.type.rank) if i != axis + 1]
    difference = b.elementwise(
        "subtract", b.convert(x, s.difference),
        b.broadcast_in_dim(b.convert(shift, s.difference), x.type.dims, over))
    power = b.elementwise("exponential", b.convert(difference, s.power))
    q = b.reduce(b.convert(power, DType.F32), b.constant(-0.0, DType.F32), "add", (axis + 1,))
    return p, q


def _add_up(b: Builder, s: _Softmax, p: Value, q: Value) -> None:
    """The sum of a row, of its parts'."""
    (axis,) = s.total.dimensions
    shift = b.broadcast_in_dim(b.convert(s.shift, DType.F32), p.type.dims,
                               [i for i in range(p.type.rank) if i != axis])
    factor = b.elementwise("exponential", b.elementwise(
        "subtract", b.convert(p, DType.F32), shift))
    wide = in_f32(b, s.total, (b.elementwise("multiply", q, factor),))
    b.append(wide)
    rounded(b, s.total, wide)

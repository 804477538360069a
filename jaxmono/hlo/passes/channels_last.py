"""Programs whose images lie channels first compute with channels last (Bolt 3.2.3).

    x[N,C,H,W]  ──conv NCHW, OIHW──► relu ──► pool ──conv──► y[N,K,H,W]
      =>  transpose(x) ──conv NHWC, HWIO──► relu ──► pool ──conv──► transpose(y)

Channels are what a convolution sums over: next to each other in memory they are copied 16 bytes
at a time, and rows of a tile are pixels. So values are turned once, where the program's own are
read and written, and whatever lies between follows: element-wise ops, windows, padding, reductions.
Transposes are indices of whoever reads them, but for two that are stored: images that something
else than a convolution has made (a graph's input, too), and kernels, as [O, taps..., I]. Such
images are stored for other programs' convolutions as well (`jax.image.resize` leaves the columns
last).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Scope, is_static
from jaxmono.hlo.passes.rules.alignment import MIN_ELEMENTS, WIDE_BYTES
from jaxmono.hlo.passes.rules.layout import proper_dims
from jaxmono.hlo.types import TensorType

MIN_STORED = 1 << 16
"""Elements of an image or a kernel from which on it is turned in memory: a stage of a few us,
which all of them share that are inputs. Others are read as they are, an element at a time. A kernel
is read for every tile of pixels: from `MIN_ELEMENTS` of the window over all places on it is turned,
too."""

MIN_APART = 1 << 20
"""Elements of an output from which on a stage of its own turns it: 32 bytes of the L2 are written
for each that lies alone, 6 us for so many."""

Order: TypeAlias = tuple[int, ...]
"""A permutation: dimension ``i`` of a turned value is dimension ``order[i]`` of the program's."""


def channels_last(graph: Graph) -> Graph:
    """``graph`` with such convolutions over turned values; itself if it has none."""
    walk = _Walk(graph)
    convolutions = [o for o in graph.ops if isinstance(o, ops.Convolution) and is_static(o)]
    if not any(_is_channels_first(o) or _reads_others(o, walk) for o in convolutions):
        return graph
    for o in graph.ops:
        walk.loc = o.loc
        rule = RULES.get(type(o))
        if rule is None or not is_static(o) or not rule(o, walk):
            walk.append(o.clone({v: walk.plain(v) for v in o.uses}))
    outputs = tuple(map(walk.output, graph.outputs))
    return Graph(graph.inputs, tuple(walk.ops), outputs, graph.name)


class _Walk(Scope):
    """The ops turned so far; values of the old graph, in its order and in others."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.turned: dict[Value, tuple[Value, Order]] = {}
        self._views: dict[tuple[Value, Order], Value] = {}

    def plain(self, v: Value) -> Value:
        """``v`` as the program has it."""
        return self.read(v, tuple(range(v.type.rank))) if v in self.turned else v

    def output(self, v: Value) -> Value:
        """`plain`; of what is large turned from memory, not by the epilogue that has computed it,
        whose neighbours would be stored far apart."""
        view = self.plain(v)
        if v not in self.turned or v.type.size < MIN_APART \
                or self.has(v, tuple(range(v.type.rank))):
            return view
        return self.emit1(ops.Stored, view.type, operand=view)

    def read(self, v: Value, order: Order) -> Value:
        """``v`` in an order: as it was turned, or as a view."""
        if v.type.rank != len(order):
            return self.plain(v)  # a scalar beside larger operands
        if (v, order) not in self._views:
            self._views[v, order] = self._read(v, order)
        return self._views[v, order]

    def _read(self, v: Value, order: Order) -> Value:
        made_by = self.graph.producer.get(v)
        if isinstance(made_by, ops.BroadcastInDim):
            return self.broadcast_in_dim(self.plain(made_by.operand), turned(v.type.dims, order),
                                         [order.index(d) for d in made_by.dimensions])
        made, own = self._own(v)
        return self.transpose(made, [own.index(d) for d in order])

    def _own(self, v: Value) -> tuple[Value, Order]:
        """``v`` as it lies in memory, if it is there, and its order."""
        if v in self.turned:
            return self.turned[v]
        made_by = self.graph.producer.get(v)
        if isinstance(made_by, ops.Transpose):  # of the program's own
            p = made_by.permutation
            return self.plain(made_by.operand), tuple(map(p.index, range(len(p))))
        return v, tuple(range(v.type.rank))

    def has(self, v: Value, order: Order) -> bool:
        """Whether ``v`` lies in memory in that order, but for dimensions of one element."""
        _, own = self._own(v)
        proper = set(proper_dims(v.type.dims))
        return [d for d in own if d in proper] == [d for d in order if d in proper]

    def order(self, op: Op) -> Order | None:
        """That of the first operand that is turned; None if none is."""
        rank = op.results[0].type.rank
        return next((self.turned[v][1] for v in op.inputs
                     if v in self.turned and v.type.rank == rank), None)

    def again(self, op: Op, order: Order, **fields: Any) -> bool:
        """``op`` on operands in an order, which its results have as well."""
        operands = {v: self.read(v, order) for v in op.inputs}
        results = tuple(Value(TensorType(turned(v.type.dims, order), v.type.dtype), v.hint)
                        for v in op.results)
        self.append(dataclasses.replace(op.clone(operands), results=results, **fields))
        self.turned.update((old, (new, order))
                           for old, new in zip(op.results, results, strict=True))
        return True


def turned(values: Sequence[Any], order: Order) -> tuple[Any, ...]:
    return tuple(values[d] for d in order)


def _reads_others(op: ops.Convolution, walk: _Walk) -> bool:
    """Whether channels are last, but not in memory, and it pays to store them so."""
    rank, v = op.lhs.type.rank, op.lhs
    return op.input_feature == rank - 1 and v.type.size >= MIN_STORED \
        and _fits(v, v.type.dims[-1]) and not walk.has(v, tuple(range(rank)))


def _is_channels_first(op: ops.Convolution) -> bool:
    rank = op.lhs.type.rank
    return rank > 2 and op.lhs.type.size * op.rhs.type.size * op.result.type.size > 0 and (
        op.input_batch, op.input_feature, op.input_spatial) == (0, 1, tuple(range(2, rank)))


# ---- rules: whether an op was turned -----------------------------------------------------------


def _convolution(op: ops.Convolution, walk: _Walk) -> bool:
    if not _is_channels_first(op):
        if stores := _reads_others(op, walk):
            view = walk.plain(op.lhs)
            image = walk.emit1(ops.Stored, view.type, operand=view)
            walk.append(op.clone({op.lhs: image, op.rhs: walk.plain(op.rhs)}))
        return stores
    rank = op.lhs.type.rank
    spatial = tuple(range(1, rank - 1))
    order = (op.output_batch, *op.output_spatial, op.output_feature)
    made = Value(TensorType(turned(op.result.type.dims, order), op.result.type.dtype))
    walk.append(dataclasses.replace(
        op, results=(made,), lhs=_image(op.lhs, walk), rhs=_kernel(op, walk),
        input_batch=0, input_feature=rank - 1, input_spatial=spatial,
        kernel_input_feature=rank - 2, kernel_output_feature=rank - 1,
        kernel_spatial=tuple(range(rank - 2)),
        output_batch=0, output_feature=rank - 1, output_spatial=spatial))
    walk.turned[op.result] = made, order
    return True


def _image(v: Value, walk: _Walk) -> Value:
    """Where channels fit no wide loads, `align` copies them anyway."""
    order = (0, *range(2, v.type.rank), 1)
    view = walk.read(v, order)
    if walk.has(v, order) or v.type.size < MIN_STORED or not _fits(v, v.type.dims[1]):
        return view
    return walk.emit1(ops.Stored, view.type, operand=view)


def _kernel(op: ops.Convolution, walk: _Walk) -> Value:
    v, taps = walk.plain(op.rhs), op.kernel_spatial
    inner, outer = op.kernel_input_feature, op.kernel_output_feature
    features = v.type.dims[outer]
    window = op.result.type.size * v.type.size // features**2
    if math.prod(v.type.dims[d] for d in taps) == 1 or not _fits(v, v.type.dims[inner]) \
            or (v.type.size < MIN_STORED and window < MIN_ELEMENTS):
        return walk.transpose(v, (*taps, inner, outer))
    view = walk.transpose(v, (outer, *taps, inner))
    rank = v.type.rank
    return walk.transpose(walk.emit1(ops.Stored, view.type, operand=view), (*range(1, rank), 0))


def _fits(v: Value, channels: int) -> bool:
    """Whether wide loads fit ``channels`` elements of ``v``."""
    return channels * v.type.dtype.itemsize % WIDE_BYTES == 0


def _reduce(op: ops.Reduce, walk: _Walk) -> bool:
    """What is kept stays in the operand's order."""
    order = next((walk.turned[v][1] for v in op.args if v in walk.turned), None)
    if order is None:
        return False
    left = [d for d in range(len(order)) if d not in op.dimensions]
    kept = tuple(left.index(d) for d in order if d in left)
    operands = {v: walk.read(v, order) for v in op.args}
    results = tuple(Value(TensorType(turned(v.type.dims, kept), v.type.dtype), v.hint)
                    for v in op.results)
    made = op.clone({**{v: walk.plain(v) for v in op.uses}, **operands})
    walk.append(dataclasses.replace(made, results=results, dimensions=tuple(
        sorted(map(order.index, op.dimensions)))))
    walk.turned.update((old, (new, kept)) for old, new in zip(op.results, results, strict=True))
    return True


def _reshape(op: ops.Reshape, walk: _Walk) -> bool:
    """If only dimensions of one element come or go: they stay behind the others."""
    old, new = op.operand.type.dims, op.result.type.dims
    kept_old, kept_new = proper_dims(old), proper_dims(new)
    if op.operand not in walk.turned or [old[d] for d in kept_old] != [new[d] for d in kept_new]:
        return False
    made, own = walk.turned[op.operand]
    place = dict(zip(kept_old, kept_new, strict=True))
    order = (*(place[d] for d in own if d in place), *(d for d in range(len(new))
                                                       if d not in kept_new))
    walk.turned[op.result] = walk.reshape(made, turned(new, order)), order
    return True


def _same(op: Op, order: Order) -> dict[str, Any]:
    return {}


def _turning(*names: str) -> Callable[[Op, Order], dict[str, Any]]:
    """Of attributes that have an element for each dimension."""
    return lambda op, order: {name: turned(getattr(op, name), order) for name in names}


_FOLLOWS: Mapping[type[Op], Callable[[Any, Order], dict[str, Any]]] = {
    ops.Elementwise: _same, ops.Compare: _same, ops.Convert: _same, ops.ReducePrecision: _same,
    ops.ReduceWindow: _turning("window_dimensions", "window_strides", "base_dilations",
                               "window_dilations", "padding"),
    ops.Pad: _turning("low", "high", "interior"),
    ops.Slice: _turning("start_indices", "limit_indices", "strides"),
    ops.Concatenate: lambda op, order: {"dimension": order.index(op.dimension)},
    ops.Reverse: lambda op, order: {"dimensions": tuple(sorted(map(order.index, op.dimensions)))},
}
"""Ops whose results have their operands' order, and what changes of their attributes."""


def _follow(op: Op, walk: _Walk) -> bool:
    order = walk.order(op)
    return order is not None and walk.again(op, order, **_FOLLOWS[type(op)](op, order))


RULES: Mapping[type[Op], Callable[[Any, _Walk], bool]] = {
    ops.Convolution: _convolution, ops.Reduce: _reduce, ops.Reshape: _reshape,
    **dict.fromkeys(_FOLLOWS, _follow),
}

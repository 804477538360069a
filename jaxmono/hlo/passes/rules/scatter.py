"""Scatters: without memory that several threads add to, in the same order on every run, or in it.

Updates [b, t, w] go to lines of an operand [b, v, w], each to the line that its index says, or to
none where that is out of range. Which of the forms below depends on the sizes.

    few lines       out = operand + sum_t select(index[t] == v, update[t, w], 0)
    one update      out = select(index == v, operand + update, operand)
    a window        out = dynamic_update_slice(operand, dynamic_slice(operand) + update, index)
    written lines   last[v] = max_t select(index[t] == v, t, -1), in memory where there are many
                    out = select(last[v] < 0, operand, update[last[v], w])
    many lines      out = operand + sums, of the updates in the order of their lines
                    (sorted_sums.py)
    in memory       out = stored(operand);  out[index[t]] += update[t], as memory does it

An embedding's gradient in 16 bits is of the last kind but one: XLA adds each element to memory, one
behind the other where words repeat. BERT-base's 2048 tokens, of which all are of one type, took
12 ms of an H200. What memory adds by itself (f32, integers) is of the last kind: in any order, as
XLA adds it, too, unless it is asked for the same bits on every run (`in_any_order`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.indices import inside
from jaxmono.hlo.passes.rules.keys import float_of, ordered
from jaxmono.hlo.passes.rules.sorted_sums import rows_of, sums_by_line, too_many
from jaxmono.hlo.rewrite import binary_kind
from jaxmono.hlo.types import DType, TensorType, highest, lowest

DENSE = 1 << 24
"""Updates times lines times elements that are gone through one by one: some microseconds."""
COMPARED = 1 << 20
"""Updates times lines, of which each is compared to find a line's last one, in place of memory that
does it: 256 of 50257 in 8.6 us of an H200, with what reads them, XLA's in 4.5."""
WIDE = 256
"""Elements of a line from which on sums of 16-bit floats are those of sorted updates."""
MOST_WIDENED = 1 << 22
"""Elements of narrower lines that are written as f32, added up in memory and read again: 10 us."""

_NARROW = (DType.F16, DType.BF16)
_IN_MEMORY = (DType.F32, DType.S32, DType.U32)
_KINDS = ("add", "multiply", "maximum", "minimum", "set")
"""Products (`x.at[i].mul`) are of few lines, of one update or of a window: memory makes none. Those
of floats have at most one update a line (``unique_indices``)."""


@dataclass(frozen=True)
class _Lines:
    """A scatter of whole lines, by dimensions of its operand.

    Attributes:
      batch, lines, window: dimensions that updates share, that indices choose of, that an update
        has all of (where an index says at which place, that is 0, or it is outside). rest: of
        size 1.
      b, v, t, w: how much they are together; t: updates.
    """

    batch: tuple[int, ...]
    lines: tuple[int, ...]
    window: tuple[int, ...]
    rest: tuple[int, ...]
    b: int
    v: int
    t: int
    w: int

    @property
    def order(self) -> tuple[int, ...]:
        return self.batch + self.lines + self.window + self.rest


def refusal(op: ops.Scatter) -> str:
    """Why ``op`` stays as it is; empty if it is expanded."""
    kind = _kind(op)
    if kind is None:
        return "a scatter of several arrays, or that is no sum, product, maximum or minimum, is " \
            "not generated"
    if _is_window(op):
        return ""
    n = _lines(op)
    if isinstance(n, str):
        return n
    t = op.args[0].type
    if t.dtype.is_float and t.dtype.itemsize == 1 and kind != "set":
        return f"a scatter of {t.dtype.value} is not generated"
    if kind == "multiply" and t.dtype.is_float and n.t > 1 and not op.unique_indices:
        return "several updates may be multiplied with a line, and in another order than one by " \
            "one they could overflow"
    if n.t == 1 or (kind != "set" and n.b * n.v * n.t * n.w <= DENSE):
        return ""
    if kind == "multiply":
        return f"{n.t} updates of {n.v} lines of {n.w} are multiplied by no memory"
    if kind == "set":
        return _not_in_memory(n, kind, DType.S32)  # the last update of each line
    return "" if _in_order(n, kind, t.dtype) else _not_in_memory(n, kind, t.dtype)


def in_any_order(op: ops.Scatter) -> bool:
    """Whether floats are added up in memory, as XLA adds them: every run may have other bits."""
    kind = _kind(op)
    if kind != "add" or refusal(op) or _is_window(op) or op.unique_indices \
            or not op.args[0].type.dtype.is_float:
        return False
    n = _lines(op)
    assert isinstance(n, _Lines)
    return not _in_order(n, kind, op.args[0].type.dtype)


def _in_order(n: _Lines, kind: str, dtype: DType) -> bool:
    """Whether a form without memory that several threads add to suits the sizes."""
    if n.t == 1 or kind == "set" or n.b * n.v * n.t * n.w <= DENSE:
        return True
    return kind == "add" and dtype in _NARROW and n.w >= WIDE and not too_many(n.b, n.v, n.t, n.w)


def _not_in_memory(n: _Lines, kind: str, dtype: DType) -> str:
    """Why memory does not make a scatter; empty if it does."""
    elements = n.b * n.v * n.w
    if dtype in _NARROW and elements > MOST_WIDENED:
        return f"{n.t} updates of {n.v} lines of {n.w} 16-bit floats are neither sorted nor made " \
            "in 32 bits"
    if dtype not in (*_IN_MEMORY, *_NARROW):
        return f"{n.t} updates of {n.v} lines of {dtype.value} are not made in memory"
    return "" if n.b * n.v < 1 << 31 else f"{n.b * n.v} lines have no indices of 32 bits"


def scatter(op: ops.Scatter, scope: Scope) -> Sequence[Value] | None:
    """Any that has no `refusal`."""
    kind = _kind(op)
    if kind is None or refusal(op):
        return None
    if not op.args[0].type.size or not op.updates[0].type.size:
        return [op.args[0]]
    if _is_window(op):
        return [_window(op, kind, scope)]
    n = _lines(op)
    assert isinstance(n, _Lines)
    operand, update = _operand(op, n, scope), _updates(op, n, scope)
    index = _indices(op, n, scope)
    if n.t == 1:
        out = _one(n, kind, operand, index, update, scope)
    elif kind != "set" and n.b * n.v * n.t * n.w <= DENSE:
        out = _dense(n, kind, operand, index, update, scope)
    elif kind == "set":
        out = _written(n, operand, index, update, scope)
    elif _in_order(n, kind, operand.type.dtype):
        out = _sorted(n, operand, index, update, scope)
    else:
        out = _in_memory(n, kind, operand, index, update, scope)
    t = op.args[0].type
    out = scope.reshape(out, [t.dims[d] for d in n.order])
    return [scope.transpose(out, [n.order.index(d) for d in range(t.rank)])]


def _kind(op: ops.Scatter) -> str | None:
    if len(op.args) != 1:
        return None
    if not op.body.ops and op.body.outputs[0] is op.body.inputs[1]:
        return "set"
    kind = binary_kind(op.body)
    return kind if kind in _KINDS else None


def _index_dims(op: ops.Scatter) -> list[int]:
    """Dimensions of the indices but that of their components."""
    return [d for d in range(op.scatter_indices.type.rank) if d != op.index_vector_dim]


def _window_dims(op: ops.Scatter) -> list[int]:
    """Dimensions of the operand that an update has, in the updates' order."""
    gone = {*op.inserted_window_dims, *op.input_batching_dims}
    return [d for d in range(op.args[0].type.rank) if d not in gone]


def _is_window(op: ops.Scatter) -> bool:
    """Whether there is one update: a window at a place."""
    return not op.input_batching_dims \
        and math.prod(op.scatter_indices.type.dims[d] for d in _index_dims(op)) == 1


def _lines(op: ops.Scatter) -> _Lines | str:
    shape, update = op.args[0].type.dims, op.updates[0].type.dims
    indexed, batch = op.scatter_dims_to_operand_dims, op.input_batching_dims
    part = {d: update[u] for d, u in zip(_window_dims(op), op.update_window_dims, strict=True)}
    # The gradient of a lookup under `vmap` chooses windows of one line: (i, 0) of [lines, w].
    lines = tuple(d for d in indexed if part.get(d, 1) == 1)
    window = tuple(d for d in part if d not in lines)
    if any(part[d] != shape[d] for d in window):
        return "a scatter of windows that are not whole lines is not generated"
    rest = tuple(d for d in op.inserted_window_dims if d not in lines)
    if any(shape[d] != 1 for d in rest):
        return "a scatter to a part of a dimension that no index chooses is not generated"
    indices = op.scatter_indices.type.dims
    b = math.prod(shape[d] for d in batch)
    t = math.prod(indices[d] for d in _index_dims(op)) // max(b, 1)
    return _Lines(batch, lines, window, rest, b, math.prod(shape[d] for d in lines), t,
                  math.prod(shape[d] for d in window))


def _operand(op: ops.Scatter, n: _Lines, scope: Scope) -> Value:
    """[b, v, w]"""
    return scope.reshape(scope.transpose(op.args[0], n.order), (n.b, n.v, n.w))


def _updates(op: ops.Scatter, n: _Lines, scope: Scope) -> Value:
    """[b, t, w]"""
    (update,) = op.updates
    spread = [d for d in range(update.type.rank) if d not in op.update_window_dims]
    batch, others = _batch_first(op)
    order = [*(spread[i] for i in (*batch, *others)), *op.update_window_dims]
    return scope.reshape(scope.transpose(update, order), (n.b, n.t, n.w))


def _batch_first(op: ops.Scatter) -> tuple[list[int], list[int]]:
    """Which of the indices' dimensions, but that of components, are batches, in the operand's
    order, and which are not."""
    dims = _index_dims(op)
    batch = [dims.index(d) for d in op.scatter_indices_batching_dims]
    return batch, [i for i in range(len(dims)) if i not in batch]


def _components(op: ops.Scatter, shape: Sequence[int], scope: Scope) -> list[Value]:
    """The indices' components, each an array of ``shape``, in 32 bits or more."""
    indices = op.scatter_indices
    if indices.type.dtype.itemsize < 4:
        indices = scope.convert(indices, DType.S32)
    dims = _index_dims(op)
    batch, others = _batch_first(op)
    order = [dims[i] for i in (*batch, *others)]
    size = 1
    if op.index_vector_dim < indices.type.rank:
        order.append(op.index_vector_dim)
        size = indices.type.dims[op.index_vector_dim]
    flat = scope.reshape(scope.transpose(indices, order), (*shape, size))
    low = [0] * len(shape)
    return [scope.reshape(scope.slice(flat, (*low, i), (*shape, i + 1), [1] * (len(shape) + 1)),
                          shape) for i in range(size)]


def _indices(op: ops.Scatter, n: _Lines, scope: Scope) -> Value:
    """s32[b, t]: the line of each update, -1 where it has none."""
    shape = op.args[0].type.dims
    line = scope.splat(0, TensorType((n.b, n.t), DType.S32))
    good = scope.splat(True, TensorType((n.b, n.t), DType.PRED))
    components = _components(op, (n.b, n.t), scope)
    for d, v in zip(op.scatter_dims_to_operand_dims, components, strict=True):
        good = scope.elementwise("and", good, inside(v, shape[d] - 1 if d in n.lines else 0, scope))
        if d not in n.lines:
            continue
        v = scope.convert(v, DType.S32)
        line = scope.elementwise("multiply", line, scope.splat(shape[d], line.type))
        line = scope.elementwise("add", line, v)
    return scope.elementwise("select", good, line, scope.splat(-1, line.type))


def _combined(kind: str, old: Value, new: Value, scope: Scope) -> Value:
    return new if kind == "set" else scope.elementwise(kind, old, new)


def _window(op: ops.Scatter, kind: str, scope: Scope) -> Value:
    """The one update, at the index's place; where any of it would be outside, nothing changes."""
    operand, (update,) = op.args[0], op.updates
    shape, window = operand.type.dims, _window_dims(op)
    sizes = [1] * len(shape)
    for d, u in zip(window, op.update_window_dims, strict=True):
        sizes[d] = update.type.dims[u]
    # What is left of the updates' dimensions has one element.
    spread = [d for d in range(update.type.rank) if d not in op.update_window_dims]
    update = scope.transpose(update, [*spread, *op.update_window_dims])
    update = scope.reshape(update, sizes)
    components = _components(op, (), scope)
    dtype = components[0].type.dtype if components else DType.S32
    starts = [scope.constant(0, dtype) for _ in shape]
    good = scope.constant(True, DType.PRED)
    for d, v in zip(op.scatter_dims_to_operand_dims, components, strict=True):
        good = scope.elementwise("and", good, inside(v, shape[d] - sizes[d], scope))
        starts[d] = v
    t = TensorType(tuple(sizes), operand.type.dtype)
    old = scope.emit1(ops.DynamicSlice, t, operand=operand, start_indices=tuple(starts),
                      slice_sizes=tuple(sizes))
    new = _combined(kind, old, update, scope)
    # The scalar predicate of a select, as in StableHLO.
    new = scope.elementwise("select", good, new, old)
    return scope.emit1(ops.DynamicUpdateSlice, operand.type, operand=operand, update=new,
                       start_indices=tuple(starts))


def _hits(n: _Lines, index: Value, shape: Sequence[int], scope: Scope) -> Value:
    """pred of ``shape``, which begins with b, v, t: whether an update is for a line."""
    lines = scope.iota((n.b, n.v, n.t), DType.S32, 1)
    hit = scope.compare("EQ", scope.broadcast_in_dim(index, (n.b, n.v, n.t), (0, 2)), lines)
    return scope.broadcast_in_dim(hit, shape, (0, 1, 2))


def _one(n: _Lines, kind: str, operand: Value, index: Value, update: Value,
         scope: Scope) -> Value:
    shape = (n.b, n.v, n.w)
    hit = _hits(n, index, (*shape[:2], 1, n.w), scope)
    new = scope.broadcast_in_dim(scope.reshape(update, (n.b, n.w)), shape, (0, 2))
    return scope.elementwise("select", scope.reshape(hit, shape),
                             _combined(kind, operand, new, scope), operand)


def _dense(n: _Lines, kind: str, operand: Value, index: Value, update: Value,
           scope: Scope) -> Value:
    shape, dtype = (n.b, n.v, n.t, n.w), operand.type.dtype
    wide = DType.F32 if kind in ("add", "multiply") and dtype in _NARROW else dtype
    none = 0 if kind == "add" else 1 if kind == "multiply" \
        else lowest(dtype) if kind == "maximum" else highest(dtype)
    x = scope.broadcast_in_dim(scope.convert(update, wide), shape, (0, 2, 3))
    x = scope.elementwise("select", _hits(n, index, shape, scope), x, scope.splat(none, x.type))
    found = scope.reduce(x, scope.constant(none, wide), kind, (2,))
    old = scope.convert(operand, wide)
    out = scope.elementwise(kind, old, found)
    if kind == "add" and dtype.is_float and scope.element(operand) is None:
        # Lines without updates keep a zero's sign.
        nothing = scope.compare("EQ", found, scope.splat(0, found.type))
        out = scope.elementwise("select", nothing, old, out)
    return scope.convert(out, dtype)


def _written(n: _Lines, operand: Value, index: Value, update: Value, scope: Scope) -> Value:
    """Each line looks up the last of its updates."""
    if n.b * n.v * n.t <= COMPARED:
        at = scope.iota((n.b, n.v, n.t), DType.S32, 2)
        hit = _hits(n, index, (n.b, n.v, n.t), scope)
        at = scope.elementwise("select", hit, at, scope.splat(-1, at.type))
        last = scope.reduce(at, scope.constant(-1, DType.S32), "maximum", (2,))
    else:
        places = dataclasses.replace(n, w=1)
        none = scope.splat(-1, TensorType((n.b, n.v, 1), DType.S32))
        at = scope.iota((n.b, n.t, 1), DType.S32, 1)
        last = scope.reshape(_in_memory(places, "maximum", none, index, at, scope), (n.b, n.v))
    none = scope.compare("LT", last, scope.splat(0, last.type))
    none = scope.broadcast_in_dim(none, operand.type.dims, (0, 1))
    source = scope.elementwise("maximum", last, scope.splat(0, last.type))
    return scope.elementwise("select", none, operand, rows_of(update, source, scope))


def _sorted(n: _Lines, operand: Value, index: Value, update: Value, scope: Scope) -> Value:
    """Each line looks up the sum of its updates."""
    has, sums = sums_by_line(index, update, n.v, scope)
    has = scope.broadcast_in_dim(has, operand.type.dims, (0, 1))
    out = scope.elementwise("add", scope.convert(operand, DType.F32), sums)
    return scope.elementwise("select", has, scope.convert(out, operand.type.dtype), operand)


def _in_memory(n: _Lines, kind: str, operand: Value, index: Value, update: Value,
               scope: Scope) -> Value:
    """Memory adds the updates to their lines, each thread some elements of one."""
    dtype = operand.type.dtype
    if dtype.is_float and kind != "add":
        out = _in_memory(n, kind, _key(kind, operand, scope), index, _key(kind, update, scope),
                         scope)
        return float_of(scope, out, dtype)
    if dtype in _NARROW:
        wide = [scope.convert(x, DType.F32) for x in (operand, update)]
        return scope.convert(_in_memory(n, kind, wide[0], index, wide[1], scope), dtype)
    width = () if n.w == 1 else (n.w,)  # lines of one element are no dimension
    first = scope.elementwise("multiply", scope.iota((n.b, n.t), DType.S32, 0),
                              scope.splat(n.v, index.type))
    none = scope.compare("LT", index, scope.splat(0, index.type))
    line = scope.elementwise("select", none, index, scope.elementwise("add", first, index))
    operand = scope.reshape(operand, (n.b * n.v, *width))
    out = scope.emit1(
        ops.Accumulate, operand.type, kind=kind,
        operand=scope.emit1(ops.Stored, operand.type, operand=operand, own=True),
        lines=scope.reshape(line, (n.b * n.t,)),
        update=scope.reshape(update, (n.b * n.t, *width)))
    return scope.reshape(out, (n.b, n.v, n.w))


def _key(kind: str, x: Value, scope: Scope) -> Value:
    """Integers in the order of floats: a NaN, of either sign, is what is looked for."""
    key = ordered(scope, x)
    nan = scope.compare("NE", x, x)
    return scope.elementwise("select", nan, scope.splat(
        (1 << 32) - 1 if kind == "maximum" else 0, key.type), key)


RULES: dict[type[Op], Sequence[Rule]] = {ops.Scatter: (scatter,)}

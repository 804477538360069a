"""Building and cutting Graphs: `Builder`, `replace_values`, `subgraph`, `fresh`.

Graphs are immutable, so every rewrite builds a new one. The helpers here know ops only through
their declared fields; the typed shortcuts of `Builder` infer result types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxmono.hlo import literal, ops
from jaxmono.hlo.ir import UNKNOWN_LOC, Graph, Loc, Op, Value
from jaxmono.hlo.types import Dim, DType, TensorType


def is_splat(array: np.ndarray[Any, Any]) -> bool:
    """Whether every element of ``array`` has the same bits (empty arrays count as splats)."""
    return array.size == 0 or literal.is_splat(array)


def splat_value(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The single element of a splat as a 0-d array (zero for an empty one)."""
    if array.size == 0:
        return np.zeros((), array.dtype)
    return np.asarray(array[(0,) * array.ndim])


def as_splat(element: Any, type: TensorType) -> np.ndarray[Any, Any]:
    """An array of ``type`` that repeats one element and costs no memory."""
    return np.broadcast_to(np.asarray(element, type.dtype.numpy).reshape(()), type.dims)


class Builder:
    """Appends ops to ``ops`` and returns their result Values.

    Attributes:
      ops: the ops so far, in order.
      loc: the source line that new ops get; a rewrite sets it from the op that it replaces.
    """

    def __init__(self, loc: Loc = UNKNOWN_LOC) -> None:
        self.ops: list[Op] = []
        self.loc = loc

    def append(self, op: Op) -> tuple[Value, ...]:
        """Takes an op that exists already (a clone, say)."""
        self.ops.append(op)
        return op.results

    def emit(self, cls: type[Op], types: TensorType | Sequence[TensorType],
             **fields: Any) -> tuple[Value, ...]:
        """Makes an op of class ``cls`` with one fresh result per type."""
        types = (types,) if isinstance(types, TensorType) else types
        fields.setdefault("loc", self.loc)
        return self.append(cls(results=tuple(Value(t) for t in types), **fields))

    def emit1(self, cls: type[Op], type: TensorType, **fields: Any) -> Value:
        """`emit` for an op with one result."""
        return self.emit(cls, type, **fields)[0]

    # Sources

    def constant(self, value: Any, dtype: DType | None = None) -> Value:
        """A literal from an array (of ``dtype``, or of its own); splats are stored as such."""
        array = np.asarray(value) if dtype is None else np.asarray(value, dtype.numpy)
        type = TensorType(array.shape, DType.of(array.dtype))
        if array.ndim and is_splat(array):
            array = as_splat(splat_value(array), type)
        return self.emit1(ops.Constant, type, value=array)

    def splat(self, element: Any, type: TensorType) -> Value:
        """A literal of ``type`` that repeats one element."""
        return self.emit1(ops.Constant, type, value=as_splat(element, type))

    def iota(self, shape: Sequence[int], dtype: DType, dimension: int) -> Value:
        return self.emit1(ops.Iota, TensorType(tuple(shape), dtype), dimension=dimension)

    # Elementwise

    def elementwise(self, kind: str, *args: Value, type: TensorType | None = None) -> Value:
        """An op of ``UNARY``, ``BINARY``, ``TERNARY`` or ``QUATERNARY``.

        The result has the type of the last argument that is not a scalar beside larger ones,
        which is right for all kinds whose element type stays; pass ``type`` for the others
        (``is_finite``, ``real``, ``complex``...).
        """
        if type is None:
            candidates = args[1:] if kind == "select" else args[1:2] if kind == "clamp" else args
            type = candidates[0].type
        return self.emit1(ops.Elementwise, type, args=args, kind=kind)

    def compare(self, direction: str, lhs: Value, rhs: Value,
                compare_type: str | None = None) -> Value:
        """``compare_type`` defaults to what the operands' element type asks."""
        dtype = lhs.type.dtype
        if compare_type is None:
            compare_type = ("FLOAT" if dtype.is_float or dtype.is_complex
                            else "SIGNED" if dtype.is_signed else "UNSIGNED")
        return self.emit1(ops.Compare, TensorType(lhs.type.shape, DType.PRED), lhs=lhs, rhs=rhs,
                          direction=direction, compare_type=compare_type)

    def convert(self, v: Value, dtype: DType) -> Value:
        """``v`` itself where it has ``dtype`` already."""
        if v.type.dtype is dtype:
            return v
        return self.emit1(ops.Convert, TensorType(v.type.shape, dtype), operand=v)

    # Movement

    def reshape(self, v: Value, shape: Sequence[Dim]) -> Value:
        """``v`` itself where it has ``shape`` already."""
        if v.type.shape == tuple(shape):
            return v
        return self.emit1(ops.Reshape, TensorType(tuple(shape), v.type.dtype), operand=v)

    def transpose(self, v: Value, permutation: Sequence[int]) -> Value:
        """``v`` itself for the identity permutation."""
        permutation = tuple(permutation)
        if permutation == tuple(range(v.type.rank)):
            return v
        type = TensorType(tuple(v.type.shape[i] for i in permutation), v.type.dtype)
        return self.emit1(ops.Transpose, type, operand=v, permutation=permutation)

    def broadcast_in_dim(self, v: Value, shape: Sequence[Dim],
                         dimensions: Sequence[int]) -> Value:
        return self.emit1(ops.BroadcastInDim, TensorType(tuple(shape), v.type.dtype),
                          operand=v, dimensions=tuple(dimensions))

    def slice(self, v: Value, start: Sequence[int], limit: Sequence[int],
              strides: Sequence[int] | None = None) -> Value:
        strides = tuple(strides) if strides is not None else (1,) * len(start)
        shape = tuple(max(0, -(-(b - a) // s))
                      for a, b, s in zip(start, limit, strides, strict=True))
        return self.emit1(ops.Slice, TensorType(shape, v.type.dtype), operand=v,
                          start_indices=tuple(start), limit_indices=tuple(limit),
                          strides=strides)

    def pad(self, v: Value, value: Value, low: Sequence[int], high: Sequence[int],
            interior: Sequence[int] = ()) -> Value:
        """``v`` itself where nothing is padded. interior: by default nothing."""
        interior = interior or (0,) * v.type.rank
        if not any((*low, *high, *interior)):
            return v
        shape = tuple(a + n + max(n - 1, 0) * i + b for n, a, b, i in
                      zip(v.type.dims, low, high, interior, strict=True))
        return self.emit1(ops.Pad, TensorType(shape, v.type.dtype), operand=v,
                          padding_value=value, low=tuple(low), high=tuple(high),
                          interior=tuple(interior))

    def window(self, v: Value, dimensions: Sequence[int], sizes: Sequence[int],
               strides: Sequence[int], dilations: Sequence[int]) -> Value:
        """``v`` itself where no dimension is windowed."""
        if not dimensions:
            return v
        shape = list(v.type.dims)
        for d, n, s, m in zip(dimensions, sizes, strides, dilations, strict=True):
            shape[d] = max(0, (shape[d] - (n - 1) * m - 1) // s + 1)
        return self.emit1(ops.Window, TensorType((*shape, *sizes), v.type.dtype), operand=v,
                          dimensions=tuple(dimensions), sizes=tuple(sizes),
                          strides=tuple(strides), dilations=tuple(dilations))

    def concatenate(self, args: Sequence[Value], dimension: int) -> Value:
        shape = list(args[0].type.shape)
        shape[dimension] = sum(a.type.dims[dimension] for a in args)
        return self.emit1(ops.Concatenate, TensorType(tuple(shape), args[0].type.dtype),
                          args=tuple(args), dimension=dimension)

    # Reductions and contractions

    def reduce(self, v: Value, init: Value, kind: str, dimensions: Sequence[int]) -> Value:
        """A one-operand reduction whose body is the single binary op ``kind``."""
        shape = tuple(d for i, d in enumerate(v.type.shape) if i not in dimensions)
        return self.emit1(ops.Reduce, TensorType(shape, v.type.dtype), args=(v,), inits=(init,),
                          body=binary_body(kind, v.type.dtype), dimensions=tuple(dimensions))

    def dot_general(self, lhs: Value, rhs: Value, *, batch: tuple[Sequence[int], Sequence[int]],
                    contract: tuple[Sequence[int], Sequence[int]], dtype: DType,
                    precision: tuple[str, str] = ("DEFAULT", "DEFAULT"),
                    algorithm: str = "") -> Value:
        """``batch`` and ``contract`` are (lhs dimensions, rhs dimensions)."""
        shape = [lhs.type.shape[i] for i in batch[0]]
        for v, b, c in ((lhs, batch[0], contract[0]), (rhs, batch[1], contract[1])):
            shape += [d for i, d in enumerate(v.type.shape) if i not in b and i not in c]
        return self.emit1(
            ops.DotGeneral, TensorType(tuple(shape), dtype), lhs=lhs, rhs=rhs,
            lhs_batch=tuple(batch[0]), rhs_batch=tuple(batch[1]),
            lhs_contract=tuple(contract[0]), rhs_contract=tuple(contract[1]),
            precision=precision, algorithm=algorithm)


def binary_body(kind: str, dtype: DType) -> Graph:
    """The reducer region ``(a, b) -> kind(a, b)`` on scalars."""
    scalar = TensorType((), dtype)
    a, b = Value(scalar, "a"), Value(scalar, "b")
    builder = Builder()
    out = builder.elementwise(kind, a, b)
    return Graph((a, b), tuple(builder.ops), (out,), kind)


def binary_kind(body: Graph) -> str | None:
    """The kind of a region that is one op on its two inputs, in any order; None for others."""
    op = body.ops[0] if len(body.inputs) == 2 and len(body.ops) == 1 else None
    if not isinstance(op, ops.Elementwise) or set(op.args) != set(body.inputs) \
            or body.outputs != op.results:
        return None
    return op.kind


def replace_values(graph: Graph, mapping: Mapping[Value, Value]) -> Graph:
    """``graph`` with every use of a key of ``mapping`` (outputs and captures too) replaced.

    The caller sees to it that a replacement is defined before its first use; the ops that
    defined the old values stay until dead code elimination.
    """
    resolved = {v: _resolve(v, mapping) for v in mapping}
    return Graph(graph.inputs, tuple(o.clone(resolved) for o in graph.ops),
                 tuple(resolved.get(v, v) for v in graph.outputs), graph.name)


def _resolve(v: Value, mapping: Mapping[Value, Value]) -> Value:
    seen: set[Value] = set()
    while v in mapping and v not in seen:
        seen.add(v)
        v = mapping[v]
    return v


def fresh(graph: Graph) -> Graph:
    """A copy whose inputs and op results are new Values (region insides stay shared)."""
    mapping: dict[Value, Value] = {v: Value(v.type, v.hint) for v in graph.inputs}
    body = copy_ops(graph.ops, mapping)
    return Graph(tuple(mapping[v] for v in graph.inputs), body,
                 tuple(mapping.get(v, v) for v in graph.outputs), graph.name)


def copy_ops(ops_in_order: Iterable[Op], mapping: dict[Value, Value]) -> tuple[Op, ...]:
    """Clones ops onto mapped operands with fresh results, and enters those into ``mapping``."""
    out: list[Op] = []
    for o in ops_in_order:
        c = o.clone(mapping, fresh_results=True)
        mapping.update(zip(o.results, c.results, strict=True))
        out.append(c)
    return tuple(out)


def subgraph(graph: Graph, ops: Iterable[Op], outputs: Sequence[Value] | None = None,
             name: str = "sub") -> tuple[Graph, tuple[Value, ...]]:
    """Cuts ``ops`` out of ``graph`` into a self-contained Graph of fresh Values.

    Args:
      graph: the graph that holds the ops; it gives their order, and is not changed.
      ops: the ops to take, in any order. A constant that is not among them becomes an input.
      outputs: values of ``graph`` to return, each defined by (or an input of) the ops taken;
        by default every result that something else in ``graph`` uses, in order.
      name: the name of the new graph.

    Returns:
      The new graph and the values of ``graph`` that its inputs stand for, in order of first
      use; captures of regions are inputs as well.

    Raises:
      ValueError: if one of ``outputs`` is neither computed nor used by ``ops``.
    """
    chosen = set(ops)
    ordered = [o for o in graph.ops if o in chosen]
    inside = {v for o in ordered for v in o.results}
    captured: dict[Value, None] = {}
    for o in ordered:
        captured.update(dict.fromkeys(v for v in o.uses if v not in inside))
    if outputs is None:
        escaping = set(graph.outputs)
        for o in graph.ops:
            if o not in chosen:
                escaping.update(o.uses)
        outputs = [v for o in ordered for v in o.results if v in escaping]
    for v in outputs:
        if v not in inside and v not in captured:
            raise ValueError(f"subgraph: output {v!r} is neither computed nor used by the "
                             "given ops; add the op that defines it")
    mapping = {v: Value(v.type, v.hint) for v in captured}
    inputs = tuple(mapping.values())
    body = copy_ops(ordered, mapping)
    return (Graph(inputs, body, tuple(mapping[v] for v in outputs), name), tuple(captured))

"""Result types of the ops that move elements without computing."""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.infer.rule import dims_in_range, per_dim, require, same, scalar
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType, TensorType


def infer_broadcast_in_dim(op: ops.BroadcastInDim) -> tuple[TensorType, ...]:
    source, result = op.operand.type, op.result.type
    per_dim("dimensions", op.dimensions, source.rank)
    dims_in_range("dimensions", op.dimensions, result.rank)
    for i, d in enumerate(op.dimensions):
        require(source.shape[i] in (1, result.shape[d]),
                f"operand dimension {i} of size {source.shape[i]} cannot become "
                f"result dimension {d} of size {result.shape[d]}")
    return (TensorType(result.shape, source.dtype),)


def infer_reshape(op: ops.Reshape) -> tuple[TensorType, ...]:
    source, result = op.operand.type, op.result.type
    require(source.size == result.size,
            f"{source} has {source.size} elements, {result} has {result.size}")
    return (TensorType(result.shape, source.dtype),)


def infer_transpose(op: ops.Transpose) -> tuple[TensorType, ...]:
    t = op.operand.type
    per_dim("permutation", op.permutation, t.rank)
    dims_in_range("permutation", op.permutation, t.rank)
    return (TensorType(tuple(t.shape[i] for i in op.permutation), t.dtype),)


def infer_slice(op: ops.Slice) -> tuple[TensorType, ...]:
    t = op.operand.type
    for name in ("start_indices", "limit_indices", "strides"):
        per_dim(name, getattr(op, name), t.rank)
    shape: list[int] = []
    for i, (a, b, s) in enumerate(zip(op.start_indices, op.limit_indices, op.strides,
                                      strict=True)):
        require(0 <= a <= b <= t.dims[i],
                f"[{a}:{b}] leaves dimension {i} of size {t.dims[i]}")
        require(s >= 1, f"the stride of dimension {i} is {s}, has to be >= 1")
        shape.append(-(-(b - a) // s))
    return (TensorType(tuple(shape), t.dtype),)


def _starts(starts: tuple[Value, ...], rank: int) -> None:
    per_dim("start_indices", starts, rank)
    for v in starts:
        scalar("a start index", v, starts[0].type.dtype)
        require(v.type.dtype.is_integer, f"a start index is {v.type}, has to be an integer")


def infer_dynamic_slice(op: ops.DynamicSlice) -> tuple[TensorType, ...]:
    t = op.operand.type
    _starts(op.start_indices, t.rank)
    per_dim("slice_sizes", op.slice_sizes, t.rank)
    for i, n in enumerate(op.slice_sizes):
        require(0 <= n <= t.dims[i],
                f"slice size {n} does not fit dimension {i} of size {t.dims[i]}")
    return (TensorType(op.slice_sizes, t.dtype),)


def infer_dynamic_update_slice(op: ops.DynamicUpdateSlice) -> tuple[TensorType, ...]:
    t, u = op.operand.type, op.update.type
    _starts(op.start_indices, t.rank)
    same("the element type of update", u.dtype, t.dtype)
    per_dim("update", u.shape, t.rank)
    for i, n in enumerate(u.dims):
        require(n <= t.dims[i], f"update of size {n} does not fit dimension {i} of {t}")
    return (t,)


def infer_accumulate(op: ops.Accumulate) -> tuple[TensorType, ...]:
    t, u, lines = op.operand.type, op.update.type, op.lines.type
    require(t.rank >= 1, f"the operand {t} has no lines")
    same("the type of lines", lines, TensorType(u.shape[:1], DType.S32))
    same("the element type of update", u.dtype, t.dtype)
    same("the dimensions of a line of update", u.shape[1:], t.shape[1:])
    require(op.kind in ops.ACCUMULATED, f"{op.kind} is none of {', '.join(ops.ACCUMULATED)}")
    return (t,)


def infer_pad(op: ops.Pad) -> tuple[TensorType, ...]:
    t = op.operand.type
    scalar("padding_value", op.padding_value, t.dtype)
    for name in ("low", "high", "interior"):
        per_dim(name, getattr(op, name), t.rank)
    shape: list[int] = []
    for i, n in enumerate(t.dims):
        require(op.interior[i] >= 0, f"interior padding {op.interior[i]} is negative")
        size = op.low[i] + n + max(n - 1, 0) * op.interior[i] + op.high[i]
        require(size >= 0, f"dimension {i} is padded to the negative size {size}")
        shape.append(size)
    return (TensorType(tuple(shape), t.dtype),)


def infer_concatenate(op: ops.Concatenate) -> tuple[TensorType, ...]:
    require(bool(op.args), "has no operands")
    first, d = op.args[0].type, op.dimension
    dims_in_range("dimension", (d,), first.rank)
    for a in op.args:
        same("the element type of an operand", a.type.dtype, first.dtype)
        same("an operand's other dimensions", a.type.shape[:d] + a.type.shape[d + 1:],
             first.shape[:d] + first.shape[d + 1:])
    total = sum(a.type.dims[d] for a in op.args)
    return (TensorType((*first.shape[:d], total, *first.shape[d + 1:]), first.dtype),)


def infer_stacked(op: ops.Stacked) -> tuple[TensorType, ...]:
    result = op.result.type
    require(sum(a.type.size for a in op.args) == result.size,
            f"operands of {sum(a.type.size for a in op.args)} elements make no {result}")
    for a in op.args:
        same("the element type of an operand", a.type.dtype, result.dtype)
        same("an operand's size", a.type.size, op.args[0].type.size)
    return (result,)


def infer_piece(op: ops.Piece) -> tuple[TensorType, ...]:
    source, result = op.operand.type, op.result.type
    require(source.size % result.size == 0 and 0 <= op.index < source.size // result.size,
            f"{source} has no {result} number {op.index}")
    return (TensorType(result.shape, source.dtype),)


def infer_reverse(op: ops.Reverse) -> tuple[TensorType, ...]:
    dims_in_range("dimensions", op.dimensions, op.operand.type.rank)
    return (op.operand.type,)


def infer_gather(op: ops.Gather) -> tuple[TensorType, ...]:
    t, indices = op.operand.type, op.start_indices.type
    require(indices.dtype.is_integer, f"start_indices are {indices}, have to be integers")
    per_dim("slice_sizes", op.slice_sizes, t.rank)
    batch = index_batch(indices, op.index_vector_dim, len(op.start_index_map))
    gone = (*op.collapsed_slice_dims, *op.operand_batching_dims)
    dims_in_range("collapsed_slice_dims and operand_batching_dims", gone, t.rank)
    dims_in_range("start_index_map and operand_batching_dims",
                  (*op.start_index_map, *op.operand_batching_dims), t.rank)
    batching_dims(t, op.operand_batching_dims, indices, op.start_indices_batching_dims,
                  op.index_vector_dim)
    for i, n in enumerate(op.slice_sizes):
        require(0 <= n <= t.dims[i] and (n <= 1 or i not in gone),
                f"slice size {n} does not fit dimension {i} of {t}")
    window = [n for i, n in enumerate(op.slice_sizes) if i not in gone]
    require(len(window) == len(op.offset_dims),
            f"{len(op.offset_dims)} offset_dims for {len(window)} window dimensions")
    dims_in_range("offset_dims", op.offset_dims, len(window) + len(batch))
    sizes, rest = dict(zip(op.offset_dims, window, strict=True)), iter(batch)
    shape = tuple(sizes[i] if i in sizes else next(rest)
                  for i in range(len(window) + len(batch)))
    return (TensorType(shape, t.dtype),)


def index_batch(indices: TensorType, vector_dim: int, length: int) -> tuple[int, ...]:
    """The dimensions of gather or scatter indices without the index vector's."""
    require(0 <= vector_dim <= indices.rank,
            f"index_vector_dim {vector_dim} leaves the range 0..{indices.rank}")
    found = indices.dims[vector_dim] if vector_dim < indices.rank else 1
    require(found == length, f"index vectors have {found} entries for {length} dimensions")
    return tuple(n for i, n in enumerate(indices.dims) if i != vector_dim)


def batching_dims(t: TensorType, dims: tuple[int, ...], indices: TensorType,
                  index_dims: tuple[int, ...], vector_dim: int) -> None:
    """Batching dimensions of a gather or scatter pair up with dimensions of its indices."""
    require(len(dims) == len(index_dims), "unequal numbers of batching dimensions")
    dims_in_range("batching dimensions of the indices", index_dims, indices.rank)
    require(vector_dim not in index_dims, "index_vector_dim is a batching dimension")
    for d, i in zip(dims, index_dims, strict=True):
        require(t.dims[d] == indices.dims[i],
                f"batching dimension {d} of {t} does not match dimension {i} of {indices}")

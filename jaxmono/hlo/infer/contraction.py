"""Result types of contractions, reductions, windows, scatter and sort."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.infer.movement import batching_dims, index_batch
from jaxmono.hlo.infer.rule import (
    dims_in_range,
    element,
    per_dim,
    require,
    same,
    scalar,
    signature,
)
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType, TensorType

_PRECISIONS = ("DEFAULT", "HIGH", "HIGHEST")
_PRED = TensorType((), DType.PRED)


def _precision(precision: tuple[str, str]) -> None:
    require(len(precision) == 2 and all(p in _PRECISIONS for p in precision),
            f"precision {precision} has to be two of {_PRECISIONS}")


def infer_dot_general(op: ops.DotGeneral) -> tuple[TensorType, ...]:
    lhs, rhs = op.lhs.type, op.rhs.type
    _precision(op.precision)
    dims_in_range("lhs_batch and lhs_contract", op.lhs_batch + op.lhs_contract, lhs.rank)
    dims_in_range("rhs_batch and rhs_contract", op.rhs_batch + op.rhs_contract, rhs.rank)
    for what, a, b in (("batch", op.lhs_batch, op.rhs_batch),
                       ("contract", op.lhs_contract, op.rhs_contract)):
        same(f"the {what} sizes of rhs", [rhs.shape[i] for i in b], [lhs.shape[i] for i in a])
    shape = [lhs.shape[i] for i in op.lhs_batch]
    for t, used in ((lhs, op.lhs_batch + op.lhs_contract), (rhs, op.rhs_batch + op.rhs_contract)):
        shape += [n for i, n in enumerate(t.shape) if i not in used]
    return (TensorType(tuple(shape), op.result.type.dtype),)


def window_size(n: int, window: int, stride: int, padding: tuple[int, int],
                base_dilation: int, window_dilation: int) -> int:
    """How many places a window takes along a dimension of size ``n``."""
    require(window >= 1 and stride >= 1 and base_dilation >= 1 and window_dilation >= 1,
            "window sizes, strides and dilations have to be >= 1")
    base = max((n - 1) * base_dilation + 1, 0) + sum(padding) if n else sum(padding)
    extent = (window - 1) * window_dilation + 1
    return 0 if extent > base else (base - extent) // stride + 1


def infer_convolution(op: ops.Convolution) -> tuple[TensorType, ...]:
    lhs, rhs = op.lhs.type, op.rhs.type
    _precision(op.precision)
    rank = lhs.rank
    same("the rank of rhs", rhs.rank, rank)
    for what, dims in (
            ("input", (op.input_batch, op.input_feature, *op.input_spatial)),
            ("kernel", (op.kernel_input_feature, op.kernel_output_feature, *op.kernel_spatial)),
            ("output", (op.output_batch, op.output_feature, *op.output_spatial))):
        per_dim(f"the {what} dimension numbers", dims, rank)
        dims_in_range(f"the {what} dimension numbers", dims, rank)
    for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal"):
        per_dim(name, getattr(op, name), rank - 2)
    groups, batches = op.feature_group_count, op.batch_group_count
    require(groups >= 1 and batches >= 1 and (groups == 1 or batches == 1),
            "feature_group_count and batch_group_count are >= 1 and one of them is 1")
    features, channels = lhs.dims[op.input_feature], rhs.dims[op.kernel_output_feature]
    same("the input features", features, rhs.dims[op.kernel_input_feature] * groups)
    require(channels % (groups * batches) == 0, f"{channels} output features in "
            f"{groups * batches} groups")
    batch = lhs.dims[op.input_batch]
    require(batch % batches == 0, f"a batch of {batch} in {batches} groups")
    shape = [0] * rank
    shape[op.output_batch] = batch // batches
    shape[op.output_feature] = channels
    for i in range(rank - 2):
        shape[op.output_spatial[i]] = window_size(
            lhs.dims[op.input_spatial[i]], max(rhs.dims[op.kernel_spatial[i]], 1),
            op.window_strides[i], op.padding[i], op.lhs_dilation[i], op.rhs_dilation[i])
    return (TensorType(tuple(shape), op.result.type.dtype),)


def _reducer(op: ops.Reduce | ops.ReduceWindow) -> None:
    require(bool(op.args), "has no operands")
    same("the number of inits", len(op.inits), len(op.args))
    for a, init in zip(op.args, op.inits, strict=True):
        scalar("an init", init, a.type.dtype)
        same("the shape of an operand", a.type.shape, op.args[0].type.shape)
    kinds = [element(a) for a in op.args]
    signature("body", op.body, kinds + kinds, kinds)


def infer_ragged_dot(op: ops.RaggedDot) -> tuple[TensorType, ...]:
    if not op.of_rows:
        return (op.result.type,)
    (m, k), (groups, *matrix) = op.lhs.type.dims, op.rhs.type.dims
    n = matrix.pop(2 - op.rhs_contract[0])
    same("the contracted dimension", matrix, [k])
    same("the number of groups", op.group_sizes.type.dims, (groups,))
    return (TensorType((m, n), op.result.type.dtype),)


def infer_reduce(op: ops.Reduce) -> tuple[TensorType, ...]:
    _reducer(op)
    dims_in_range("dimensions", op.dimensions, op.args[0].type.rank)
    return tuple(TensorType(tuple(n for i, n in enumerate(a.type.shape)
                                  if i not in op.dimensions), a.type.dtype) for a in op.args)


def infer_reduce_window(op: ops.ReduceWindow) -> tuple[TensorType, ...]:
    _reducer(op)
    t = op.args[0].type
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations",
                 "padding"):
        per_dim(name, getattr(op, name), t.rank)
    shape = tuple(map(window_size, t.dims, op.window_dimensions, op.window_strides, op.padding,
                      op.base_dilations, op.window_dilations))
    return tuple(TensorType(shape, a.type.dtype) for a in op.args)


def infer_scan(op: ops.Scan) -> tuple[TensorType, ...]:
    require(bool(op.args), "has no operands")
    dims, d = op.args[0].type.dims, op.dimension
    dims_in_range("dimension", (d,), len(dims))
    for a in op.args:
        same("the shape of an operand", a.type.dims, dims)
    rest = dims[:d] + dims[d + 1:]
    carries = [v.type for v in op.inits]
    made = [v.type for v in op.body.outputs]
    outputs = made[:len(made) - len(carries)]
    signature("body", op.body, [*(TensorType(rest, a.type.dtype) for a in op.args), *carries],
              [*(TensorType(rest, t.dtype) for t in outputs), *carries])
    return (*(TensorType(dims, t.dtype) for t in outputs), *carries)


def infer_window(op: ops.Window) -> tuple[TensorType, ...]:
    t = op.operand.type
    dims_in_range("dimensions", op.dimensions, t.rank)
    for name in ("sizes", "strides", "dilations"):
        per_dim(name, getattr(op, name), len(op.dimensions))
    shape = list(t.dims)
    for d, size, stride, dilation in zip(op.dimensions, op.sizes, op.strides, op.dilations,
                                         strict=True):
        shape[d] = window_size(t.dims[d], size, stride, (0, 0), 1, dilation)
    return (TensorType((*shape, *op.sizes), t.dtype),)


def infer_select_and_scatter(op: ops.SelectAndScatter) -> tuple[TensorType, ...]:
    t = op.operand.type
    for name in ("window_dimensions", "window_strides", "padding"):
        per_dim(name, getattr(op, name), t.rank)
    ones = (1,) * t.rank
    shape = tuple(map(window_size, t.dims, op.window_dimensions, op.window_strides, op.padding,
                      ones, ones))
    same("the type of source", op.source.type, TensorType(shape, t.dtype))
    scalar("init", op.init, t.dtype)
    e = element(op.operand)
    signature("select", op.select, (e, e), (_PRED,))
    signature("scatter", op.scatter, (e, e), (e,))
    return (t,)


def infer_scatter(op: ops.Scatter) -> tuple[TensorType, ...]:
    require(bool(op.args), "has no operands")
    same("the number of updates", len(op.updates), len(op.args))
    t, indices = op.args[0].type, op.scatter_indices.type
    require(indices.dtype.is_integer, f"scatter_indices are {indices}, have to be integers")
    batch = index_batch(indices, op.index_vector_dim, len(op.scatter_dims_to_operand_dims))
    gone = (*op.inserted_window_dims, *op.input_batching_dims)
    dims_in_range("inserted_window_dims and input_batching_dims", gone, t.rank)
    dims_in_range("scatter_dims_to_operand_dims and input_batching_dims",
                  (*op.scatter_dims_to_operand_dims, *op.input_batching_dims), t.rank)
    batching_dims(t, op.input_batching_dims, indices, op.scatter_indices_batching_dims,
                  op.index_vector_dim)
    for a, u in zip(op.args, op.updates, strict=True):
        same("the shape of an operand", a.type.shape, t.shape)
        same("the element type of updates", u.type.dtype, a.type.dtype)
        _scatter_update(op, u, [n for i, n in enumerate(t.dims) if i not in gone], batch)
    kinds = [element(a) for a in op.args]
    signature("body", op.body, kinds + kinds, kinds)
    return tuple(a.type for a in op.args)


def _scatter_update(op: ops.Scatter, update: Value, window: Sequence[int],
                    batch: tuple[int, ...]) -> None:
    dims = update.type.dims
    require(len(dims) == len(window) + len(batch) and len(op.update_window_dims) == len(window),
            f"updates {update.type} do not have {len(batch)} scatter and {len(window)} "
            "window dimensions")
    dims_in_range("update_window_dims", op.update_window_dims, len(dims))
    for d, n in zip(op.update_window_dims, window, strict=True):
        require(dims[d] <= n, f"update window of size {dims[d]} does not fit into {n}")
    same("the scatter dimensions of updates",
         tuple(n for i, n in enumerate(dims) if i not in op.update_window_dims), batch)


def infer_sort(op: ops.Sort) -> tuple[TensorType, ...]:
    require(bool(op.args), "has no operands")
    for a in op.args:
        same("the shape of an operand", a.type.shape, op.args[0].type.shape)
    if op.args[0].type.rank:
        dims_in_range("dimension", (op.dimension,), op.args[0].type.rank)
    signature("comparator", op.comparator, [element(a) for a in op.args for _ in (0, 1)],
              (_PRED,))
    return tuple(a.type for a in op.args)

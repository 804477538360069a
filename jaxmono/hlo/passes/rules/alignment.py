"""Convolutions and products whose features lie unaligned get padded copies of their operands (Bolt
3.2.3).

    convolution(x[N,H,W,46], k[5,7,46,O])
      =>  convolution(stored(pad(x))[N,H',W',48], stored(pad(k))[5,7,48,O]), nothing padded

    convolution(x[N,224,224,3], k[7,7,3,O], stride 2)             three features: whole rows of taps
      =>  convolution(stored(pad(x)) as [N,230,232*4,1],
                      stored(pad(k)) as [7,8*4,1,O], stride (2, 2*4))

    dot(x[4096,768], w[768,3073])  =>  dot(x, slice(stored(pad(w))[768,3080], [768,3073]))

Wide loads take 16 bytes that lie at a multiple of 16. Where the features of a place are no such
multiple, elements are loaded one by one, each with the test for the image's border; a copy costs a
pass over the input instead, and the border is part of it. Products know smaller copies, and shift
what begins anywhere: that costs less than a pass where few tiles read an operand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.precision import allows_tf32
from jaxmono.hlo.types import DType

WIDE_BYTES = 16
"""Of a wide load."""

MIN_ELEMENTS = 1 << 22
"""Of the window over all places, below which loading one by one is as fast as a stage more: some
15 operations an element, 8 us of a GPU with 132 multiprocessors."""


_TILE = 128
"""Edge of a product's tiles: how often an operand is read."""

_EXTRA_US = {8: 1.0e-7, 4: 2.1e-7, 2: 2.1e-7}
"""What a byte costs each tile that reads it more than aligned ones do, by the bytes that are
aligned in every row: 14 and 28 ns a KB of one of 132 multiprocessors
(codegen/dot_schedule_wgmma.py)."""

_COPY_US, _COPIED = 2.5, 1.0e-6
"""Of a stage more, and of a byte that it reads and writes."""


def aligned_product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    """The same product over padded copies of what many tiles read, where that pays.

    Not in batches: in attention's, probabilities are computed on the way.
    """
    if not _on_tensor_cores(op.lhs.type.dtype, op.rhs.type.dtype, op.precision) or op.lhs_batch \
            or not op.result.type.size or not op.lhs.type.size:
        return None
    k = math.prod(op.lhs.type.dims[d] for d in op.lhs_contract)
    tiles = [math.ceil(x.type.size // k / _TILE) for x in (op.rhs, op.lhs)]
    left, right = (_padded_rows(scope, x, n) for x, n in zip((op.lhs, op.rhs), tiles, strict=True))
    if left is None and right is None:
        return None
    return [scope.append(dataclasses.replace(
        op, lhs=op.lhs if left is None else left, rhs=op.rhs if right is None else right,
        results=(Value(op.result.type, op.result.hint),)))[0]]


def _padded_rows(scope: Scope, x: Value, tiles: int) -> Value | None:
    """``x``, which ``tiles`` tiles read, as a part of a copy whose rows are multiples of 16 bytes;
    None if that does not pay."""
    turned = scope.made_by(x, ops.Transpose)
    source = x if turned is None else turned.operand
    if not _lies_in_rows(scope, source):
        return None
    rank, itemsize = source.type.rank, source.type.dtype.itemsize
    row = source.type.dims[-1] * itemsize if rank > 1 else 0
    extra = _EXTRA_US.get(math.gcd(row, WIDE_BYTES), 0.0)
    if extra * source.type.nbytes * tiles <= _COPY_US + _COPIED * source.type.nbytes:
        return None
    high = [0] * (rank - 1) + [-row % WIDE_BYTES // itemsize]
    stored = _stored(scope, source, [0] * rank, high)
    rows = scope.slice(stored, [0] * rank, source.type.dims)
    return rows if turned is None else scope.transpose(rows, turned.permutation)


def _lies_in_rows(scope: Scope, v: Value) -> bool:
    """Whether the last dimension of ``v`` is that of a buffer: not of a convolution's window, nor
    of a part of another one (a padded copy, say)."""
    op = scope.producers.get(v)
    if isinstance(op, ops.Reshape):
        return op.operand.type.dims[-1:] == v.type.dims[-1:] and _lies_in_rows(scope, op.operand)
    return not isinstance(op, (ops.Window, ops.Slice, ops.DynamicSlice, ops.Gather, ops.Transpose,
                               ops.BroadcastInDim, ops.Pad, ops.Concatenate, ops.Reverse))


def aligned(op: ops.Convolution, scope: Scope) -> Sequence[Value] | None:
    """The same convolution over padded copies, where that pays."""
    if not _is_plain(op):
        return None
    piece = WIDE_BYTES // op.lhs.type.dtype.itemsize
    spatial, features = op.input_spatial, op.lhs.type.dims[op.input_feature]
    taps = [op.rhs.type.dims[d] for d in op.kernel_spatial]
    places = [op.result.type.dims[d] for d in op.output_spatial]
    rows = op.lhs.type.dims[op.input_batch] * math.prod(places)
    step = op.window_strides[-1]
    # A row of taps that begins and ends at pieces everywhere is as good (it is what is made below).
    whole = op.lhs.type.dims[spatial[-1]], taps[-1], step, *op.padding[-1]
    if features % piece == 0 or all(n * features % piece == 0 for n in whole) \
            or rows * math.prod(taps) * features < MIN_ELEMENTS:
        return None
    wide = next(c for c in range(features, features + piece) if c * step % piece == 0)
    across = next(t for t in range(taps[-1], taps[-1] + piece) if t * wide % piece == 0)
    sizes = list(taps)
    sizes[-1] = across

    # Every place's window lies inside the copy, and what no window reaches is left out.
    low, high = [0] * op.lhs.type.rank, [0] * op.lhs.type.rank
    for i, d in enumerate(spatial):
        last = (places[i] - 1) * op.window_strides[i] + sizes[i]
        low[d] = op.padding[i][0]
        high[d] = last - low[d] - op.lhs.type.dims[d]
    high[op.input_feature] = wide - features
    row = (op.lhs.type.dims[spatial[-1]] + low[spatial[-1]] + high[spatial[-1]]) * wide
    if row % piece:  # the next row must begin aligned as well
        high[spatial[-1]] += 1
        row += wide
        if row % piece or op.window_strides[-1] == 1:
            return None
    x = _stored(scope, op.lhs, low, high)
    low, high = [0] * op.rhs.type.rank, [0] * op.rhs.type.rank
    high[op.kernel_spatial[-1]] = across - taps[-1]
    high[op.kernel_input_feature] = wide - features
    kernel = _stored(scope, op.rhs, low, high)
    if wide % piece:
        x = scope.reshape(x, (*x.type.dims[:-2], row, 1))
        kernel = scope.reshape(kernel, (*kernel.type.dims[:-3], across * wide, 1,
                                        kernel.type.dims[-1]))
        step *= wide
    return [scope.emit1(
        ops.Convolution, op.result.type, lhs=x, rhs=kernel,
        window_strides=(*op.window_strides[:-1], step), padding=((0, 0),) * len(taps),
        lhs_dilation=op.lhs_dilation, rhs_dilation=op.rhs_dilation,
        window_reversal=op.window_reversal, input_batch=op.input_batch,
        input_feature=op.input_feature, input_spatial=op.input_spatial,
        kernel_input_feature=op.kernel_input_feature,
        kernel_output_feature=op.kernel_output_feature, kernel_spatial=op.kernel_spatial,
        output_batch=op.output_batch, output_feature=op.output_feature,
        output_spatial=op.output_spatial, feature_group_count=1, batch_group_count=1,
        precision=op.precision)]


def _is_plain(op: ops.Convolution) -> bool:
    """Operands of 16 bits, or f32 that need not be exact; [N, spatial..., C], [taps..., C, O], no
    groups, no dilation."""
    rank = op.lhs.type.rank
    spatial = tuple(range(1, rank - 1))
    return (_on_tensor_cores(op.lhs.type.dtype, op.rhs.type.dtype, op.precision)
            and rank >= 3 and op.result.type.size > 0 and op.rhs.type.size > 0
            and (op.input_batch, op.input_feature, op.input_spatial) == (0, rank - 1, spatial)
            and op.kernel_spatial == tuple(range(rank - 2))
            and (op.kernel_input_feature, op.kernel_output_feature) == (rank - 2, rank - 1)
            and op.rhs.type.dims[-2:] != (1, 1)  # no product (convolution.py)
            and op.feature_group_count == op.batch_group_count == 1
            and set(op.lhs_dilation) == set(op.rhs_dilation) == {1}
            and not any(op.window_reversal))


def _on_tensor_cores(lhs: DType, rhs: DType, precision: tuple[str, str]) -> bool:
    """Whether products are of 16 bits, or of f32 that need not be exact."""
    return lhs == rhs and (lhs in (DType.BF16, DType.F16)
                           or (lhs is DType.F32 and allows_tf32(precision)))


def _stored(scope: Scope, v: Value, low: Sequence[int], high: Sequence[int]) -> Value:
    """A padded copy of ``v`` in memory; negative ``high`` leaves out what nobody reads."""
    padded = scope.pad(v, scope.constant(0, v.type.dtype), low, high, [0] * len(low))
    return scope.emit1(ops.Stored, padded.type, operand=padded)


RULES: Mapping[type[Op], Sequence[Rule]] = {
    ops.Convolution: (aligned,), ops.DotGeneral: (aligned_product,)}

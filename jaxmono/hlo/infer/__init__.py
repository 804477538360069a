"""What types an op's results have to have, as a table from op class to rule.

A rule checks operands, attributes and regions and returns the result types. Where the operands
do not determine a part (the dtype of a convert, the shape of a reshape), it is taken from the
op's own results after checking that it is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxmono.hlo import ops
from jaxmono.hlo.infer import contraction as c
from jaxmono.hlo.infer import elementwise as e
from jaxmono.hlo.infer import movement as m
from jaxmono.hlo.infer import transform as t
from jaxmono.hlo.infer.rule import RuleError, require, same, signature
from jaxmono.hlo.ir import Op
from jaxmono.hlo.types import DType, TensorType

__all__ = ["RULES", "RuleError", "infer"]


def _while(op: ops.While) -> tuple[TensorType, ...]:
    types = tuple(a.type for a in op.args)
    signature("cond", op.cond, types, (TensorType((), DType.PRED),))
    signature("body", op.body, types, types)
    return types


def _case(op: ops.Case) -> tuple[TensorType, ...]:
    e.infer_case_index(op)
    require(bool(op.branches), "has no branches")
    types = tuple(v.type for v in op.results)
    for g in op.branches:
        signature("a branch", g, (), types)
    return types


def _own(op: Op) -> tuple[TensorType, ...]:
    return tuple(v.type for v in op.results)


RULES: dict[type[Op], Callable[[Any], tuple[TensorType, ...]]] = {
    ops.Constant: e.infer_constant,
    ops.Iota: e.infer_iota,
    ops.Elementwise: e.infer_elementwise,
    ops.Compare: e.infer_compare,
    ops.Convert: e.infer_convert,
    ops.BitcastConvert: e.infer_bitcast_convert,
    ops.ReducePrecision: e.infer_reduce_precision,
    ops.RngBitGenerator: e.infer_rng_bit_generator,
    ops.Threefry2x32: e.infer_threefry2x32,
    ops.TopK: e.infer_top_k,
    ops.BroadcastInDim: m.infer_broadcast_in_dim,
    ops.Reshape: m.infer_reshape,
    ops.Transpose: m.infer_transpose,
    ops.Slice: m.infer_slice,
    ops.DynamicSlice: m.infer_dynamic_slice,
    ops.DynamicUpdateSlice: m.infer_dynamic_update_slice,
    ops.Pad: m.infer_pad,
    ops.Concatenate: m.infer_concatenate,
    ops.Reverse: m.infer_reverse,
    ops.Gather: m.infer_gather,
    ops.DotGeneral: c.infer_dot_general,
    ops.RaggedDot: c.infer_ragged_dot,
    ops.Convolution: c.infer_convolution,
    ops.Reduce: c.infer_reduce,
    ops.ReduceWindow: c.infer_reduce_window,
    ops.Scan: c.infer_scan,
    ops.Window: c.infer_window,
    ops.SelectAndScatter: c.infer_select_and_scatter,
    ops.Scatter: c.infer_scatter,
    ops.Sort: c.infer_sort,
    ops.While: _while,
    ops.Case: _case,
    ops.OptimizationBarrier: lambda op: tuple(a.type for a in op.args),
    ops.Stored: lambda op: (op.operand.type,),
    ops.Accumulate: m.infer_accumulate,
    ops.Prefix: lambda op: (TensorType(op.args[0].type.dims, op.result.type.dtype),),
    ops.Fft: t.infer_fft,
    ops.Fourier: t.infer_fourier,
    ops.Stacked: m.infer_stacked,
    ops.Piece: m.infer_piece,
    # Their results are what they say.
    ops.CustomCall: _own,
    ops.Unknown: _own,
}


def infer(op: Op) -> tuple[TensorType, ...]:
    """The types that the results of ``op`` have to have.

    Args:
      op: an op of a registered class, all types static.

    Raises:
      RuleError: if operands, attributes or regions break a rule.
      KeyError: if the class has no rule (a new op needs one).
    """
    require(op.opcode in ("custom_call", "unknown") or bool(op.results), "has no results")
    types = RULES[type(op)](op)
    same("the number of results", len(op.results), len(types))
    return types

"""One rule per StableHLO or CHLO op: MLIR op to Graph op, as a table.

A rule gets the op's parts and returns the declared fields of its class; results and location
are added by the walker. Ops without a rule become `ops.Unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax.extend.mlir import ir

from jaxmono.hlo import ops
from jaxmono.hlo.importer.attributes import (
    Attributes,
    convolution_dimensions,
    dot_dimensions,
    gather_dimensions,
    ragged_dimensions,
    scatter_dimensions,
)
from jaxmono.hlo.importer.generic import with_functions
from jaxmono.hlo.importer.literals import constant_value
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import DType, TensorType


@dataclass(frozen=True)
class Parts:
    """What a rule may look at.

    Attributes:
      op: the MLIR op.
      args: the Graph values of its operands.
      types: its result types.
      attributes: its attributes.
      region: imports the op's i-th region under a name.
      functions: the module's functions by symbol name.
    """

    op: ir.Operation
    args: tuple[Value, ...]
    types: tuple[TensorType, ...]
    attributes: Attributes
    region: Callable[[int, str], Graph]
    functions: Mapping[str, ir.Operation]

    def halves(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        n = len(self.args) // 2
        return self.args[:n], self.args[n:]


Fields: TypeAlias = dict[str, Any]
Rule: TypeAlias = tuple[type[Op], Callable[[Parts], Fields]]


def _operand(p: Parts) -> Fields:
    return {"operand": p.args[0]}


def _compare(p: Parts) -> Fields:
    dtype = p.args[0].type.dtype
    default = ("FLOAT" if dtype.is_float or dtype.is_complex
               else "SIGNED" if dtype.is_signed else "UNSIGNED")
    kind = p.attributes.enum("compare_type", default)
    return {"lhs": p.args[0], "rhs": p.args[1],
            "direction": p.attributes.enum("comparison_direction"),
            "compare_type": default if kind == "NOTYPE" else kind}


def _slice(p: Parts) -> Fields:
    return {"operand": p.args[0], "start_indices": p.attributes.integers("start_indices"),
            "limit_indices": p.attributes.integers("limit_indices"),
            "strides": p.attributes.integers("strides")}


def _gather(p: Parts) -> Fields:
    return {"operand": p.args[0], "start_indices": p.args[1],
            **gather_dimensions(p.attributes),
            "slice_sizes": p.attributes.integers("slice_sizes"),
            "indices_are_sorted": p.attributes.flag("indices_are_sorted")}


def _scatter(p: Parts) -> Fields:
    n = len(p.args) // 2
    return {"args": p.args[:n], "scatter_indices": p.args[n], "updates": p.args[n + 1:],
            "body": p.region(0, "body"), **scatter_dimensions(p.attributes),
            "indices_are_sorted": p.attributes.flag("indices_are_sorted"),
            "unique_indices": p.attributes.flag("unique_indices")}


def _pad(p: Parts) -> Fields:
    a = p.attributes
    return {"operand": p.args[0], "padding_value": p.args[1],
            "low": a.integers("edge_padding_low"), "high": a.integers("edge_padding_high"),
            "interior": a.integers("interior_padding")}


def _reduce(p: Parts) -> Fields:
    args, inits = p.halves()
    return {"args": args, "inits": inits, "body": p.region(0, "body"),
            "dimensions": p.attributes.integers("dimensions")}


def _reduce_window(p: Parts) -> Fields:
    args, inits = p.halves()
    rank, a = args[0].type.rank, p.attributes
    ones = (1,) * rank
    return {"args": args, "inits": inits, "body": p.region(0, "body"),
            "window_dimensions": a.integers("window_dimensions"),
            "window_strides": a.integers("window_strides", ones),
            "base_dilations": a.integers("base_dilations", ones),
            "window_dilations": a.integers("window_dilations", ones),
            "padding": a.pairs("padding", rank)}


def _scan(p: Parts) -> Fields:
    # The operands, which have one more dimension than the carries, come first.
    rank = p.args[0].type.rank
    scanned = sum(v.type.rank == rank for v in p.args)
    return {"args": p.args[:scanned], "inits": p.args[scanned:], "body": p.region(0, "body"),
            "dimension": p.attributes.integer("dimension"),
            "is_reverse": p.attributes.flag("is_reverse"),
            "is_associative": p.attributes.flag("is_associative")}


def _select_and_scatter(p: Parts) -> Fields:
    rank, a = p.args[0].type.rank, p.attributes
    ones = (1,) * rank
    return {"operand": p.args[0], "source": p.args[1], "init": p.args[2],
            "select": p.region(0, "select"), "scatter": p.region(1, "scatter"),
            "window_dimensions": a.integers("window_dimensions", ones),
            "window_strides": a.integers("window_strides", ones),
            "padding": a.pairs("padding", rank)}


def _sort(p: Parts) -> Fields:
    dimension = p.attributes.integer("dimension") if "dimension" in p.attributes else -1
    return {"args": p.args, "comparator": p.region(0, "comparator"),
            "dimension": dimension % max(p.args[0].type.rank, 1),
            "is_stable": p.attributes.flag("is_stable")}


def _top_k(p: Parts) -> Fields:
    return {"operand": p.args[0], "k": p.attributes.integer("k")}


def _dot_general(p: Parts) -> Fields:
    return {"lhs": p.args[0], "rhs": p.args[1], **dot_dimensions(p.attributes),
            "precision": p.attributes.precision(),
            "algorithm": p.attributes.printed("algorithm")}


def _ragged_dot(p: Parts) -> Fields:
    lhs, rhs, sizes = p.args
    return {"lhs": lhs, "rhs": rhs, "group_sizes": sizes, **ragged_dimensions(p.attributes),
            "precision": p.attributes.precision()}


def _convolution(p: Parts) -> Fields:
    rank, a = p.args[0].type.rank - 2, p.attributes
    ones = (1,) * rank
    return {"lhs": p.args[0], "rhs": p.args[1],
            "window_strides": a.integers("window_strides", ones),
            "padding": a.pairs("padding", rank),
            "lhs_dilation": a.integers("lhs_dilation", ones),
            "rhs_dilation": a.integers("rhs_dilation", ones),
            "window_reversal": a.flags("window_reversal", (False,) * rank),
            **convolution_dimensions(a),
            "feature_group_count": a.integer("feature_group_count"),
            "batch_group_count": a.integer("batch_group_count"), "precision": a.precision()}


def _case(p: Parts) -> Fields:
    n = len(p.op.regions)
    return {"index": p.args[0], "branches": tuple(p.region(i, "branches") for i in range(n))}


def _if(p: Parts) -> Fields:
    # As a case on the pred: index 0 is false, and the false branch is the second region.
    return {"index": p.args[0], "branches": (p.region(1, "branches"), p.region(0, "branches"))}


def _custom_call(p: Parts) -> Fields:
    config = p.attributes.others("call_target_name", "has_side_effect")
    return {"args": p.args, "target": p.attributes.string("call_target_name"),
            "has_side_effect": p.attributes.flag("has_side_effect"),
            "config": with_functions(config, p.functions)}


RULES: dict[str, Rule] = {
    "stablehlo.constant": (
        ops.Constant, lambda p: {"value": constant_value(p.op, p.types[0])}),
    "stablehlo.iota": (
        ops.Iota, lambda p: {"dimension": p.attributes.integer("iota_dimension")}),
    "stablehlo.compare": (ops.Compare, _compare),
    "stablehlo.convert": (ops.Convert, _operand),
    "stablehlo.bitcast_convert": (ops.BitcastConvert, _operand),
    "stablehlo.reduce_precision": (ops.ReducePrecision, lambda p: {
        "operand": p.args[0], "exponent_bits": p.attributes.integer("exponent_bits"),
        "mantissa_bits": p.attributes.integer("mantissa_bits")}),
    "stablehlo.broadcast_in_dim": (ops.BroadcastInDim, lambda p: {
        "operand": p.args[0], "dimensions": p.attributes.integers("broadcast_dimensions")}),
    "stablehlo.reshape": (ops.Reshape, _operand),
    "stablehlo.transpose": (ops.Transpose, lambda p: {
        "operand": p.args[0], "permutation": p.attributes.integers("permutation")}),
    "stablehlo.slice": (ops.Slice, _slice),
    "stablehlo.dynamic_slice": (ops.DynamicSlice, lambda p: {
        "operand": p.args[0], "start_indices": p.args[1:],
        "slice_sizes": p.attributes.integers("slice_sizes")}),
    "stablehlo.dynamic_update_slice": (ops.DynamicUpdateSlice, lambda p: {
        "operand": p.args[0], "update": p.args[1], "start_indices": p.args[2:]}),
    "stablehlo.gather": (ops.Gather, _gather),
    "stablehlo.scatter": (ops.Scatter, _scatter),
    "stablehlo.pad": (ops.Pad, _pad),
    "stablehlo.concatenate": (ops.Concatenate, lambda p: {
        "args": p.args, "dimension": p.attributes.integer("dimension")}),
    "stablehlo.reverse": (ops.Reverse, lambda p: {
        "operand": p.args[0], "dimensions": p.attributes.integers("dimensions")}),
    "stablehlo.reduce": (ops.Reduce, _reduce),
    "stablehlo.reduce_window": (ops.ReduceWindow, _reduce_window),
    "chlo.scan": (ops.Scan, _scan),
    "stablehlo.select_and_scatter": (ops.SelectAndScatter, _select_and_scatter),
    "stablehlo.sort": (ops.Sort, _sort),
    "stablehlo.fft": (ops.Fft, lambda p: {
        "operand": p.args[0], "kind": p.attributes.enum("fft_type"),
        "fft_length": p.attributes.integers("fft_length")}),
    "chlo.top_k": (ops.TopK, _top_k),
    "stablehlo.dot_general": (ops.DotGeneral, _dot_general),
    "chlo.ragged_dot": (ops.RaggedDot, _ragged_dot),
    "stablehlo.convolution": (ops.Convolution, _convolution),
    "stablehlo.while": (ops.While, lambda p: {
        "args": p.args, "cond": p.region(0, "cond"), "body": p.region(1, "body")}),
    "stablehlo.case": (ops.Case, _case),
    "stablehlo.if": (ops.Case, _if),
    "stablehlo.rng_bit_generator": (ops.RngBitGenerator, lambda p: {
        "state": p.args[0], "algorithm": p.attributes.enum("rng_algorithm", "DEFAULT")}),
    "stablehlo.custom_call": (ops.CustomCall, _custom_call),
    "stablehlo.optimization_barrier": (ops.OptimizationBarrier, lambda p: {"args": p.args}),
}


def rule_for(name: str, types: tuple[TensorType, ...], args: tuple[Value, ...]) -> Rule | None:
    """The rule of an MLIR op, or None: no rule, or a type that has no name here."""
    if any(t.dtype is DType.OPAQUE for t in types) or any(
            v.type.dtype is DType.OPAQUE for v in args):
        return None
    dialect, _, kind = name.partition(".")
    arity = (1 if kind in ops.UNARY else 2 if kind in ops.BINARY else 3 if kind in ops.TERNARY
             else 0)
    if dialect in ("stablehlo", "chlo") and arity and len(args) == arity:
        return ops.Elementwise, lambda p: {"args": p.args, "kind": kind,
                                           "accuracy": p.attributes.accuracy()}
    return RULES.get(name)

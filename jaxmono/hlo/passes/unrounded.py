"""Narrow products of bf16 that nobody needs in 16 bits.

    convert[f32](dot(x: bf16, w: bf16): bf16)  =>  dot(x, w): f32

A router's logits: of 16 bits two experts often have the same, and the one that comes first is taken
where the program in f32 takes the other. XLA does not round there either on a GPU (its flag
`xla_allow_excess_precision`, by default): with the rounding 2 of 1536 texts of eight experts had
another expert than in f32, of XLA's none. Wide results, a language model's logits, would be twice
the bytes in f32, and they are rounded as they are written; scores of an attention, products of a
batch, are what a softmax makes of them, which shows no such jump. f16 is left as it is: what is too
large for it is infinite.
"""

from __future__ import annotations

import math
from dataclasses import replace

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import replace_values
from jaxmono.hlo.types import DType

_NARROW = 8
"""Elements that are summed up, for each column of the right operand, at least: what is written in
f32 is a quarter of what is read of the left one. 64 experts of 512 features and more."""


def unrounded(graph: Graph) -> Graph:
    """Such products have f32 results, where all that read them are conversions to f32.

    A pass of its own, not among the rules that keep every bit: it leaves roundings out.
    """
    wide = {op.result: Value(replace(op.result.type, dtype=DType.F32), op.result.hint)
            for op in graph.ops if isinstance(op, ops.DotGeneral) and _is_narrow(op)
            and op.result not in graph.outputs and _only_widened(graph, op.result)}
    if not wide:
        return graph
    same = {u.results[0]: made for v, made in wide.items() for u in graph.users[v]}
    kept = tuple(replace(op, results=tuple(wide.get(v, v) for v in op.results))
                 for op in graph.ops if same.keys().isdisjoint(op.results))
    return replace_values(Graph(graph.inputs, kept, graph.outputs, graph.name), same)


def _is_narrow(op: ops.DotGeneral) -> bool:
    types = [v.type for v in (op.lhs, op.rhs, op.result)]
    if op.lhs_batch or op.algorithm \
            or not all(t.dtype is DType.BF16 and t.is_static for t in types):
        return False
    summed = math.prod(op.lhs.type.dims[i] for i in op.lhs_contract)
    return op.rhs.type.size * _NARROW <= summed * summed


def _only_widened(graph: Graph, v: Value) -> bool:
    users = graph.users.get(v, ())
    return bool(users) and all(isinstance(u, ops.Convert) and u.result.type.dtype is DType.F32
                               for u in users)

"""Narrow products of bf16 that nobody needs in 16 bits.

    convert[f32](dot(x: bf16, w: bf16): bf16)  =>  dot(x, w): f32

A router's logits: of 16 bits two experts often have the same, and the one that comes first is taken
where the program in f32 takes the other. XLA does not round there either on a GPU (its flag
`xla_allow_excess_precision`, by default); with the rounding 2 of 1536 texts of eight experts had
another expert than in f32, without it none. Wide results, a language model's logits, would be twice
the bytes in f32, and they are rounded as they are written; scores of an attention, products of a
batch, are what a softmax makes of them, which shows no such jump. f16 is left as it is: what is too
large for it is infinite.
"""

from __future__ import annotations

import math

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.peephole import Scope, remapped
from jaxmono.hlo.types import DType

_NARROW = 8
"""Elements that are summed up, for each column of the right operand, at least: what is written in
f32 is a quarter of what is read of the left one. 64 experts of 512 features and more."""


def unrounded(graph: Graph) -> Graph:
    """Such products have f32 results, where all that read them are conversions to f32.

    A pass of its own, not among the rules that keep every bit: it leaves roundings out.
    """
    found = {op.result for op in graph.ops if isinstance(op, ops.DotGeneral) and _is_narrow(op)
             and op.result not in graph.outputs and _only_widened(graph, op.result)}
    if not found:
        return graph
    scope, mapping = Scope(), dict[Value, Value]()
    for op in graph.ops:
        scope.loc = op.loc
        if isinstance(op, ops.DotGeneral) and op.result in found:
            mapping[op.result] = scope.dot_general(
                op.lhs, op.rhs, batch=(op.lhs_batch, op.rhs_batch),
                contract=(op.lhs_contract, op.rhs_contract), dtype=DType.F32,
                precision=op.precision)
        elif isinstance(op, ops.Convert) and op.operand in found:
            mapping[op.result] = mapping[op.operand]
        else:
            scope.append(remapped(op, mapping))
    outputs = tuple(mapping.get(v, v) for v in graph.outputs)
    return Graph(graph.inputs, tuple(scope.ops), outputs, graph.name)


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

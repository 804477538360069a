"""Small products of 16 bits that nobody needs in 16 bits.

    convert[f32](dot(x: bf16, w: bf16): bf16)  =>  dot(x, w): f32

A router's logits: of 16 bits two experts often have the same, and the one that comes first is taken
where the program in f32 takes the other. XLA does not round here either (its flag
`xla_allow_excess_precision`, by default); with the rounding 2 of 1536 texts of eight experts had
another expert than in f32, without it none. Of large results, a language model's logits, f32 would
be twice the bytes, and they are rounded as they are written; scores of an attention, products of a
batch, are what a softmax makes of them, which shows no such jump.
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.passes.peephole import Scope, remapped
from jaxmono.hlo.types import DType

_NARROW = (DType.BF16, DType.F16)
_SMALL = 4
"""Of what a product reads, one part in so many is what it may write: 64 experts of 512 features and
more, however many texts there are."""


def unrounded(graph: Graph) -> Graph:
    """Products of `_NARROW` operands whose results are all converted to f32 have these results.

    A pass of its own, not among the rules that keep every bit: it leaves roundings out.
    """
    found = {op.result for op in graph.ops if isinstance(op, ops.DotGeneral) and _small(op)
             and op.result not in graph.outputs and _only_widened(graph, op.result)}
    if not found:
        return graph
    scope, mapping = Scope(), dict[Value, Value]()
    for op in graph.ops:
        scope.loc = op.loc
        if isinstance(op, ops.DotGeneral) and op.result in found:
            wide = scope.dot_general(
                *(mapping.get(v, v) for v in (op.lhs, op.rhs)), batch=(op.lhs_batch, op.rhs_batch),
                contract=(op.lhs_contract, op.rhs_contract), dtype=DType.F32,
                precision=op.precision, algorithm=op.algorithm)
            mapping[op.result] = wide
        elif isinstance(op, ops.Convert) and op.operand in found:
            mapping[op.result] = mapping[op.operand]
        else:
            scope.append(remapped(op, mapping))
    outputs = tuple(mapping.get(v, v) for v in graph.outputs)
    return Graph(graph.inputs, tuple(scope.ops), outputs, graph.name)


def _small(op: ops.DotGeneral) -> bool:
    types = [v.type for v in (op.lhs, op.rhs, op.result)]
    return not op.lhs_batch and all(t.dtype in _NARROW and t.is_static for t in types) \
        and types[2].size * DType.F32.itemsize * _SMALL <= sum(t.nbytes for t in types[:2])


def _only_widened(graph: Graph, v: Value) -> bool:
    users = graph.users.get(v, ())
    return bool(users) and all(isinstance(u, ops.Convert) and u.result.type.dtype is DType.F32
                               for u in users)

"""Operands of contractions whose batches would lie next to each other are made with these first.

    y = mul(a, b)    bf16[t, d, e]            y1 = mul(transpose(a), transpose(b))   bf16[e, t, d]
    dot(y, w)        batch e, k d      ──►    dot(y1, w)

Gradients of einsums over experts are made so: neighbours of a matrix are as many elements apart as
there are batches, and nothing of a row can be copied as it lies. The transposes are only indices
for whoever makes the values; others read y as a transpose of y1. Program inputs that lie so stay as
they are, and contractions' results, which `orient` sees to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import TensorType

Order = tuple[int, ...]


def batches_first(graph: Graph) -> Graph:
    """``graph`` with such operands made the other way; itself if there is none."""
    orders: dict[Value, Order] = {}
    for o in graph.ops:
        if isinstance(o, ops.DotGeneral):
            for v, batch in ((o.lhs, o.lhs_batch), (o.rhs, o.rhs_batch)):
                x, place = _made(graph, v)
                if _lie_apart(graph, x, where := [place[i] for i in batch]):
                    orders.setdefault(x, (*where, *(i for i in range(x.type.rank)
                                                    if i not in where)))
    if not orders:
        return graph
    b, turned = Builder(), dict[Value, Value]()

    def operand(v: Value, batch: Order, contract: Order) -> tuple[Value, Order, Order]:
        """What a contraction reads in place of ``v``, and its dimensions there."""
        x, place = _made(graph, v)
        if x not in turned:
            return v, batch, contract
        to = [orders[x].index(i) for i in place]
        free = [to[i] for i in range(v.type.rank) if i not in (*batch, *contract)]
        if free != sorted(free):  # the result has them in the operand's order
            return v, batch, contract
        return turned[x], tuple(to[i] for i in batch), tuple(to[i] for i in contract)

    for o in graph.ops:
        b.loc = o.loc
        if isinstance(o, ops.DotGeneral):
            lhs, lhs_batch, lhs_contract = operand(o.lhs, o.lhs_batch, o.lhs_contract)
            rhs, rhs_batch, rhs_contract = operand(o.rhs, o.rhs_batch, o.rhs_contract)
            b.append(dataclasses.replace(
                o, lhs=lhs, lhs_batch=lhs_batch, lhs_contract=lhs_contract, rhs=rhs,
                rhs_batch=rhs_batch, rhs_contract=rhs_contract))
        elif o.results and (order := orders.get(o.results[0])) is not None:
            (result,) = o.results
            t = TensorType(tuple(result.type.dims[i] for i in order), result.type.dtype)
            x = turned[result] = Value(t, result.hint)
            b.append(dataclasses.replace(o.clone({v: b.transpose(v, order) for v in o.inputs}),
                                         results=(x,)))
            b.append(ops.Transpose(results=o.results, loc=o.loc, operand=x,
                                   permutation=tuple(map(order.index, range(len(order))))))
        else:
            b.append(o)
    return Graph(graph.inputs, tuple(b.ops), graph.outputs, graph.name)


def _made(graph: Graph, v: Value) -> tuple[Value, Sequence[int]]:
    """The value that ``v`` is a transpose of, and which of its dimensions each one is."""
    place: Sequence[int] = range(v.type.rank)
    while isinstance(o := graph.producer.get(v), ops.Transpose):
        v, place = o.operand, [o.permutation[i] for i in place]
    return v, place


def _lie_apart(graph: Graph, x: Value, batch: Sequence[int]) -> bool:
    """Whether somebody makes ``x``, with elements of different batches as neighbours."""
    last = x.type.rank - 1
    return isinstance(graph.producer.get(x), ops.Elementwise | ops.Convert) and last in batch \
        and x.type.dims[last] > 1

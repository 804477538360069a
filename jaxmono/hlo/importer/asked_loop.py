"""A loop that carries whether it goes on, made of one that asks before each trip.

    while p(s):                      g = p(s)
      s = f(s)           ──►         while g:
                                       s = f(s);  g = p(s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.mlir import ir

from jaxmono.hlo import ops
from jaxmono.hlo.importer.origin import Imported, Origin
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import copy_ops


@dataclass(frozen=True, eq=False)
class AskedLoop(Origin):
    """Of a loop that no module has yet; ``operation`` is the one that it is made of."""

    def clone(self, values: Mapping[Value, ir.Value[Any]],
              insertion_point: ir.InsertionPoint | None = None) -> ir.Operation:
        """Emits the loop, with the trip as XLA runs it."""
        operands = [values[v] for v in self.operands]
        types, where = [v.type for v in operands], self.operation.location
        loop = ir.Operation.create("stablehlo.while", results=types, operands=operands, regions=2,
                                   loc=where, ip=insertion_point)
        asks, trip = (r.blocks.append(*types, arg_locs=[where] * len(types)) for r in loop.regions)
        _return([asks.arguments[len(types) - 1]], asks, where)
        body, made = self.regions[1], dict(values)
        made.update(zip(body.graph.inputs, trip.arguments, strict=True))
        for o, origin in zip(body.graph.ops, body.origins, strict=True):
            made.update(zip(o.results, origin.clone(made, ir.InsertionPoint(trip)).results,
                            strict=True))
        _return([made[v] for v in body.graph.outputs], trip, where)
        return loop


def _return(values: Sequence[ir.Value[Any]], block: ir.Block, where: ir.Location) -> None:
    ir.Operation.create("stablehlo.return", operands=values, loc=where,
                        ip=ir.InsertionPoint(block))


def ask_first(imported: Imported, loop: ops.While, carried: Sequence[Value],
              ) -> tuple[Imported, ops.While]:
    """The graph with ``loop`` as one that carries values of its condition.

    Args:
      carried: the last one is what the condition returns.

    Returns:
      The graph and the loop in it, which hands on the same (the same Values), then ``carried``.
    """
    at = imported.graph.ops.index(loop)
    asks, body = imported.origins[at].regions
    first, origins, mapping = _copied(asks, loop.args)
    begin = (*loop.args, *(mapping.get(v, v) for v in carried))
    inputs = tuple(Value(v.type, v.hint) for v in (*body.graph.inputs, *carried))
    trip, of_trip, mapping = _copied(body, inputs[:len(loop.args)])
    state = tuple(mapping.get(v, v) for v in body.graph.outputs)
    question, of_question, mapping = _copied(asks, state)
    outputs = (*state, *(mapping.get(v, v) for v in carried))
    whole = Imported(Graph(inputs, (*trip, *question), outputs, body.graph.name),
                     (*of_trip, *of_question))
    inside = tuple(Value(v.type) for v in begin)
    cond = Imported(Graph(inside, (), inside[-1:], asks.graph.name), ())
    new = ops.While(results=(*loop.results, *(Value(v.type) for v in carried)), args=begin,
                    cond=cond.graph, body=whole.graph, loc=loop.loc)
    origin = AskedLoop(imported.origins[at].operation, begin, (), (cond, whole))
    graph = imported.graph
    changed = Graph(graph.inputs, (*graph.ops[:at], *first, new, *graph.ops[at + 1:]),
                    graph.outputs, graph.name)
    return replace(imported, graph=changed, origins=(
        *imported.origins[:at], *origins, origin, *imported.origins[at + 1:])), new


def _copied(block: Imported, inputs: Sequence[Value],
            ) -> tuple[tuple[Op, ...], tuple[Origin, ...], dict[Value, Value]]:
    """A block's ops once more, on other inputs, with where they are from."""
    mapping: dict[Value, Value] = dict(zip(block.graph.inputs, inputs, strict=True))
    made = copy_ops(block.graph.ops, mapping)
    return made, tuple(o.remap(mapping) for o in block.origins), mapping

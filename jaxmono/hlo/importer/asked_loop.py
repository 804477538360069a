"""A loop that carries whether it goes on, made of one that asks before each trip.

    while p(s):                      g = p(s)
      s = f(s)           ──►         while g:
                                       s = f(s);  g = p(s)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def ask_first(imported: Imported, loop: ops.While, changes: Sequence[int],
              carried: Sequence[Value], make: Callable[[Sequence[Value]], ops.While],
              ) -> tuple[Imported, ops.While]:
    """The graph with ``loop`` as one that carries values of its condition.

    Args:
      changes: the places of what a trip changes: the rest is captured.
      carried: the last one is what the condition returns.
      make: the loop, of what ``carried`` is in front of the first trip; it carries what changes,
        then that, and its results are those of ``loop``, and others.

    Returns:
      The graph, and the loop in it. What does not change is read where the loop had it from.
    """
    at, graph = imported.graph.ops.index(loop), imported.graph
    asks, body = imported.origins[at].regions
    first, origins, mapping = _copied(asks, dict(zip(asks.graph.inputs, loop.args, strict=True)))
    new = make([mapping.get(v, v) for v in carried])
    inputs = tuple(Value(v.type, v.hint) for v in new.args)
    now = dict(enumerate(loop.args)) | dict(zip(changes, inputs, strict=False))
    trip, of_trip, mapping = _copied(body, dict(zip(body.graph.inputs, now.values(), strict=True)))
    state = {i: mapping.get(v, v) for i, v in enumerate(body.graph.outputs)}
    then = {i: state[i] if i in changes else v for i, v in now.items()}
    question, of_question, mapping = _copied(
        asks, dict(zip(asks.graph.inputs, then.values(), strict=True)))
    outputs = (*(state[i] for i in changes), *(mapping.get(v, v) for v in carried))
    whole = Imported(Graph(inputs, (*trip, *question), outputs, body.graph.name),
                     (*of_trip, *of_question))
    cond = Imported(Graph(inputs, (), inputs[-1:], asks.graph.name), ())
    origin = AskedLoop(imported.origins[at].operation, new.args, (), (cond, whole))
    changed = Graph(graph.inputs, (*graph.ops[:at], *first, new, *graph.ops[at + 1:]),
                    graph.outputs, graph.name)
    same = {v: u for i, (v, u) in enumerate(zip(loop.results, loop.args, strict=True))
            if i not in changes}
    made = replace(imported, graph=changed, origins=(
        *imported.origins[:at], *origins, origin, *imported.origins[at + 1:])).remap(same)
    return made, next(o for o in made.graph.ops
                      if isinstance(o, ops.While) and o.results == new.results)


def _copied(block: Imported, mapping: dict[Value, Value],
            ) -> tuple[tuple[Op, ...], tuple[Origin, ...], dict[Value, Value]]:
    """A block's ops once more, on other inputs, with where they are from, and the new values."""
    made = copy_ops(block.graph.ops, mapping)
    return made, tuple(o.remap(mapping) for o in block.origins), mapping

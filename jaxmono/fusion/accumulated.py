"""Memory that an op adds to (`ops.Accumulate`): the buffer of its operand is that of its result.

    stage 1   a = stored(0)                       b7 = 0
    stage 2   r = accumulate(a, lines, update)    b7[lines[t]] += update[t], in any order
    stage 3   f(r)                                reads b7

Nobody else reads a: it is stored for that op alone (`ops.Stored.own`), or a donated input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.fusion.bijection import injective
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.indexing import Dyn, IndexMap
from jaxmono.fusion.plan import Plan, Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import Builder, replace_values


def written_over(graph: Graph) -> dict[Value, Value]:
    """By operand: what takes its place."""
    return {o.operand: o.result for o in graph.ops if isinstance(o, ops.Accumulate)}


def accumulation(body: Graph, result: Value) -> ops.Accumulate | None:
    """The op that a result of a body is of, if it is memory that is added to."""
    op = body.producer.get(result)
    return op if isinstance(op, ops.Accumulate) else None


def returned_once(graph: Graph) -> Graph:
    """The graph in which such a result is at most one of the outputs, the others are copies."""
    sums = set(written_over(graph).values())
    b, seen = Builder(), set[Value]()
    outputs: list[Value] = []
    for v in graph.outputs:
        again = v in sums and v in seen
        outputs.append(b.emit1(ops.Stored, v.type, operand=v) if again else v)
        seen.add(v)
    if not b.ops:
        return graph
    return Graph(graph.inputs, (*graph.ops, *b.ops), tuple(outputs), graph.name)


def given_away(graph: Graph, aliases: Sequence[tuple[int, int]]) -> Graph:
    """The graph in which what is added to a donated input is added to it where it lies, if nobody
    else reads it.

        a = stored(x);  out = accumulate(a, i, update)   ──►   out = accumulate(x, i, update)
    """
    replaced: dict[Value, Value] = {}
    for out, number in aliases:
        v, x = graph.outputs[out], graph.inputs[number]
        o = graph.producer.get(v)
        if isinstance(o, ops.Accumulate) and graph.outputs.count(v) == 1 \
                and x not in graph.outputs and x not in replaced.values() \
                and [u.results[0] for u in graph.users.get(x, ())] == [o.operand]:
            replaced[o.operand] = x
    if not replaced:
        return graph
    kept = tuple(o for o in graph.ops if not replaced.keys() & set(o.results))
    return replace_values(Graph(graph.inputs, kept, graph.outputs, graph.name), replaced)


def updates_of(op: ops.Accumulate, store: Store) -> IndexMap | None:
    """Which element of the updates a store of the result adds, over its domain; None if it is of
    none."""
    terms = store.index[0].terms
    line = terms[0][0] if len(terms) == 1 and not store.index[0].const else None
    if not isinstance(line, Dyn) or terms[0][1] != 1 or line.value is not op.lines:
        return None
    return (*line.index, *store.index[1:])


def check_updates(name: str, op: ops.Accumulate, store: Store) -> None:
    """Every element of the updates is added once.

    Raises:
      PlanError: one is not, as far as can be told.
    """
    at, shape = updates_of(op, store), op.update.type.dims
    if at is None:
        raise PlanError(f"sig {name}: the store of result {store.result} adds to no line of its "
                        "updates")
    if math.prod(v.size for v in store.over) != op.update.type.size \
            or injective(at, shape, store.over) is False:
        raise PlanError(f"sig {name}: the store of result {store.result} does not add each of "
                        f"{op.update.type.size} elements once")


def check_accumulated(plan: Plan) -> None:
    """Every such buffer is written for one op, which adds to it in a later stage, before any other
    group reads it. (That they are one buffer, and that barriers are between them, is checked of all
    that is updated in place.)

    Raises:
      PlanError: one is not.
    """
    begun: dict[int, str] = {}
    for number, stage in enumerate(plan.stages):
        ended: set[int] = set()
        for g in stage.groups:
            own = {b for b, v in zip(g.results, g.sig.body.outputs, strict=True)
                   if accumulation(g.sig.body, v) and plan.buffers[b].alias is None}
            if missing := own - begun.keys():
                raise PlanError(f"stage {number}: group g{g.id} ({g.sig.name}) adds to "
                                f"b{min(missing)}, which is not stored for it")
            if early := (begun.keys() & set(g.params)) - own:
                raise PlanError(f"stage {number}: group g{g.id} ({g.sig.name}) reads "
                                f"b{min(early)} before anything is added to it")
            ended |= own
        for b in ended:
            del begun[b]
        for g in stage.groups:
            begun |= {b: g.sig.name for b, v in zip(g.results, g.sig.body.outputs, strict=True)
                      if isinstance(o := g.sig.body.producer.get(v), ops.Stored) and o.own}
    for b, name in begun.items():
        raise PlanError(f"b{b} of {name} is stored to be added to, and nothing is")

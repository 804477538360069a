"""Updates in place: a cache that comes in as a program input and goes out with a slice replaced.

    cache1 = dynamic_update_slice(cache, new, pos...)      output 0 = cache1

The group that computes ``new`` writes it straight into the buffer of output 0, which XLA gives
the same memory as input ``cache`` (and copies there first, when the caller did not donate it).
A chain of updates of one cache stays in that buffer. What is added to a donated input
(`accumulated.given_away`) is as well.
"""

from __future__ import annotations

from jaxmono.fusion.draft import State
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


def find_in_place(state: State) -> None:
    """Fills ``state.in_place``: update op to the index of the program output it writes into."""
    graph = state.graph
    position = {v: i for i, v in enumerate(graph.inputs)}
    taken: set[Value] = set()
    for out, v in enumerate(graph.outputs):
        if graph.outputs.count(v) != 1:
            continue
        chain = _chain(state, v)
        if not chain:
            continue
        source = chain[-1].inputs[0]
        if source not in position or source in taken or source in graph.outputs:
            continue
        if any(o in state.banned and not isinstance(o, ops.Accumulate) for o in chain):
            continue  # of an Accumulate there is no other way
        taken.add(source)
        state.in_place.update(dict.fromkeys(chain, out))


def _chain(state: State, v: Value) -> list[Op]:
    """Updates that lead from a program input to ``v``, last first; empty if there is another op."""
    out: list[Op] = []
    outputs = state.outputs_set()
    while True:
        o = state.graph.producer.get(v)
        if o is None:
            return out
        if isinstance(o, ops.Accumulate):
            given = o.operand in state.graph.inputs and not out
            return [o] if given else []
        if not isinstance(o, ops.DynamicUpdateSlice) or (out and v in outputs):
            return []
        out.append(o)
        v = o.operand

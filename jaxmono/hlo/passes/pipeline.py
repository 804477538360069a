"""The order of passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.algebraic import algebraic
from jaxmono.hlo.passes.align import align
from jaxmono.hlo.passes.associative_scan import associative_scan
from jaxmono.hlo.passes.branches import branches
from jaxmono.hlo.passes.canonicalise import canonicalise
from jaxmono.hlo.passes.channels_last import channels_last
from jaxmono.hlo.passes.common_subexpressions import common_subexpressions
from jaxmono.hlo.passes.constant_folding import constant_folding
from jaxmono.hlo.passes.dead_code import dead_code
from jaxmono.hlo.passes.dequantise import dequantise
from jaxmono.hlo.passes.expand import expand
from jaxmono.hlo.passes.folded_algorithms import folded_algorithms
from jaxmono.hlo.passes.inner_loops import inner_loops
from jaxmono.hlo.passes.looked_up import looked_up
from jaxmono.hlo.passes.outer_products import outer_products
from jaxmono.hlo.passes.unrounded import unrounded
from jaxmono.hlo.passes.whole_loop import is_whole

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    # Imported graphs carry much that nothing uses (masks for dropout at rate 0, keys); every
    # later pass is faster without it.
    dead_code,
    # As they were when they were found little enough: `expand` may make many ops of one.
    branches,
    # Before anything changes the form of what it looks at.
    associative_scan,
    # Literals first: the algebraic rules ask whether an operand is a splat, and jnp writes
    # scalars as constant, convert, broadcast.
    constant_folding,
    # Before `expand` makes many ops of each.
    folded_algorithms,
    # While there are convolutions, and before `align`, which looks at channels that lie last.
    channels_last,
    # Likewise: of contractions nobody can tell where a border was.
    align,
    # Before the rules that clean up what it makes.
    expand,
    # Finds the dimension of one element that the next pass drops.
    outer_products,
    # Drops size-1 dimensions by reshapes that the algebraic rules then merge or cancel.
    canonicalise,
    algebraic,
    # Looks for gathers and joins right in front of products.
    looked_up,
    # Behind those that merge conversions, and give scales the form that it looks for.
    dequantise,
    # Behind those, because equal expressions are found by their form, and the passes above bring
    # them to one. What it merges may enable them again (x and x), hence the outer loop.
    common_subexpressions,
    # Looks at all readers of a product: behind what merges two of the same.
    unrounded,
)
OPTIONAL: Mapping[str, Pass] = {"channels_last": channels_last, "padding": align,
                                "back_to_back": outer_products, "dequantise": dequantise}
"""Passes that `simplify` can go without, to measure what they are worth."""
MAX_ROUNDS = 16
"""Each round leaves a graph that is no larger by a rule's own measure, and few programs need
more than four; the bound is there should two rules ever undo each other."""


def simplify(graph: Graph, without: Collection[str] = ()) -> Graph:
    """Runs `PASSES` until none of them changes the graph; the meaning stays the same.

    Args:
      without: names of `OPTIONAL` passes to leave out; other names are not looked at.
    """
    return _simplify(graph, without, {})


def _simplify(graph: Graph, without: Collection[str], around: Mapping[Value, Op]) -> Graph:
    """``around``: producers of what is in front of the loops that the graph is in."""
    out = [OPTIONAL[name] for name in without if name in OPTIONAL]
    passes = [run for run in PASSES if run not in out]
    left: dict[Pass, Graph] = {}  # by each pass as it was
    for _ in range(MAX_ROUNDS):
        before = graph
        for run in passes:
            if left.get(run) is not graph:
                found, graph = graph, run(graph)
                if graph is found:
                    left[run] = graph
        if graph is before:
            break
    return dead_code(_in_loops(graph, without, {**around, **graph.producer}))


def _in_loops(graph: Graph, without: Collection[str], known: Mapping[Value, Op]) -> Graph:
    if not any(isinstance(o, ops.While) for o in graph.ops):
        return graph
    changed = [in_loop(o, known, without) if isinstance(o, ops.While) else o for o in graph.ops]
    return Graph(graph.inputs, tuple(changed), graph.outputs, graph.name)


def in_loop(loop: ops.While, producer: Mapping[Value, Op],
            without: Collection[str] = ()) -> ops.While:
    """What a loop does in each trip, simplified, with the loops in it taken apart.

    Args:
      producer: of the graph that the loop is in, and of those around it.
    """
    body = _simplify(loop.body, without, producer)
    if (flat := inner_loops(body, producer, whole=is_whole(loop))) is not body:
        body = _simplify(flat, without, producer)
    return dataclasses.replace(loop, body=_ungrouped(body))


def _ungrouped(body: Graph) -> Graph:
    """Without numbers of groups: each trip would have the same ones."""
    if not any(isinstance(o, ops.Stored) and o.group for o in body.ops):
        return body

    def alone(o: ops.Stored) -> ops.Stored:
        stacked = any(isinstance(u, ops.Stacked) for u in body.users.get(o.result, ()))
        return dataclasses.replace(o, group=0, in_turn=stacked)

    return Graph(body.inputs, tuple(alone(o) if isinstance(o, ops.Stored) and o.group else o
                                    for o in body.ops), body.outputs, body.name)

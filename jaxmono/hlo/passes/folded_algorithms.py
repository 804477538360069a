"""Cumulative sums and sorts of constants as literals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.interp import Unsupported, evaluate
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.constant_folding import LARGEST

_ALGORITHMS = (ops.Scan, ops.ReduceWindow, ops.Sort, ops.TopK)
"""That take stages where they are computed; moves and arithmetic are made where they are read."""
MOST_BYTES, MOST_ELEMENTS = 1 << 16, 1 << 20
"""Of a literal in a kernel's text; and of all that it is computed of."""


def folded_algorithms(graph: Graph) -> Graph:
    """Evaluates cumulative sums and sorts of constants, with what leads there:

        cumulative_sum(reshape(iota < iota))     jnp.tril_indices: two such, and a scatter

    XLA runs them in each call.
    """
    constant: dict[Value, Op] = {}
    literals: dict[Op, tuple[np.ndarray[Any, Any], ...]] = {}
    for o in graph.ops:
        if (o.subgraphs and any(g.captures for g in o.subgraphs)) or ops.has_side_effect(o) \
                or isinstance(o, ops.While) or not all(v in constant for v in o.inputs) \
                or not all(v.type.is_static for v in o.results):
            continue
        constant.update(dict.fromkeys(o.results, o))
        if isinstance(o, _ALGORITHMS) and any(v.type.size > LARGEST for v in o.results) \
                and all(v.type.nbytes <= MOST_BYTES for v in o.results):
            arrays = _computed(o, constant)
            if arrays is not None:
                literals[o] = arrays
    if not literals:
        return graph
    out: list[Op] = []
    for o in graph.ops:
        if o in literals:
            out += [ops.Constant(results=(v,), loc=o.loc, value=a)
                    for v, a in zip(o.results, literals[o], strict=True)]
        else:
            out.append(o)
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name)


def _computed(o: Op, constant: Mapping[Value, Op]) -> tuple[np.ndarray[Any, Any], ...] | None:
    """The results of an op that needs constants alone; None where that takes long."""
    needed: dict[Op, None] = {}
    todo = [o]
    while todo:
        made = todo.pop()
        if made not in needed:
            needed[made] = None
            todo += [constant[v] for v in made.inputs]
    order = dict.fromkeys(constant.values())
    chain = [made for made in order if made in needed]
    if sum(v.type.size for made in chain for v in made.results) > MOST_ELEMENTS:
        return None
    try:
        return tuple(evaluate(Graph((), tuple(chain), o.results), []))
    except Unsupported:
        return None

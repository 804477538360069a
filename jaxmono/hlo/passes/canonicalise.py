"""The canonical form for the planner: no size-1 dimensions inside the program."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import squeeze


def canonicalise(graph: Graph) -> Graph:
    """Moves size-1 dimensions into reshapes (`rules.squeeze`), so that a planner sees few.

    What is left to have them: graph and region inputs and outputs, reshapes themselves, and
    gather, scatter, sort, windows, convolution, dynamic slices and control flow, whose
    attributes speak of dimensions in ways that are theirs.
    """
    return apply_rules(graph, squeeze.RULES)

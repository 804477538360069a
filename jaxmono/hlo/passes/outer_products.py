"""Outer products, which any group of element-wise ops can take in."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import outer


def outer_products(graph: Graph) -> Graph:
    """Contractions over one element become multiplications.

    A pass of its own, so that a measurement can leave it out: as a multiplication the second of
    two products is part of the first one's group, without `fusion.back_to_back`.
    """
    return apply_rules(graph, outer.RULES)

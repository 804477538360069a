"""Products of bytes, and of weights that are kept as bytes or as integers of 4 bits."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import mixed_products, scales


def dequantise(graph: Graph) -> Graph:
    """Scales of quantised operands go behind the products, which are of 16 bits where those hold
    both operands.

    A pass of its own, not among the rules that keep every bit: it leaves roundings out.
    """
    return apply_rules(apply_rules(graph, scales.RULES), mixed_products.RULES)

"""Products of bytes, and of weights that are kept as bytes."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import scales


def dequantise(graph: Graph) -> Graph:
    """Scales of quantised operands go behind the products.

    A pass of its own, not among the rules that keep every bit: it leaves roundings out.
    """
    return apply_rules(graph, scales.RULES)

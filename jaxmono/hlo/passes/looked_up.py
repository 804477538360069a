"""Products of fewer rows."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import looked_up as rules


def looked_up(graph: Graph) -> Graph:
    """Rows are multiplied before they are looked up (`rules.looked_up`)."""
    return apply_rules(graph, rules.RULES)

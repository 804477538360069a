"""Padded copies of what convolutions and products read, where features lie unaligned."""

from __future__ import annotations

from jaxmono.hlo.ir import Graph
from jaxmono.hlo.passes.peephole import apply_rules
from jaxmono.hlo.passes.rules import alignment


def align(graph: Graph) -> Graph:
    """Convolutions and products read copies that 16-byte loads fit; the copies are values that are
    stored.

    A pass of its own, so that a measurement can leave it out.
    """
    return apply_rules(graph, alignment.RULES)

"""Algebraic simplification: all local rules of `rules` that make a graph smaller."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.passes.peephole import Rule, apply_rules
from jaxmono.hlo.passes.rules import (
    arithmetic,
    contraction,
    control,
    conversion,
    layout,
    movement,
    ranges,
)

RULES: dict[type[Op], Sequence[Rule]] = {}
for _module in (arithmetic, conversion, layout, movement, contraction, control, ranges):
    for _cls, _rules in _module.RULES.items():
        RULES[_cls] = (*RULES.get(_cls, ()), *_rules)


def algebraic(graph: Graph) -> Graph:
    """Applies every rule once over the graph and its regions.

    Values stay bit for bit what they were, except for dots whose sides swap: the order of
    their sums is a backend's own in any case.
    """
    return apply_rules(graph, RULES)

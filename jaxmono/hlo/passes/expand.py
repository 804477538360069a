"""Expansion of ops that the planner does not know into ones that it does."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op
from jaxmono.hlo.passes.peephole import Rule, apply_rules
from jaxmono.hlo.passes.rules import (
    arg_max,
    convolution,
    cumulative,
    few_terms,
    one_hot,
    powers,
    ragged_dot,
    scatter,
    select_and_scatter,
    sort,
    threefry,
    top_k,
)

RULES: dict[type[Op], Sequence[Rule]] = {**convolution.RULES, **cumulative.RULES,
                                         **top_k.RULES, **threefry.RULES, **scatter.RULES,
                                         **select_and_scatter.RULES,
                                         **sort.RULES, **ragged_dot.RULES,
                                         ops.Elementwise: (*threefry.RULES[ops.Elementwise],
                                                           powers.power),
                                         ops.Reduce: (arg_max.arg_max, one_hot.one_hot_sum,
                                                      few_terms.stacked_terms,
                                                      few_terms.few_terms,
                                                      few_terms.few_columns)}


def expand(graph: Graph) -> Graph:
    """Convolutions become contractions, windowed reductions chains or reductions, the k largest of
    a line k reductions, the place of its largest one of a single op, gradients of pools what each
    element asks of its windows, scatters what each line looks up, short sorts comparisons of each
    with each, products of groups of rows those of tiles.

    The order of their sums changes, as it is a backend's own in any case.
    """
    return apply_rules(graph, RULES)

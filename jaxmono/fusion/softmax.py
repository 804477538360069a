"""Is the chain between two contractions a softmax, whatever is done to the scores before it?

    logits        any element-wise expression of the score, its position and other buffers
    maximum       over the keys, from -inf
    weights       exp(logits - maximum)
    ratio         weights / sum of weights
    probs         ratio, or ratio times or divided by something, or ratio or 0 (dropout); views and
                  conversions anywhere

Then the probabilities never have to be complete: `codegen.attention_flash` goes through the keys
once, with the maximum and the sum of those it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from jaxmono.fusion.demand import demands, is_view, reduction_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import binary_kind, is_splat, splat_value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class Softmax:
    """Where logits, scores and ratios are demanded, over (batch, m, n) of the second contraction.

    ``factors``: the probabilities are more than conversions of the ratio. They are proportional to
    it, so they can be made of weights before the sum is known.
    """

    logits: Value
    index: IndexMap
    score_index: IndexMap
    ratio: Value
    ratio_index: IndexMap
    factors: bool


@dataclass(frozen=True)
class ScaledScores:
    """Logits that are ``scale * score``, or ``masked`` where ``keep`` (if any) is false."""

    scale: float
    keep: Value | None = None
    index: IndexMap = ()
    masked: float = 0.0


def scaled_scores(graph: Graph, first: ops.DotGeneral, softmax: Softmax,
                  n: Var) -> ScaledScores | None:
    """The logits as a multiple of the scores, None if they are anything else.

    So the multiple can be part of the exponential's own. It is at most 1: a score times it
    overflows no earlier than the score. Scores rounded to f16 can, and are left alone.
    """
    match = _Match(graph, n)
    node, at = match.bare(softmax.logits, softmax.index)
    found = ScaledScores(1.0)
    if _is(node, "select"):
        assert isinstance(node, ops.Elementwise)
        keep, kept, masked = (d for d in demands(node, at) or ())
        value = _literal(graph, match.bare(masked.value, masked.index)[0])
        if value is None or math.isnan(value):
            return None
        found = ScaledScores(1.0, keep.value, keep.index, value)
        node, at = match.bare(kept.value, kept.index)
    scale = 1.0
    while _is(node, "multiply") or _is(node, "divide"):
        sides = match.operands(node, at)
        literals = [_literal(graph, x) for x, _ in sides]
        if literals[1] is not None:
            scale *= literals[1] if _is(node, "multiply") else 1.0 / (literals[1] or math.nan)
            node, at = sides[0]
        elif literals[0] is not None and _is(node, "multiply"):
            scale *= literals[0]
            node, at = sides[1]
        else:
            return None
    if node is not first or at != softmax.score_index or not 2.0**-20 <= scale <= 1.0 \
            or DType.F16 in match.types:
        return None
    return replace(found, scale=scale)


def find_softmax(graph: Graph, first: ops.DotGeneral, probs: Value, index: IndexMap, n: Var,
                 inside: Callable[[Op], bool] = lambda op: True) -> Softmax | None:
    """The softmax over ``n`` that ``probs`` at ``index`` is, None if it is something else.

    Args:
      inside: the ops that belong to the chain; the logits contain no reduce of them.
    """
    match = _Match(graph, n)
    found = match.ratio(*match.bare(probs, index))
    if found is None:
        return None
    last, others = found
    ratio, at, logits, l_at = last.op, last.index, last.logits, last.logits_index
    value = logits.results[0] if isinstance(logits, Op) else logits
    walk = Walk(graph, lambda o: o is not first and inside(o))
    walk.demand(value, l_at)  # a reduce inside would be `failed`
    scores = walk.only(first.result)
    if walk.failed is not None or scores is None:
        return None
    behind = Walk(graph, lambda o: o is not first and o is not ratio)
    for node, i in others:
        behind.demand(node.results[0] if isinstance(node, Op) else node, i)
    if behind.failed is not None or first.result in behind.reached \
            or ratio.results[0] in behind.reached:
        return None  # a factor that is made of scores
    # A row of nothing but -inf gives NaN, unless every one of them is selected away.
    if match.selects and any(v.type.dtype.is_float and not _finite(graph, v)
                             for v in walk.reached if v is not first.result and (
                                 v not in graph.producer or _is_constant(graph, v))):
        return None
    return Softmax(value, l_at, scores, ratio.results[0], at,
                   match.bare(probs, index)[0] is not ratio)


Node = Op | Value
"""The op that makes a value, or the value itself where nothing in the graph does."""


_At = tuple[Node, IndexMap]


@dataclass(frozen=True)
class _Ratio:
    op: Op
    index: IndexMap
    logits: Node
    logits_index: IndexMap


class _Match:
    def __init__(self, graph: Graph, n: Var) -> None:
        self.graph, self.n = graph, n
        self.selects = False  # whether a ratio is 0 in some places
        self.types: set[DType] = set()  # that a conversion behind which it looked came from

    def bare(self, value: Value, index: IndexMap) -> tuple[Node, IndexMap]:
        """What is behind views and conversions between floats."""
        op = self.graph.producer.get(value)
        while op is not None and (is_view(op) or _keeps(op)):
            needs = demands(op, index)
            if needs is None or len(needs) != 1 or needs[0].guard.bounds:
                break
            value, index = needs[0].value, needs[0].index
            self.types.add(value.type.dtype)
            op = self.graph.producer.get(value)
        return (value if op is None else op), index

    def ratio(self, node: Node, index: IndexMap) -> tuple[_Ratio, list[_At]] | None:
        """The division of weights by their sum behind factors of it, and what the factors are."""
        if not isinstance(node, ops.Elementwise):
            return None
        sides = self.operands(node, index)
        if node.kind == "divide":
            if (logits := self.softmax(*sides)) is not None:
                return _Ratio(node, index, *logits), []
            kept = [(sides[0], sides[1:])]
        elif node.kind == "multiply":
            kept = [(sides[0], sides[1:]), (sides[1], sides[:1])]
        elif node.kind == "select":
            self.selects = True
            kept = [(x, sides[:1]) for x, other in (sides[1:], sides[:0:-1])
                    if _literal(self.graph, other[0]) == 0]
        else:
            return None
        for x, others in kept:
            if (found := self.ratio(*x)) is not None:
                return found[0], [*found[1], *others]
        return None

    def softmax(self, above: tuple[Node, IndexMap],
                below: tuple[Node, IndexMap]) -> tuple[Node, IndexMap] | None:
        """The logits whose exponentials are above, and the sum of those below."""
        weights, at = above
        if not _is(weights, "exponential") or self.reduced(*below, "add", 0.0) != above:
            return None
        ((difference, d_at),) = self.operands(weights, at)
        if not _is(difference, "subtract"):
            return None
        logits, maximum = self.operands(difference, d_at)
        return logits if self.reduced(*maximum, "maximum", -math.inf) == logits else None

    def operands(self, node: Node, index: IndexMap) -> list[tuple[Node, IndexMap]]:
        assert isinstance(node, ops.Elementwise)
        return [self.bare(d.value, d.index) for d in demands(node, index) or ()]

    def reduced(self, node: Node, index: IndexMap, kind: str,
                start: float) -> tuple[Node, IndexMap] | None:
        """What a reduce of that kind over all of ``n`` reads; None for anything else."""
        if not isinstance(node, ops.Reduce) or len(node.args) != 1 \
                or math.prod(reduced_shape(node)) != self.n.size \
                or any(i.depends_on(self.n) for i in index):
            return None
        if binary_kind(node.body) != kind or _literal(self.graph, node.inits[0]) != start:
            return None
        over = delinearize(Index.of(self.n), reduced_shape(node))
        return self.bare(node.args[0], reduction_index(node, index, over))


def _is(node: Node, kind: str) -> bool:
    return isinstance(node, ops.Elementwise) and node.kind == kind


def _keeps(op: Op) -> bool:
    return (isinstance(op, ops.Convert) and op.operand.type.dtype.is_float
            and op.result.type.dtype.is_float)


def _is_constant(graph: Graph, value: Value) -> bool:
    return isinstance(graph.producer.get(value), ops.Constant)


def _finite(graph: Graph, value: Value) -> bool:
    op = graph.producer.get(value)
    return isinstance(op, ops.Constant) and bool(
        np.isfinite(np.asarray(op.value).astype(np.float64)).all())


def _literal(graph: Graph, node: Node) -> float | None:
    op = node if isinstance(node, Op) else graph.producer.get(node)
    if not isinstance(op, ops.Constant) or op.value.size == 0 or not is_splat(op.value):
        return None
    return float(np.asarray(splat_value(op.value)).astype(np.float64))

"""Is the chain between two contractions a softmax, whatever is done to the scores before it?

    logits        any element-wise expression of the score, its position and other buffers
    maximum       over the keys, from -inf
    weights       exp(logits - maximum)
    probs         weights / sum of weights, then views and conversions

Then the probabilities never have to be complete: `codegen.attention_flash` goes through the keys
once, with the maximum and the sum of those it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxmono.fusion.demand import demands, is_view, reduction_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import DType


class Softmax(NamedTuple):
    """Where the logits and, by them, the scores are demanded, over (batch, m, n) of the second
    contraction."""

    logits: Value
    index: IndexMap
    score_index: IndexMap


class ScaledScores(NamedTuple):
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
    return found._replace(scale=scale)


def find_softmax(graph: Graph, first: ops.DotGeneral, probs: Value, index: IndexMap, n: Var,
                 inside: Callable[[Op], bool] = lambda op: True) -> Softmax | None:
    """The softmax over ``n`` that ``probs`` at ``index`` is, None if it is something else.

    Args:
      inside: the ops that belong to the chain; the logits contain no reduce of them.
    """
    match = _Match(graph, n)
    ratio, at = match.bare(probs, index)
    if not _is(ratio, "divide"):
        return None
    (weights, w_at), (total, t_at) = match.operands(ratio, at)
    if match.reduced(total, t_at, "add", 0.0) != (weights, w_at) \
            or not _is(weights, "exponential"):
        return None
    ((difference, d_at),) = match.operands(weights, w_at)
    if not _is(difference, "subtract"):
        return None
    (logits, l_at), (maximum, m_at) = match.operands(difference, d_at)
    if match.reduced(maximum, m_at, "maximum", -math.inf) != (logits, l_at):
        return None
    value = logits.results[0] if isinstance(logits, Op) else logits
    walk = Walk(graph, lambda o: o is not first and inside(o))
    walk.demand(value, l_at)  # a reduce inside would be `failed`
    scores = walk.only(first.result)
    if walk.failed is not None or scores is None:
        return None
    return Softmax(value, l_at, scores)


Node = Op | Value
"""The op that makes a value, or the value itself where nothing in the graph does."""


class _Match:
    def __init__(self, graph: Graph, n: Var) -> None:
        self.graph, self.n = graph, n
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
        body = node.body
        if len(body.ops) != 1 or not _is(body.ops[0], kind) or body.outputs != body.ops[0].results \
                or set(body.ops[0].inputs) != set(body.inputs) \
                or _literal(self.graph, node.inits[0]) != start:
            return None
        over = delinearize(Index.of(self.n), reduced_shape(node))
        return self.bare(node.args[0], reduction_index(node, index, over))


def _is(node: Node, kind: str) -> bool:
    return isinstance(node, ops.Elementwise) and node.kind == kind


def _keeps(op: Op) -> bool:
    return (isinstance(op, ops.Convert) and op.operand.type.dtype.is_float
            and op.result.type.dtype.is_float)


def _literal(graph: Graph, node: Node) -> float | None:
    op = node if isinstance(node, Op) else graph.producer.get(node)
    if not isinstance(op, ops.Constant) or op.value.size == 0 or not is_splat(op.value):
        return None
    return float(np.asarray(splat_value(op.value)).astype(np.float64))

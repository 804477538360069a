"""Quantised weights whose scales change along the summed dimension, as GPTQ's, AWQ's and most
others' of 4 bits do: products scale them on the way.

    q: s4[k/G, G, n] ── convert ──┐
    s: f32[k/G, n] ── broadcast ──┴── multiply ── reshape ── w: bf16[k, n] ── dot(x, w)

One scale of a column is that of G summed elements (128, mostly; `group`). A stage of its own would
write and read k n elements of 16 bits, eight times the bytes of the weights. (Scales of whole
columns or rows go behind the product: hlo/passes/rules/scales.py.)
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxmono.fusion.demand import demands, is_view
from jaxmono.fusion.dots import dot_vars, operand_index
from jaxmono.fusion.indexing import Index, IndexMap, Var, uniform
from jaxmono.fusion.support import widens_bytes
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

LEAST_GROUP = 32
"""Summed elements that share a scale, at least: as many as 16 bytes of 4-bit weights have."""
MOST_GROUP = 1024
"""Of more, nobody needs to know that they do."""


@dataclass(frozen=True)
class Scaled:
    """Weights of few bits times scales.

    Attributes:
      param, index: the input that the weights are in, and where, demanded as the product's operand.
      scale, scale_index: what each is multiplied with, and where.
      group: neighbours along k, from a multiple of them, that have one scale; a power of two.
      ops: the multiplication and the conversion, and that of the scales if there is one.
    """

    param: Value
    index: IndexMap
    scale: Value
    scale_index: IndexMap
    group: int
    ops: tuple[Op, ...]


def scaled(graph: Graph, value: Value, index: IndexMap, k: Var) -> Scaled | None:
    """What ``value``, demanded at ``index``, is if that is such a product; None if not.

    Args:
      graph: or a Sig's body. k: the summed Var.
    """
    value, index = _behind_views(graph, value, index)
    op = graph.producer.get(value)
    if not isinstance(op, ops.Elementwise) or op.kind != "multiply":
        return None
    for v, by in (op.args, op.args[::-1]):
        at, place = _behind_views(graph, v, index)
        convert = graph.producer.get(at)
        if not isinstance(convert, ops.Convert) or not widens_bytes(convert):
            continue
        param, inside = _behind_views(graph, convert.operand, place)
        scale, where = _behind_views(graph, by, index)
        group = LEAST_GROUP
        if param not in graph.inputs or not all(
                i.is_static and uniform(i, k, group) for i in where):
            continue
        while group < MOST_GROUP and k.size % (2 * group) == 0 \
                and all(uniform(i, k, 2 * group) for i in where):
            group *= 2
        made = graph.producer.get(scale)
        besides = (made,) if isinstance(made, ops.Convert) else ()
        return Scaled(param, inside, scale, where, group, (op, convert, *besides))
    return None


def scaled_operand(graph: Graph, dot: ops.DotGeneral) -> Scaled | None:
    """That of a product's right operand."""
    b, _, n, k = dot_vars(dot)
    if not k.size:
        return None
    return scaled(graph, dot.rhs, operand_index(dot, "rhs", Index.of(b), Index.of(n), Index.of(k)),
                  k)


def _behind_views(graph: Graph, value: Value, index: IndexMap) -> tuple[Value, IndexMap]:
    while (op := graph.producer.get(value)) is not None and is_view(op):
        needs = demands(op, index)
        if needs is None or len(needs) != 1 or needs[0].guard.bounds:
            break
        value, index = needs[0].value, needs[0].index
    return value, index

"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import remapped, rewrite_regions
from jaxmono.hlo.rewrite import is_splat, splat_value

# Bitwise commutative. maximum and minimum are not: of -0 and 0 either may win.
COMMUTATIVE = frozenset({"add", "and", "multiply", "or", "xor"})
_HASHED_BYTES = 1 << 20
"""Larger literals are compared by identity alone: they are weights, and copies of them rare."""


def common_subexpressions(graph: Graph) -> Graph:
    """Computes equal expressions once. Source lines and names do not count.

        a = f(x)           a = f(x)
        b = f(x)     =>    c = g(a, a)
        c = g(a, b)

    A region shares only within itself: reusing an outer value would give it a new capture.
    """
    mapping: dict[Value, Value] = {}
    known: dict[Hashable, tuple[Value, ...]] = {}
    kept: list[Op] = []
    changed = False
    for op in graph.ops:
        new = rewrite_regions(remapped(op, mapping), common_subexpressions)
        changed |= new is not op
        # A part of a scan's array can be part of one only, and what is written over is one's own.
        if not ops.has_side_effect(new) and not (
                isinstance(new, ops.Stored) and new.is_one_of_its_kind):
            key = expression_key(new, id)
            first = known.setdefault(key, new.results)
            if first is not new.results:
                mapping.update(zip(new.results, first, strict=True))
                changed = True
                continue
        kept.append(new)
    if not changed:
        return graph
    outputs = tuple(mapping.get(v, v) for v in graph.outputs)
    return Graph(graph.inputs, tuple(kept), outputs, graph.name)


def expression_key(op: Op, name: Callable[[Value], Hashable], depth: int = 0) -> Hashable:
    """A key that equal ops share: class, attributes, operand names, regions, result types.

    Args:
      op: the op.
      name: what stands for an operand or captured Value.
      depth: how many regions the op is inside of.
    """
    operands: list[Hashable] = [name(v) for v in op.inputs]
    if isinstance(op, ops.Elementwise) and op.kind in COMMUTATIVE:
        operands.sort(key=repr)
    attributes = tuple(_attribute_key(a) for a in op.attributes.values())
    regions = tuple(_region_key(g, name, depth + 1) for g in op.subgraphs)
    counts = tuple(len(getattr(op, f.name)) for f in op.declared("operands"))
    return (type(op), tuple(operands), counts, attributes, regions,
            tuple(v.type for v in op.results))


def _region_key(graph: Graph, outer: Callable[[Value], Hashable], depth: int) -> Hashable:
    local: dict[Value, Hashable] = {}

    def name(v: Value) -> Hashable:
        return local[v] if v in local else outer(v)

    def define(values: tuple[Value, ...]) -> None:
        for v in values:
            local[v] = (depth, len(local))

    define(graph.inputs)
    keys: list[Hashable] = [tuple(v.type for v in graph.inputs)]
    for op in graph.ops:
        keys.append(expression_key(op, name, depth))
        define(op.results)
    return (*keys, tuple(name(v) for v in graph.outputs))


def _attribute_key(value: Any) -> Hashable:
    if not isinstance(value, np.ndarray):
        return value
    if is_splat(value):
        return (value.shape, value.dtype.name, splat_value(value).tobytes())
    if value.nbytes > _HASHED_BYTES:
        return id(value)
    return (value.shape, value.dtype.name, value.tobytes())

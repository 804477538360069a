"""The driver of all local rewrite rules.

A rule looks at one op and what defines its operands. It returns the Values that replace the
op's results, having emitted the ops that compute them, or None before it has emitted anything.
Ops are visited in order, operands first, so a chain of any length collapses in one run; what a
rule leaves without users is for dead code elimination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder, is_splat, splat_value

OpT = TypeVar("OpT", bound=Op)


class Scope(Builder):
    """The ops rewritten so far, and what rules ask of them."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: dict[Value, Op] = {}

    def append(self, op: Op) -> tuple[Value, ...]:
        for v in op.results:
            self.producers[v] = op
        return super().append(op)

    def made_by(self, v: Value, cls: type[OpT]) -> OpT | None:
        """The op that defines ``v`` here, if it is a ``cls``."""
        op = self.producers.get(v)
        return op if isinstance(op, cls) else None

    def literal(self, v: Value) -> np.ndarray[Any, Any] | None:
        """The array of a Value that is a constant."""
        op = self.made_by(v, ops.Constant)
        return None if op is None else op.value

    def element(self, v: Value) -> np.ndarray[Any, Any] | None:
        """The 0-d element that a constant ``v`` repeats; None for any other Value."""
        array = self.literal(v)
        if array is None or not array.size or not is_splat(array):
            return None
        return splat_value(array)


Replacement: TypeAlias = "Sequence[Value] | None"
Rule: TypeAlias = Callable[[Any, Scope], Replacement]


def rewrite_regions(op: Op, f: Callable[[Graph], Graph]) -> Op:
    """``op`` with ``f`` applied to its regions; ``op`` itself if they stay as they are."""
    changes: dict[str, Any] = {}
    for field in op.declared("region", "regions"):
        old = getattr(op, field.name)
        graphs: tuple[Graph, ...] = old if isinstance(old, tuple) else (old,)
        new = tuple(f(g) for g in graphs)
        if any(a is not b for a, b in zip(graphs, new, strict=True)):
            changes[field.name] = new if isinstance(old, tuple) else new[0]
    return dataclasses.replace(op, **changes) if changes else op


def remapped(op: Op, mapping: Mapping[Value, Value]) -> Op:
    """``op`` on mapped operands; ``op`` itself if it uses none that is mapped."""
    return op if not mapping or mapping.keys().isdisjoint(op.uses) else op.clone(mapping)


def is_static(op: Op) -> bool:
    return all(v.type.is_static for v in (*op.inputs, *op.results))


def apply_rules(graph: Graph, rules: Mapping[type[Op], Sequence[Rule]]) -> Graph:
    """Visits every op of ``graph`` and its regions once, and takes the first rule that fits.

    Rules see only ops without symbolic dimensions.

    Raises:
      AssertionError: if a rule returns a Value of another type; that is a bug in the rule.
    """
    scope = Scope()
    mapping: dict[Value, Value] = {}
    changed = False
    for op in graph.ops:
        current = rewrite_regions(remapped(op, mapping), lambda g: apply_rules(g, rules))
        changed |= current is not op
        scope.loc = op.loc
        of_type = rules.get(type(op), ())
        for rule in of_type if of_type and is_static(current) else ():
            new = rule(current, scope)
            if new is not None:
                for a, b in zip(op.results, new, strict=True):
                    assert a.type == b.type, f"{rule.__name__} made {b.type} of {a.type}"
                    mapping[a] = b
                    b.hint = b.hint or a.hint
                changed = True
                break
        else:
            scope.append(current)
    if not changed:
        return graph
    outputs = tuple(mapping.get(v, v) for v in graph.outputs)
    return Graph(graph.inputs, tuple(scope.ops), outputs, graph.name)

"""What values of an array are made of, position by position (associative_scan.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.rules.blocked_scan import State
from jaxmono.hlo.rewrite import Builder, is_splat
from jaxmono.hlo.types import TensorType

JOINS = ("add", "or")
"""Ops that interleave two arrays, each padded with zeros."""

MOST = 256
"""Terms of a function that is looked for: it is compared as a tree."""

Term: TypeAlias = int
Leaf: TypeAlias = tuple[str, int, int, int]
"""("interval", first, end, component)."""


@dataclass
class Terms:
    """Terms, equal ones once.

    Attributes:
      producer: of the graph.
      nodes: ("interval", first, end, component), ("value", op), or (key of an op, *terms).
      sizes: how many there are in a term, each as often as it is read, or more than `MOST`.
      like: an op of each key.
      templates: the function by component, over intervals (0, 1) and (1, 2): what terms have names.
    """

    producer: Mapping[Value, Op]
    nodes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    sizes: list[int] = field(default_factory=list[int])
    known: dict[tuple[Any, ...], Term] = field(default_factory=dict[tuple[Any, ...], Term])
    like: dict[Any, Op] = field(default_factory=dict[Any, Op])
    templates: Mapping[int, Term] = field(default_factory=dict[int, Term])

    def _of(self, node: tuple[Any, ...]) -> Term:
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
            parts = node[1:] if node[0] not in ("interval", "value") else ()
            self.sizes.append(1 + min(MOST, sum(self.sizes[t] for t in parts)))
        return self.known[node]

    def leaf(self, first: int, end: int, component: int) -> Term:
        return self._of(("interval", first, end, component))

    def value(self, o: Op) -> Term:
        """What is the same at all positions."""
        source, dimensions = self._spread(o)
        if isinstance(source, ops.Constant):
            key: tuple[Any, ...] = source.value.dtype.str, source.value.flat[0].tobytes()
        else:
            key = source, dimensions
        self.like.setdefault(key, o)
        return self._of(("value", key))

    def _spread(self, o: Op) -> tuple[Op | Value, tuple[int, ...]]:
        """What a constant or broadcasts repeat, and along which dimensions it lies: equal for what
        a level broadcasts to its own size."""
        if not isinstance(o, ops.BroadcastInDim):
            return o, ()
        made = self.producer.get(o.operand)
        if not isinstance(made, (ops.Constant, ops.BroadcastInDim)) or (
                isinstance(made, ops.Constant) and not is_splat(made.value)):
            return o.operand, o.dimensions
        source, dimensions = self._spread(made)
        return source, tuple(o.dimensions[i] for i in dimensions)

    def made(self, o: Op, args: Sequence[Term]) -> Term:
        key = type(o), tuple(o.attributes.items()), o.result.type.dtype
        if isinstance(o, ops.Elementwise) and o.kind in JOINS and len(args) == 2:
            # Interleaving: what is beside it at this position is zero.
            for one, other in (args, args[::-1]):
                if self._is_zero(other):
                    return one
        self.like.setdefault(key, o)
        node = key, *args
        if node not in self.known and self.templates:
            term = self._of(node)
            self.known[node] = self._named(term)
        return self._of(node)

    def _is_zero(self, term: Term) -> bool:
        node = self.nodes[term]
        o = self._spread(self.like[node[1]])[0] if node[0] == "value" else None
        return isinstance(o, ops.Constant) and not o.value.flat[0]

    def name(self, templates: Mapping[int, Term]) -> None:
        """Terms that are made from now on and are these of two neighbouring intervals are the
        interval of both."""
        self.templates = templates
        self.known = {n: t for n, t in self.known.items() if n[0] in ("interval", "value")}

    def are_all(self, named: Sequence[Term], component: int) -> bool:
        """Whether each position has a component of all elements up to it."""
        return all(self.nodes[t] == ("interval", 0, i + 1, component) for i, t in enumerate(named))

    def _named(self, term: Term) -> Term:
        for j, template in self.templates.items():
            bound: dict[tuple[int, int], Term] = {}
            if self.nodes[template][0] != self.nodes[term][0] \
                    or not self.match(template, term, bound):
                continue
            parts: dict[int, set[tuple[int, int]]] = {0: set(), 1: set()}
            for (side, k), t in bound.items():
                node = self.nodes[t]
                if node[0] != "interval" or node[3] != k:
                    break
                parts[side].add(node[1:3])
            else:
                if len(parts[0]) == len(parts[1]) == 1:
                    ((a, b),), ((c, e),) = parts[0], parts[1]
                    if b == c:
                        return self.leaf(a, e, j)
        return term

    def match(self, template: Term, term: Term, bound: dict[tuple[int, int], Term]) -> bool:
        """Whether ``term`` is ``template`` with ``bound`` in place of its elements, by the side
        (0, 1) and the component."""
        node = self.nodes[template]
        if node[0] == "interval":
            return bound.setdefault((node[1], node[3]), term) == term
        if node[0] == "value":
            return template == term
        other = self.nodes[term]
        return node[0] == other[0] and len(node) == len(other) and all(
            self.match(a, b, bound) for a, b in zip(node[1:], other[1:], strict=True))

    def moved(self, term: Term, first: int) -> Term:
        """A term over elements ``first`` and the next, over 0 and 1."""
        node = self.nodes[term]
        if node[0] == "interval":
            return self.leaf(node[1] - first, node[2] - first, node[3])
        if node[0] == "value":
            return term
        return self._of((node[0], *(self.moved(t, first) for t in node[1:])))

    def leaves(self, term: Term) -> Iterator[Leaf]:
        node = self.nodes[term]
        if node[0] == "interval":
            yield node  # pyright: ignore[reportReturnType]
        elif node[0] != "value":
            for t in node[1:]:
                yield from self.leaves(t)

    def emit(self, b: Builder, term: Term, sides: tuple[State, State], shape: Sequence[int],
             mapping: Mapping[Value, Value], known: dict[Term, Value]) -> Value:
        """A template on arrays of ``shape``."""
        if term in known:
            return known[term]
        node = self.nodes[term]
        if node[0] == "interval":
            return sides[node[1]][node[3]]
        if node[0] == "value":
            source, dimensions = self._spread(self.like[node[1]])
            if isinstance(source, Value):
                return b.broadcast_in_dim(mapping.get(source, source), shape, dimensions)
            assert isinstance(source, ops.Constant)
            return b.splat(source.value.flat[0],
                           TensorType(tuple(shape), source.result.type.dtype))
        o = self.like[node[0]]
        args = [self.emit(b, t, sides, shape, mapping, known) for t in node[1:]]
        fields: dict[str, Any] = {"args": tuple(args)} if isinstance(o, ops.Elementwise) else (
            {"lhs": args[0], "rhs": args[1]} if isinstance(o, ops.Compare)
            else {"operand": args[0]})
        made = Value(TensorType(tuple(shape), o.result.type.dtype))
        (known[term],) = b.append(dataclasses.replace(o, results=(made,), loc=b.loc, **fields))
        return known[term]

"""Finds what `jax.lax.associative_scan` left of a scan.

    even, odd = x[0::2], x[1::2]            log2(n) levels of strided slices, of each two that are
    p = scan(combine(even, odd))            interleaved again: 3 stages a level, all of which but
    q = combine(p[:-1], even[1:])    ──►    one copy
    h = pad(concat(even[:1], q)) + pad(p)                      h = blocked_scan(x, combine)

Only positions tell. Each array on the way is a list of terms, one for each position, over elements
of what the scan reads: position 1 of the result is the function itself, combine(x[0], x[1]), and
what position 3 and 7 are made of says what it is of the other components. Then every term that is
this function of two neighbouring intervals gets the name of the whole interval; the result is a
scan if position t is the interval of all elements up to t. How the levels were split does not
matter, nor what another version of JAX makes of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.rules.blocked_scan import Combine, State, blocked_scan
from jaxmono.hlo.rewrite import Builder, is_splat
from jaxmono.hlo.types import TensorType

SHORTEST, LONGEST = 8, 8192
"""Elements. Position 7 has to be there; the terms of 8192 elements take a second."""

_MAPPED = (ops.Elementwise, ops.Compare, ops.Convert, ops.ReducePrecision)
_JOINS = ("add", "or")

Term: TypeAlias = int
Leaf: TypeAlias = tuple[str, int, int, int]
"""("interval", first, end, component)."""


def associative_scan(graph: Graph) -> Graph:
    """Replaces the results of such scans; what only led to them is dead then."""
    index = {o: i for i, o in enumerate(graph.ops)}
    inside: set[Op] = set()
    found: dict[Op, _Scan] = {}
    for o in reversed(graph.ops):
        if o in inside or _interleaved(graph, o) is None:
            continue
        scan = _recognised(graph, o, index)
        if scan is not None:
            found[o] = scan
            inside.update(scan.ops)
    if not found:
        return graph
    b, mapping = Builder(), dict[Value, Value]()
    for o in graph.ops:
        b.append(o.clone(mapping) if any(v in mapping for v in o.uses) else o)
        if (scan := found.get(o)) is not None:
            b.loc = o.loc
            xs = {k: mapping.get(v, v) for k, v in enumerate(scan.xs)}
            made = blocked_scan(b, xs, scan.dimension, scan.combine(mapping), (scan.component,))
            mapping[o.result] = made[scan.component]
    return Graph(graph.inputs, tuple(b.ops), tuple(mapping.get(v, v) for v in graph.outputs),
                 graph.name)


def _interleaved(graph: Graph, o: Op) -> int | None:
    """The dimension along which ``o`` interleaves two arrays; None if it does not."""
    if not isinstance(o, ops.Elementwise) or o.kind not in _JOINS or not o.result.type.is_static:
        return None
    pads = [graph.producer.get(v) for v in o.args]
    if not all(isinstance(p, ops.Pad) and sorted(p.interior)[-2:] in ([1], [0, 1])
               for p in pads):
        return None
    dims = {p.interior.index(1) for p in pads if isinstance(p, ops.Pad)}
    return dims.pop() if len(dims) == 1 else None


@dataclass(frozen=True)
class _Scan:
    """What a value is a scan of. ``ops``: all between its operands and it."""

    xs: tuple[Value, ...]
    dimension: int
    component: int
    ops: frozenset[Op]
    terms: _Terms
    templates: Mapping[int, Term]

    def combine(self, mapping: Mapping[Value, Value]) -> Combine:
        """The function; ``mapping``: of values that it reads besides its operands."""
        terms = self.terms
        leaves = {k: list(terms.leaves(t)) for k, t in self.templates.items()}

        def apply(b: Builder, wanted: Collection[int], left: State,
                  right: State) -> dict[int, Value]:
            known: dict[Term, Value] = {}
            shape = next(iter(right.values())).type.dims
            return {k: terms.emit(b, self.templates[k], (left, right), shape, mapping, known)
                    for k in wanted}

        return Combine({k: frozenset(j for _, a, _, j in ls if a == 0) for k, ls in leaves.items()},
                       {k: frozenset(j for _, a, _, j in ls if a == 1) for k, ls in leaves.items()},
                       apply)


def _recognised(graph: Graph, top: Op, index: Mapping[Op, int]) -> _Scan | None:
    d = _interleaved(graph, top)
    assert d is not None
    n = top.result.type.dims[d]
    if not SHORTEST <= n <= LONGEST:
        return None
    between = _between(graph, top, d)
    if between is None:
        return None
    chain, xs = between
    chain.sort(key=lambda o: index[o])
    terms = _Terms(graph.producer)
    raw = _positions(terms, chain, xs, top, d)
    if raw is None:
        return None
    start = terms.nodes[raw[0]]
    if start[:3] != ("interval", 0, 1):
        return None
    component = start[3]
    templates = {component: raw[1]}
    if not all(_templates(terms, templates, component, raw[i - 1], (0, i)) for i in (2, 4, 8)):
        return None
    terms.name(templates)
    named = _positions(terms, chain, xs, top, d)
    if named is None or any(terms.nodes[t] != ("interval", 0, i + 1, component)
                            for i, t in enumerate(named)):
        return None
    return _Scan(tuple(xs), d, component, frozenset(chain), terms, templates)


def _between(graph: Graph, top: Op, d: int) -> tuple[list[Op], list[Value]] | None:
    """The ops that ``top`` is made by of slices of whole arrays, and these arrays."""
    n = top.result.type.dims[d]
    xs: dict[Value, None] = {}
    seen: dict[Op, None] = {top: None}
    todo = list(top.inputs)
    while todo:
        v = todo.pop()
        o = graph.producer.get(v)
        if o is None:
            return None
        if o in seen:
            continue
        seen[o] = None
        if isinstance(o, ops.Slice) and o.operand.type.dims[d] == n:
            xs[o.operand] = None
        elif isinstance(o, (*_MAPPED, ops.Slice, ops.Pad, ops.Concatenate)):
            todo += o.inputs
        elif not isinstance(o, (ops.Constant, ops.BroadcastInDim)):
            return None
    return list(seen), list(xs)


def _positions(terms: _Terms, chain: Sequence[Op], xs: Sequence[Value], top: Op,
               d: int) -> list[Term] | None:
    """The terms of the result, by position; None if an op on the way is of another kind."""
    at: dict[Value, list[Term]] = {
        x: [terms.leaf(i, i + 1, k) for i in range(x.type.dims[d])] for k, x in enumerate(xs)}
    for o in chain:
        made = _step(terms, at, o, d)
        if made is None:
            return None
        at[o.result] = made
    return at[top.result]


def _step(terms: _Terms, at: Mapping[Value, list[Term]], o: Op, d: int) -> list[Term] | None:
    t = o.result.type
    if isinstance(o, ops.Constant):
        return [terms.value(o)] * (t.dims[d] if t.rank else 1) if is_splat(o.value) else None
    if isinstance(o, ops.BroadcastInDim):
        if d in o.dimensions and o.operand.type.dims[o.dimensions.index(d)] != 1:
            return None
        return [terms.value(o)] * (t.dims[d] if t.rank else 1)
    if isinstance(o, ops.Slice):
        whole = o.operand.type.dims
        others = [i for i in range(len(whole)) if i != d]
        if any(o.start_indices[i] or o.limit_indices[i] != whole[i] or o.strides[i] != 1
               for i in others):
            return None
        return at[o.operand][o.start_indices[d]:o.limit_indices[d]:o.strides[d]]
    if isinstance(o, ops.Concatenate):
        return [x for v in o.args for x in at[v]] if o.dimension == d else None
    if isinstance(o, ops.Pad):
        return _padded(terms, at, o, d)
    lists = [at[v] for v in o.inputs]
    if any(len(x) != t.dims[d] for x in lists):
        return None
    return [terms.made(o, args) for args in zip(*lists, strict=True)]


def _padded(terms: _Terms, at: Mapping[Value, list[Term]], o: ops.Pad, d: int) -> list[Term] | None:
    rank = o.operand.type.rank
    if any(a[i] for a in (o.low, o.high, o.interior) for i in range(rank) if i != d) \
            or o.low[d] < 0 or o.high[d] < 0 or o.padding_value not in at:
        return None
    (filler,) = at[o.padding_value]
    out = [filler] * o.low[d]
    for i, x in enumerate(at[o.operand]):
        out += [filler] * o.interior[d] * (i > 0)
        out.append(x)
    return out + [filler] * o.high[d]


def _templates(terms: _Terms, found: dict[int, Term], component: int, term: Term,
               interval: tuple[int, int]) -> bool:
    """Reads the functions of further components off a term that is ``component`` of an interval,
    half of it combined with the other; False if it is not the known function of such halves."""
    first, end = interval
    if end - first == 1:
        return terms.nodes[term] == ("interval", first, end, component)
    middle = (first + end) // 2
    if component not in found:
        if end - first > 2:
            return False
        found[component] = terms.moved(term, first)
    bound: dict[tuple[int, int], Term] = {}
    if not terms.match(found[component], term, bound):
        return False
    return all(_templates(terms, found, j, part, ((first, middle), (middle, end))[side])
               for (side, j), part in bound.items())


@dataclass
class _Terms:
    """Terms, equal ones once.

    Attributes:
      producer: of the graph.
      nodes: ("interval", first, end, component), ("value", op), or (key of an op, *terms).
      like: an op of each key.
      templates: the function by component, over intervals (0, 1) and (1, 2): what terms have names.
    """

    producer: Mapping[Value, Op]
    nodes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    known: dict[tuple[Any, ...], Term] = field(default_factory=dict[tuple[Any, ...], Term])
    like: dict[Any, Op] = field(default_factory=dict[Any, Op])
    templates: Mapping[int, Term] = field(default_factory=dict[int, Term])

    def _of(self, node: tuple[Any, ...]) -> Term:
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
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
        if isinstance(o, ops.Elementwise) and o.kind in _JOINS and len(args) == 2:
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
        o = self.like[node[1]] if node[0] == "value" else None
        return isinstance(o, ops.Constant) and not o.value.flat[0]

    def name(self, templates: Mapping[int, Term]) -> None:
        """Terms that are made from now on and are these of two neighbouring intervals are the
        interval of both."""
        self.templates = templates
        self.known = {n: t for n, t in self.known.items() if n[0] in ("interval", "value")}

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

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

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.rules.blocked_scan import Combine, State, blocked_scan
from jaxmono.hlo.passes.scan_terms import JOINS, MOST, Term, Terms
from jaxmono.hlo.rewrite import Builder, is_splat

SHORTEST, LONGEST = 8, 8192
"""Elements. Position 7 has to be there; the terms of 8192 elements take a second."""

_MAPPED = (ops.Elementwise, ops.Compare, ops.Convert, ops.ReducePrecision)


def associative_scan(graph: Graph) -> Graph:
    """Replaces the results of such scans; what only led to them is dead then."""
    index = {o: i for i, o in enumerate(graph.ops)}
    inside: set[Op] = set()
    found: dict[Op, _Scan] = {}
    for o in reversed(graph.ops):
        if o in inside or _interleaved(graph, o) is None:
            continue
        scan = next((s for s in dict.fromkeys(found.values()) if s.takes(graph, o, index)), None) \
            or _recognised(graph, o, index)
        if scan is not None:
            found[o] = scan
            inside.update(scan.ops)
    if not found:
        return graph
    b, mapping, done = Builder(), dict[Value, Value](), dict[_Scan, dict[int, Value]]()
    groups = itertools.count(1 + ops.most_groups(graph))
    for o in graph.ops:
        b.append(o.clone(mapping) if any(v in mapping for v in o.uses) else o)
        if (scan := found.get(o)) is not None:
            b.loc = o.loc
            if scan not in done:  # all of its components together: they share what is carried
                xs = {k: mapping.get(v, v) for k, v in enumerate(scan.xs)}
                done[scan] = blocked_scan(b, xs, scan.dimension, scan.combine(mapping),
                                          sorted(scan.tops.values()), groups=groups)
            mapping[o.result] = done[scan][scan.tops[o]]
    return Graph(graph.inputs, tuple(b.ops), tuple(mapping.get(v, v) for v in graph.outputs),
                 graph.name)


def _interleaved(graph: Graph, o: Op) -> int | None:
    """The dimension along which ``o`` interleaves two arrays; None if it does not."""
    if not isinstance(o, ops.Elementwise) or o.kind not in JOINS or not o.result.type.is_static:
        return None
    pads = [graph.producer.get(v) for v in o.args]
    if not all(isinstance(p, ops.Pad) and sorted(p.interior)[-2:] in ([1], [0, 1])
               for p in pads):
        return None
    dims = {p.interior.index(1) for p in pads if isinstance(p, ops.Pad)}
    return dims.pop() if len(dims) == 1 else None


@dataclass(eq=False)
class _Scan:
    """What values are a scan of.

    Attributes:
      tops: the component that an op's result is.
      ops: all between the operands and these.
    """

    xs: tuple[Value, ...]
    dimension: int
    tops: dict[Op, int]
    ops: set[Op]
    terms: Terms
    templates: Mapping[int, Term]

    def takes(self, graph: Graph, top: Op, index: Mapping[Op, int]) -> bool:
        """Whether ``top`` is another component of the same scan, which then has it."""
        if _interleaved(graph, top) != self.dimension \
                or (between := _between(graph, top, self.dimension)) is None:
            return False
        chain, xs = between
        if set(xs) != set(self.xs) or top.result.type.dims != self.xs[0].type.dims:
            return False
        chain.sort(key=lambda o: index[o])
        named = _positions(self.terms, chain, self.xs, top, self.dimension)
        kind, *_, component = self.terms.nodes[named[0]] if named else ("", 0)
        if named is None or kind != "interval" or not self.terms.are_all(named, component):
            return False
        self.tops[top] = component
        self.ops.update(chain)
        return True

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
    terms = Terms(graph.producer)
    raw = _positions(terms, chain, xs, top, d)
    if raw is None:
        return None
    start = terms.nodes[raw[0]]
    if start[:3] != ("interval", 0, 1):
        return None
    component = start[3]
    if terms.sizes[raw[1]] > MOST:
        return None
    templates = {component: raw[1]}
    if not all(_templates(terms, templates, component, raw[i - 1], (0, i)) for i in (2, 4, 8)):
        return None
    terms.name(templates)
    named = _positions(terms, chain, xs, top, d)
    if named is None or not terms.are_all(named, component):
        return None
    return _Scan(tuple(xs), d, {top: component}, set(chain), terms, templates)


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


def _positions(terms: Terms, chain: Sequence[Op], xs: Sequence[Value], top: Op,
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


def _step(terms: Terms, at: Mapping[Value, list[Term]], o: Op, d: int) -> list[Term] | None:
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


def _padded(terms: Terms, at: Mapping[Value, list[Term]], o: ops.Pad, d: int) -> list[Term] | None:
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


def _templates(terms: Terms, found: dict[int, Term], component: int, term: Term,
               interval: tuple[int, int]) -> bool:
    """Reads the functions of further components off a term that is ``component`` of an interval,
    half of it combined with the other; False if it is not the known function of such halves."""
    first, end = interval
    if end - first == 1:
        return terms.nodes[term] == ("interval", first, end, component)
    middle = (first + end) // 2
    if component not in found:
        if end - first > 2 or terms.sizes[term] > MOST:
            return False
        found[component] = terms.moved(term, first)
    bound: dict[tuple[int, int], Term] = {}
    if not terms.match(found[component], term, bound):
        return False
    return all(_templates(terms, found, j, part, ((first, middle), (middle, end))[side])
               for (side, j), part in bound.items())

"""Values that are computed again where they are read, so that fewer are stored.

    stage 3    z = x @ w;  y = gelu(z)     stores z's erf, exp, ..., y          z, y
    stage 80   d = (g @ v) * gelu'(z)      reads them                     ──►   z, and makes them

What differentiation keeps of a layer is ready in the forward pass, and a group that has it in
registers would store all of it, for a stage long behind. Per group, a minimum cut (least_cut.py)
finds the least bytes that its readers can make the rest of: of a GELU its operand, of a norm the
moments of a row, of a softmax what its rows' largest logits and sums are taken of. What is computed
again belongs to no group: those that read it make it on the way.

The kernel of a training step of ViT-B/16 with 16 images wrote 6.4 GB, and writes 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxmono.fusion.bodies import order
from jaxmono.fusion.draft import Draft
from jaxmono.fusion.formulate import Formulation
from jaxmono.fusion.least_cut import compared, fed, least, places
from jaxmono.fusion.plan import Device
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value

MIN_BYTES = 1 << 20
"""That a group no longer writes. Less is in L2, and close to what else its readers read."""


@dataclass
class _Again:
    """Copies: of which ops, behind the last of which they stand, and who goes on with the first."""

    behind: dict[Op, list[Op]] = field(default_factory=dict)
    instead: dict[Value, Value] = field(default_factory=dict)
    inside: dict[Value, frozenset[Op]] = field(default_factory=dict)


def recompute(graph: Graph, form: Formulation, device: Device) -> tuple[Graph, frozenset[Op]]:
    """``graph`` with such values made twice, and the ops that make them again, which must not grow
    into a group; the graph itself and none, if there are none."""
    again = _Again()
    index = {o: i for i, o in enumerate(graph.ops)}
    owner = {o: d for d in form.groups for o in d.ops}
    taken: set[Value] | None = None
    for draft in form.groups:
        # Others have values at places of which there are several, or of buffers that are updated.
        if draft.kind not in ("dot", "row") or draft.folded or draft.taps > 1 or draft.stored:
            continue
        needs = [v for v in draft.outputs if v in draft.at and v not in graph.outputs]
        if sum(v.type.nbytes for v in needs) < 2 * MIN_BYTES:
            continue
        if taken is None:
            taken = fed(graph, range(len(graph.ops))) | compared(graph)
        _cut(graph, form, draft, needs, taken, index, owner, device, again)
    return _rewritten(graph, again) if again.instead else (graph, frozenset())


def written(form: Formulation) -> int:
    """Bytes that the groups of a graph write."""
    return sum(v.type.nbytes for d in form.groups for v in d.outputs)


def _cut(graph: Graph, form: Formulation, draft: Draft, needs: list[Value], taken: set[Value],
         index: Mapping[Op, int], owner: Mapping[Op, Draft], device: Device, again: _Again) -> None:
    inside = frozenset(order(form.state, draft, form.stored)[0])
    readers = {v: _readers(graph, owner, v, inside) for v in needs}
    free = {r for o in inside if isinstance(o, ops.Constant | ops.Iota) for r in o.results}
    found = places(graph, needs, taken, {index[o] for o in inside}, index, free)
    # A row's own values are few bytes, and would be loops of their own.
    found.update((v, False) for v in found if v.type.nbytes < MIN_BYTES and v in draft.at)
    times = max((len(r) for v, r in readers.items() if found.get(v)), default=0)
    if not times:
        return
    made = set(least(graph, needs, found, graph.outputs, device, times))
    left = [v for v in needs if v in made]
    chain = _chain(graph, left, made)
    more = {u for o in chain for u in o.uses
            if u not in made and u not in draft.outputs and graph.producer.get(u) in draft.ops}
    if sum(v.type.nbytes for v in left) - sum(v.type.nbytes for v in more) < MIN_BYTES \
            or any(v not in draft.at for v in more):
        return
    copies: dict[Value, Value] = {}
    for o in sorted(chain, key=lambda o: index[o]):
        copy = o.clone(copies, fresh_results=True)
        copies.update(zip(o.results, copy.results, strict=True))
        again.behind.setdefault(o, []).append(copy)
    again.instead.update((v, copies[v]) for v in left)
    again.inside.update(dict.fromkeys(left, inside))


def _readers(graph: Graph, owner: Mapping[Op, Draft], v: Value, inside: frozenset[Op],
             ) -> set[Draft]:
    """Groups that read a value, perhaps through ops that belong to none."""
    found: set[Draft] = set()
    seen, todo = {v}, [v]
    while todo:
        for u in graph.users.get(todo.pop(), ()):
            if u in inside:
                continue
            if u in owner:
                found.add(owner[u])
            else:
                todo.extend(r for r in u.results if r not in seen)
                seen.update(u.results)
    return found


def _chain(graph: Graph, wanted: Iterable[Value], made: set[Value]) -> dict[Op, None]:
    """The ops behind ``wanted``, as far as their values are ``made`` again."""
    found: dict[Op, None] = {}
    todo = list(wanted)
    while todo:
        o = graph.producer[todo.pop()]
        if o not in found:
            found[o] = None
            todo.extend(u for u in o.uses if u in made)
    return found


def _rewritten(graph: Graph, again: _Again) -> tuple[Graph, frozenset[Op]]:
    def redirected(o: Op) -> Op:
        mapping = {v: again.instead[v] for v in o.uses
                   if v in again.instead and o not in again.inside[v]}
        return o.clone(mapping) if mapping else o

    out: list[Op] = []
    apart: list[Op] = []
    for o in graph.ops:
        out.append(redirected(o))
        for copy in again.behind.get(o, ()):
            apart.append(redirected(copy))
            out.append(apart[-1])
    return Graph(graph.inputs, tuple(out), graph.outputs, graph.name), frozenset(apart)

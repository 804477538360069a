"""Reduces that share a row: finding the draft that a reduce belongs to.

Two reduces share a draft when they have the same rows and columns and are connected: one is
computed from the other (softmax: max, then the sum), or both read the same values (mean and mean
of squares). MonoNN calls the result an OCS with its element-wise neighbours (section 4.2.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from jaxmono.fusion.cost import CHEAP, weight
from jaxmono.fusion.draft import ENDS, Draft, State
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize, variables
from jaxmono.fusion.walk import Walk, leaves
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


def kept_shape(op: ops.Reduce) -> tuple[int, ...]:
    shape = op.args[0].type.dims
    return tuple(n for d, n in enumerate(shape) if d not in op.dimensions)


def reduced_shape(op: ops.Reduce) -> tuple[int, ...]:
    shape = op.args[0].type.dims
    return tuple(n for d, n in enumerate(shape) if d in op.dimensions)


def spread(vars: tuple[Var, ...], shape: tuple[int, ...]) -> IndexMap:
    """The row-major position over ``vars`` as an index into ``shape`` of equal size."""
    offset = linearize(tuple(Index.of(v) for v in vars), [v.size for v in vars])
    return delinearize(offset, shape)


def place_reduce(state: State, op: ops.Reduce) -> Draft:
    """Puts a reduce into the draft that it shares rows with, or into one of its own."""
    if op in state.banned:
        return _start(state, op)
    floating = {v: None for a in op.args for v in leaves(
        state.graph, a, lambda o: _enters(state, o))}
    walks: Walks = {}
    for draft in _candidates(state, floating):
        if _join(state, draft, op, walks):
            return draft
    return _start(state, op)


def _candidates(state: State, reached: dict[Value, None]) -> list[Draft]:
    found: dict[Draft, None] = {}
    for v in reached:
        owner = state.owner_of(v)
        if owner is not None and owner.kind == "row":
            found[owner] = None
    reduced = [v for v in reached if isinstance(state.graph.producer.get(v), ops.Reduce)]
    for d in state.drafts:
        if d.kind == "row" and (not reached.keys().isdisjoint(d.seen.keys()) or any(
                _are_siblings(state, v, d.seen) for v in reduced)):
            found[d] = None
    return sorted(found, key=lambda d: -d.pot)


def _enters(state: State, op: Op) -> bool:
    """Whether a reduce looks through ``op`` for what it shares with others.

    Also through a cheap op that a contraction took into its epilogue for now: `trim` gives
    ``square(x)`` back to the reduce when ``x`` itself is written.
    """
    if isinstance(op, ENDS):
        return False
    owner = state.owner.get(op)
    return owner is None or (owner.kind in ("dot", "attention") and len(set(op.inputs)) == 1
                             and op not in state.in_place and weight(op) <= CHEAP)


def _walk(state: State, op: ops.Reduce, index: IndexMap, reduced: IndexMap) -> Walk:
    walk = Walk(state.graph, lambda o: _enters(state, o))
    kept, over = iter(index), iter(reduced)
    inner = tuple(next(over) if d in op.dimensions else next(kept)
                  for d in range(op.args[0].type.rank))
    for a in op.args:
        walk.demand(a, inner)
    for a in op.inits:
        walk.demand(a, ())
    return walk


Walks = dict[tuple[IndexMap, IndexMap], Walk]
"""Of one reduce, by where it is and over what: drafts of as many rows have the same Vars. Of 842
reduces of a training step (wav2vec2) that asked 22600 drafts, walks were a third of the planner's
34 s."""


def _join(state: State, draft: Draft, op: ops.Reduce, walks: Walks) -> bool:
    kept, reduced = kept_shape(op), reduced_shape(op)
    if (math.prod(kept) != math.prod(v.size for v in draft.domain)
            or math.prod(reduced) != math.prod(v.size for v in draft.cols)):
        return False
    over = spread(draft.cols, reduced)
    return any(_join_at(state, draft, op, index, over, walks)
               for index in _indices(draft, op, over))


def _indices(draft: Draft, op: ops.Reduce, over: IndexMap) -> list[IndexMap]:
    """Where over the draft's rows the reduce may be: where what it reads is, if that is inside
    (behind a transposition, say), or in the order of its own dimensions."""
    out: list[IndexMap] = []
    for at in (draft.at[v] for v in op.args if v in draft.at):
        inner = tuple(i for d, i in enumerate(at) if d in op.dimensions)
        index = tuple(i for d, i in enumerate(at) if d not in op.dimensions)
        if inner == over and not any(i.depends_on(c) for i in index for c in draft.cols):
            out.append(index)
    return list(dict.fromkeys([*out, spread(draft.domain, kept_shape(op))]))


def _join_at(state: State, draft: Draft, op: ops.Reduce, index: IndexMap,
             over: IndexMap, walks: Walks) -> bool:
    if (walk := walks.get((index, over))) is None:
        walk = walks[index, over] = _walk(state, op, index, over)
    if walk.failed is not None:
        return False
    linked = False
    for v, indices in walk.reached.items():
        if v in draft.at:
            if tuple(indices) != (draft.at[v],):
                return False
            linked = True
        elif state.pot_of(v) >= draft.pot:
            return False
        elif (v in draft.seen and draft.seen[v] in indices) or _are_siblings(state, v, draft.seen):
            linked = True
    if not linked:
        return False
    _add(state, draft, op, index, walk)
    return True


def _are_siblings(state: State, v: Value, others: Collection[Value]) -> bool:
    """Whether a group that reduces (in its epilogue, say) leaves ``v`` and some of the others: what
    finishes both is one group then, and has the mean and the square's mean at hand."""
    producer = state.graph.producer.get(v)
    return isinstance(producer, ops.Reduce) and any(
        isinstance(state.graph.producer.get(u), ops.Reduce)
        and state.owner_of(u) is state.owner_of(v) for u in others)


def _start(state: State, op: ops.Reduce) -> Draft:
    kept, reduced = kept_shape(op), reduced_shape(op)
    rows = variables("r", [n for n in kept if n != 1])
    cols = variables("c", [n for n in reduced if n != 1])
    index, over = spread(rows, kept), spread(cols, reduced)
    pot = 1 + max((state.pot_of(v) for v in op.inputs), default=0)
    draft = Draft("row", pot, domain=rows, cols=cols, anchor=op)
    state.drafts.append(draft)
    _add(state, draft, op, index, _walk(state, op, index, over))
    return draft


def _add(state: State, draft: Draft, op: ops.Reduce, index: IndexMap, walk: Walk) -> None:
    size = math.prod(v.size for v in (*draft.domain, *draft.cols))
    for v, indices in walk.reached.items():
        # small tables (a bias, a mask row) do not tie reduces together
        if v.type.size == size and v not in draft.at and not _is_literal(state, v):
            draft.seen.setdefault(v, next(iter(indices)))
    for r in op.results:
        draft.at[r] = index
    state.claim(draft, op)


def _is_literal(state: State, v: Value) -> bool:
    producer: Op | None = state.graph.producer.get(v)
    return isinstance(producer, (ops.Constant, ops.Iota)) or (
        isinstance(producer, ops.BroadcastInDim) and _is_literal(state, producer.operand))

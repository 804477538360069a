"""dot -> row-wise chain -> dot as one draft, proven from indices alone.

When the second contraction is met, one operand (the probabilities) may come from a row draft
that itself reads a dot draft (the scores). If nothing else uses either of them, and every score
that probability [b, m, n] needs lies in row (b, m), the three become one draft.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxmono.fusion.dots import dot_dims, operand_index, result_index
from jaxmono.fusion.draft import ANCHORS, Draft, State
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.softmax import find_softmax
from jaxmono.fusion.support import (
    MAX_ATTENTION_KEYS,
    MAX_ATTENTION_WIDTH,
    MAX_SOFTMAX_WIDTH,
    attention_bytes,
    matrix_dtype,
    softmax_attention_bytes,
)
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value


class Proof(NamedTuple):
    """How the first contraction is demanded, over (batch, m, n) of the second."""

    first_swapped: bool
    batch: Index
    m: Index
    n: Index


def attention_vars(first: ops.DotGeneral, second: ops.DotGeneral,
                   probs_side: str) -> tuple[Var, Var, Var, Var, Var]:
    """Vars batch, m, n, k, v."""
    dims = dot_dims(second)
    m, v = (dims.m, dims.n) if probs_side == "lhs" else (dims.n, dims.m)
    return (Var("b", dims.batch), Var("m", m), Var("n", dims.k),
            Var("k", dot_dims(first).k), Var("v", v))


def place_attention(state: State, second: ops.DotGeneral) -> Draft | None:
    """Merges the drafts of the scores and of the row chain into one around ``second``."""
    if second in state.banned:
        return None
    for side in ("lhs", "rhs"):
        probs = second.lhs if side == "lhs" else second.rhs
        value = second.rhs if side == "lhs" else second.lhs
        chain = state.owner_of(probs)
        if chain is None or chain.kind != "row" or probs is value:
            continue
        for scores in _score_drafts(state, chain):
            inside = closed(state, chain, scores, second)
            if inside is None or not isinstance(scores.anchor, ops.DotGeneral):
                continue
            if state.graph.producer.get(value) in inside \
                    or not _fits(state, scores.anchor, second, side, set(inside)):
                continue
            if prove(state.graph, scores.anchor, second, side, set(inside)) is None:
                continue
            return merge(state, chain, scores, second, side, inside)
    return None


def _score_drafts(state: State, chain: Draft) -> list[Draft]:
    found: dict[Draft, None] = {}
    for op in (*chain.ops, *_producers(state, chain.seen)):
        for v in op.uses:
            owner = state.owner_of(v)
            if owner is not None and owner.kind == "dot":
                found[owner] = None
    for v in chain.seen:
        owner = state.owner_of(v)
        if owner is not None and owner.kind == "dot":
            found[owner] = None
    return list(found)


def _producers(state: State, values: dict[Value, IndexMap]) -> list[Op]:
    return [state.graph.producer[v] for v in values if v in state.graph.producer]


def closed(state: State, chain: Draft, scores: Draft, second: ops.DotGeneral) -> list[Op] | None:
    """The ops of both drafts and what floats between; None if a value inside is used outside."""
    inside: dict[Op, None] = dict(scores.ops)
    inside.update(chain.ops)
    outputs = state.outputs_set()
    todo = list(inside)
    while todo:
        op = todo.pop()
        for r in op.results:
            if r in outputs:
                return None
            for user in state.graph.users.get(r, ()):
                if user in inside or user is second:
                    continue
                if user in state.owner or isinstance(user, ANCHORS):
                    return None
                inside[user] = None
                todo.append(user)
    order = {o: i for i, o in enumerate(state.graph.ops)}
    return sorted(inside, key=order.__getitem__)


def _fits(state: State, first: ops.DotGeneral, second: ops.DotGeneral, side: str,
          inside: set[Op]) -> bool:
    b, m, n, k, v = attention_vars(first, second, side)
    t = matrix_dtype(first)
    if t is None or t is not matrix_dtype(second) or n.size < 2 or min(k.size, v.size) == 0:
        return False
    widest, shared = max(k.size, v.size), state.device.shared_bytes
    if n.size <= MAX_ATTENTION_KEYS and widest <= MAX_ATTENTION_WIDTH \
            and attention_bytes(n.size, k.size, v.size, t.itemsize) <= shared:
        return True
    if t.itemsize != 2 or widest > MAX_SOFTMAX_WIDTH \
            or softmax_attention_bytes(k.size, v.size, t.itemsize) > shared:
        return False
    probs = second.lhs if side == "lhs" else second.rhs
    index = operand_index(second, side, Index.of(b), Index.of(m), Index.of(n))
    return find_softmax(state.graph, first, probs, index, n, lambda o: o in inside) is not None


def prove(graph: Graph, first: ops.DotGeneral, second: ops.DotGeneral, side: str,
          inside: set[Op]) -> Proof | None:
    """Shows that row (b, m) of the probabilities needs row (b, m) of the scores only."""
    b, m, n, _, _ = attention_vars(first, second, side)
    probs = second.lhs if side == "lhs" else second.rhs
    index = operand_index(second, side, Index.of(b), Index.of(m), Index.of(n))
    ok = True

    def cols(op: ops.Reduce) -> IndexMap:
        nonlocal ok
        shape = reduced_shape(op)
        ok = ok and math.prod(shape) == n.size
        return delinearize(Index.of(n), shape)

    walk = Walk(graph, lambda o: o in inside and o is not first, cols)
    walk.demand(probs, index)
    if not ok or walk.failed is not None:
        return None
    for o in inside:
        if isinstance(o, ops.Reduce):
            at = walk.only(o.results[0]) if len(o.results) == 1 else _common(walk, o)
            if at is None or any(i.depends_on(n) for i in at):
                return None
    at = walk.only(first.result)
    if at is None or any(not i.is_static for i in at) or any(  # of a concatenation, a pad
            i.bounds[0] < 0 or i.bounds[1] >= d
            for i, d in zip(at, first.result.type.dims, strict=True)):
        return None
    return _rows_and_keys(first, at, b, m, n)


def _common(walk: Walk, op: ops.Reduce) -> IndexMap | None:
    indices = {i for r in op.results for i in walk.reached.get(r, {})}
    return next(iter(indices)) if len(indices) == 1 else None


def _rows_and_keys(first: ops.DotGeneral, at: IndexMap, b: Var, m: Var, n: Var) -> Proof | None:
    dims = dot_dims(first)
    shape = first.result.type.dims
    nb, nl = len(first.lhs_batch), len(dims.lhs_free)
    parts = (slice(0, nb), slice(nb, nb + nl), slice(nb + nl, len(shape)))
    batch, left, right = (linearize(at[p], shape[p]) for p in parts)
    if batch.variables - {b}:
        return None
    for swapped, rows, keys in ((False, left, right), (True, right, left)):
        if keys == Index.of(n) and not rows.depends_on(n):
            return Proof(swapped, batch, rows, keys)
    return None


def merge(state: State, chain: Draft, scores: Draft, second: ops.DotGeneral, side: str,
           inside: list[Op]) -> Draft:
    made = {r for o in inside for r in o.results}
    reads = {v for o in (*inside, second) for v in o.uses} - made
    assert isinstance(scores.anchor, ops.DotGeneral)
    b, m, _, _, v = attention_vars(scores.anchor, second, side)
    draft = Draft("attention", 1 + max((state.pot_of(x) for x in reads), default=0),
                  domain=(b, m, v), anchor=second, first=scores.anchor)
    rows, cols = (m, v) if side == "lhs" else (v, m)
    draft.at[second.result] = result_index(second, Index.of(b), Index.of(rows), Index.of(cols))
    state.drafts = [d for d in state.drafts if d is not chain and d is not scores]
    state.drafts.append(draft)
    for o in (*inside, second):
        state.claim(draft, o)
    return draft

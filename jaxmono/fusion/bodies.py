"""From drafts to Sigs: cutting out the body, writing down the form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxmono.fusion.attention import attention_vars, prove
from jaxmono.fusion.dots import dot_vars, operand_index
from jaxmono.fusion.draft import IN_MEMORY, Draft, State, remap_index
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize
from jaxmono.fusion.key import sig_key, sig_name
from jaxmono.fusion.plan import AttentionForm, DotForm, Form, LoopForm, RowForm, Sig, Store
from jaxmono.fusion.round_rows import is_rounded
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.strip import bare_inputs
from jaxmono.fusion.walk import Walk, leaves
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value


def order(state: State, draft: Draft, stored: set[Value],
          roots: Sequence[Value] | None = None) -> tuple[list[Op], list[Value]]:
    """A draft's ops in the order of a walk from its outputs (or ``roots``), and what it reads.

    The walk depends only on the structure, so isomorphic drafts come out alike wherever their
    ops stand in the program.
    """
    producer = state.graph.producer
    placed: dict[Op, None] = {}
    reads: dict[Value, None] = {}
    todo: list[Value | Op] = list(reversed(draft.outputs if roots is None else roots))
    while todo:
        item = todo.pop()
        if isinstance(item, Op):
            placed[item] = None
            continue
        made_by = producer.get(item)
        if made_by is None or isinstance(made_by, IN_MEMORY) \
                or (item in stored and not draft.has(made_by)):
            reads[item] = None
        elif made_by not in placed:
            todo.append(made_by)
            todo.extend(reversed(made_by.uses))
    return list(placed), list(reads)


def make_sig(state: State, draft: Draft, stored: set[Value],
             results: Sequence[Value]) -> tuple[Sig, list[Value]]:
    """The Sig of a draft and the values that its params stand for.

    Args:
      stored: every value that lives in a buffer.
      results: what the body returns, in order (a program output may repeat).
    """
    results = [_bare(state, draft, v) for v in results]
    placed, reads = order(state, draft, stored, results)
    kept = set(results)
    bare = {v: r for v, r in bare_inputs(placed, reads).items() if v not in kept}
    mapping: dict[Value, Value] = {}
    for v in reads:
        mapping[v] = Value(bare.get(v, v).type, v.hint)
    inputs = tuple(mapping.values())
    made: dict[Op, Op] = {}
    for o in placed:
        if o.inputs and o.inputs[0] in bare:
            mapping[o.results[0]] = mapping[o.inputs[0]]
            continue
        c = o.clone(mapping, fresh_results=True)
        if isinstance(c, ops.Stored) and c.group:  # its number is the program's, and none of a Sig
            c = replace(c, group=0)
        mapping.update(zip(o.results, c.results, strict=True))
        made[o] = c
    folded = bool(draft.folded)
    body = Graph(inputs, tuple(made.values()), tuple(mapping[v] for v in results), "body")
    stores = _stores(draft, results, mapping)
    form = _form(draft, body, made, mapping, stores, results)
    if isinstance(form, DotForm) and not form.row_prologue:
        left = leaves(body, form.dot.lhs, lambda _: True)
        made_of = [v for v in reads if mapping[v] in left]
        form = replace(form, rounded=bool(made_of) and all(
            is_rounded(state.graph, v) for v in made_of))
    name = sig_name(draft.kind, body, folded=folded)
    return Sig(body, form, sig_key(body, form), name), reads


def _bare(state: State, draft: Draft, v: Value) -> Value:
    """What is stored for ``v``: behind reshapes, which do not change the bytes."""
    producer = state.graph.producer.get(v)
    while (isinstance(producer, ops.Reshape) and producer in draft.ops
           and producer.operand in draft.at and v not in draft.stored):
        v = producer.operand
        producer = state.graph.producer.get(v)
    return v


def _stores(draft: Draft, results: Sequence[Value],
            mapping: dict[Value, Value]) -> list[Store]:
    out: list[Store] = []
    for i, v in enumerate(results):
        if v in draft.reduced:
            over, index = draft.reduced[v]
            out.append(Store(i, index, over))
            continue
        at = draft.stored.get(v, draft.at.get(v))
        if at is None:
            if v in draft.extra:
                continue
            raise PlanError(f"{v!r} is stored by a {draft.kind} group but has no index in it")
        over = draft.domain
        if any(x.depends_on(c) for x in at for c in draft.cols):
            over = (*draft.domain, *draft.cols)
        out.append(Store(i, remap_index(at, mapping), over))
    return out


def _form(draft: Draft, body: Graph, made: dict[Op, Op], mapping: dict[Value, Value],
          stores: list[Store], results: Sequence[Value]) -> Form:
    if draft.kind == "loop":
        return LoopForm(draft.domain, tuple(stores))
    if draft.kind == "row":
        return RowForm(draft.domain, draft.cols, tuple(stores))
    if draft.kind == "dot":
        assert draft.anchor is not None
        return _dot_form(draft, body, made[draft.anchor], mapping, stores, results)
    assert draft.anchor is not None and draft.first is not None
    return _attention_form(body, made[draft.first], made[draft.anchor], stores)


def _dot_form(draft: Draft, body: Graph, dot: Op, mapping: dict[Value, Value],
              stores: list[Store], results: Sequence[Value]) -> DotForm:
    assert isinstance(dot, ops.DotGeneral)
    b, m, n, k = dot_vars(dot)
    lhs = operand_index(dot, "lhs", Index.of(b), Index.of(m), Index.of(k))
    rhs = operand_index(dot, "rhs", Index.of(b), Index.of(n), Index.of(k))
    if draft.extra:
        walk = prologue_walk(body, dot, set(body.ops), (b, m, k))
        for i, v in enumerate(results):
            if v in draft.extra:
                at = walk.only(mapping[v])
                if at is None:
                    raise PlanError(f"{v!r} has no single place in the row prologue")
                stores.append(Store(i, at, (b, m, k)))
    stores.sort(key=lambda s: s.result)
    return DotForm(dot, b, m, n, k, lhs, rhs, tuple(stores), bool(draft.folded),
                   draft.domain[1] if draft.taps > 1 else None,
                   draft.domain[2] if draft.paired else None)


def prologue_walk(graph: Graph, dot: ops.DotGeneral, inside: set[Op],
                  vars: tuple[Var, Var, Var]) -> Walk:
    """What the left operand of ``dot`` demands over (batch, m, k), through ``inside``."""
    b, m, k = vars

    def cols(op: ops.Reduce) -> IndexMap:
        return delinearize(Index.of(k), reduced_shape(op))

    walk = Walk(graph, lambda o: o in inside and o is not dot, cols)
    walk.demand(dot.lhs, operand_index(dot, "lhs", Index.of(b), Index.of(m), Index.of(k)))
    return walk


def _attention_form(body: Graph, first: Op, second: Op, stores: list[Store]) -> AttentionForm:
    assert isinstance(first, ops.DotGeneral) and isinstance(second, ops.DotGeneral)
    side = _probs_side(body, first, second)
    inside = set(body.ops) - {first, second}
    proof = prove(body, first, second, side, _between(body, first, second, side) & inside)
    if proof is None:
        raise PlanError("an attention group lost its proof when it was cut out")
    b, m, n, k, v = attention_vars(first, second, side)
    other = "rhs" if side == "lhs" else "lhs"
    query, keys = ("rhs", "lhs") if proof.first_swapped else ("lhs", "rhs")
    return AttentionForm(
        first, second, b, m, n, k, v, proof.first_swapped,
        lhs_index=operand_index(first, query, proof.batch, proof.m, Index.of(k)),
        rhs_index=operand_index(first, keys, proof.batch, Index.of(n), Index.of(k)),
        probs=second.lhs if side == "lhs" else second.rhs,
        p_index=operand_index(second, side, Index.of(b), Index.of(m), Index.of(n)),
        value=second.rhs if side == "lhs" else second.lhs,
        value_index=operand_index(second, other, Index.of(b), Index.of(v), Index.of(n)),
        stores=tuple(stores))


def _between(body: Graph, first: ops.DotGeneral, second: ops.DotGeneral, side: str) -> set[Op]:
    """Ops on a path from the first contraction to the probabilities."""
    after: set[Value] = {first.result}
    out: set[Op] = set()
    for o in body.ops:
        if o is not first and o is not second and any(v in after for v in o.uses):
            after.update(o.results)
            out.add(o)
    del side
    return out


def _probs_side(body: Graph, first: ops.DotGeneral, second: ops.DotGeneral) -> str:
    after = {first.result, *(r for o in _between(body, first, second, "") for r in o.results)}
    return "lhs" if second.lhs in after else "rhs"

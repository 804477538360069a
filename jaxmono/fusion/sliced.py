"""Slices of a contraction's result that join its draft, all of them at once.

    dot ──► relu ──► s0, s1, ...      an element of the domain is then one of each slice, and takes
                                      several places of the product

Windows are slices of neighbouring rows (window_rows.py), pairs of both halves of the columns
(paired_columns.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.fusion.demand import demands
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.indexing import IndexMap, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


def sliced_draft(state: State, op: Op) -> tuple[Draft, Value] | None:
    """The draft of a contraction whose elements ``op`` slices, one each, and what it slices."""
    if not isinstance(op, ops.Slice) or op in state.banned:
        return None
    draft, value = state.owner_of(op.operand), op.operand
    if draft is None or draft.kind != "dot" or draft.taps > 1 or draft.paired \
            or value not in draft.at:
        return None
    return draft, value


def place_in(slices: Sequence[ops.Slice], places: Sequence[IndexMap]) -> IndexMap | None:
    """The index at which each slice has one of these places of what is sliced, the one that begins
    with it the first of them; None if there is none."""
    first = next(o for o in slices if not any(o.start_indices))
    index = tuple(i // s for i, s in zip(places[0], first.strides, strict=True))
    rest = set(places)
    for o in slices:
        (need,) = demands(o, index) or (None,)
        if need is None or need.index not in rest:
            return None
        rest.remove(need.index)
    return index


def is_read_whole(state: State, draft: Draft, value: Value) -> bool:
    """Whether what a draft makes before ``value`` is also read, or written, as it is."""
    return bool(draft.stored or draft.reduced) or any(
        v is not value and (v in state.outputs_set() or not all(
            draft.has(u) for u in state.graph.users.get(v, ()))) for v in draft.at)


def join_slices(state: State, draft: Draft, slices: Sequence[ops.Slice], index: IndexMap,
                domain: tuple[Var, ...]) -> None:
    """Makes ``domain`` the draft's, where ``index`` is that of all slices. From then on nothing
    else of the draft has a place."""
    draft.domain = domain
    draft.at.clear()
    for o in slices:
        draft.at[o.result] = index
        state.claim(draft, o)

"""One sweep in program order that grows every draft forward from its anchor.

    dot ──► add bias ──► gelu ──► convert        joins the dot's draft (epilogue)
    reduce ──► divide ──► broadcast ──► subtract joins the reduce's draft
    p[0] + p[1] + ... ──► add bias ──► reduce    the sum of a contraction's shares begins a norm's
    dot ──► reduce over 16 rows                  joins the dot's draft, as a result of its own
    dot ──► relu ──► four slices ──► maximum     joins the dot's draft, with four rows an element
    dot ──► two halves ──► gelu, multiply        joins the dot's draft, with two columns an element

An op joins the draft of its operand with the highest potential, if everything else that it reads
has a smaller one (so the draft does not have to wait for its own kind) and it demands the values
inside at their canonical index. What joins nothing floats: `loops` decides about it later.
"""

from __future__ import annotations

from jaxmono.fusion.attention import place_attention
from jaxmono.fusion.back_to_back import place_back_to_back
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.dots import start_dot
from jaxmono.fusion.draft import JOINABLE, Draft, State, consistent, forward
from jaxmono.fusion.epilogue_reduces import place_in_epilogue
from jaxmono.fusion.paired_columns import place_pair
from jaxmono.fusion.rows import place_reduce
from jaxmono.fusion.share_k import start_sum
from jaxmono.fusion.window_rows import place_window
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op

OPTIONAL = ("back_to_back", "window_rows")
"""Decisions that ``state.without`` may leave out."""


def grow(state: State) -> None:
    """Fills ``state.drafts``, ``state.owner`` and ``state.pot``."""
    pairs = (place_attention,) if "back_to_back" in state.without else \
        (place_attention, place_back_to_back)
    for op in state.graph.ops:
        if isinstance(op, ops.DotGeneral):
            if all(place(state, op) is None for place in pairs):
                start_dot(state, op)
        elif isinstance(op, ops.Reduce):
            if not place_in_epilogue(state, op):
                place_reduce(state, op)
        elif op not in state.owner and not start_sum(state, op) and not place_window(state, op) \
                and not place_pair(state, op) and not _join(state, op):
            pot = max((state.pot_of(v) for v in op.uses), default=0)
            state.pot.update(dict.fromkeys(op.results, pot))


def _join(state: State, op: Op) -> bool:
    in_place = op in state.in_place
    if op in state.banned or op in state.late or not (
            isinstance(op, JOINABLE) or in_place or _kept(state, op)):
        return False
    draft = _target(state, op)
    if draft is None:
        return False
    inside = [v for v in op.inputs if v in draft.at]
    if any(state.pot_of(v) >= draft.pot for v in op.inputs if v not in draft.at):
        return False
    if isinstance(op, ops.DynamicUpdateSlice) and inside != [op.update]:
        return False
    index = None
    for v in inside:
        index = forward(op, v, draft.at[v], draft.cols)
        if index is not None:
            break
    if index is None or not consistent(op, index, draft.at):
        return False
    # an updated buffer is read by later stages only, so nothing may join through it
    (draft.stored if in_place else draft.at)[op.results[0]] = index
    state.claim(draft, op)
    return True


def _kept(state: State, op: Op) -> bool:
    """Whether a group may write what has to be stored as it has it; what is stored already is to
    lie elsewhere as well, by a copy."""
    if not isinstance(op, ops.Stored) or op.group:
        return False
    made = state.graph.producer.get(op.operand)
    return made is not None and not is_view(made) and not isinstance(made, ops.Stored)


def _target(state: State, op: Op) -> Draft | None:
    best: Draft | None = None
    for v in op.inputs:
        owner = state.owner_of(v)
        if owner is not None and v in owner.at and (best is None or owner.pot > best.pot):
            best = owner
    return best

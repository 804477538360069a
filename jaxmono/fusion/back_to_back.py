"""dot -> element-wise ops -> dot as one draft: back-to-back fusion under threadblock residence.

    h = x @ w1            one task: 128 rows of x, all columns of h, all columns of y;
    p = relu(h + b)  ──►  h and p never leave the block
    y = p @ w2

Bolt (section 3.1) asks that a block's tile of the first product has all its columns, so that the
second one needs nothing of other blocks. Kept only where the rows alone give every SM work: then it
saves a stage, and writing and reading p.
"""

from __future__ import annotations

from jaxmono.fusion.attention import attention_vars, closed, merge, prove
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.support import matrix_dtype
from jaxmono.hlo import ops

ROWS = 128
"""Of a task."""

MAX_COLUMNS = 256
"""Of the first product: a warp keeps 16 rows of them in registers."""

MAX_WIDTH = 512
"""Of the second product: each task goes through all of its weights."""

BUSY = 0.75
"""Share of the SMs that the tasks must reach."""

_PIECE = 8
"""16-bit elements of one copy, which sizes must be multiples of."""


def place_back_to_back(state: State, second: ops.DotGeneral) -> Draft | None:
    """Merges the draft of a first contraction into one around ``second``."""
    if second in state.banned or second in state.paired or not state.device.wgmma:
        return None
    for side in ("lhs", "rhs"):
        left = second.lhs if side == "lhs" else second.rhs
        value = second.rhs if side == "lhs" else second.lhs
        first = state.owner_of(left)
        if first is None or first.kind != "dot" or left is value \
                or not isinstance(first.anchor, ops.DotGeneral):
            continue
        inside = closed(state, first, first, second)
        if inside is None or any(isinstance(o, ops.Reduce) for o in inside):
            continue
        if state.graph.producer.get(value) in inside \
                or not _pays(state, first.anchor, second, side):
            continue
        if prove(state.graph, first.anchor, second, side, set(inside)) is None:
            continue
        return merge(state, first, first, second, side, inside)
    return None


def is_pair(draft: Draft) -> bool:
    """Whether a draft is such a fusion, not an attention."""
    return draft.kind == "attention" and not any(isinstance(o, ops.Reduce) for o in draft.ops)


def _pays(state: State, first: ops.DotGeneral, second: ops.DotGeneral, side: str) -> bool:
    b, m, n, k, v = attention_vars(first, second, side)
    t = matrix_dtype(first)
    return (t is not None and t is matrix_dtype(second) and t.itemsize == 2 and b.size == 1
            and 2 <= n.size <= MAX_COLUMNS and 1 <= v.size <= MAX_WIDTH
            and not (n.size % _PIECE or k.size % _PIECE or v.size % _PIECE)
            and -(-m.size // ROWS) >= BUSY * state.device.sm_count)

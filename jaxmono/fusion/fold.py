"""Row prologues: a normalisation recomputed by the contractions that read it.

    stage 1: y = norm(x)          stage 1: q = norm(x) @ wq    (also stores y, if others need it)
    stage 2: q = y @ wq    ──►             k = norm(x) @ wk
             k = y @ wk

Every column tile repeats the norm of its rows; for few rows that is cheaper than one more stage.
"""

from __future__ import annotations

import math

from jaxmono.fusion import cost
from jaxmono.fusion.bodies import prologue_walk
from jaxmono.fusion.dots import dot_dims, dot_vars
from jaxmono.fusion.draft import ANCHORS, Draft, State
from jaxmono.fusion.plan import Device
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.support import matrix_dtype
from jaxmono.fusion.trim import escapes
from jaxmono.fusion.walk import leaves
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value

MAX_ROWS = 512
"""Above this many rows the repeated norms cost more than the stage that they save."""

TILE_ROWS = 16
"""Rows of the smallest tile: this many normalised rows must fit in shared memory."""

RING_BYTES = 16 * 1024
"""Shared memory that stays for the other operand at least."""

PANEL_US_PER_BYTE = 0.03 / 1024
"""Loads, two reductions and stores of a normalised row (measured by the generator)."""

MAX_WEIGHT = 160
"""Lane operations for one element, row values counted as elements."""


def fold(state: State) -> None:
    """Folds row drafts into the contractions behind them where that saves a stage."""
    for chain in [d for d in state.drafts if d.kind == "row"]:
        if chain.anchor in state.banned:
            continue
        hosts = _hosts(state, chain)
        if hosts:
            _try(state, chain, hosts)


def _hosts(state: State, chain: Draft) -> list[Draft]:
    """Dot drafts that could take the chain in as their left operand."""
    out: list[Draft] = []
    for d in state.drafts:
        dot = d.anchor
        if d.kind != "dot" or d.folded or not isinstance(dot, ops.DotGeneral):
            continue
        if chain.pot < d.pot and _fits(dot, state.device) and _provable(state, chain, d, dot):
            out.append(d)
    return out


def _fits(dot: ops.DotGeneral, device: Device) -> bool:
    dims = dot_dims(dot)
    rows = dims.batch * dims.m
    panel = dims.k * dot.lhs.type.dtype.itemsize
    return (matrix_dtype(dot) is not None and 0 < rows <= MAX_ROWS and dims.k > 1
            and panel * TILE_ROWS <= device.shared_bytes // 2 - RING_BYTES
            and panel * min(rows, TILE_ROWS) * PANEL_US_PER_BYTE <= 0.6 * device.phase_us)


def _reaches(state: State, v: Value, chain: Draft) -> bool:
    found = leaves(state.graph, v, lambda o: o not in state.owner and not isinstance(o, ANCHORS))
    return any(state.owner_of(x) is chain for x in found)


def _provable(state: State, chain: Draft, draft: Draft, dot: ops.DotGeneral) -> bool:
    if not _reaches(state, dot.lhs, chain):
        return False
    for o in draft.ops:  # the epilogue and the other operand must not need it
        for v in o.uses:
            if v not in draft.at and (v is not dot.lhs or o is not dot) \
                    and _reaches(state, v, chain):
                return False
    if _reaches(state, dot.rhs, chain):
        return False
    b, m, _, k = dot_vars(dot)
    inside = _inside(state, chain)
    walk = prologue_walk(state.graph, dot, inside, (b, m, k))
    if walk.failed is not None:
        return False
    reduces = [o for o in inside if isinstance(o, ops.Reduce)]
    for o in reduces:
        if math.prod(reduced_shape(o)) != k.size:
            return False
        indices = {i for r in o.results for i in walk.reached.get(r, {})}
        if len(indices) != 1 or any(x.depends_on(k) for i in indices for x in i):
            return False
    # nothing heavier than a norm: every tile recomputes what comes before the reduces as well
    made = [state.graph.producer[v] for v in walk.reached if v in state.graph.producer]
    return (sum(map(cost.weight, made)) <= MAX_WEIGHT
            and not any(isinstance(o, ops.Gather) for o in made))


def _inside(state: State, chain: Draft) -> set[Op]:
    return set(chain.ops) | {o for o in state.graph.ops
                             if o not in state.owner and not isinstance(o, ANCHORS)}


def _try(state: State, chain: Draft, hosts: list[Draft]) -> None:
    outputs = state.outputs_set()
    kept: dict[Value, None] = {}
    for o in chain.ops:
        for r in o.results:
            if escapes(state, chain, r, outputs) and not _only_for(state, chain, r, hosts, outputs):
                kept[r] = None
    if kept:
        others = [d.pot for d in state.drafts if d is not chain and d not in hosts
                  and any(_reaches(state, v, chain) for o in d.ops for v in o.uses)]
        # somebody else needs the rows as early as the hosts run: no stage would be saved
        if any(p <= max(h.pot for h in hosts) for p in others):
            return
        writer = next((h for h in hosts if _can_store(state, chain, h, list(kept))), None)
        if writer is None:
            return
        writer.extra = tuple(kept)
    for h in hosts:
        h.folded = dict(chain.ops)
        h.pot = max(h.pot, chain.pot)
    state.drafts.remove(chain)
    for o in chain.ops:
        state.owner.pop(o, None)
    state.folded.update(dict.fromkeys(chain.ops))
    state.folds += 1


def _only_for(state: State, chain: Draft, v: Value, hosts: list[Draft],
              outputs: frozenset[Value]) -> bool:
    """Whether every use of ``v`` outside the chain leads to a host's left operand only."""
    if v in outputs:
        return False
    todo, seen = [v], {v}
    while todo:
        x = todo.pop()
        for u in state.graph.users.get(x, ()):
            if u in chain.ops:
                continue
            owner = state.owner.get(u)
            if owner is not None:
                if owner not in hosts or owner.anchor is not u or u.inputs[0] is not x:
                    return False
                continue
            if isinstance(u, ANCHORS) or any(r in outputs for r in u.results):
                return False
            for r in u.results:
                if r not in seen:
                    seen.add(r)
                    todo.append(r)
    return True


def _can_store(state: State, chain: Draft, host: Draft, values: list[Value]) -> bool:
    dot = host.anchor
    assert isinstance(dot, ops.DotGeneral)
    b, m, _, k = dot_vars(dot)
    walk = prologue_walk(state.graph, dot, _inside(state, chain), (b, m, k))
    return all(v.type.size == b.size * m.size * k.size and walk.only(v) is not None
               for v in values)

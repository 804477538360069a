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
from jaxmono.fusion.draft import ENDS, STORED, Draft, State
from jaxmono.fusion.plan import Device
from jaxmono.fusion.rows import reduced_shape
from jaxmono.fusion.support import exact_product, matrix_dtype
from jaxmono.fusion.trim import escapes
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value

MAX_ROWS = 32
"""Above this many rows the repeated norms cost more than the stage that they save: tiles of 64 rows
repeat them for every 48 to 192 columns. BERT-base b1 (128 rows) on an H200: 464 us with 24 folds,
364 us with a stage for each, in which the weights of the next one are already loaded."""

TILE_ROWS = 16
"""Rows of the smallest tile: this many normalised rows must fit in shared memory."""

STREAMED_ROWS = 4
"""Up to this many rows a contraction holds no more rows of its left operand than there are: the
generator streams the weights past them instead of filling tiles (codegen/dot_gemv.py)."""

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
        touched, readers = _touched(state, chain)
        hosts = _hosts(state, chain, touched, readers)
        if hosts:
            _try(state, chain, hosts, readers, _inside(state, chain, touched))


def _touched(state: State, chain: Draft) -> tuple[dict[Value, None], dict[Draft, None]]:
    """Values that the chain makes or that float behind it, and the drafts that read them."""
    values = {r: None for o in chain.ops for r in o.results}
    readers: dict[Draft, None] = {}
    todo = list(values)
    while todo:
        for u in state.graph.users.get(todo.pop(), ()):
            owner = state.owner.get(u)
            if owner is not None:
                if owner is not chain:
                    readers[owner] = None
                continue
            if isinstance(u, ops.Stored):
                continue  # who reads that does so in memory
            for r in u.results:
                if r not in values:
                    values[r] = None
                    todo.append(r)
    return values, readers


def _hosts(state: State, chain: Draft, touched: dict[Value, None],
           readers: dict[Draft, None]) -> list[Draft]:
    """Dot drafts that could take the chain in as their left operand."""
    out: list[Draft] = []
    inside = _inside(state, chain, touched)
    for d in state.drafts:
        dot = d.anchor
        if d not in readers or d.kind != "dot" or d.folded or not isinstance(dot, ops.DotGeneral):
            continue
        if chain.pot < d.pot and _fits(dot, state.device) \
                and _provable(state, chain, d, dot, touched, inside):
            out.append(d)
    return out


def _fits(dot: ops.DotGeneral, device: Device) -> bool:
    dims = dot_dims(dot)
    rows = dims.batch * dims.m
    panel = dims.k * dot.lhs.type.dtype.itemsize
    held = rows if rows <= STREAMED_ROWS else TILE_ROWS
    if dims.n == 1 < dims.m and exact_product(dot):
        return False  # a panel of several rows is multiplied as tf32
    return (matrix_dtype(dot) is not None and 0 < rows <= MAX_ROWS and dims.k > 1
            and panel * held <= device.shared_bytes // 2 - RING_BYTES
            and panel * min(rows, TILE_ROWS) * PANEL_US_PER_BYTE <= 0.6 * device.phase_us)


def _provable(state: State, chain: Draft, draft: Draft, dot: ops.DotGeneral,
              touched: dict[Value, None], inside: set[Op]) -> bool:
    if dot.lhs not in touched:
        return False
    for o in draft.ops:  # the epilogue and the other operand must not need it
        for v in o.uses:
            if v in touched and (o is not dot or v is not dot.lhs):
                return False
    if dot.rhs in touched:
        return False
    b, m, _, k = dot_vars(dot)
    walk = prologue_walk(state.graph, dot, inside, (b, m, k))
    if walk.failed is not None:
        return False
    for o in chain.ops:
        if not isinstance(o, ops.Reduce):
            continue
        if math.prod(reduced_shape(o)) != k.size:
            return False
        indices = {i for r in o.results for i in walk.reached.get(r, {})}
        if len(indices) != 1 or any(x.depends_on(k) for i in indices for x in i):
            return False
    # nothing heavier than a norm: every tile recomputes what comes before the reduces as well
    made = [state.graph.producer[v] for v in walk.reached if v in state.graph.producer]
    return (sum(map(cost.weight, made)) <= MAX_WEIGHT
            and not any(isinstance(o, ops.Gather) for o in made))


def _inside(state: State, chain: Draft, touched: dict[Value, None]) -> set[Op]:
    """The chain, what floats behind it, and what floats before it."""
    inside = set(chain.ops)
    inside.update(o for v in touched if (o := state.graph.producer[v]) not in state.owner)
    todo = [v for o in inside for v in o.uses]
    while todo:
        o = state.graph.producer.get(todo.pop())
        if o is not None and o not in inside and o not in state.owner \
                and not isinstance(o, STORED):
            inside.add(o)
            todo.extend(o.uses)
    return inside


def _try(state: State, chain: Draft, hosts: list[Draft], readers: dict[Draft, None],
         inside: set[Op]) -> None:
    outputs = state.outputs_set()
    kept: dict[Value, None] = {}
    for o in chain.ops:
        for r in o.results:
            if escapes(state, chain, r, outputs) and not _only_for(state, chain, r, hosts, outputs):
                kept[r] = None
    if kept:
        others = [d.pot for d in readers if d not in hosts]
        # somebody else needs the rows as early as the hosts run: no stage would be saved
        if any(p <= max(h.pot for h in hosts) for p in others):
            return
        writer = next((h for h in hosts if _can_store(state, inside, h, list(kept))), None)
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
            if isinstance(u, ENDS) or any(r in outputs for r in u.results):
                return False
            for r in u.results:
                if r not in seen:
                    seen.add(r)
                    todo.append(r)
    return True


def _can_store(state: State, inside: set[Op], host: Draft, values: list[Value]) -> bool:
    dot = host.anchor
    assert isinstance(dot, ops.DotGeneral)
    b, m, _, k = dot_vars(dot)
    walk = prologue_walk(state.graph, dot, inside, (b, m, k))
    return all(v.type.size == b.size * m.size * k.size and walk.only(v) is not None
               for v in values)

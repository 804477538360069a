"""Contractions of few rows in shares of k, which the norm behind them adds up.

    y[m, n] = dot(x[m, k], w[k, n])               p[s, m, n] = dot(x[m, (s, i)], w[(s, i), n])
    z = y + bias + residual               ──►     z = p[0] + p[1] + ... + bias + residual
    norm(z)     a stage of its own                norm(z)     the same stage

With few rows a contraction has fewer tiles than there are multiprocessors. Blocks that share a
tile's k wait for each other before its epilogue: of 128x768x3072 on an H200 that took 2.7 of 5.0
us (sums written 1.0, waited for 1.05, read and finished 0.65; with clocks inside, which take 8 %).
In front of a norm's stage there is such a wait anyway, the grid barrier, and the norm's blocks can
read all shares of their rows.
With up to 8: BERT-base b1 (24 contractions) 304 -> 288 us, BERT-large 680 -> 629, the T5-base
encoder 303 -> 279, CLIP 443 -> 424, ViT-B/16 (197 rows) 388 -> 383; asr_encoder 1.4 % slower.

Shares by head, each made by the block that has attended for it, save a stage and lose: 16 rows of
768 f32 sums are 48 KB a block, and 16 KB already take 0.6 us in front of a barrier (a prototype of
BERT-base b1 was 6 % slower than attention, product and norm as three stages).

The sums have a fixed order, and are rounded to the contraction's own type as its result was.
"""

from __future__ import annotations

import math

from jaxmono.fusion.dots import dot_dims
from jaxmono.fusion.draft import JOINABLE, Draft, State, depths
from jaxmono.fusion.fold import MAX_ROWS as MAX_FOLDED
from jaxmono.fusion.indexing import variables
from jaxmono.fusion.plan import Device
from jaxmono.fusion.rows import spread
from jaxmono.fusion.support import matrix_dtype
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.rewrite import Builder
from jaxmono.hlo.types import DType

MIN_ROWS, MAX_ROWS = MAX_FOLDED + 1, 256
"""Norms of fewer rows are part of the contractions behind them, and have no stage; of more, tiles
keep the multiprocessors busy. From 33 rows instead of 65: CLIP b1 393 -> 366 us (images have 50),
OPT-125M b16 294 -> 275 (64).

There the tiles of a row could meet in the middle of their epilogue instead: each leaves the sums of
its columns to the others, value and epoch in one word, and norms what it has kept. They meet in 0.3
us, but then a norm's work lies between two products: BERT-base b16 took 0 to 1 % less time, and
where tiles go in several waves (BERT-base, ViT-B/16 and the T5-base encoder b32) 4 to 25 % more."""
TILE = (64, 96)
"""Rows and columns of a typical tile."""
SHARES = (4, 2)
"""8 were 2 % slower for BERT-base b1 (reading them), 0.6 % faster for the T5-base encoder, and take
twice the memory."""
MIN_K, MIN_COLUMNS = 192, 256
"""Of a share's k, three lines of 128 bytes, and of weights. Less has not been timed."""
MAX_ROW_BYTES = 32 * 1024
"""Of all shares of one row, which a block reads."""


def share_k(graph: Graph, device: Device) -> tuple[Graph, tuple[str, ...]]:
    """``graph`` with such contractions in shares, itself if it has none; and for those of few rows
    in front of a norm that stay whole, why. On Hopper only (``device.wgmma``), where it was
    timed."""
    if not device.wgmma:
        return graph, ()
    depth = depths(graph)
    out: list[Op] = []
    refused: dict[str, None] = {}
    changed = False
    for o in graph.ops:
        made: list[Op] = [o]
        if isinstance(o, ops.DotGeneral) and (shares := _most(o, device)) > 1 \
                and _is_reduced(graph, o.result, depth):
            fits = [s for s in SHARES if s <= shares and not _refusal(o, s)]
            if fits:
                made, changed = _shared(o, fits[0]), True
            else:
                refused[f"the contraction of {o.loc} does not leave the sum over shares of its k "
                        f"to the norm behind it: {_refusal(o, SHARES[-1])}"] = None
        out.extend(made)
    shared = Graph(graph.inputs, tuple(out), graph.outputs, graph.name) if changed else graph
    return shared, tuple(refused)


def _most(o: ops.DotGeneral, device: Device) -> int:
    """How many shares find multiprocessors that ``o`` whole leaves idle; 1 if it is no product of
    few rows and many columns."""
    dims = dot_dims(o)
    if o.lhs_batch or not o.lhs_contract or len(dims.rhs_free) != 1 \
            or not MIN_ROWS <= dims.m <= MAX_ROWS or dims.n < MIN_COLUMNS:
        return 1
    tiles = math.ceil(dims.m / TILE[0]) * math.ceil(dims.n / TILE[1])
    return next((s for s in SHARES if tiles * s <= device.sm_count), 1)


def _refusal(o: ops.DotGeneral, shares: int) -> str:
    """Why ``o`` is not taken apart into so many shares; empty if it may be."""
    dims, left, right = dot_dims(o), o.lhs.type.dtype, o.rhs.type.dtype
    if left is not right or left not in (DType.BF16, DType.F16):
        return f"its operands are {left.value} and {right.value}, not both bf16 or both f16"
    if matrix_dtype(o) is None:
        return "its result type or algorithm is not that of one product on tensor cores"
    if dims.k % (64 * shares) or dims.k // shares < MIN_K:
        return f"a k of {dims.k} is not {shares} shares of whole 64s, each {MIN_K} or more"
    if (major := o.lhs.type.dims[o.lhs_contract[0]]) % shares:
        return f"{shares} does not divide the first dimension of its k, {major}"
    if shares * dims.n * 4 > MAX_ROW_BYTES:
        return f"{shares} shares of a row of {dims.n} f32 are more than {MAX_ROW_BYTES >> 10} KiB"
    return ""


def _is_reduced(graph: Graph, value: Value, depth: dict[Value, int]) -> bool:
    """Whether rows (of the last dimension) of a value, element by element with what was there
    before, are reduced, and no contraction reads them without that."""
    size, columns, own = value.type.size, value.type.dims[-1], depth[value]
    todo, seen, reduced = [value], {value}, False
    while todo:
        v = todo.pop()
        for u in graph.users.get(v, ()):
            if isinstance(u, ops.DotGeneral):
                return False
            if isinstance(u, ops.Reduce):
                shape = u.args[0].type.dims
                reduced |= math.prod(shape[d] for d in u.dimensions) == columns \
                    and math.prod(shape) == size
            elif isinstance(u, JOINABLE) and u.results[0].type.size == size:
                if u.results[0] not in seen and depth[u.results[0]] == own:
                    seen.add(u.results[0])
                    todo.append(u.results[0])
            elif depth[u.results[0]] == own:
                return False
    return reduced


def _shared(o: ops.DotGeneral, shares: int) -> list[Op]:
    b = Builder(o.loc)
    (lhs, left), (rhs, right) = (apart(b, v, over, shares) for v, over in (
        (o.lhs, o.lhs_contract), (o.rhs, o.rhs_contract)))
    made = b.dot_general(lhs, rhs, batch=((left[0] - 1,), (right[0] - 1,)), contract=(left, right),
                         dtype=DType.F32, precision=o.precision, algorithm=o.algorithm)
    shape = made.type.dims
    parts = [b.reshape(b.slice(made, (i, *[0] * (len(shape) - 1)), (i + 1, *shape[1:])), shape[1:])
             for i in range(shares)]
    total = parts[0]
    for part in parts[1:-1]:
        total = b.elementwise("add", total, part)
    if o.result.type.dtype is DType.F32:
        b.append(ops.Elementwise(results=o.results, loc=o.loc, args=(total, parts[-1]),
                                 kind="add", accuracy=""))
    else:
        b.append(ops.Convert(results=o.results, loc=o.loc,
                             operand=b.elementwise("add", total, parts[-1])))
    return b.ops


def apart(b: Builder, v: Value, over: tuple[int, ...], shares: int,
           ) -> tuple[Value, tuple[int, ...]]:
    """An operand with its first contracting dimension in two, the shares first, and where its
    contracting dimensions are then."""
    first, shape = over[0], v.type.dims
    taken = b.reshape(v, (*shape[:first], shares, shape[first] // shares, *shape[first + 1:]))
    return taken, tuple(d + (d >= first) for d in over)


def start_sum(state: State, op: Op) -> bool:
    """Begins the row draft of a norm with the sum of a contraction's shares, if ``op`` ends one."""
    if op in state.banned or not _ends_shares(state.graph, op) \
            or not _is_reduced(state.graph, op.results[0], state.depth):
        return False
    shape = op.results[0].type.dims
    rows, cols = variables("r", [n for n in shape[:-1] if n != 1]), variables("c", shape[-1:])
    draft = Draft("row", 1 + max(state.pot_of(v) for v in op.inputs), domain=rows, cols=cols,
                  anchor=op)
    draft.at[op.results[0]] = spread((*rows, *cols), shape)
    state.drafts.append(draft)
    state.claim(draft, op)
    return True


def _ends_shares(graph: Graph, op: Op) -> bool:
    """Whether ``op`` adds the last one of all shares of a contraction, in their order: those that
    `share_k` makes (or a program that sums a batch of products so)."""
    found: list[tuple[ops.DotGeneral, int]] = []
    at: Op | None = op
    while isinstance(at, ops.Elementwise) and at.kind == "add" \
            and (last := _share(graph, at.args[1])) is not None:
        first = _share(graph, at.args[0])
        found[:0] = [last] if first is None else [first, last]
        at = graph.producer.get(at.args[0]) if first is None else None
    return bool(found) and all(dot is found[0][0] for dot, _ in found) \
        and [i for _, i in found] == list(range(found[0][0].result.type.dims[0]))


def _share(graph: Graph, v: Value) -> tuple[ops.DotGeneral, int] | None:
    """The contraction of which ``v`` is a share, and which one."""
    o = graph.producer.get(v)
    part = graph.producer.get(o.operand) if isinstance(o, ops.Reshape) else None
    dot = graph.producer.get(part.operand) if isinstance(part, ops.Slice) else None
    if not isinstance(part, ops.Slice) or not isinstance(dot, ops.DotGeneral) \
            or len(dot.lhs_batch) != 1 or dot.result.type.dtype is not DType.F32:
        return None
    shape = dot.result.type.dims[1:]
    whole = shape != () and part.result.type.dims == (1, *shape) and v.type.dims == shape
    return (dot, part.start_indices[0]) if whole else None

"""What an epilogue reads besides its sums, requested before they are at hand.

    fetch(r, c)   all loads of some pieces at once: a residual, a mask        } while the sums are
    staging       fragments to shared memory                                  } on their way
    f(r, c, sums, early)

For what producers do not bring (`epilogue_source.py`): of small tiles, of other than 16 bits, of
split k; and for what differs by column only, once for all rows where a thread stays in its columns.
One after the other, each piece of a 128 x 128 tile waits 0.4 us for L2, eight times a thread. What
nothing in the launch writes is requested early if it differs from row to row (weights and moments
in the epilogues of wav2vec2's training step: 9.7 ms, 10.3 without), but for tiles of more than
`WIDE` columns a warpgroup: their sums leave registers for two pieces, and one product of
1280 x 3072 x 768 took 18.0 us with a residual, 15.4 without. A small tile has a piece or two a
thread, a split's share one, and requests all of it before the k loop.

Asked into L2 by the producers before the products, what differs from row to row came no sooner:
models at batch 16 and 32 took 0.4 % less to 1.4 % more, a product with silu(y) * x 6 % less. Beside
sources in the ring it is a loss: products of 1280 and 2048 x 3072 x 768 with a residual or
silu(y) * x took 5 to 10 % more time on an H200, those of split k 0.7 % less to 2.6 % more; by bulk
prefetches (cp.async.bulk.prefetch.L2, a row each) 1 to 11 % more, whoever asked and when.

What differs by column only (a bias) is the same few lines for the whole tile. `touch_columns` asks
for them before the k loop, and the epilogue finds them in L1: a product of 2048 x 3072 x 768 with a
bias 19.05 -> 18.27 us, with a gelu 22.8 -> 22.0; without either, 17.9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.names import compute, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import GUARDED, Access, Lane, Root, access, operands
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.plan import Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value

MAX_BYTES = 32
"""Of a piece: two operands of 16 bytes. More would take the registers of the sums."""
WIDE = 192
"""Columns of a warpgroup above which read-only inputs are not requested early."""


def early_loads(body: Graph, stores: Sequence[Store], result: Value, lane: Var, lanes: int,
                read_only: Sequence[Value], rows: Var | None = None, *,
                besides: Root | None = None, also: Sequence[Root] = ()) -> list[Root]:
    """(input, index) of all vectors that every piece loads, whatever its position; of pieces of one
    element, which are loaded and stored in turn otherwise, what differs between ``rows``: a stage
    with gradients of 149 x 149 scores took 105 us, and takes 65 (an H100).

    Args:
      read_only: inputs that are left where they are, unless they differ between ``rows``.
      besides: what comes otherwise. also: what is computed and not stored.
    """
    split = Lane(lane, lanes)
    left = MAX_BYTES
    found: list[Root] = []
    for value, index in reads(body, stores, result, also):
        differs = rows is not None and any(i.depends_on(rows) for i in index)
        if (value, index) != besides and (differs or value not in read_only) \
                and (is_vector(value, index, split) or (lanes == 1 and differs
                                                        and all(i.is_static for i in index))):
            left -= lanes * value.type.dtype.itemsize
            if left >= 0:
                found.append((value, index))
    return found


def column_loads(body: Graph, root: Root, result: Value, lane: Var, lanes: int,
                 rows: Var) -> list[Root]:
    """As `early_loads` of the elements ``root``, those that are the same in all rows."""
    split = Lane(lane, lanes)
    return [(value, index) for value, index in read_by(body, [root], result)
            if not any(i.depends_on(rows) for i in index) and is_vector(value, index, split)]


def reads(body: Graph, stores: Sequence[Store], result: Value,
          also: Sequence[Root] = ()) -> list[Root]:
    """(input, index) of what every element of the epilogue reads besides its sum, each once."""
    return read_by(body, [*((body.outputs[s.result], s.index) for s in stores), *also], result)


def no_loads(body: Graph, stores: Sequence[Store], result: Value) -> str:
    """C type of what an epilogue has that has requested nothing early: ``NoReads`` where it neither
    reads nor computes much. Such pieces leave their fragments without shared memory, one after the
    other; what is computed takes less time in several at once (1280 and 2048 x 3072 x 768: a
    hardswish 2 to 3 % less, softplus 2 to 3, gelu 0 to 6)."""
    computes = sum(isinstance(op, ops.Elementwise | ops.Compare) for op in body.ops
                   if result not in op.results)
    return "NoEarly" if computes > 1 or reads(body, stores, result) else "NoReads"


def read_by(body: Graph, roots: Sequence[Root], result: Value | None = None) -> list[Root]:
    """(input, index) of what all elements of ``roots`` are computed of, but for ``result``."""
    inputs = set(body.inputs)
    found: dict[Root, None] = {}
    seen: set[Root] = set()
    work = list(roots)
    while work:
        value, index = work.pop()
        if (value, index) in seen or value is result:
            continue
        seen.add((value, index))
        if value in inputs:
            found[value, index] = None
            continue
        op = body.producer.get(value)
        if op is None or isinstance(op, ops.Reduce):
            continue
        needs = operands(op, value, index) or ()
        if not (isinstance(op, GUARDED) and len(needs) > 1):  # a branch: not all take it
            work.extend((d.value, d.index) for d in needs)
    return list(found)


def is_vector(value: Value, index: IndexMap, lane: Lane) -> bool:
    """Whether the lanes' elements are neighbours, at a place that does not come from memory."""
    if lane.width == 1 or any(not i.is_static for i in index):
        return False
    offset = linearize(tuple(map(lane.split, index)), value.type.dims)
    return access(offset, lane) is Access.CONTIGUOUS


def emit_fetch(w: Writer, body: Graph, loads: Sequence[Root], *, m: Var, n: Var, tile_m: int,
               tile_n: int, lanes: int, pointers: Mapping[Value, str],
               names: Mapping[Var, str], name: str = "fetch", none: str = "NoEarly",
               row: str = "", n0: str = "n0") -> None:
    """``const auto NAME = [&](int r, int c)``: a struct with a member x0, x1... per load, or an
    empty one of type ``none``.

    Pieces outside the operand load what the last ones inside load; nobody uses it. ``row``: as of
    `emit_piece`. ``n0``: C text, the first column that the tile stores.
    """
    if not loads:
        w.line(f"const auto {name} = [](int, int) {{ return {none}{{}}; }};")
        return
    types = [c_type(v.type.dtype) for v, _ in loads]
    members = " ".join(f"{vector(t, lanes)} x{k};" for k, t in enumerate(types))
    by_column = "" if any(i.depends_on(m) for _, index in loads for i in index) \
        else " using BY_COLUMN = void;"
    kind = "Early" if name == "fetch" else f"Early_{name}"
    w.line(f"struct {kind} {{ {members}{by_column} }};")
    with w.block(f"const auto {name} = [&](int r, int c)", "};"):
        for of, at, var, tile, piece in (("m", "m0 + r", m, tile_m, 1),
                                         ("n", f"{n0} + c", n, tile_n, lanes)):
            if row and of == "m":
                w.line(f"const int m = max({row}, 0);")
                continue
            w.line(f"const int {of} = " + (f"min({at}, {var.size - piece});"
                                           if var.size % tile else f"{at};"))
        w.line("(void)m, (void)n;")
        em = BodyEmitter(w, body, pointers, lane=n, lanes=lanes,
                         var_names={**names, m: "m", n: "n"})
        w.line(f"{kind} early;")
        for k, (v, index) in enumerate(loads):
            offset: Index = linearize(index, v.type.dims)
            kind = f"{types[k]}, {lanes}" if lanes > 1 else types[k]
            w.line(f"early.x{k} = load<{kind}>({pointers[v]} + {em.code(offset)});")
        w.line("return early;")


def touch_columns(w: Writer, body: Graph, stores: Sequence[Store], result: Value, *, m: Var,
                  n: Var, tile_n: int, pointers: Mapping[Value, str],
                  names: Mapping[Var, str], n0: str = "n0", thread: str = "thread_id()") -> None:
    """Requests into L1 what the tile at column ``n0`` reads by column, a ``thread`` a line of it.
    """
    found = [(v, index) for v, index in reads(body, stores, result)
             if any(i.depends_on(n) for i in index)
             and all(i.is_static and not i.depends_on(m) for i in index)]
    if not found:
        return
    step = 128 // max(v.type.dtype.itemsize for v, _ in found)
    # One more than the tile has: its first column need not begin a line.
    with w.block(f"if ({thread} <= {math.ceil(tile_n / step)})"):
        w.line(f"const int n = min({n0} + {thread} * {step}, {n.size - 1});")
        em = BodyEmitter(w, body, pointers, var_names={**names, n: "n"})
        for v, index in found:
            offset: Index = linearize(index, v.type.dims)
            w.line(f"prefetch_l1({pointers[v]} + {em.code(offset)});")


def touch_rows(w: Writer, body: Graph, stores: Sequence[Store], result: Value, *, m: Var, n: Var,
               tile_m: int, pointers: Mapping[Value, str], names: Mapping[Var, str]) -> None:
    """The same of what the tile at row m0 reads by row, a thread each: scales of quantised rows,
    one behind the other, were waited for by each piece."""
    found = [(v, index) for v, index in reads(body, stores, result)
             if any(i.depends_on(m) for i in index)
             and all(i.is_static and not i.depends_on(n) for i in index)]
    if not found:
        return
    with w.block(f"if (thread_id() < {tile_m})"):
        w.line(f"const int m = min(m0 + thread_id(), {m.size - 1});")
        em = BodyEmitter(w, body, pointers, var_names={**names, m: "m"})
        for v, index in found:
            offset: Index = linearize(index, v.type.dims)
            w.line(f"prefetch_l1({pointers[v]} + {em.code(offset)});")


def bind_early(em: BodyEmitter, loads: Sequence[Root], source: Root | None = None) -> None:
    """The members of the C variable ``early`` are those elements, and ``source`` the C variable."""
    found = [(x, f"early.x{k}") for k, x in enumerate(loads)]
    for (v, index), text in [*found, *([(source, "source")] if source else [])]:
        name, t = em.w.fresh(), compute(v.type.dtype)
        em.w.line(f"const {vector(t, em.lanes)} {name} = convert<{t}>({text});")
        em.bind_again(v, index, Emitted(name, em.lanes > 1))

"""Two contractions back to back on Hopper's wgmma (device/back_to_back.cuh): text and schedules.

    NAME_load   producer warps: tiles of both operands of the first product, then of the second's
                weights and of the epilogue's source operand (weights once, where they stay)
    NAME        consumer warps: first product, the ops between, second product, epilogue

The ops between are whatever the expression tree says, element by element; what reduces over a row
needs the scores families (`attention.py`, `attention_flash.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule, element_type
from jaxmono.codegen.dot import emit_piece, legal_lanes
from jaxmono.codegen.dot_wgmma_shared import (
    CONSUMERS,
    LOW_BYTES,
    MAX_SLOTS,
    ROLES_BYTES,
    staged_columns,
    staging_bytes,
    tile_bytes,
)
from jaxmono.codegen.early_loads import (
    bind_early,
    column_loads,
    early_loads,
    emit_fetch,
    no_loads,
)
from jaxmono.codegen.emit import BodyEmitter, c_type, vector_width
from jaxmono.codegen.epilogue_source import source_operand
from jaxmono.codegen.loaders import emit_loader
from jaxmono.codegen.operand import Operand, is_looked_up
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import IndexMap
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

ROWS = 128
"""Of a tile: 64 for each of two warpgroups."""
_AHEAD_BYTES = 40 * 1024
"""As in `dot_wgmma`: of the first product's weights, requested before the barrier opens."""
_TASKS_AHEAD = 2
"""Tasks with a slot for each tile that fit the ring at most, for those of short k: b2b_gemm_4 20.7
-> 18.7 us, b2b_conv_4 44.6 -> 43.0; with four of them 19.0 and 46.9. (Where weights stay, or tiles
of W share a slot, more tasks are in as many slots.)"""
_TURNS, _RESIDENT_SLOTS = 4, 4
"""Weights stay where a block has more tasks than that, the ring has at least so many slots, and the
result is a single piece: b2b_conv_1 52 -> 37 us, b2b_gemm_4 19 -> 16.5. In two pieces, with a
norm's parameters and a source, ptxas found no registers (C7600: ResNet-50 b32)."""
_REGISTERS = 90
"""Of a consumer, for P and sums of the second product: a residual and a norm in the epilogue
need the rest of 168 (with 128 columns of each, 96 registers, 12 bytes were spilled)."""
_PIECE_COLUMNS = 24
"""What beginning another piece costs, in columns."""
_COLUMN_BYTES = 64
"""Of what the ops between read by column (a bias), that a thread requests before the first product:
pairs of convolutions 2 to 4 % (b2b_conv_2, 3, 5, 6), others as long as without."""


def schedule(sig: Sig, device: Device, *, shared_bytes: int) -> AttentionSchedule | None:
    """The deepest ring that fits; None if the family cannot take the Sig."""
    return next(candidates(sig, device, shared_bytes=shared_bytes), None)


def candidates(sig: Sig, device: Device, *, shared_bytes: int) -> Iterator[AttentionSchedule]:
    """Legal schedules, those first whose pieces of the second result waste least; weights stay
    where a block has many tasks, and there is room."""
    form = sig.form
    assert isinstance(form, AttentionForm)
    if element_type(form).itemsize != 2 or form.batch.size != 1:
        return
    if any(isinstance(o, ops.Reduce) for o in sig.body.ops):
        return
    code = AttentionCode.of(sig, AttentionSchedule(ROWS, 64, 2, CONSUMERS // 32, "back_to_back"))
    if any(x.param is None for x in (code.q, code.k, code.v)):
        return
    columns, width = _round(form.n.size), _round(form.v.size)
    if columns > 256:
        return
    pieces = {p for p in (width, 128, 96, 80, 64, 48, 32)
              if p <= min(width, 128) and columns // 4 + p // 2 <= _REGISTERS}
    tiles = math.ceil(form.k.size / 64) + math.ceil(columns / 64)
    many = math.ceil(form.m.size / ROWS) > _TURNS * device.sm_count
    for piece in sorted(pieces, key=lambda p: math.ceil(width / p) * (p + _PIECE_COLUMNS)):
        stays = many and width <= piece
        for resident, least in ((True, _RESIDENT_SLOTS), (False, 2)) if stays else ((False, 2),):
            for slots in range(min(MAX_SLOTS, max(least, _TASKS_AHEAD * tiles)), least - 1, -1):
                s = AttentionSchedule(ROWS, piece, slots, CONSUMERS // 32, "back_to_back",
                                      resident=resident)
                if shared_bytes_of(code, s) <= shared_bytes - ROLES_BYTES:
                    yield s
                    break


def _round(x: int) -> int:
    return math.ceil(x / 16) * 16


def shared_bytes_of(code: AttentionCode, s: AttentionSchedule) -> int:
    """Dynamic shared memory of a task: ring, staging, what lies below them."""
    stay = 0
    if s.resident:
        w = tile_bytes(s.chunk, 64) if code.v.k_major else tile_bytes(64, s.chunk)
        stay = math.ceil(code.form.k.size / 64) * _right_bytes(code) + w * math.ceil(
            code.form.n.size / 64) * math.ceil(code.form.v.size / s.chunk)
    return LOW_BYTES + stay + s.stages * _slot_bytes(code, s) + staging_bytes(s.chunk, 1)


def _slot_bytes(code: AttentionCode, s: AttentionSchedule) -> int:
    """Of the ring: a tile of each of the first product's operands, or of the left one."""
    a = tile_bytes(ROWS, 64) if code.q.k_major else tile_bytes(64, ROWS)
    return a if s.resident else a + _right_bytes(code)


def _right_bytes(code: AttentionCode) -> int:
    columns = _round(code.form.n.size)
    return tile_bytes(columns, 64) if code.k.k_major else tile_bytes(64, columns)


def _begin(w: Writer, code: AttentionCode) -> None:
    form, s = code.form, code.s
    flags = ", ".join("true" if x.k_major else "false" for x in (code.q, code.k, code.v))
    w.line(f"using G = BackToBack<{c_type(code.element)}, {form.n.size}, {form.v.size}, {s.chunk}, "
           f"{s.stages}, {flags}{f', {math.ceil(form.k.size / 64)}' if s.resident else ''}>;")
    w.line(f"static_assert(G::SHARED_BYTES <= {shared_bytes_of(code, s) - LOW_BYTES}, \"tiles\");")
    w.line(f"const int m0 = task * {ROWS}, k_tiles = {math.ceil(form.k.size / 64)};")


def emit_load(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              read_only: Sequence[Value], behind: bool) -> None:
    """The producers' statements for one task (see `dot_wgmma.emit_load`)."""
    form, s = code.form, code.s
    _begin(w, code)
    tiles = {form.m: ROWS, form.k: 64, form.v: s.chunk}
    if any(map(is_looked_up, (code.q, code.k, code.v))):
        w.line("roles->await_open(at);  // the stage before tells where operands are")
    for name, x, columns in (("load_a", code.q, 64), ("load_b", code.k, _round(form.n.size)),
                             ("load_w", code.v, 64)):
        emit_loader(w, name, code.sig.body, x, code.element, pointers, {form.batch: "0"},
                    read_only, {**tiles, form.n: columns}, strided=True, gathered=x is code.q)
    ahead = 0
    weights = (code.k, code.v) if s.resident else (code.k,)
    if behind and all(x.param in read_only and x.offset is not None and x.offset.is_static
                      for x in weights):
        ahead = max(1, _AHEAD_BYTES // (_round(form.n.size) * 128))
    w.line("const auto ready = [&] { roles->await_open(at); };")
    loads = ["load_a", "load_b", "load_w"]
    if source := _source(code):
        emit_loader(w, "load_c", code.sig.body, source, source.value.type.dtype, pointers,
                    {form.batch: "0"}, read_only, tiles, strided=True)
        loads.append("load_c")
    w.line(f"G::produce<{ahead}>(smem, roles, at, m0, k_tiles, ready, {', '.join(loads)});")
    w.line("return at;")


def emit_body(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              outputs: Sequence[str], read_only: Sequence[Value]) -> None:
    """The consumers' statements for one task; in scope: ``task``, ``smem``, ``roles``, ``at``."""
    form, s, body = code.form, code.s, code.sig.body
    _begin(w, code)
    w.line("constexpr int n0 = 0, b = 0;")
    w.line("(void)b;")
    _emit_middle(w, code, pointers, read_only)
    lanes, source = _lanes(code), _source(code)
    root = (source.value, source.index) if source else None
    early = early_loads(body, form.stores, form.second.result, form.v, lanes, read_only, form.m,
                        besides=root)
    emit_fetch(w, body, early, m=form.m, n=form.v, tile_m=ROWS, tile_n=s.chunk, lanes=lanes,
               pointers=pointers, names={form.batch: "b"},
               none=no_loads(body, form.stores, form.second.result))
    element = f", {c_type(source.value.type.dtype)}" if source else ""
    head = (f"G::consume<{lanes}{element}>(smem, roles, at, k_tiles, columns, middle, fetch, "
            f"[&](int r, int c, const float (&acc)[{lanes}], const auto& early"
            f"{', const auto& source' if source else ''})")
    with w.block(head, "});"):
        w.line("(void)early;")
        emit_piece(w, body, form.stores, result=form.second.result, demanded=(code.identity,),
                   m=form.m, n=form.v, tile_m=ROWS, tile_n=s.chunk, lanes=lanes, read="",
                   accumulator="float", skip="", pointers=pointers, outputs=outputs,
                   names={form.batch: "b"}, read_only=read_only, early=early, source=root)
    w.line("return at;")


def _lanes(code: AttentionCode) -> int:
    """Elements per thread at a time in the epilogue."""
    form = code.form
    widest = legal_lanes(code.sig.body, form.stores, form.v, 8)
    return next(n for n in (8, 4, 2, 1) if n <= widest and form.v.size % n == 0)


def _source(code: AttentionCode) -> Operand | None:
    """The epilogue's source operand; None if it has none, or if what is staged at a time does not
    fit a slot."""
    form, s = code.form, code.s
    if _lanes(code) != 8 or tile_bytes(ROWS, staged_columns(s.chunk)) > _slot_bytes(code, s):
        return None
    return source_operand(code.sig.body, form.stores, form.second.result, form.m, form.v)


def _result_index(code: AttentionCode) -> IndexMap:
    """Where the first product's result is demanded, over (m, n)."""
    form = code.form
    walk = Walk(code.sig.body, lambda o: o is not form.first)
    walk.demand(form.probs, form.p_index)
    at = walk.only(form.first.result)
    assert at is not None, "the planner proved it"
    return at


def _emit_middle(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                 read_only: Sequence[Value]) -> None:
    """``columns(0, column)``: what two neighbouring elements of the second product's left operand
    take that is the same in all rows; ``middle(row of the tile, column, sums, columns)``: the two.
    Rows and columns outside give what the last ones inside give."""
    form, body, n = code.form, code.sig.body, code.form.n
    lanes = vector_width(body, [(form.probs, form.p_index)], [], n, limit=2)
    m = "m0 + row" if form.m.size % ROWS == 0 else f"min(m0 + row, {form.m.size - 1})"
    ahead = column_loads(body, (form.probs, form.p_index), form.first.result, n, lanes, form.m)
    if sum(v.type.dtype.itemsize for v, _ in ahead) * _round(n.size) // 4 > _COLUMN_BYTES:
        ahead = []
    emit_fetch(w, body, ahead, m=form.m, n=n, tile_m=ROWS, tile_n=_round(n.size), lanes=lanes,
               pointers=pointers, names={form.batch: "b"}, name="columns")

    def element(column: str) -> None:
        w.line(f"const int m = {m}, n = {column};")
        w.line("(void)m, (void)n;")
        em = BodyEmitter(w, body, pointers, lane=n, lanes=lanes,
                         var_names={form.batch: "b", form.m: "m", n: "n"}, read_only=read_only)
        em.bind(form.first.result, _result_index(code), "dot", vector=lanes > 1)
        bind_early(em, ahead)
        w.line(f"return convert<float>({em.emit(form.probs, form.p_index)});")

    inside = n.size % 16 == 0
    head = ("const auto middle = [&](int row, int column, const Vec<float, 2>& dot, "
            "const auto& early)")
    if lanes == 2:
        with w.block(f"{head} -> Vec<float, 2>", "};"):
            element("column" if inside else f"min(column, {n.size - 2})")
        return
    with w.block("const auto middle_of = [&](int row, int column, float dot) -> float", "};"):
        element("column" if inside else f"min(column, {n.size - 1})")
    with w.block(f"{head} -> Vec<float, 2>", "};"):
        w.line("return {middle_of(row, column, dot.x[0]), middle_of(row, column + 1, dot.x[1])};")

"""The text of a dot Sig's device function (see `dot.py` for its parts)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from jaxmono.codegen.dot import (
    DotCode,
    emit_epilogue,
    emit_piece,
    epilogue_lanes,
    legal_lanes,
)
from jaxmono.codegen.dot_schedule import tile_bytes
from jaxmono.codegen.dot_schedule_fma import FMA
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.epilogue_reduces import declare, emit_take, refusal
from jaxmono.codegen.loaders import emit_element_loader, emit_loader
from jaxmono.codegen.panel import Panel
from jaxmono.codegen.small_inputs import touch
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Var
from jaxmono.fusion.paired_columns import PIECE
from jaxmono.fusion.walk import leaves
from jaxmono.hlo.ir import Value


def shared_bytes(code: DotCode) -> int:
    """Dynamic shared memory of one task; the generated code asserts that it is enough."""
    s = code.s
    if code.element is None:
        size = code.form.dot.result.type.dtype.itemsize
        return max(s.bk * (s.bm + 1 + s.bn + 1), s.bm * (s.bn + 1)) * max(size, 4)
    size = code.element.itemsize
    a = tile_bytes(s.bm, s.bk, size) if code.lhs.k_major else tile_bytes(s.bk, s.bm, size)
    b = tile_bytes(s.bn, s.bk, size) if code.rhs.k_major else tile_bytes(s.bk, s.bn, size)
    panel = 0
    if code.form.row_prologue:
        panel, a = tile_bytes(s.bm, code.k_tiles * s.bk, size), 0
    return panel + max(s.stages * (a + b), s.warps[2] * s.bm * (s.bn + 4) * 4)


def workspace_floats(code: DotCode) -> int:
    """f32 elements of global scratch that split-K needs, 0 without it, or with a mailbox."""
    if code.s.split_k == 1 or code.mail:
        return 0
    tiles = code.form.batch.size * code.tiles_m * code.tiles_n
    return tiles * code.s.split_k * code.s.bm * code.s.bn


def counters(code: DotCode) -> int:
    """Arrival counters that split-K needs: one per output tile, unless sums are mailed."""
    if code.s.split_k == 1 or code.mail:
        return 0
    return code.form.batch.size * code.tiles_m * code.tiles_n


def emit_body(w: Writer, code: DotCode, *, pointers: Mapping[Value, str], outputs: Sequence[str],
              read_only: Sequence[Value], threads: int, workspace: str = "",
              arrivals: str = "", mail: str = "", fetched: str = "false") -> None:
    """The statements of one task; C variables in scope: ``int task``, ``unsigned char* smem``.

    Args:
      pointers: C pointer of every body input. outputs: of every body output.
      workspace, arrivals: ``float*`` and ``uint32_t*`` of this group, where split-K is used, or
      mail: ``float*``, `DotCode.mail` words.
      fetched: C bool, whether `emit_prefetch` ran for this task.
    """
    form, s, body = code.form, code.s, code.sig.body
    names: dict[Var, str] = {form.batch: "b"}
    _decode_task(w, code)
    if code.element is None:
        _simt(w, code, pointers, outputs, read_only, names, threads)
        return
    _begin(w, code)
    tiles = {form.m: s.bm, form.n: s.bn, form.k: s.bk}
    assert code.rhs_element is not None
    emit_loader(w, "load_b", body, code.rhs, code.rhs_element, pointers, names, read_only, tiles,
                block=code.pair_block)
    if form.row_prologue:
        w.line("const auto load_a = [](void*, int, int) {};  // the panel is computed below")
    else:
        emit_loader(w, "load_a", body, code.lhs, code.element, pointers, names, read_only, tiles)
    w.line("syncthreads();  // the previous task is done with shared memory")
    panel = Panel.of(code) if form.row_prologue else None
    if panel is not None:
        panel.emit_fetch(w, pointers, names, threads)
    w.line(f"G::prologue{_computed(code)}(smem, m0, n0, k0, k_tiles, {fetched}, load_a, load_b);")
    if panel is not None:
        panel.emit(w, pointers, outputs, read_only, names, threads)
    w.line("G::mainloop(smem, m0, n0, k0, k_tiles, load_a, load_b);")
    stores = code.form.elements
    bm, row0 = str(s.bm), ""
    read = "G::read({acc}, smem, {r}, {c})"
    if s.split_k > 1:
        emit_split(w, code, workspace=workspace, mail=mail)
        counter = "nullptr" if code.mail else f"{arrivals} + tile"
        w.line(f"S::exchange(smem, parts, split, {counter});")
        read = "S::read({acc}, parts, {r}, {c})"
        bm, row0 = f"min(S::ROWS, {s.bm} - split * S::ROWS)", "split * S::ROWS + "
    if code.reduced:
        _emit_reducing(w, code, pointers, outputs, read_only, names, threads)
        return
    lanes = epilogue_lanes(body, stores, form.columns,
                           rows=math.ceil(s.bm / s.split_k / form.taps), cols=code.stored_columns,
                           threads=threads)
    emit_epilogue(w, body, stores, result=form.dot.result, demanded=code.demanded, m=form.rows,
                  n=form.columns, tile_m=s.bm, bm=bm, bn=code.stored_columns, lanes=lanes,
                  read=read, paired=form.pairs is not None,
                  accumulator=code.accumulator, row0=row0, pointers=pointers, outputs=outputs,
                  names=names, read_only=read_only, threads=threads)


def emit_prefetch(w: Writer, code: DotCode, *, pointers: Mapping[Value, str],
                  read_only: Sequence[Value]) -> bool:
    """Requests the right operand (weights) of a task and touches its small inputs; False if none.

    Runs between the halves of the grid barrier before the dot's stage: the weights are on their way
    while the other blocks arrive.
    """
    form, s, body = code.form, code.s, code.sig.body
    if code.rhs_element is None:
        return False
    behind = leaves(body, code.rhs.value, lambda _: True)
    params = [v for v in body.inputs if v in behind] if _computed(code) else code.rhs.params
    if not params or not set(params) <= set(read_only) or (
            code.rhs.offset is not None and not code.rhs.offset.is_static):
        return False
    _decode_task(w, code)
    w.line("(void)m0;")
    _begin(w, code)
    emit_loader(w, "load_b", body, code.rhs, code.rhs_element, pointers, {form.batch: "b"},
                read_only, {form.m: s.bm, form.n: s.bn, form.k: s.bk}, block=code.pair_block)
    w.line(f"G::prefetch{_computed(code)}(smem, n0, k0, k_tiles, load_b);")
    touch(w, [v for v in body.inputs if v not in params], pointers, read_only)
    return True


def _computed(code: DotCode) -> str:
    """Template argument of a tile whose right operand the loader computes (f32 weights that are
    rounded on the way): its loads are waited for."""
    return "<true>" if code.rhs.param is None and code.rhs.picked is None else ""


def emit_split(w: Writer, code: DotCode, *, workspace: str, mail: str) -> None:
    """Names the exchange ``S`` of blocks that share a tile, and ``parts``, where its sums are."""
    group = f", {code.form.taps}" if code.form.taps > 1 else ""
    w.line(f"using S = SplitK<G, {code.s.split_k}, {_cpp(code.mail > 0)}{group}>;")
    w.line(f"float* const parts = {mail or workspace} + tile * S::FLOATS;")


def _begin(w: Writer, code: DotCode) -> None:
    """The Gemm type and the share of k of a task."""
    s, form = code.s, code.form
    assert code.element is not None and code.rhs_element is not None
    warps = ", ".join(map(str, s.warps))
    flags = f"{_cpp(code.lhs.k_major)}, {_cpp(code.rhs.k_major)}"
    tile = f"{s.bm}, {s.bn}, {s.bk}, {s.stages}, {warps}, {flags}"
    panel = code.k_tiles * s.bk if form.row_prologue else 0
    mixed = f", {c_type(code.rhs_element)}" if code.rhs_element is not code.element else ""
    w.line(f"using G = GemmFma<{tile}>;" if s.family == FMA
           else f"using G = Gemm<{c_type(code.element)}, {tile}, {panel}{mixed}>;")
    w.line(f"static_assert(G::SHARED_BYTES <= {shared_bytes(code)}, \"shared memory\");")
    k_tiles = str(code.k_tiles)
    if s.split_k > 1:
        w.line(f"const int k0 = split * {code.split_tiles * s.bk};")
        k_tiles = f"min({code.split_tiles}, {code.k_tiles} - split * {code.split_tiles})"
    else:
        w.line("const int k0 = 0;")
    w.line(f"const int k_tiles = {k_tiles};")


def _decode_task(w: Writer, code: DotCode) -> None:
    """task -> (batch, tile of n, tile of m, split), the split fastest.

    Neighbouring tasks share the right operand (weights): its pieces are in L2 when the second
    block asks.
    """
    s = code.s
    tile = "task"
    if s.split_k > 1:
        w.line(f"const int split = task % {s.split_k}, tile = task / {s.split_k};")
        tile = "tile"
    w.line(f"const int m0 = {tile} % {code.tiles_m} * {s.bm};")
    w.line(f"const int n0 = {tile} / {code.tiles_m} % {code.tiles_n} * {s.bn};")
    w.line(f"const int b = {tile} / {code.tiles_m * code.tiles_n};")
    w.line("(void)b;")


def reducing_pieces(code: DotCode) -> tuple[int, int]:
    """Of an epilogue that reduces: pieces to a row, and their columns, that a warp goes through."""
    s, form = code.s, code.form
    widest = legal_lanes(code.sig.body, form.elements, form.n, 8, code.reduced_roots)
    lanes = next(n for n in (8, 4, 2, 1)
                 if n <= widest and s.bn % n == 0 and form.n.size % n == 0)
    per_row = s.bn // lanes
    return next(x for x in (32, 16, 8, 4, 2, 1)
                if x <= max(8, 32 // lanes) and per_row % x == 0), lanes


def cannot_finish(code: DotCode) -> str | None:
    """Why the epilogue of a tile cannot reduce what it should, or pair columns; None if it can."""
    if code.s.split_k > 1:
        return "blocks share k"
    if code.pair_block % (2 * PIECE):
        return f"{code.pair_block} columns are not two times whole pieces of {PIECE}"
    if code.s.bm % 16:
        return f"{code.s.bm} rows are not whole 16s"
    return refusal(code.reduced, *reducing_pieces(code))


def _emit_reducing(w: Writer, code: DotCode, pointers: Mapping[Value, str],
                   outputs: Sequence[str], read_only: Sequence[Value], names: Mapping[Var, str],
                   threads: int) -> None:
    """`emit_epilogue` where each warp goes through 16 rows of some columns at a time."""
    form, s, body = code.form, code.s, code.sig.body
    across, lanes = reducing_pieces(code)
    columns = s.bn // (across * lanes)
    w.directive("#pragma unroll 1")
    with w.block(f"for (int part = warp_id(); part < {s.bm // 16 * columns}; "
                 f"part += {threads // 32})"):
        declare(w, body, code.reduced, across, lanes)
        w.directive("#pragma unroll 1")
        with w.block(f"for (int i = lane_id(); i < {16 * across}; i += 32)"):
            w.line(f"const int r = part / {columns} * 16 + i / {across};")
            w.line(f"const int c = (part % {columns} * {across} + i % {across}) * {lanes};")
            emit_piece(w, body, form.elements, result=form.dot.result, demanded=code.demanded,
                       m=form.m, n=form.n, tile_m=s.bm, tile_n=s.bn, lanes=lanes,
                       read="G::read({acc}, smem, {r}, {c})", accumulator=code.accumulator, skip="",
                       pointers=pointers, outputs=outputs, names=names, read_only=read_only,
                       then=partial(emit_take, reduced=code.reduced, form=form,
                                    tile=(s.bm, s.bn), across=across, lanes=lanes, outputs=outputs,
                                    pointers=pointers, names=names))


def _simt(w: Writer, code: DotCode, pointers: Mapping[Value, str], outputs: Sequence[str],
          read_only: Sequence[Value], names: Mapping[Var, str], threads: int) -> None:
    form, s, body, acc = code.form, code.s, code.sig.body, code.accumulator
    w.line(f"using G = SimtGemm<{acc}, {s.bm}, {s.bn}, {s.bk}, {threads}>;")
    w.line(f"static_assert(G::SHARED_BYTES <= {shared_bytes(code)}, \"shared memory\");")
    emit_element_loader(w, "load_a", body, code.lhs, (form.m, form.k), acc, pointers, names,
                        read_only)
    emit_element_loader(w, "load_b", body, code.rhs, (form.k, form.n), acc, pointers, names,
                        read_only, block=code.pair_block)
    fast = f"{_cpp(code.lhs.k_major)}, {_cpp(code.rhs.k_major)}"
    w.line(f"G::template run<{fast}>(smem, m0, n0, 0, {code.k_tiles}, load_a, load_b);")
    if code.reduced:
        _emit_reducing(w, code, pointers, outputs, read_only, names, threads)
        return
    lanes = epilogue_lanes(body, code.form.elements, form.columns, rows=s.bm // form.taps,
                           cols=code.stored_columns, threads=threads)
    emit_epilogue(w, body, code.form.elements, result=form.dot.result, demanded=code.demanded,
                  m=form.rows, n=form.columns, tile_m=s.bm, bm=str(s.bm), bn=code.stored_columns,
                  lanes=lanes, paired=form.pairs is not None,
                  read="G::read({acc}, smem, {r}, {c})", accumulator=acc, row0="",
                  pointers=pointers, outputs=outputs, names=names, read_only=read_only,
                  threads=threads)


def _cpp(x: bool) -> str:
    return "true" if x else "false"

"""The text of a dot Sig's device functions in the wgmma family (device/gemm_wgmma.cuh).

    NAME_load   producer warps: the task's k tiles into the ring
    NAME        consumer warps: products, epilogue

Both decode the task alike and walk the ring alike; `Place` is where they are in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jaxmono.codegen.bias import Bias, emit_bias
from jaxmono.codegen.dot import (
    DotCode,
    emit_epilogue,
    emit_piece,
    first_column,
    legal_lanes,
)
from jaxmono.codegen.dot_function import emit_split
from jaxmono.codegen.dot_schedule import DotSchedule
from jaxmono.codegen.dot_wgmma_leaves import bias_behind
from jaxmono.codegen.dot_wgmma_shared import (
    BF16X6,
    BYTES,
    CONSUMERS,
    IMAGE,
    LOW_BYTES,
    REGISTERS,
    SWAPPED,
    deep,
    finishing,
    has_halves,
    is_pingpong,
    layout,
    leaves_unstaged,
    pair_type,
    panel_columns,
    shared_bytes,
    shifts,
    staged_columns,
    tile_bytes,
)
from jaxmono.codegen.dot_wgmma_type import gemm_type
from jaxmono.codegen.early_loads import (
    WIDE,
    early_loads,
    emit_fetch,
    no_loads,
    touch_columns,
    touch_rows,
)
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.epilogue_reduces import declare, emit_take, refusal
from jaxmono.codegen.epilogue_source import source_operand
from jaxmono.codegen.group_scales import emit_scales, emit_touch
from jaxmono.codegen.image import emit_image, emit_row
from jaxmono.codegen.loaders import emit_element_loader, emit_loader
from jaxmono.codegen.operand import Operand, has_rows, is_looked_up
from jaxmono.codegen.panel import Panel
from jaxmono.codegen.staggered import emit_staggered, staggered
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Var
from jaxmono.fusion.paired_columns import WIDTHS
from jaxmono.fusion.plan import DotForm, Sig
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType

_AHEAD_BYTES = 64 * 1024
"""Of the right operand that are requested before the stage's grid barrier opens: what arrives while
the blocks wait for each other. More would stand in the way of the left operand."""
_SOURCE_SUMS = {True: 48, False: 64}
"""Of a thread, from which on an epilogue's source operand comes through the ring, by whether two
warpgroups first exchange halves of their sums (2048x768x3072 with a residual 18.4 -> 17.8 us). Of
smaller tiles it has a few pieces, requested at once: behind the last bytes of the products they
came later, and BERT-base and the T5-base encoder b16 took 1.4 % longer."""
_BAND, _MANY = 2, 16
"""Rows of tiles in a band, and from how many on there are bands. With 16 in each ViT-B/16 b32 took
1 to 2 % longer on an H200, CLIP b32, ViT-B/16 b16, BERT-base b16 and the T5-base encoder b16 0.5 to
1 %; with 1 or 4 about as long as with 2. Where there are fewer rows, bands cost CLIP b16 2 to 3 %.
Nobody knows why: what is read together is about as much in each."""
_TALL_BAND, _LARGE_BYTES = 16, 6 << 20
"""The same where the right operand has more bytes than these: 132 tiles of a low band would read
all of it. 2048x8192x2048 takes 5.6 % less time so, 2048 cubed 3.0, 4096x4096x1024 1.3, 4096 cubed
0.9, 8192 cubed 0.6."""
_F32_BAND = 4
"""The same of the families `REGISTERS` (timed: TF32), which have bands of this or `_BAND`, however
many rows there are: what the accelerator brings of rows are 128 bytes of each; the fewer of them it
reads at one time the better. On an H100 4096x768x3072 takes 13 % less time so than with 16, 4096
cubed 9; BERT-base b16 3 % less with low bands where weights are large, VGG-16 b32 1, the T5-base
encoder b16 6 where they are small. 16-bit products took as long in lower bands, but 2048x8192x2048,
up to 7 % longer, and 8192 cubed, 15."""
_ON_THE_LEFT = (SWAPPED, *REGISTERS)
_IN_FLIGHT_BYTES = 80 * 1024
"""Of weights on the left that are requested only behind the barrier. The rows' first k tile counts
as landed when all that a thread has requested before it has: these keep memory busy from then on
until the consumers have freed slots."""


def emit_load(w: Writer, code: DotCode, *, pointers: Mapping[Value, str],
              read_only: Sequence[Value], behind: bool) -> None:
    """The producers' statements for one task.

    ``behind``: a grid barrier may be in front of it. Where none is, the first products would wait
    for all that is requested before their left operand: 2048x512x2048 alone took 7 % more time.

    C variables in scope: ``int task``, ``unsigned char* smem``, ``Roles* roles``, ``Place at``.
    """
    form, s, body = code.form, code.s, code.sig.body
    assert code.element is not None
    emit_begin(w, code)
    names: dict[Var, str] = {form.batch: "b"}
    tiles = {form.m: s.bm, form.n: s.bn, form.k: s.bk}
    pair = pair_type(code)
    weights = code.element if code.rhs_element is None or pair else code.rhs_element
    if is_looked_up(code.lhs) or is_looked_up(code.rhs):
        w.line("roles->await_open(at);  // the stage before tells where operands are")
    emit_loader(w, "load_b", body, code.rhs, weights, pointers, names, read_only, tiles,
                strided=True, pair=pair, block=code.pair_block, lines=shifts(code) is not None)
    if s.family == IMAGE:
        emit_image(w, code.arrangement)
    elif panel_columns(code):
        w.line("const auto load_a = [](void*, int, int) {};  // consumers compute the panel")
    else:
        emit_loader(w, "load_a", body, code.lhs, code.element, pointers, names, read_only, tiles,
                    strided=True, gathered=s.family not in (SWAPPED, BYTES), pair=pair)
    ahead, source = 0, code.rhs.source
    if behind and source is not None and source.offset.is_static \
            and {source.param, *code.rhs.params} <= set(read_only):
        line = s.bk * weights.bits // 8 if s.family == BYTES else 128
        ahead = max(1, s.stages - math.ceil(_IN_FLIGHT_BYTES / (s.bn * line))) \
            if s.family in _ON_THE_LEFT else max(1, _AHEAD_BYTES // (s.bn * deep(code)))
    w.line("const auto ready = [&] { roles->await_open(at); };")
    if s.family == IMAGE:
        image = pointers[code.arrangement.image.param]
        own = ", split * G::OWN_CHUNKS" if s.split_k > 1 else ""
        w.line(f"G::produce<{ahead}>(smem, roles, at, n0, ready, {image}, place, load_b{own});")
        w.line("return at;")
        return
    emit_touch(w, code, pointers, read_only)
    w.line(f"G::produce<{ahead}>(smem, roles, at, m0, n0, k0, k_tiles, ready, load_a, load_b);")
    if besides := source_of(code):
        t = besides.value.type.dtype
        emit_loader(w, "load_c", body, besides, t, pointers, names, read_only, tiles, strided=True)
        w.line(f"G::Source<{c_type(t)}>::produce(G::ring(smem), roles, at, m0, n0, load_c);")
    w.line("return at;")


def emit_body(w: Writer, code: DotCode, *, pointers: Mapping[Value, str], outputs: Sequence[str],
              read_only: Sequence[Value], workspace: str = "", arrivals: str = "",
              mail: str = "", behind: bool = True) -> None:
    """The consumers' statements for one task; in scope: ``task``, ``smem``, ``roles``, ``at``.

    ``behind``: as of `emit_load`.
    """
    form, s, body = code.form, code.s, code.sig.body
    names: dict[Var, str] = {form.batch: "b"}
    emit_begin(w, code)
    w.line("(void)k0;")
    if form.row_prologue:
        panel = Panel.of(code)
        w.line("syncthreads();  // the previous task is done with the panel")
        panel.emit_fetch(w, pointers, names, CONSUMERS)
        panel.emit(w, pointers, outputs, read_only, names, CONSUMERS, behind=0)
        w.line("fence_proxy_async();")
        w.line("syncthreads();")
    elif panel_columns(code):
        assert code.element is not None
        emit_loader(w, "load_a", body, code.lhs, code.element, pointers, names, read_only,
                    {form.m: s.bm, form.n: s.bn, form.k: s.bk})
        w.line("G::fill(smem, m0, k0, k_tiles, load_a);")
    if is_pingpong(s):
        assert s.split_k == 1 and not panel_columns(code) and not code.reduced
        assert form.pairs is None and form.taps == 1
        w.line("if (!G::takes(at, k_tiles)) return at;  // the other warpgroup's task")
    w.line("G::Accumulators sums;")
    if s.split_k > 1 and s.family != IMAGE and not meets_as_fragments(
            s, gathered=not has_rows(code.lhs) or form.taps > 1):
        _emit_split(w, code, pointers, outputs, read_only, names, workspace, arrivals, mail)
    else:
        _emit_whole(w, code, pointers, outputs, read_only, names, workspace, arrivals, behind)
    w.line("return at;")


def meets_as_fragments(s: DotSchedule, *, gathered: bool) -> bool:
    """Whether blocks that share k leave each other fragments, each for a share of the columns. Not
    in convolutions (``gathered``): ResNet-50 b32 had 48 bytes of spills more and took 2.5 % longer.
    Nor where a share would be staged in more memory than the whole.
    """
    n = s.bn // s.warps[1]
    return (s.family == "wgmma" and 1 < s.split_k <= 4 and s.warps[2] == 1 and not gathered
            and n % (8 * s.split_k) == 0
            and staged_columns(n // s.split_k) <= staged_columns(n))


def source_of(code: DotCode) -> Operand | None:
    """The epilogue's source operand; None if it has none, or if the tile cannot take it: its rows
    must be a warp's own, and what is staged at a time must fit a slot."""
    form, s = code.form, code.s
    n, halves = s.bn // s.warps[1], has_halves(s.bn // s.warps[1], s.warps[2])
    assert code.element is not None
    if s.family != "wgmma" or not s.source or s.split_k > 1 or is_pingpong(s) \
            or s.bm * s.bn < _SOURCE_SUMS[halves] * CONSUMERS or form.takes_several \
            or code.element.itemsize != 2 or panel_columns(code) \
            or (s.warps[2] == 2 and not halves) \
            or _lanes(code, s.bm * s.bn // CONSUMERS) != 8 \
            or tile_bytes(s.bm, staged_columns(n // 2 if halves else n)) > layout(code)[1]:
        return None
    return source_operand(code.sig.body, code.form.elements, form.dot.result, form.m, form.n)


def has_source(sig: Sig, schedule: Any) -> bool:
    """Whether a Sig's epilogue has such an operand with this schedule."""
    return isinstance(sig.form, DotForm) and isinstance(schedule, DotSchedule) \
        and schedule.family == "wgmma" and source_of(DotCode.of(sig, schedule)) is not None


def _emit_whole(w: Writer, code: DotCode, pointers: Mapping[Value, str], outputs: Sequence[str],
                read_only: Sequence[Value], names: Mapping[Var, str], workspace: str,
                arrivals: str, behind: bool) -> None:
    form, s, body, stores = code.form, code.s, code.sig.body, code.form.elements
    t = code.accumulator
    row, paired = "row(r)" if s.family == IMAGE else "", form.pairs is not None
    piece = partial(emit_piece, w, body, stores=stores, result=form.dot.result,
                    demanded=code.demanded, m=form.rows, n=form.columns, tile_m=s.bm,
                    tile_n=code.stored_columns, read="", accumulator=t, skip="",
                    pointers=pointers, outputs=outputs, names=names, read_only=read_only, row=row,
                    paired=paired)
    again = _emit_again(w, code, pointers, read_only, names)
    if row:
        emit_row(w, code.arrangement)
    if _leaves_as_fragments(code):
        lanes = 4 if s.bn % 32 == 0 and _lanes(code, 4) == 4 else 2
        w.line("G::consume(smem, roles, at, k_tiles, sums);")
        with w.block(f"G::finish_fragments<{lanes}>(smem, sums, "
                     f"[&](int r, int c, const float (&acc)[{lanes}])", "});"):
            piece(lanes=lanes)
        return
    if form.taps > 1:
        lanes = _lanes(code, 8)
        touch_columns(w, body, stores, form.dot.result, m=form.rows, n=form.n, tile_n=s.bn,
                      pointers=pointers, names=names)
        w.line(f"G::consume(smem, roles, at, k_tiles, sums{again});")
        with w.block(f"G::finish_windows<{form.taps}, {lanes}>(smem, sums, "
                     f"[&](int r, int c, const {t} (&acc)[{form.taps}][{lanes}])", "});"):
            piece(lanes=lanes)
        return
    if (wide := staggered(code)) is not None:
        emit_staggered(w, code, wide, None if behind else _bias(code), again, piece, pointers,
                       read_only, names)
        return
    lanes = _lanes(code, s.bm * s.bn // finishing(s) // s.split_k)
    # Two warpgroups that share a small tile have a piece or two a thread: all of it, and at once.
    small = s.family == "wgmma" and s.warps[2] == 2 and not has_halves(s.bn, 2)
    source = source_of(code)
    bias = bias_behind(code) if is_pingpong(s) else None if behind or small else _bias(code)
    root = (source.value, source.index) if source else None
    result = bias.total if bias else form.dot.result
    reduces = code.reduced_roots
    across = s.bm // s.warps[0] if s.family in REGISTERS else s.bn // s.warps[1]
    early = early_loads(body, stores, result, form.columns, lanes, () if small else read_only,
                        form.m if across <= WIDE else None, besides=root,
                        also=reduces) if s.family != SWAPPED else []
    first = first_column(paired=paired)
    # What is reduced goes by rows: not as fragments leave.
    none = "NoReads" if leaves_unstaged(code) else \
        "NoEarly" if reduces else no_loads(body, stores, result)
    emit_fetch(w, body, early, m=form.m, n=form.columns, tile_m=s.bm, tile_n=code.stored_columns,
               lanes=lanes, pointers=pointers, names=names, none=none, row=row, n0=first)
    if small:
        w.line(f"const auto first = G::first<{lanes}>(fetch);")
    else:
        touch_columns(w, body, stores, result, m=form.m, n=form.columns,
                      tile_n=code.stored_columns, pointers=pointers, names=names, n0=first,
                      thread="thread_id() % 128" if is_pingpong(s) else "thread_id()")
    if s.family == BYTES:
        touch_rows(w, body, stores, result, m=form.m, n=form.n, tile_m=s.bm, pointers=pointers,
                   names=names)
    if bias:
        emit_bias(w, body, bias, columns=form.n, tile_n=s.bn, pointers=pointers, names=names,
                  read_only=read_only)
    held = f"<G::Source<{c_type(source.value.type.dtype)}>::GROUPS>" if source else ""
    w.line(f"G::consume{held}(smem, roles, at, k_tiles, sums{', bias' if bias else again});")
    finish = f"finish{'_shared' if small else '_pairs' if paired else ''}<{lanes}>(" \
             f"smem, sums, {'first, ' if small else ''}"
    if s.split_k > 1:
        parts = s.split_k * s.bm * s.bn
        finish = (f"finish_split<{s.split_k}, {lanes}>(smem, sums, split, "
                  f"{workspace} + tile * {parts}, {arrivals} + tile, ")
    if source:
        w.line(f"auto tiles = G::source<{c_type(source.value.type.dtype)}>(smem, roles, at);")
    head = (f"G::{finish}fetch, [&](int r, int c, const {t} (&acc){'[2]' if paired else ''}"
            f"[{lanes}], const auto& early"
            f"{', const auto& source' if source else ''})")
    then = None
    if code.reduced:
        across, _ = _reducing_pieces(code)
        declare(w, body, code.reduced, across, lanes)
        then = partial(emit_take, reduced=code.reduced, form=form,
                       tile=(s.bm, s.bn), across=across, lanes=lanes, outputs=outputs,
                       pointers=pointers, names=names)
    with w.block(head, "}, tiles);" if source else "});"):
        w.line("(void)early;")
        piece(lanes=lanes, early=early, source=root, result=result, then=then)


def _emit_again(w: Writer, code: DotCode, pointers: Mapping[Value, str],
                read_only: Sequence[Value], names: Mapping[Var, str]) -> str:
    """What `consume` needs besides: how an element is summed once more, in multiply-adds, or the
    scales of weights."""
    form, s, body = code.form, code.s, code.sig.body
    if code.rhs.scaled is not None:
        return f", {emit_scales(w, code, pointers, names, read_only)}"
    if s.family != BF16X6:
        return ""
    for name, x, order in (("left", code.lhs, (form.m, form.k)),
                           ("right", code.rhs, (form.k, form.n))):
        emit_element_loader(w, name, body, x, order, "float", pointers, names, read_only)
    with w.block("const auto again = [&](int r, int c)", "};"):
        w.line("float sum = 0.0f;")
        w.line("const int end = k0 + k_tiles * G::BK;", "elements outside are zero")
        w.directive("#pragma unroll 1")
        with w.block("for (int k = k0; k < end && sum == sum; k += 4)"):
            w.line("for (int i = k; i < k + 4; ++i) sum += left(m0 + r, i) * right(i, n0 + c);")
        w.line("return sum;")
    return ", again"


def _bias(code: DotCode) -> Bias | None:
    """What is added to the fragments of a tile. Not where blocks share k: 1280x768x3072 with a bias
    took as long by that, with a gelu, residual or softplus 0.6 to 1 % longer."""
    s = code.s
    if s.family in _ON_THE_LEFT or s.split_k > 1 or is_pingpong(s):
        return None
    return bias_behind(code)


def _leaves_as_fragments(code: DotCode) -> bool:
    """Whether threads write what they have in fragments: f32, in which four of them fill sectors,
    of small tiles whose warpgroups share k and would stage all sums twice. Nothing else may be
    read."""
    form, s, body, stores = code.form, code.s, code.sig.body, code.form.elements
    return (s.family == "wgmma" and s.warps[2] == 2 and not has_halves(s.bn, 2)
            and form.taps == 1 and not code.reduced
            and all(body.outputs[x.result].type.dtype is DType.F32 for x in stores)
            and set(body.inputs) <= {code.lhs.param, code.rhs.param}
            and form.n.size % 2 == 0 and legal_lanes(body, stores, form.n, 2) == 2)


def _emit_split(w: Writer, code: DotCode, pointers: Mapping[Value, str], outputs: Sequence[str],
                read_only: Sequence[Value], names: Mapping[Var, str], workspace: str,
                arrivals: str, mail: str) -> None:
    form, s, body, stores = code.form, code.s, code.sig.body, code.form.elements
    rows = math.ceil(s.bm / s.split_k)
    per_thread = math.ceil(rows // form.taps * s.bn / CONSUMERS)
    lanes = _lanes(code, 1 << (per_thread - 1).bit_length())  # one piece a thread, not two
    pieces = rows * (s.bn // lanes)
    early = early_loads(body, stores, form.dot.result, form.n, lanes, ()) \
        if pieces <= CONSUMERS and s.bm % rows == 0 and form.taps == 1 else []
    if early:  # one piece a thread
        emit_fetch(w, body, early, m=form.m, n=form.n, tile_m=s.bm, tile_n=s.bn, lanes=lanes,
                   pointers=pointers, names=names)
        per_row, mine = s.bn // lanes, f"min(thread_id(), {pieces - 1})"
        w.line(f"const auto early = fetch(split * {rows} + {mine} / {per_row}, "
               f"{mine} % {per_row} * {lanes});")
    again = _emit_again(w, code, pointers, read_only, names)
    w.line(f"G::consume(smem, roles, at, k_tiles, sums{again});")
    emit_split(w, code, workspace=workspace, mail=mail)
    w.line("const auto nothing = [](int, int) { return NoEarly{}; };")
    with w.block("G::finish<4>(smem, sums, nothing, "
                 f"[&](int r, int c, const {code.accumulator} (&x)[4], NoEarly)", "});"):
        w.line("S::put(parts, split, r, c, x);")
    if not mail:
        w.line(f"group_barrier<{s.split_k}>({arrivals} + tile);")
    emit_epilogue(w, body, stores, result=form.dot.result, demanded=code.demanded, m=form.rows,
                  n=form.n, tile_m=s.bm, bm=f"min(S::ROWS, {s.bm} - split * S::ROWS)", bn=s.bn,
                  lanes=lanes, read="S::read({acc}, parts, {r}, {c})",
                  accumulator=code.accumulator, row0="split * S::ROWS + ", pointers=pointers,
                  outputs=outputs, names=names, read_only=read_only, threads=CONSUMERS,
                  early=early)


def cannot_finish(code: DotCode) -> str | None:
    """Why the epilogue of a tile cannot reduce what it should, or pair columns; None if it can."""
    return _cannot_reduce(code) if code.form.pairs is None else _cannot_pair(code)


def _cannot_pair(code: DotCode) -> str | None:
    """Both columns of a pair have to be sums of one thread."""
    s = code.s
    if s.family != "wgmma" or s.split_k > 1:
        return "blocks that share k meet by rows, or the operands are swapped"
    if s.warps[2] == 2 and not has_halves(s.bn, 2):
        return "its warpgroups share k and meet in shared memory"
    return None if code.pair_block % min(WIDTHS) == 0 else \
        f"{code.pair_block // 2} columns of each half are not whole lines of 128 bytes"


def _cannot_reduce(code: DotCode) -> str | None:
    """Where a warp has 16 rows of the tile, and goes through them, it can reduce."""
    s = code.s
    if s.family != "wgmma" or (
            s.split_k > 1 and not meets_as_fragments(s, gathered=not has_rows(code.lhs))):
        return "blocks that share k meet by rows, or the operands are swapped"
    if s.warps[2] == 2 and not has_halves(s.bn // s.warps[1], 2):
        return "its warpgroups share k and meet in shared memory"
    return refusal(code.reduced, *_reducing_pieces(code))


def _reducing_pieces(code: DotCode) -> tuple[int, int]:
    """Pieces to a row of what is staged at a time, and their columns."""
    s = code.s
    n, lanes = s.bn // s.warps[1] // s.split_k, _lanes(code, s.bm * s.bn // CONSUMERS // s.split_k)
    return staged_columns(n // 2 if has_halves(n, s.warps[2]) else n) // lanes, lanes


def _lanes(code: DotCode, per_thread: int) -> int:
    """Elements per thread at a time in the epilogue: 16 bytes where the stores allow it."""
    stores = code.form.elements
    columns = code.form.columns
    widest = legal_lanes(code.sig.body, stores, columns, 8, code.reduced_roots)
    if code.s.family == BYTES:
        per_thread = 8
    elif code.s.family in _ON_THE_LEFT:  # 16 bytes of sums, whichever threads that leaves
        widest, per_thread = min(widest, 4), 4
    fits = [n for n in (8, 4, 2, 1)
            if n <= min(widest, max(per_thread, 1)) and columns.size % n == 0]
    return fits[0]


def emit_begin(w: Writer, code: DotCode) -> None:
    """Decodes ``task`` into (batch, tile of n, tile of m, split) and names the Gemm type.

    Many rows of tiles go in bands, down before right: the blocks that run at one time share few
    rows of the left and few columns of the right operand, which L2 then holds.
    """
    s = code.s
    assert code.element is not None
    tile = "task"
    if s.split_k > 1:
        w.line(f"const int split = task % {s.split_k}, tile = task / {s.split_k};")
        tile = "tile"
    tm, tn = code.tiles_m, code.tiles_n
    large = code.form.n.size * code.form.k.size * code.element.itemsize > _LARGE_BYTES
    if s.family in REGISTERS:
        band = _F32_BAND if large else _BAND
    else:
        band = tm if tm < _MANY else _TALL_BAND if large else _BAND
    if tm <= band or tn == 1:
        w.line(f"const int m0 = {tile} % {tm} * {s.bm};")
        w.line(f"const int n0 = {tile} / {tm} % {tn} * {s.bn};")
    else:
        w.line(f"const int band = {tile} % {tm * tn} / {band * tn}, inside = {tile} % {tm * tn} "
               f"% {band * tn};")
        w.line(f"const int rows = min({band}, {tm} - band * {band});")
        w.line(f"const int m0 = (band * {band} + inside % rows) * {s.bm};")
        w.line(f"const int n0 = inside / rows * {s.bn};")
    w.line(f"const int b = {tile} / {tm * tn};")
    w.line("(void)b;")
    w.line(f"using G = {gemm_type(code)};")
    w.line(f"static_assert(G::SHARED_BYTES <= {shared_bytes(code) - LOW_BYTES}, \"tiles\");")
    k_tiles = str(code.k_tiles)
    if s.split_k > 1:
        depth = 64 if pair_type(code) else s.bk
        w.line(f"const int k0 = split * {code.split_tiles * depth};")
        k_tiles = f"min({code.split_tiles}, {code.k_tiles} - split * {code.split_tiles})"
    else:
        w.line("const int k0 = 0;")
    w.line(f"const int k_tiles = {k_tiles};")

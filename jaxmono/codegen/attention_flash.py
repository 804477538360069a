"""AttentionForm -> a device function that goes through its keys once (device/attention_flash.cuh).

    Q, K, V loaders -> FlashAttention::run, with the logits as an expression on score fragments
    -> FlashAttention::finish -> epilogue

For softmaxes of 16-bit operands; any other row chain needs whole rows of scores (`attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.attention_cost import LOAD, Keys, cheapest, total_us
from jaxmono.codegen.attention_logits import emit_logits, emit_range, key_range
from jaxmono.codegen.dot import emit_piece, epilogue_lanes
from jaxmono.codegen.emit import c_type
from jaxmono.codegen.loaders import emit_loader
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.key_range import Numbers
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.hlo.ir import Value

MAX_SPLIT = 32
_REGISTERS = 190
"""Of a thread, for what a warp holds of scores, sums and operands."""


# ---- schedule ----------------------------------------------------------------------------------


def schedule(sig: Sig, device: Device, *, warps: int, shared_bytes: int,
             siblings: int = 1) -> tuple[float, AttentionSchedule] | None:
    """The fastest in the model with its microseconds; None if the chain is not a softmax or nothing
    fits."""
    return cheapest(sig, device, siblings, model_us,
                    lambda form: candidates(form, warps=warps, shared_bytes=shared_bytes),
                    lambda s: (s.group, s.split, -s.bq, s.chunk))


def candidates(form: AttentionForm, *, warps: int,
               shared_bytes: int) -> Iterator[AttentionSchedule]:
    """Legal schedules: no spills, shared memory fits, no split without keys."""
    rows, keys = _round(form.m.size, 16), _round(form.n.size, 16)
    bq = 16
    while bq <= 16 * warps and bq < 2 * rows:
        share = warps // (bq // 16)
        for cols in (16, 32, 64, 128):
            chunk = cols * share
            if chunk >= 2 * keys and cols > 16:
                continue
            for split in (1, 2, 4, 8, 16, 32):
                chunks = math.ceil(math.ceil(form.n.size / chunk) / split)
                if split > 1 and math.ceil(form.n.size / chunk) <= (split - 1) * chunks:
                    continue
                for stages in (1,) if chunks == 1 else (2, 3):
                    s = AttentionSchedule(bq, chunk, stages, warps, "flash", split)
                    if registers(form, s) <= _REGISTERS \
                            and shared_bytes_of(form, s) <= shared_bytes:
                        yield s
        bq *= 2


def registers(form: AttentionForm, s: AttentionSchedule) -> int:
    """Of a thread: scores and probabilities, sums, the fragments of one k step, the rest."""
    cols = s.chunk // (s.warps // (s.bq // 16))
    return cols * 3 // 4 + _round(form.v.size, 16) // 2 + min(cols // 4, 32) + 32


def model_us(form: AttentionForm, s: AttentionSchedule, device: Device, siblings: int,
             keys: Keys) -> float:
    """Microseconds of all tasks."""
    d, dv = _round(form.k.size, 16), _round(form.v.size, 16)
    share = s.warps // (s.bq // 16)
    size = s.bq * s.chunk
    products = size * (d + dv) / 1024  # of a fragment: two clocks each, by shared memory
    lanes = size * (12 if keys.simple else 18) / 128
    load = s.chunk * (d + dv) * 2 / LOAD
    end = s.bq * dv / 128 * 4 + 500 + (150 + s.bq * dv * share / 64 if share > 1 else 0)
    if s.split > 1:
        end += 2500 + s.bq * dv * 8 / 20

    # The first products wait for positions, then Q, then K, and all warps stage 16 rows. Measured:
    # 4.3 us for 4 rows, 128 keys of 64; 9.4 us for one row, 128 keys of 256. 3000 clocks are no
    # fit: these lack 5000 and 9600.
    late = 3000 if form.m.size <= 16 else 0

    def clocks(chunks: Numbers) -> Numbers:
        first = 300 + late + s.bq * d * 2 / LOAD
        return first + chunks * max(load, products + lanes) + chunks * 60 + end

    return total_us(form, s, device, siblings, keys, clocks, 900)


def _round(x: int, n: int) -> int:
    return math.ceil(x / n) * n


def shared_bytes_of(form: AttentionForm, s: AttentionSchedule) -> int:
    """Upper bound of `FlashAttention::SHARED_BYTES` over the possible operand layouts."""
    d, dv = _round(form.k.size, 16), _round(form.v.size, 16)
    share = s.warps // (s.bq // 16)
    stats = share * s.bq * 8 if share > 1 else 0

    def tile(rows: int, cols: int) -> int:
        return max(a * (b // 8 | 1) * 16 for a, b in ((rows, cols), (cols, rows)))

    tiles = tile(s.bq, d) + s.stages * (tile(s.chunk, d) + tile(s.chunk, dv))
    return stats + max(tiles, out_bytes(dv // 8, s.warps, share > 1 or s.split > 1))


def out_bytes(fragments: int, warps: int, shared: bool) -> int:
    """`AttentionRows::OUT_BYTES`."""
    staged = fragments
    if not shared and fragments > 10:
        staged = next((n for n in (8, 10, 6) if fragments % n == 0), 2)
    return warps * 16 * (staged + 1) * 8 * 4


def workspace_bytes(form: AttentionForm, s: AttentionSchedule) -> int:
    """Global scratch of one group: O, maximum and sum of every share of a tile."""
    if s.split == 1:
        return 0
    tiles = form.batch.size * math.ceil(form.m.size / s.bq)
    return tiles * s.split * s.bq * (_round(form.v.size, 16) + 2) * 4


# ---- text --------------------------------------------------------------------------------------


def emit_body(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              outputs: Sequence[str], read_only: Sequence[Value], workspace: str = "",
              arrivals: str = "") -> None:
    """The statements of one task; C variables in scope: ``int task``, ``unsigned char* smem``."""
    form, s = code.form, code.s
    emit_task(w, code, f"FlashAttention<{c_type(code.element)}, {s.warps}, {s.bq}",
              shared_bytes_of(form, s))
    emit_range(w, code, pointers, read_only)
    emit_loaders(w, code, pointers, read_only)
    emit_logits(w, code, pointers, read_only)
    w.line("syncthreads();  // the previous task is done with shared memory")
    w.line("A::Rows rows;")
    w.line("A::run(smem, rows, m0, first, last, load_q, load_k, load_v, logits);")
    emit_finish(w, code, pointers, outputs, read_only, workspace, arrivals)


def emit_task(w: Writer, code: AttentionCode, head: str, shared: int) -> None:
    """Decodes ``task`` into (batch, tile of rows, split) and names the type ``A``.

    ``head``: the type up to the arguments that both families have. ``shared``: bytes it may need.
    """
    form, s = code.form, code.s
    tile = "task"
    if s.split > 1:
        w.line(f"const int split = task % {s.split}, tile = task / {s.split};")
        tile = "tile"
    row_tiles = math.ceil(form.m.size / s.bq)
    flags = ", ".join("true" if x.k_major else "false" for x in (code.q, code.k, code.v))
    w.line(f"using A = {head}, {s.chunk}, {s.stages}, {form.n.size}, {form.k.size}, "
           f"{form.v.size}, {s.split}, {flags}>;")
    w.line(f"static_assert(A::SHARED_BYTES <= {shared}, \"shared memory\");")
    if key_range(code) is None or row_tiles == 1:  # no order of long and short tiles
        w.line(f"const int m0 = {tile} % {row_tiles} * {s.bq}, b = {tile} / {row_tiles};")
        w.line("(void)b;")
        return
    # Tiles with many keys first, so that the last ones are short.
    if _fits_l2(form):
        if s.split == 1:
            w.line(f"const int turn = snake(task, {code.tasks});")
            tile = "turn"
        w.line(f"const int m0 = ({row_tiles - 1} - {tile} / {form.batch.size}) * {s.bq}, "
               f"b = {tile} % {form.batch.size};")
    else:
        if s.split == 1 and row_tiles > 1 and code.tasks % 2 == 0:
            w.line(f"const int turn = fold(task, {code.tasks}, {row_tiles});")
            tile = "turn"
        w.line(f"const int m0 = ({row_tiles - 1} - {tile} % {row_tiles}) * {s.bq}, "
               f"b = {tile} / {row_tiles};")
    w.line("(void)b;")


_L2_BYTES = 32 << 20


def _fits_l2(form: AttentionForm) -> bool:
    """Whether keys and values of all batch entries stay in L2 while all blocks use them."""
    return form.batch.size * form.n.size * (form.k.size + form.v.size) * 2 <= _L2_BYTES


def emit_loaders(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                 read_only: Sequence[Value]) -> None:
    """``load_q``, ``load_k``, ``load_v``: fill one 16-byte piece of a tile."""
    form, s = code.form, code.s
    tiles = {form.m: s.bq, form.n: s.chunk, form.k: 16, form.v: 16}
    for name, x in (("load_q", code.q), ("load_k", code.k), ("load_v", code.v)):
        emit_loader(w, name, code.sig.body, x, code.element, pointers, {form.batch: "b"},
                    read_only, tiles)


def emit_finish(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                outputs: Sequence[str], read_only: Sequence[Value], workspace: str,
                arrivals: str) -> None:
    """The end of a task: shares of rows meet, the epilogue writes them."""
    form, s, body = code.form, code.s, code.sig.body
    width = _round(form.v.size, 16)
    lanes = epilogue_lanes(body, form.stores, form.v, rows=math.ceil(s.bq / s.split), cols=width,
                           threads=32 * s.warps)
    valid = f"min({s.bq}, {form.m.size} - m0)" if form.m.size % s.bq else str(s.bq)
    exchange = f"{workspace} + tile * A::FLOATS, split, {arrivals} + tile" if s.split > 1 \
        else "nullptr, 0, nullptr"
    rounded = "true" if form.second.result.type.dtype is code.element else "false"
    head = (f"A::finish<{lanes}, {rounded}>(smem, rows, {valid}, unit, {exchange}, "
            f"[&](int r, int c, const float (&acc)[{lanes}])")
    w.line("constexpr int n0 = 0;")
    with w.block(head, "});"):
        emit_piece(w, body, form.stores, result=form.second.result, demanded=(code.identity,),
                   m=form.m, n=form.v, tile_m=s.bq, tile_n=width, lanes=lanes, read="",
                   accumulator="float", skip="", pointers=pointers, outputs=outputs,
                   names={form.batch: "b"}, read_only=read_only)



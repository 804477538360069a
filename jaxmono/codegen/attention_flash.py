"""AttentionForm -> a device function that goes through its keys once (device/attention_flash.cuh).

    Q, K, V loaders -> FlashAttention::run, with the logits as an expression on score fragments
    -> FlashAttention::finish -> epilogue

For softmaxes of 16-bit operands; any other row chain needs whole rows of scores (`attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule, element_type
from jaxmono.codegen.dot import emit_loader, emit_piece, epilogue_lanes, lane_of
from jaxmono.codegen.emit import BodyEmitter, c_type, vector_width
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.key_range import KeyRange, find_key_range
from jaxmono.fusion.indexing import IndexMap
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.fusion.softmax import Softmax, find_softmax, scaled_scores
from jaxmono.fusion.support import MAX_SOFTMAX_WIDTH
from jaxmono.hlo.ir import Graph, Value

MAX_SPLIT = 32
_REGISTERS = 190
"""Of a thread, for what a warp holds of scores, sums and operands."""


def softmax_of(body: Graph, form: AttentionForm) -> Softmax | None:
    """The chain between the contractions as a softmax of 16-bit operands, None if it is not."""
    if element_type(form).itemsize != 2 or max(form.k.size, form.v.size) > MAX_SOFTMAX_WIDTH:
        return None
    return find_softmax(body, form.first, form.probs, form.p_index, form.n)


# ---- schedule ----------------------------------------------------------------------------------


def schedule(sig: Sig, device: Device, *, warps: int, shared_bytes: int,
             siblings: int = 1) -> tuple[float, AttentionSchedule] | None:
    """The fastest in the model with its microseconds; None if the chain is not a softmax or nothing
    fits."""
    form = sig.form
    assert isinstance(form, AttentionForm)
    if softmax_of(sig.body, form) is None:
        return None
    fits = candidates(form, warps=warps, shared_bytes=shared_bytes)
    return min(((model_us(form, s, device, siblings), s) for s in fits),
               key=lambda x: (x[0], x[1].split, -x[1].bq, x[1].chunk), default=None)


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


def model_us(form: AttentionForm, s: AttentionSchedule, device: Device, siblings: int) -> float:
    """Microseconds of all tasks, in a model of clocks of one multiprocessor at 1.7 GHz."""
    d, dv = _round(form.k.size, 16), _round(form.v.size, 16)
    share = s.warps // (s.bq // 16)
    chunks = math.ceil(math.ceil(form.n.size / s.chunk) / s.split)
    keys = chunks * s.chunk
    products = s.bq * keys * (d + dv) / 1024  # of a fragment: two clocks each, by shared memory
    lanes = s.bq * keys * 14 / 128
    load = (s.bq * d + keys * (d + dv)) * 2 / 40
    barriers = chunks * 60 + (150 + s.bq * dv * share / 64 if share > 1 else 0)
    waves = math.ceil(form.batch.size * siblings * math.ceil(form.m.size / s.bq) * s.split
                      / device.sm_count)
    exchange = 2500 + s.bq * dv * 8 / 20 if s.split > 1 else 0
    one = max(load + 300, products + lanes) + barriers + s.bq * dv / 128 * 4 + 500 + exchange
    return (900 + waves * one) / 1700


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
    if key_range(code) is None:
        w.line(f"const int m0 = {tile} % {row_tiles} * {s.bq}, b = {tile} / {row_tiles};")
    elif _fits_l2(form):  # tiles with many keys first, so that the last ones are short
        w.line(f"const int m0 = ({row_tiles - 1} - {tile} / {form.batch.size}) * {s.bq}, "
               f"b = {tile} % {form.batch.size};")
    else:
        w.line(f"const int m0 = ({row_tiles - 1} - {tile} % {row_tiles}) * {s.bq}, "
               f"b = {tile} / {row_tiles};")
    w.line("(void)b;")


_L2_BYTES = 32 << 20


def _fits_l2(form: AttentionForm) -> bool:
    """Whether keys and values of all batch entries stay in L2 while all blocks use them."""
    return form.batch.size * form.n.size * (form.k.size + form.v.size) * 2 <= _L2_BYTES


def key_range(code: AttentionCode) -> KeyRange | None:
    """What the mask says about the keys of a row."""
    softmax = softmax_of(code.sig.body, code.form)
    assert softmax is not None
    return find_key_range(code.sig.body, softmax, code.form.n)


def emit_range(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
               read_only: Sequence[Value], *, visible: bool = True) -> None:
    """``first``, ``last``: the chunks of this task, those only that some row of the tile sees.

    ``visible``: also ``inner_low``, ``inner_high``, the keys that all rows see, if the mask says.
    """
    form, s = code.form, code.s
    found, keys = key_range(code), form.n.size
    if found is None:
        first = "split * A::SHARE" if s.split > 1 else "0"
        last = "min(first + A::SHARE, A::CHUNKS)" if s.split > 1 else "A::CHUNKS"
        w.line(f"const int first = {first}, last = {last};")
        return
    w.line(f"int low = {keys - 1}, high = 0;")
    inner = visible and found.whole
    if inner:
        w.line(f"int inner_low = 0, inner_high = {keys - 1};  // what all rows of the tile see")
    with w.block(f"for (int r = lane_id(); r < {s.bq}; r += WARP)"):
        inside = form.m.size % s.bq == 0
        w.line("const int m = m0 + r;" if inside
               else f"const int m = min(m0 + r, {form.m.size - 1});")
        w.line("(void)m;")
        em = BodyEmitter(w, code.sig.body, pointers, var_names={form.batch: "b", form.m: "m"},
                         read_only=read_only)
        w.line(f"long long begin = 0, end = {keys - 1};")
        for x in found.bounds:
            limit = f"(long long)({em.code(x.index)})"
            if x.value is not None:
                value = em.emit(x.value, x.at)
                limit += f" {'+' if x.sign > 0 else '-'} (long long)({value})"
            w.line(f"end = min(end, {limit});" if x.upper else f"begin = max(begin, {limit});")
        if inner:
            w.line(f"inner_low = begin > end ? {keys} : max(inner_low, static_cast<int>(begin));")
            w.line("inner_high = begin > end ? -1 : min(inner_high, static_cast<int>(end));")
        if found.infinite:
            w.line("if (begin > end) continue;  // nothing counts: 0 / 0 whatever is read")
        else:
            w.line(f"if (begin > end) begin = 0, end = {keys - 1};  // all keys weigh the same")
        w.line("low = min(low, static_cast<int>(begin)), high = max(high, static_cast<int>(end));")
    w.line("low = warp_reduce(low, Least());")
    w.line("high = warp_reduce(high, Most());")
    if inner:
        w.line("inner_low = warp_reduce(inner_low, Most());")
        w.line("inner_high = warp_reduce(inner_high, Least());")
    w.line(f"const int chunks = high / {s.chunk} + 1 - low / {s.chunk};")
    if s.split > 1:
        w.line(f"const int share = (chunks + {s.split - 1}) / {s.split};")
        w.line(f"const int first = low / {s.chunk} + split * share;")
        w.line(f"const int last = min(first + share, high / {s.chunk} + 1);")
    else:
        w.line(f"const int first = low / {s.chunk}, last = first + chunks;")


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
    head = (f"A::finish<{lanes}>(smem, rows, {valid}, unit, {exchange}, "
            f"[&](int r, int c, const float (&acc)[{lanes}])")
    w.line("constexpr int n0 = 0;")
    with w.block(head, "});"):
        emit_piece(w, body, form.stores, result=form.second.result, identity=code.identity,
                   m=form.m, n=form.v, tile_m=s.bq, tile_n=width, lanes=lanes, read="",
                   accumulator="float", skip="return", pointers=pointers, outputs=outputs,
                   names={form.batch: "b"}, read_only=read_only)


def emit_logits(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                read_only: Sequence[Value]) -> None:
    """``logits``: the `Logits` of device/attention_rows.cuh, and ``unit``.

    Multiples of the scores stay scores, with the factor in ``unit``; a mask is then asked for the
    keys only that not all rows see.
    """
    form, body, n = code.form, code.sig.body, code.form.n
    softmax = softmax_of(body, form)
    assert softmax is not None
    scaled = scaled_scores(body, form.first, softmax, n)
    own = "const Vec<float, 2>& dot"
    low, high = "0", str(n.size - 1)
    w.line(f"constexpr float unit = {_float(LOG2_E * (scaled.scale if scaled else 1.0))};")
    if scaled is None:
        def logit(em: BodyEmitter, vector: bool) -> list[str]:
            em.bind(form.first.result, softmax.score_index, "dot" if vector else "dot.x[e]",
                    vector=vector)
            x = em.emit(softmax.logits, softmax.index)
            return [f"convert<float>({lane_of(x, str(e))})" for e in range(2 if vector else 1)]

        _emit_pairs(w, code, "logit", softmax.logits, softmax.index, logit, pointers, read_only)
    else:
        w.line(f"const auto logit = [](int, int, {own}) {{ return dot; }};")
    if scaled is None or scaled.keep is None:
        w.line(f"const auto mask = [](int, int, {own}) {{ return dot; }};")
    else:
        keep, masked = scaled.keep, scaled.masked / scaled.scale
        if math.isfinite(scaled.masked):  # rows of nothing else weigh all keys the same
            masked = min(max(masked, -_LARGEST), _LARGEST)

        def mask(em: BodyEmitter, vector: bool) -> list[str]:
            x = em.emit(keep, scaled.index)
            at = range(2) if vector else ("e",)
            return [f"{lane_of(x, str(e))} ? dot.x[{e}] : {_float(masked)}" for e in at]

        _emit_pairs(w, code, "mask", keep, scaled.index, mask, pointers, read_only)
        found = key_range(code)
        low, high = ("inner_low", "inner_high") if found is not None and found.whole \
            else (str(n.size), "-1")
    w.line(f"const auto logits = make_logits(unit, {low}, {high}, logit, mask);")


LOG2_E = 1.4426950408889634
_LARGEST = 3.4028234663852886e38


def _float(x: float) -> str:
    return f"bitcast<float>(0x{np.float32(x).view(np.uint32):08x}u)" if math.isinf(x) \
        else f"{np.float32(x)!s}f"


def _emit_pairs(w: Writer, code: AttentionCode, name: str, value: Value, index: IndexMap,
                results: Callable[[BodyEmitter, bool], list[str]],
                pointers: Mapping[Value, str], read_only: Sequence[Value]) -> None:
    """``NAME(row of the tile, key, Vec<float, 2> dot)``: a value at two neighbouring keys.

    ``results(em, vector)``: the expressions of both lanes, or of the lane ``e``. Rows and keys
    outside give what the last ones inside give; nobody reads it.
    """
    form, s, body, n = code.form, code.s, code.sig.body, code.form.n
    lanes = vector_width(body, [(value, index)], [], n, limit=2)
    m = "m0 + row" if form.m.size % s.bq == 0 else f"min(m0 + row, {form.m.size - 1})"
    with w.block(f"const auto {name} = [&](int row, int key, const Vec<float, 2>& dot) "
                 "-> Vec<float, 2>", "};"):
        w.line("(void)dot;")
        if lanes == 2:
            key = "key" if n.size % s.chunk == 0 else f"min(key, {n.size - 2})"
            w.line(f"const int m = {m}, n = {key};")
            w.line("(void)m, (void)n;")
            em = BodyEmitter(w, body, pointers, lane=n, lanes=2,
                             var_names={form.batch: "b", form.m: "m", n: "n"},
                             read_only=read_only)
            w.line(f"return {{{', '.join(results(em, True))}}};")
            return
        w.line("Vec<float, 2> out;")
        w.directive("#pragma unroll")
        with w.block("for (int e = 0; e < 2; ++e)"):
            key = "key + e" if n.size % s.chunk == 0 else f"min(key + e, {n.size - 1})"
            w.line(f"const int m = {m}, n = {key};")
            w.line("(void)m, (void)n;")
            em = BodyEmitter(w, body, pointers,
                             var_names={form.batch: "b", form.m: "m", n: "n"},
                             read_only=read_only)
            (x,) = results(em, False)
            w.line(f"out.x[e] = {x};")
        w.line("return out;")

"""What an attention's softmax means to its device function: keys that count, logits, mask.

    logits     any expression of the score; a multiple of it becomes part of the exponential
    mask       asked for the keys only that not all rows of a tile see
    range      chunks of keys that no row of a tile sees are not touched

A skipped key has the weight 0 in the program too. Only one thing tells the difference: 0 times a
value that is NaN or infinite, which the program adds to the row and this does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxmono.codegen.attention import AttentionCode, element_type
from jaxmono.codegen.emit import BodyEmitter, vector_width
from jaxmono.codegen.loaders import lane_of
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import IndexMap
from jaxmono.fusion.key_range import KeyRange, find_key_range, moves_on
from jaxmono.fusion.plan import AttentionForm
from jaxmono.fusion.softmax import Softmax, find_softmax, scaled_scores
from jaxmono.fusion.support import MAX_SOFTMAX_WIDTH
from jaxmono.hlo.ir import Graph, Value

LOG2_E = 1.4426950408889634
_LARGEST = 3.4028234663852886e38


def softmax_of(body: Graph, form: AttentionForm) -> Softmax | None:
    """The chain between the contractions as a softmax of 16-bit operands, None if it is not."""
    if element_type(form).itemsize != 2 or max(form.k.size, form.v.size) > MAX_SOFTMAX_WIDTH:
        return None
    return find_softmax(body, form.first, form.probs, form.p_index, form.n)


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
    s = code.s
    if not emit_visible(w, code, pointers, read_only, inner=visible):
        first = "split * A::SHARE" if s.split > 1 else "0"
        last = "min(first + A::SHARE, A::CHUNKS)" if s.split > 1 else "A::CHUNKS"
        w.line(f"const int first = {first}, last = {last};")
        return
    w.line(f"const int chunks = high / {s.chunk} + 1 - low / {s.chunk};")
    if s.split > 1:
        w.line(f"const int share = (chunks + {s.split - 1}) / {s.split};")
        w.line(f"const int first = low / {s.chunk} + split * share;")
        w.line(f"const int last = min(first + share, high / {s.chunk} + 1);")
    else:
        w.line(f"const int first = low / {s.chunk}, last = first + chunks;")


def emit_visible(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                 read_only: Sequence[Value], *, inner: bool = True) -> bool:
    """``low``, ``high``: the keys that some row of the tile sees; False if the mask does not say.

    ``inner``: also ``inner_low``, ``inner_high``, the keys that all rows see, if the mask is whole.
    """
    found = key_range(code)
    if found is None:
        return False
    inner = inner and found.whole
    if moves_on(found, code.form.m, code.form.n, (code.form.batch,)):
        _emit_ends(w, code, found, inner)
    else:
        _emit_all_rows(w, code, found, inner, pointers, read_only)
    return True


def _emit_ends(w: Writer, code: AttentionCode, found: KeyRange, inner: bool) -> None:
    """The keys of a tile by those of its first row and its last one."""
    form, s, keys = code.form, code.s, code.form.n.size

    def limit(row: str, upper: bool) -> str:
        em = BodyEmitter(w, code.sig.body, {}, var_names={form.m: row})
        out = str(keys - 1) if upper else "0"
        for x in found.bounds:
            if x.upper == upper:
                out = f"{'min' if upper else 'max'}({out}, static_cast<int>({em.code(x.index)}))"
        return out

    end = f"m0 + {s.bq - 1}"
    end = end if form.m.size % s.bq == 0 else f"min({end}, {form.m.size - 1})"
    w.line(f"const int m1 = {end};")
    w.line("(void)m1;")
    w.line(f"const int low = {limit('m0', False)}, high = {limit('m1', True)};")
    if inner:
        w.comment("what all rows of the tile see")
        w.line(f"const int inner_low = {limit('m1', False)}, inner_high = {limit('m0', True)};")


def _emit_all_rows(w: Writer, code: AttentionCode, found: KeyRange, inner: bool,
                   pointers: Mapping[Value, str], read_only: Sequence[Value]) -> None:
    """The keys of a tile by those of all its rows, a warp's lanes side by side."""
    form, s, keys = code.form, code.s, code.form.n.size
    w.line(f"int low = {keys - 1}, high = 0;")
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


def emit_logits(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                read_only: Sequence[Value], *, inner: bool = True) -> None:
    """``logits``: the `Logits` of device/attention_rows.cuh, and ``unit``. ``inner``: there are the
    variables of `emit_visible`.

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
        low, high = ("inner_low", "inner_high") if inner and found and found.whole \
            else (str(n.size), "-1")
    if softmax.factors:
        def factor(em: BodyEmitter, vector: bool) -> list[str]:
            em.bind(softmax.ratio, softmax.ratio_index, "dot" if vector else "dot.x[e]",
                    vector=vector)
            x = em.emit(form.probs, form.p_index)
            return [f"convert<float>({lane_of(x, str(e))})" for e in range(2 if vector else 1)]

        _emit_pairs(w, code, "factor", form.probs, form.p_index, factor, pointers, read_only)
    else:
        w.line(f"const auto factor = [](int, int, {own}) {{ return dot; }};")
    hides = scaled is not None and scaled.keep is not None
    flags = ", ".join("true" if x else "false"
                      for x in (scaled is not None, hides, softmax.factors))
    w.line(f"const auto logits = make_logits<{flags}>(unit, {low}, {high}, logit, mask, factor);")


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

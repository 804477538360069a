"""AttentionForm -> a device function for at most 16 rows: device/attention_few.cuh.

    NAME_prefetch   before the stage: the keys and values of the task into shared memory, or, of a
                    cache that this launch has written, into the L2
    NAME            K, V requested -> Q computed -> FewRows::run -> FewRows::finish -> epilogue
                    (and new rows, which take their places in K and V)

A decode step has a row or a few per head, and a cache that fits shared memory: its time is that of
a few dependent accesses. Only softmaxes of 16-bit operands, as in `attention_flash`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from jaxmono.codegen.attention import AttentionCode, AttentionSchedule
from jaxmono.codegen.attention_cost import LOAD, Keys, cheapest, total_us
from jaxmono.codegen.attention_logits import emit_logits, emit_visible, key_range
from jaxmono.codegen.dot import emit_piece, epilogue_lanes
from jaxmono.codegen.emit import BodyEmitter, c_type, vector_width
from jaxmono.codegen.landed import emit_landed
from jaxmono.codegen.loaders import emit_loader, lane_of
from jaxmono.codegen.operand import NewRows, Operand
from jaxmono.codegen.parted import any_waits, meet
from jaxmono.codegen.traverse import sources
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.key_range import Numbers
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.hlo.ir import Value

MAX_ROWS = 16
_SPLITS = (1, 2, 4, 8, 16, 32)
_FRAGMENTS = 12
"""Of 8 keys, or columns of V, of a warp: 4 registers each and twice that."""
_EAGER_BYTES = 4 << 20
"""Keys and values of a group that are read whatever positions say: 1 us of memory, behind a barrier
that takes longer; waiting for a position first costs 0.3 us."""


# ---- schedule ----------------------------------------------------------------------------------


def schedule(sig: Sig, device: Device, *, warps: int, shared_bytes: int,
             siblings: int = 1) -> tuple[float, AttentionSchedule] | None:
    """The fastest in the model with its microseconds; None if there are more rows, the chain is not
    a softmax, or a block's keys do not fit."""
    return cheapest(sig, device, siblings, model_us,
                    lambda form: candidates(form, warps=warps, shared_bytes=shared_bytes),
                    lambda s: (s.split, s.group))


def candidates(form: AttentionForm, *, warps: int,
               shared_bytes: int) -> Iterator[AttentionSchedule]:
    """Legal schedules: all blocks have keys, shared memory fits, no spills."""
    if form.m.size > MAX_ROWS:
        return
    values = _even_share(_round(form.v.size, 16) // 8, warps)
    for split in _SPLITS:
        least = math.ceil(form.n.size / split)
        for chunk in sorted({_round(least, 16), _round(least, 64)}):
            s = AttentionSchedule(16, chunk, 1, warps, "few", split)
            if (split - 1) * chunk < form.n.size \
                    and shared_bytes_of(form, s) <= shared_bytes \
                    and max(_even_share(chunk // 8, warps), values) <= _FRAGMENTS:
                yield s


def _even_share(groups: int, warps: int) -> int:
    """`even_share` of device/mma.cuh."""
    return next(x for x in range(math.ceil(groups / warps), groups + 1) if groups % x == 0)


def model_us(form: AttentionForm, s: AttentionSchedule, device: Device, siblings: int,
             keys: Keys) -> float:
    """Microseconds of all tasks."""
    d, dv = _round(form.k.size, 16), _round(form.v.size, 16)
    halves = 2 if form.m.size > 8 else 1
    load = s.chunk * (d + dv) * 2 / LOAD
    products = 16 * s.chunk * (d + dv) / 1024
    lanes = 8 * halves * s.chunk * (12 if keys.simple else 18) / 128
    end = 450.0
    if s.split > 1:  # stores, then loads; with 1000 OPT-125M's step has 8 shares: 0.7 % longer
        end += 2000 + s.split * form.m.size * dv * 4 / LOAD

    def clocks(chunks: Numbers) -> Numbers:
        return 700 + (load + products + lanes) * chunks + end

    return total_us(form, s, device, siblings, keys, clocks, 900)


def _round(x: int, n: int) -> int:
    return math.ceil(x / n) * n


def shared_bytes_of(form: AttentionForm, s: AttentionSchedule) -> int:
    """Upper bound of `FewRows::SHARED_BYTES` over the possible operand layouts."""
    d, dv = _round(form.k.size, 16), _round(form.v.size, 16)

    def tile(rows: int, cols: int) -> int:
        return rows * (cols // 8 | 1) * 16

    out = (16 if form.m.size > 8 else 8) * (dv + 8) * 4
    kv = sum(max(tile(s.chunk, x), tile(x, s.chunk)) for x in (d, dv))
    return s.warps * 128 + out + tile(16, d) + tile(16, s.chunk) + kv


def mail(code: AttentionCode) -> int:
    """Words that blocks which share keys mail in one group: `FewRows::finish`."""
    return code.tasks * _share_words(code) if code.s.split > 1 else 0


def _share_words(code: AttentionCode) -> int:
    """Of one share of a tile: for every piece of the output a maximum and a sum, too."""
    lanes = _lanes(code)
    piece = lanes + 2 if lanes > 1 else 4
    return code.form.m.size * (_round(code.form.v.size, 16) // lanes) * piece


def _lanes(code: AttentionCode) -> int:
    form = code.form
    return epilogue_lanes(code.sig.body, form.stores, form.v, rows=form.m.size,
                          cols=_round(form.v.size, 16), threads=32 * code.s.warps)


def can_flag(code: AttentionCode, param: Value) -> bool:
    """Whether a body input may have flags: those that keys and values are copied from have none."""
    return all(param is not x.param if x.new else param not in sources(code.sig.body, x.value)
               for x in (code.k, code.v))


def has_new_rows(sig: Sig, s: AttentionSchedule) -> bool:
    """Whether keys or values are a cache in which some rows are new."""
    code = AttentionCode.of(sig, s)
    return any(x.new is not None for x in (code.k, code.v))


# ---- text --------------------------------------------------------------------------------------


def _eager(code: AttentionCode) -> bool:
    """Whether a task reads its keys before it knows which of them count. It has some that do if it
    has all of them."""
    f = code.form
    return code.s.split == 1 or key_range(code) is None \
        or f.batch.size * f.n.size * (f.k.size + f.v.size) * 2 <= _EAGER_BYTES


def _begin(w: Writer, code: AttentionCode) -> None:
    """Decodes ``task`` into (batch, split) and names the type ``A``."""
    form, s = code.form, code.s
    if s.split > 1:
        w.line(f"const int split = task % {s.split}, tile = task / {s.split};")
        w.line(f"const int m0 = 0, b = tile, key0 = split * {s.chunk};")
    else:
        w.line("const int m0 = 0, b = task, key0 = 0;")
    w.line("(void)m0, (void)b;")
    flags = ", ".join("true" if x.k_major else "false" for x in (code.k, code.v))
    w.line(f"using A = FewRows<{c_type(code.element)}, {s.warps}, {form.m.size}, {s.chunk}, "
           f"{form.n.size}, {form.k.size}, {form.v.size}, {s.split}, {flags}>;")
    w.line(f"static_assert(A::SHARED_BYTES <= {shared_bytes_of(form, s)}, \"shared memory\");")


def emit_prefetch(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
                  given: Collection[Value], threads: int, doubled: bool = False) -> bool:
    """Requests the task's keys and values, or asks them into the L2; False if that may be far too
    much, or their addresses are in memory. A cache that this launch writes is no matter for the L2,
    which has what is written.
    """
    if comes_ahead(code, given):
        _begin(w, code)
        _emit_loaders(w, code, pointers, ())
        groups = "template request<false>" if doubled else "request"
        w.line(f"A::{groups}(smem, key0, load_k, load_v);")
        return True
    touched = [(x, size) for x, size in ((code.k, code.form.k.size), (code.v, code.form.v.size))
               if _is_plain(x)]
    if not touched or not _eager(code):
        return False
    form, s = code.form, code.s
    _begin(w, code)
    for x, size in touched:
        keys, wide = (x.outer, x.k) if x is code.k else (x.k, x.outer)
        lines = math.ceil(size / 64) if x.major is wide else 1
        rows = s.chunk if x.major is wide else size * math.ceil(s.chunk / 64)
        with w.block(_over(rows * lines, threads)):
            if x.major is wide:
                key, at = f"i / {lines}" if lines > 1 else "i", f"i % {lines} * 64"
            else:
                key, at = f"i / {size} * 64", f"i % {size}"
            w.line(f"const int n = min(key0 + {key}, {form.n.size - 1});")
            w.line(f"const int at = {at if lines > 1 or x.major is not wide else '0'};")
            em = BodyEmitter(w, code.sig.body, pointers,
                             var_names={form.batch: "b", keys: "n", wide: "at"})
            assert x.param is not None and x.offset is not None
            w.line(f"prefetch_l2({pointers[x.param]} + {em.code(x.offset)});")
    return True


def _is_plain(x: Operand) -> bool:
    return x.param is not None and x.offset is not None and x.offset.is_static \
        and not x.guard.bounds and not x.others


def comes_ahead(code: AttentionCode, given: Collection[Value]) -> bool:
    """Whether keys and values can be requested at any time of the launch."""
    return _eager(code) and all(_is_plain(x) and x.param in given for x in (code.k, code.v))


def _emit_loaders(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                  read_only: Sequence[Value]) -> None:
    form = code.form
    tiles = {form.m: code.s.bq, form.n: code.s.chunk, form.k: 16, form.v: 16}
    for name, x in (("load_k", code.k), ("load_v", code.v)):
        emit_loader(w, name, code.sig.body, x, code.element, pointers, {form.batch: "b"}, read_only,
                    tiles)


def emit_body(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              outputs: Sequence[str], read_only: Sequence[Value], mail: str = "",
              given: Collection[Value] = (), fetched: str = "false",
              doubled: bool = False) -> None:
    """The statements of one task; C variables in scope: ``int task``, ``unsigned char* smem``."""
    form, s, body = code.form, code.s, code.sig.body
    eager = _eager(code)
    _begin(w, code)
    _emit_loaders(w, code, pointers, read_only)
    if not eager:
        emit_visible(w, code, pointers, read_only, inner=False)
        w.line(f"const bool seen = key0 <= high && key0 + {s.chunk} > low;")
    with w.block(f"if (!{fetched})") if comes_ahead(code, given) else nullcontext():
        w.line("syncthreads();  // the previous task is done with shared memory")
        if doubled:
            w.line("A::template request<false>(smem, key0, load_k, load_v);")
            w.line("cp_async_commit();")
        else:
            w.line(f"{'' if eager else 'if (seen) '}A::request(smem, key0, load_k, load_v);")
    news = [_New.of(code, x, at) for x, at in ((code.k, "key"), (code.v, "value")) if x.new]
    for new in news:
        new.emit_fetch(w, code, pointers, read_only)
    _emit_q(w, code, pointers, read_only)
    meet(w, any_waits(pointers.values()))
    if doubled:
        emit_landed(w, fetched)
    elif news:
        w.line("cp_async_wait<0>();")
    if news:
        w.line("syncthreads();  // all that was copied is there")
        for new in news:
            new.emit_store(w, code)
    emit_logits(w, code, pointers, read_only, inner=False)
    w.line("A rows;")
    if eager:
        w.line(f"rows.{'template run<true>' if doubled else 'run'}(smem, key0, logits);")
    else:
        w.line("if (seen) rows.run(smem, key0, logits);")
        w.line("else rows.nothing();")
    width = _round(form.v.size, 16)
    lanes = _lanes(code)
    exchange = f"{mail} + tile * {s.split * _share_words(code)}, split" if s.split > 1 \
        else "nullptr, 0"
    w.line("constexpr int n0 = 0;")
    head = f"rows.finish<{lanes}>(smem, unit, {exchange}, [&](int r, int c, " \
           f"const float (&acc)[{lanes}])"
    with w.block(head, "});"):
        emit_piece(w, body, form.stores, result=form.second.result, demanded=(code.identity,),
                   m=form.m, n=form.v, tile_m=form.m.size, tile_n=width, lanes=lanes, read="",
                   accumulator="float", skip="", pointers=pointers, outputs=outputs,
                   names={form.batch: "b"}, read_only=read_only)


@dataclass(frozen=True)
class _New:
    """New rows of keys or values on their way to shared memory, a piece or a few a thread.

    Attributes:
      at: "key" or "value". wide: the Var along a row. lanes: of a piece. threads: of the block.
    """

    new: NewRows
    at: str
    wide: Var
    lanes: int
    threads: int

    @staticmethod
    def of(code: AttentionCode, x: Operand, at: str) -> _New:
        new, form, threads = x.new, code.form, 32 * code.s.warps
        assert new is not None
        wide = form.k if at == "key" else form.v
        lanes = vector_width(code.sig.body, [(new.value, new.index)], [(Index.of(wide), 2)], wide,
                             limit=8)
        while lanes > 1 and new.count * wide.size * 2 <= threads * lanes:
            lanes //= 2
        return _New(new, at, wide, lanes, threads)

    @property
    def pieces(self) -> int:
        return self.new.count * (self.wide.size // self.lanes)

    @property
    def trips(self) -> int:
        """Pieces of a thread."""
        return math.ceil(self.pieces / self.threads)

    @property
    def own(self) -> str:
        """The piece of a trip, as it waits in registers."""
        return f"{self.at}_new" + ("[j]" if self.trips > 1 else "")

    @contextmanager
    def _each(self, w: Writer) -> Generator[None]:
        """This thread's pieces ``i``; those of keys and of values belong to different threads."""
        i = "thread_id()" if self.at == "key" else f"{self.threads - 1} - thread_id()"
        each = self.wide.size // self.lanes
        many = self.trips > 1
        if many:
            w.directive("#pragma unroll")
        with w.block(f"for (int j = 0; j < {self.trips}; ++j)" if many else ""):
            w.line(f"const int i = {i}{f' + j * {self.threads}' if many else ''}, "
                   f"n = {self.at}_at + i / {each}, "
                   f"c = i % {each}{f' * {self.lanes}' if self.lanes > 1 else ''};")
            yield

    def emit_fetch(self, w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
                   read_only: Sequence[Value]) -> None:
        """Asks for what has come, early: ``NAME_at`` is the first row, ``NAME_new`` the pieces."""
        form = code.form
        em = BodyEmitter(w, code.sig.body, pointers, var_names={form.batch: "b"},
                         read_only=read_only)
        w.line(f"const int {self.at}_at = {em.code(self.new.first)};")
        count = f"[{self.trips}]" if self.trips > 1 else ""
        w.line(f"Vec<float, {self.lanes}> {self.at}_new{count}{{}};")
        with self._each(w), w.block(f"if (i < {self.pieces})"):
            em = BodyEmitter(w, code.sig.body, pointers, lane=self.wide, lanes=self.lanes,
                             var_names={form.batch: "b", form.n: "n", self.wide: "c"},
                             read_only=read_only)
            v = em.emit(self.new.value, self.new.index)
            for e in range(self.lanes):
                w.line(f"{self.own}.x[{e}] = convert<float>({lane_of(v, str(e))});")

    def emit_store(self, w: Writer, code: AttentionCode) -> None:
        """To its place in shared memory, if its row is one of the task."""
        inside = f"i < {self.pieces} && n >= key0 && n - key0 < {code.s.chunk}"
        with self._each(w), w.block(f"if ({inside})"):
            w.line(f"for (int e = 0; e < {self.lanes}; ++e)")
            w.line(f"  *A::{self.at}(smem, n - key0, c + e) = "
                   f"convert<{c_type(code.element)}>({self.own}.x[e]);")


def _over(count: int, threads: int) -> str:
    """The head of a block that has every ``i`` below a number once; no loop where none is needed,
    which would be unrolled: the code is read from memory as often as it runs."""
    if count == threads:  # no branch: what follows may be asked for beside it
        return "if (const int i = thread_id(); true)"
    if count < threads:
        return f"if (const int i = thread_id(); i < {count})"
    return f"for (int i = thread_id(); i < {count}; i += {threads})"


def _emit_q(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
            read_only: Sequence[Value]) -> None:
    """Q's rows into shared memory, no more elements a thread than there must be: an expression of
    several loads (a rotation, say) then waits for them once."""
    form, x, body = code.form, code.q, code.sig.body
    t, dp, threads = c_type(code.element), _round(form.k.size, 16), 32 * code.s.warps
    lanes = vector_width(body, [(x.value, x.index)], [(Index.of(form.k), 2)], form.k, limit=8)
    while lanes > 1 and (form.m.size * dp <= threads * lanes // 2 or form.k.size % lanes):
        lanes //= 2
    vec = f", {lanes}" if lanes > 1 else ""
    each = dp // lanes
    with w.block(_over(form.m.size * each, threads)):
        w.line(f"const int m = i / {each}, k = i % {each}{f' * {lanes}' if lanes > 1 else ''};")
        w.line("(void)m;")
        w.line(f"Vec<float, {lanes}> value{{}};")
        with w.block(f"if (k < {form.k.size})" if form.k.size % 16 else ""):
            em = BodyEmitter(w, body, pointers, lane=form.k, lanes=lanes,
                             var_names={form.batch: "b", form.m: "m", form.k: "k"},
                             read_only=read_only)
            v = em.emit(x.value, x.index)
            for e in range(lanes):
                w.line(f"value.x[{e}] = convert<float>({lane_of(v, str(e))});")
        w.line(f"store<{t}{vec}>(A::q(smem, m, k), value{'' if lanes > 1 else '.x[0]'});")

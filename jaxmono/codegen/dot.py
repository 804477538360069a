"""DotForm -> a device function: one tile of a contraction per task.

    loaders (loaders.py) -> Gemm / SimtGemm (device/gemm*.cuh) -> epilogue (generated)

The loaders move 16-byte pieces of an operand to shared memory (`operand.py` decides how); the
epilogue reads rows of the finished tile from shared memory, so that its own loads and stores are
16 bytes wide whatever the fragment layout of the tensor cores is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from jaxmono.codegen.dot_schedule import (
    F8_FLOPS,
    DotSchedule,
    ImageSchedule,
    best_mma,
    choose_simt,
    mma_type,
)
from jaxmono.codegen.dot_schedule_fma import FMA, candidates_fma
from jaxmono.codegen.early_loads import bind_early
from jaxmono.codegen.emit import BodyEmitter, c_type, vector_width
from jaxmono.codegen.epilogue_reduces import Reduced, reduced_of
from jaxmono.codegen.image import Arrangement, Image, arrangements, image_of
from jaxmono.codegen.names import compute, is_f8, vector
from jaxmono.codegen.operand import (
    Operand,
    analyse,
    is_unaligned,
)
from jaxmono.codegen.traverse import Root
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.demand import Demand, reduction_index
from jaxmono.fusion.dots import demanded
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.fusion.plan import Device, DotForm, Sig, Store
from jaxmono.fusion.support import (
    byte_product,
    exact_algorithm,
    exact_matrix,
    exact_vector,
    plain_algorithm,
)
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import DType

_MAIL_BYTES = 16 << 10
"""Of f32 sums of a tile, up to which they are mailed. Of more, each is read twice and then zero is
written: by fragments of wgmma 512x1024x4096 (64 KB) took 6 % longer so than with a counter,
128x2048x8192 (32 KB) 5 %. Smaller ones take 0.3 to 0.55 us less: 4 to 11 % of products with 1 to 64
rows."""


STORED_FAMILIES = frozenset({"gemv", "bytes"})
"""Families that convert weights on their way to the products (`Operand.stored`)."""

EXACT_FAMILIES = frozenset({"gemv", FMA, "bf16x6"})
"""Families that multiply f32 exactly."""


@dataclass(frozen=True)
class DotCode:
    """A dot Sig together with its schedule: everything that the text of its function needs."""

    sig: Sig
    form: DotForm
    s: DotSchedule
    element: DType | None
    """Operand type in tiles and streams (see `rhs_element`); None: elements are converted as they
    are loaded."""
    lhs: Operand
    rhs: Operand

    @staticmethod
    def of(sig: Sig, s: DotSchedule) -> DotCode:
        form = sig.form
        assert isinstance(form, DotForm)
        t = fma_type(form) if s.family in EXACT_FAMILIES else \
            operand_type(form) if s.family != "simt" else None
        stored = t is not None and s.family in STORED_FAMILIES
        return DotCode(sig, form, s, t, *_operands(sig, t, stored, s.family == "gemv"))

    @property
    def tiles_m(self) -> int:
        if isinstance(self.s, ImageSchedule):
            return self.arrangement.tiles
        return math.ceil(self.form.m.size / self.s.bm)

    @property
    def tiles_n(self) -> int:
        return math.ceil(self.form.n.size / self.s.bn)

    @cached_property
    def arrangement(self) -> Arrangement:
        """Of a tile of the family "image"."""
        image, s = image_of(self.sig), self.s
        assert isinstance(image, Image) and isinstance(s, ImageSchedule)
        return next(a for a in arrangements(image, s.bm) if a.tall == s.tall)

    @property
    def pair_block(self) -> int:
        """Of pairs, the columns of a tile that the same threads finish: of the first half of them
        each is a column of the product's first half, of the others of its second; else 0."""
        s = self.s
        if self.form.pairs is None:
            return 0
        return s.bn // (s.warps[1] * s.warps[2]) if s.family == "wgmma" else s.bn

    @property
    def stored_columns(self) -> int:
        """Of a tile: of pairs half of its own."""
        return self.s.bn if self.form.pairs is None else self.s.bn // 2

    @property
    def k_tiles(self) -> int:
        return math.ceil(self.form.k.size / self.s.bk)

    @property
    def split_tiles(self) -> int:
        """k tiles of one task; the last split may have fewer."""
        return math.ceil(self.k_tiles / self.s.split_k)

    @cached_property
    def reduced(self) -> tuple[Reduced, ...]:
        """What the epilogue reduces of its elements."""
        return _reduced(self.sig)

    @property
    def reduced_roots(self) -> list[Root]:
        """What it computes of each element for that."""
        return [x for r in self.reduced for x in r.roots]

    @property
    def tasks(self) -> int:
        return self.form.batch.size * self.tiles_m * self.tiles_n * self.s.split_k

    @property
    def mail(self) -> int:
        """Words of a `Mailbox` (device/mailbox.cuh) through which blocks that share k exchange
        their sums; 0 where nobody does, or a counter tells that they are there: of large tiles, of
        integers, among which zero is a number, and of rows that are read in windows; and in the
        wgmma family: CLIP's image tower and wav2vec2 b1 took 1 to 2 % longer with mail (alone
        128x768x3072 5 % less)."""
        s = self.s
        mailed = s.split_k > 1 and self.accumulator == "float" and self.form.taps == 1 and (
            s.family == "gemv" or 4 * s.bm * s.bn <= _MAIL_BYTES) \
            and s.family not in ("wgmma", "image")
        return self.tasks * s.bm * s.bn if mailed else 0

    @property
    def demanded(self) -> tuple[IndexMap, ...]:
        """Where the dot's result is demanded, over (batch, rows, columns)."""
        return demanded(self.form)

    @property
    def rhs_element(self) -> DType | None:
        """``element`` of the right operand: bytes may be of two types, it is the left's, and what
        is converted behind shared memory comes as it is `stored`."""
        if self.rhs.stored is not None:
            return self.rhs.stored
        mixed = self.element is not None and self.element.itemsize == 1
        return self.form.dot.rhs.type.dtype if mixed else self.element

    @property
    def accumulator(self) -> str:
        """C type of the accumulator. Integers wrap, so they are summed unsigned."""
        if self.element is not None:
            return "uint32_t" if self.element.is_integer else "float"
        t = self.form.dot.result.type.dtype
        wide = DType.F32 if t.is_float and t is not DType.F64 else t
        name = c_type(wide)
        return "u" + name if wide.is_signed else "uint8_t" if t is DType.PRED else name


def operand_type(form: DotForm) -> DType | None:
    """Element type (of the left operand) on the tensor cores; None for ordinary arithmetic."""
    d = form.dot
    if byte_product(d):
        return d.lhs.type.dtype
    if d.result.type.dtype is DType.F64:
        return None
    t = mma_type(d.lhs.type.dtype, d.rhs.type.dtype, d.precision, d.algorithm)
    m, n, k = form.m.size, form.n.size, form.k.size
    vector = exact_vector(m, n, k)
    if t is DType.F32 and not form.row_prologue and (vector or exact_matrix(m, n, k)):
        return None  # in XLA, too
    if t is DType.F32 and m == 1 and vector:
        return None  # behind a norm: ordinary arithmetic knows such rows where weights are streamed
    return t


def matrix_flops(t: DType) -> float | None:
    """The ``flops`` of `best_mma` for operands of type ``t``."""
    return F8_FLOPS if is_f8(t) else None


def fma_type(form: DotForm) -> DType | None:
    """Element type of both operands where products may be f32 multiply-adds; None elsewhere."""
    d = form.dot
    t = d.lhs.type.dtype
    if t != d.rhs.type.dtype or not (
            plain_algorithm(d.algorithm, t) or (t is DType.F32 and exact_algorithm(d.algorithm))):
        return None
    if d.result.type.dtype not in (DType.BF16, DType.F16, DType.F32):
        return None
    return t if t in (DType.BF16, DType.F16, DType.F32) else None


def exact_tiles(form: DotForm, device: Device, *, warps: int, shared_bytes: int,
                siblings: int = 1) -> list[tuple[float, DotSchedule]]:
    """What f32 multiply-adds can do for a dot that is not on the tensor cores, cheapest first."""
    if operand_type(form) is not None or fma_type(form) is not DType.F32 or form.row_prologue:
        return []
    return candidates_fma(form.batch.size * siblings, form.m.size, form.n.size, form.k.size,
                          device=device, warps=warps, shared_bytes=shared_bytes)


def schedule(sig: Sig, device: Device, *, warps: int, shared_bytes: int,
             siblings: int = 1) -> tuple[float, DotSchedule]:
    """The analytic choice for a dot Sig of which ``siblings`` run side by side in a stage, without
    wgmma, and its time in the model in microseconds (0 where it goes element by element)."""
    form = sig.form
    assert isinstance(form, DotForm)
    t = operand_type(form)
    if t is None:
        exact = exact_tiles(form, device, warps=warps, shared_bytes=shared_bytes, siblings=siblings)
        return exact[0] if exact else (0.0, choose_simt(form.m.size, form.n.size, warps * 32))
    cost, s = best_mma(form.batch.size * siblings, form.m.size, form.n.size, form.k.size,
                       t.itemsize, device=device, warps=warps, shared_bytes=shared_bytes,
                       row_prologue=form.row_prologue, flops=matrix_flops(t),
                       k_major=weights_k_major(sig))
    return cost * picked_time(sig), s


def weights_k_major(sig: Sig) -> bool:
    """Whether the right operand of a dot Sig lies as [n][k]."""
    return any_tile(sig).rhs.k_major


_PICKED, _ROUNDS = 1.6, 3.0
"""A factor, and its power for f32."""


def picked_time(sig: Sig) -> float:
    """How much longer than the model says tiles of mma.sync take, whose threads pick the elements
    of rows that begin anywhere: 1.4 to 2 times as long with one such operand, 3 to 4 with two; or
    convert bytes one by one: 16x3072x768 took 7.4 us of an H100, 128x768x3072 10.8. Or f32:
    16x768x3072 takes 12.6 us of an H200, 512x3072x768 60."""
    code = any_tile(sig)
    stored = any_stream(sig).rhs.stored
    converts = 0.0 if stored is None else _ROUNDS if stored is DType.F32 else 1.0
    return _PICKED ** (is_unaligned(code.lhs) + is_unaligned(code.rhs) + converts)


def any_stream(sig: Sig) -> DotCode:
    """To ask of what is the same in all tiles of the gemv family."""
    return DotCode.of(sig, DotSchedule("gemv", 1, 8, 64, 1, (1, 1, 1)))


def any_tile(sig: Sig) -> DotCode:
    """To ask of what is the same in all tiles of mma.sync."""
    return DotCode.of(sig, DotSchedule("mma", 16, 8, 64, 2, (1, 1, 1)))


# ---- epilogue ----------------------------------------------------------------------------------


def epilogue_lanes(body: Graph, stores: Sequence[Store], lane: Var, *, rows: int, cols: int,
                   threads: int) -> int:
    """Elements per thread at a time: 16 bytes if that keeps as many threads busy as fewer would."""
    widest = legal_lanes(body, stores, lane, 8)
    choices = [n for n in (8, 4, 2, 1) if n <= widest and cols % n == 0 and lane.size % n == 0]
    return min(choices, key=lambda n: (math.ceil(rows * cols / n / threads) * n, -n))


@lru_cache(maxsize=64)
def _operands(sig: Sig, t: DType | None, stored: bool, copied: bool,
              ) -> tuple[Operand, Operand]:
    """Of all tiles of a Sig, which are hundreds: kept, for the time that it takes to choose one."""
    form = sig.form
    assert isinstance(form, DotForm)
    size = t.itemsize if t is not None else form.dot.lhs.type.dtype.itemsize
    # A panel of finished rows is [m][k], whatever its sources are.
    lhs = Operand(form.dot.lhs, form.lhs_index, form.m, form.k, form.k) if form.row_prologue \
        else analyse(sig.body, form.dot.lhs, form.lhs_index, form.m, form.k, size, several=True,
                     narrow=t is not None)
    return lhs, analyse(sig.body, form.dot.rhs, form.rhs_index, form.n, form.k, size,
                        several=form.pairs is not None, narrow=t is not None, stored=stored,
                        copied=copied)


@lru_cache(maxsize=64)
def _reduced(sig: Sig) -> tuple[Reduced, ...]:
    """Likewise."""
    assert isinstance(sig.form, DotForm)
    return reduced_of(sig.body, sig.form)


def legal_lanes(body: Graph, stores: Sequence[Store], lane: Var, limit: int,
                besides: Sequence[Root] = ()) -> int:
    """Most neighbouring elements along ``lane`` that one vector access can take. ``besides``: what
    is computed and not stored; where nothing is, f32 may be 32 bytes, two loads, as well."""
    return _legal_lanes(body, tuple(stores), lane, limit, tuple(besides))


@lru_cache(maxsize=256)
def _legal_lanes(body: Graph, stores: tuple[Store, ...], lane: Var, limit: int,
                 besides: tuple[Root, ...]) -> int:
    roots = [*((body.outputs[s.result], s.index) for s in stores), *besides]
    sinks = [(store_offset(body, s), body.outputs[s.result].type.dtype.itemsize) for s in stores]
    if not stores:
        sinks = [(Index.of(lane), 2)]
    return vector_width(body, roots, sinks, lane, limit=limit)


def store_offset(body: Graph, s: Store) -> Index:
    return linearize(s.index, body.outputs[s.result].type.dims)


def row_demands(op: ops.Reduce, index: IndexMap, cols: Var) -> list[Demand]:
    """What a reduce over all of ``cols`` demands at the column ``cols`` of its row."""
    shape = [op.args[0].type.dims[d] for d in sorted(op.dimensions)]
    at = reduction_index(op, index, delinearize(Index.of(cols), shape))
    return [Demand(v, at) for v in op.args]


def first_column(*, paired: bool) -> str:
    """C text: the first column of what a tile stores."""
    return "n0 / 2" if paired else "n0"


def emit_epilogue(w: Writer, body: Graph, stores: Sequence[Store], *, result: Value,
                  demanded: Sequence[IndexMap], m: Var, n: Var, tile_m: int, bm: str, bn: int,
                  lanes: int, read: str, accumulator: str, row0: str,
                  pointers: Mapping[Value, str], outputs: Sequence[str], names: Mapping[Var, str],
                  read_only: Sequence[Value], threads: int, early: Sequence[Root] = (),
                  paired: bool = False) -> None:
    """The loop that turns a finished tile into the group's outputs.

    ``read``: C call text with ``{acc}``, ``{r}``, ``{c}``. ``bm``: rows that this block finishes,
    from ``row0`` of the tile, which has ``tile_m`` rows. C variables m0 and n0 hold the origin of
    the tile. ``early``: loads that a C variable ``early`` has the results of: those of a thread's
    only piece. ``paired``: bn columns are pairs, of twice as many of the tile.
    """
    per_row, taps = bn // lanes, 1 if paired else len(demanded)
    end, times = (bm, "") if taps == 1 else (f"max({bm}, 0) / {taps}", f" * {taps}")
    w.directive("#pragma unroll 1")
    with w.block(f"for (unsigned i = thread_id(); i < ({end}) * {per_row}; i += {threads})"):
        w.line(f"const int r = {row0}i / {per_row}{times}, c = i % {per_row} * {lanes};")
        emit_piece(w, body, stores, result=result, demanded=demanded, m=m, n=n, tile_m=tile_m,
                   tile_n=bn, lanes=lanes, read=read, accumulator=accumulator, skip="continue",
                   pointers=pointers, outputs=outputs, names=names, read_only=read_only,
                   early=early, paired=paired)


def emit_piece(w: Writer, body: Graph, stores: Sequence[Store], *, result: Value,
               demanded: Sequence[IndexMap], m: Var, n: Var, tile_m: int, tile_n: int, lanes: int,
               read: str, accumulator: str, skip: str, pointers: Mapping[Value, str],
               outputs: Sequence[str], names: Mapping[Var, str],
               read_only: Sequence[Value], early: Sequence[Root] = (),
               source: Root | None = None,
               then: Callable[[BodyEmitter], None] | None = None, row: str = "",
               paired: bool = False, together: int = 0) -> None:
    """``lanes`` neighbouring elements of a finished tile, at C variables r and c, to the outputs.

    ``demanded``: of the result, by one element; with several (a window's), r is the first of as
    many rows of the tile, ``m`` counts windows, and ``acc`` is an array of arrays. ``paired``: of
    two columns of a row: c and ``n`` count pairs, and so does ``tile_n``.
    ``read``: C call text with ``{acc}``, ``{r}``, ``{c}`` that fills the sums, or "" where an array
    ``acc`` has them. ``skip``: the statement that leaves elements outside alone; "": they are
    computed from what the last ones inside read, and not stored, so that no branch keeps the pieces
    of a thread from each other. ``early``: loads
    that a C variable ``early`` has the results of; ``source``: one that is a C variable ``source``.
    ``then``: what else happens to the piece, given its emitter. ``row``: C text, the row of the
    product that row r of the tile is, negative where there is none; "": m0 + r. ``together``: of
    `BodyEmitter.store`; the columns are inside.
    """
    taps = 1 if paired else len(demanded)
    own = {"m": row or ("m0 + r" if taps == 1 else f"(m0 + r) / {taps}"),
           "n": f"{first_column(paired=paired)} + c"}
    checked = [(at, var.size, piece) for at, var, size, piece in (
        ("m", m, tile_m // taps, 1), ("n", n, tile_n, lanes))
        if (var.size % size and not (together and at == "n")) or (row and at == "m")]
    inside = " && ".join(f"{at} >= 0" if row and at == "m" else f"{at} < {size}"
                         for at, size, _ in checked)
    if skip or not checked:
        w.line(f"const int m = {own['m']}, n = {own['n']};")
        if checked:
            w.line(f"if (!({inside})) {skip};")
    else:
        w.line(f"int m = {own['m']}, n = {own['n']};")
        w.line(f"const bool inside = {inside};")
        for at, size, piece in checked:
            w.line(f"{at} = max({at}, 0);" if row and at == "m" else
                   f"{at} = min({at}, {size - piece});")
    t = compute(result.type.dtype)
    places = len(demanded)
    sums = ["acc"] if places == 1 else [f"acc[{i}]" for i in range(places)]
    if read:
        w.line(f"{accumulator} acc{'' if places == 1 else f'[{places}]'}[{lanes}];")
        for i, acc in enumerate(sums):
            behind = f" + {i * (tile_n if paired else 1)}" if i else ""
            w.line(read.format(acc=acc, r="r" if paired else f"r{behind}",
                               c=f"c{behind}" if paired else "c") + ";")
    for i, acc in enumerate(sums):
        dot = f"dot{i if places > 1 else ''}"
        w.line(f"{vector(t, lanes)} {dot};")
        if lanes == 1:
            w.line(f"{dot} = static_cast<{t}>({acc}[0]);")
        else:
            w.line(f"for (int e = 0; e < {lanes}; ++e) "
                   f"{dot}.x[e] = static_cast<{t}>({acc}[e]);")
    em = BodyEmitter(w, body, pointers, lane=n, lanes=lanes,
                     var_names={**names, m: "m", n: "n"}, read_only=read_only)
    for i, at in enumerate(demanded):
        em.bind(result, at, f"dot{i if places > 1 else ''}", vector=lanes > 1)
    bind_early(em, early, source)
    values = [em.emit(em.unrounded(body.outputs[s.result]), s.index) for s in stores]
    for s, v in zip(stores, values, strict=True):
        out = body.outputs[s.result]
        em.store(outputs[s.result], store_offset(body, s), v, out.type.dtype,
                 wanted="inside" if checked and not skip else "", whole=True, together=together)
    if then is not None:
        then(em)

"""AttentionForm -> a device function: one tile of rows of one batch entry per task.

    Q, K, V loaders -> Attention::first -> row chain in shared memory -> Attention::second ->
    epilogue
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.attention_groups import grouped, placement
from jaxmono.codegen.dot import emit_epilogue, epilogue_lanes, row_demands
from jaxmono.codegen.dot_schedule import mma_type, tile_bytes
from jaxmono.codegen.emit import BodyEmitter, Emitted, c_type, vector_width
from jaxmono.codegen.errors import CodegenError
from jaxmono.codegen.loaders import emit_loader
from jaxmono.codegen.operand import Operand, analyse
from jaxmono.codegen.panel import WarpRows
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.team import warp_team
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.dots import result_index
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.fusion.plan import AttentionForm, Device, Sig
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class AttentionSchedule:
    """Attributes:
      bq: rows of a tile, 16 for each of some warps; the other warps share them.
      chunk: keys in a ring slot. stages: ring slots.
      family: "scores": all scores of a row in shared memory; "flash", "wgmma": in registers, by
        chunks; "few": at most 16 rows, one chunk a task.
      split: blocks that share a tile's keys (not "scores").
      group: batch entries with the same keys that are rows of one tile (not "scores").
      resident: the weights of both products stay in shared memory ("back_to_back").
    """

    bq: int
    chunk: int
    stages: int
    warps: int
    family: str = "scores"
    split: int = 1
    group: int = 1
    resident: bool = False


@dataclass(frozen=True)
class AttentionCode:
    """An attention Sig with its schedule and the way its three operands are loaded."""

    sig: Sig
    form: AttentionForm
    s: AttentionSchedule
    element: DType
    q: Operand
    k: Operand
    v: Operand

    @staticmethod
    def of(sig: Sig, s: AttentionSchedule) -> AttentionCode:
        assert isinstance(sig.form, AttentionForm)
        form = grouped(sig.form, s.group)
        t = element_type(form)
        q = form.first.rhs if form.first_swapped else form.first.lhs
        k = form.first.lhs if form.first_swapped else form.first.rhs
        size = t.itemsize
        rows = form.n if s.family == "few" else None  # which knows new rows of a cache
        return AttentionCode(
            sig, form, s, t,
            analyse(sig.body, q, form.lhs_index, form.m, form.k, size),
            analyse(sig.body, k, form.rhs_index, form.n, form.k, size, rows=rows),
            # the second contraction runs over n: its "outer" Var is v
            analyse(sig.body, form.value, form.value_index, form.v, form.n, size, rows=rows))

    @property
    def tiles(self) -> int:
        return self.form.batch.size * math.ceil(self.form.m.size / self.s.bq)

    @property
    def tasks(self) -> int:
        return self.tiles * self.s.split

    @property
    def identity(self) -> IndexMap:
        """Where the second dot's result is demanded, over (batch, m, v)."""
        f = self.sig.form
        assert isinstance(f, AttentionForm)
        rows, cols = Index.of(f.m), Index.of(f.v)
        left, right = (rows, cols) if f.probs is f.second.lhs else (cols, rows)
        at = result_index(f.second, Index.of(f.batch), left, right)
        env = placement(f, self.form.batch, self.form.m)
        return tuple(i.substitute(env) for i in at) if self.s.group > 1 else at


def element_type(form: AttentionForm) -> DType:
    """The operand type of both contractions on the tensor cores."""
    types = {mma_type(d.lhs.type.dtype, d.rhs.type.dtype, d.precision, d.algorithm)
             for d in (form.first, form.second)}
    t = next(iter(types))
    if len(types) != 1 or t is None:
        raise CodegenError(f"attention at {form.second.loc} mixes operand types or precisions")
    return t


def schedule(sig: Sig, device: Device, *, warps: int, shared_bytes: int) -> AttentionSchedule:
    """Rows per tile: as many as keep every SM busy once; a ring as deep as memory allows."""
    form = sig.form
    assert isinstance(form, AttentionForm)
    best: AttentionSchedule | None = None
    for bq in (64, 32, 16):
        if warps % (bq // 16):
            continue
        for stages in (8, 6, 4, 3, 2):
            s = AttentionSchedule(bq, _chunk(form, warps // (bq // 16)), stages, warps)
            if shared_bytes_of(form, s) > shared_bytes:
                continue
            if best is None:
                best = s
            tiles = form.batch.size * math.ceil(form.m.size / bq)
            if tiles >= device.sm_count or bq == 16:
                return s
            break
    if best is None:
        raise CodegenError(f"attention at {form.second.loc}: {form.n.size} keys of "
                           f"{form.k.size} do not fit {shared_bytes} bytes of shared memory")
    return best


def _chunk(form: AttentionForm, warps_n: int) -> int:
    """Keys per slot: a multiple of 16 that the warps can share out evenly."""
    keys = min(64, math.ceil(form.n.size / 16) * 16)
    for chunk in (keys, 64, 32, 16):
        groups = chunk // 8
        if groups % math.ceil(groups / warps_n) == 0:
            return chunk
    return 16


def shared_bytes_of(form: AttentionForm, s: AttentionSchedule) -> int:
    """Upper bound of `Attention::SHARED_BYTES` over the possible operand layouts."""
    size = element_type(form).itemsize
    step = 16 if size == 2 else 8
    dp = math.ceil(form.k.size / step) * step
    dvp = math.ceil(form.v.size / 16) * 16
    kp = math.ceil(form.n.size / s.chunk) * s.chunk
    q = max(tile_bytes(s.bq, dp, size), tile_bytes(dp, s.bq, size))
    slot = max(tile_bytes(s.chunk, dp, size), tile_bytes(dp, s.chunk, size),
               tile_bytes(s.chunk, dvp, size), tile_bytes(dvp, s.chunk, size))
    scores = s.bq * (max(kp, dvp) + 4) * 4
    return q + scores + tile_bytes(s.bq, kp, size) + s.stages * slot


def emit_body(w: Writer, code: AttentionCode, *, pointers: Mapping[Value, str],
              outputs: Sequence[str], read_only: Sequence[Value], threads: int) -> None:
    """The statements of one task; C variables in scope: ``int task``, ``unsigned char* smem``."""
    form, s, body = code.form, code.s, code.sig.body
    row_tiles = math.ceil(form.m.size / s.bq)
    t = c_type(code.element)
    names: dict[Var, str] = {form.batch: "b"}
    flags = ", ".join("true" if x.k_major else "false" for x in (code.q, code.k, code.v))
    w.line(f"using A = Attention<{t}, {s.warps}, {s.bq}, {form.n.size}, {form.k.size}, "
           f"{form.v.size}, {s.chunk}, {s.stages}, {flags}>;")
    w.line(f"static_assert(A::SHARED_BYTES <= {shared_bytes_of(form, s)}, \"shared memory\");")
    w.line(f"const int m0 = task % {row_tiles} * {s.bq}, b = task / {row_tiles};")
    w.line("constexpr int n0 = 0;")
    step = 16 // code.element.itemsize * 2
    tiles = {form.m: s.bq, form.n: s.chunk, form.k: step, form.v: 16}
    for name, x in (("load_q", code.q), ("load_k", code.k), ("load_v", code.v)):
        emit_loader(w, name, body, x, code.element, pointers, names, read_only, tiles)
    w.line("syncthreads();  // the previous task is done with shared memory")
    w.line("A::first(smem, m0, load_q, load_k, load_v);")
    _row_chain(w, code, pointers, names, read_only)
    w.line("A::second(smem, load_k, load_v);")
    width = math.ceil(form.v.size / 16) * 16
    lanes = epilogue_lanes(body, form.stores, form.v, rows=s.bq, cols=width, threads=threads)
    emit_epilogue(w, body, form.stores, result=form.second.result, demanded=(code.identity,),
                  m=form.m, n=form.v, tile_m=s.bq, bm=str(s.bq), bn=width, lanes=lanes,
                  read="A::read({acc}, smem, {r}, {c})", accumulator="float", row0="",
                  pointers=pointers, outputs=outputs, names=names, read_only=read_only,
                  threads=threads)


def _row_chain(w: Writer, code: AttentionCode, pointers: Mapping[Value, str],
               names: Mapping[Var, str], read_only: Sequence[Value]) -> None:
    """Each warp turns whole rows of scores into probabilities, shared memory to shared memory."""
    form, s, body = code.form, code.s, code.sig.body
    t, n = c_type(code.element), form.n
    root = RowOutput(form.probs, form.p_index)
    lanes = vector_width(body, [(root.value, root.index)], [(Index.of(n), 4)], n,
                         reduction=lambda op, at: row_demands(op, at, n), limit=4)
    of_warp = WarpRows.of(s.bq, s.warps, form.m.size, n.size, lanes)
    with of_warp.loop(w):
        em = BodyEmitter(w, body, pointers, lane=n, lanes=lanes,
                         var_names={**names, form.m: "m"}, read_only=read_only)

        def scores(index: IndexMap, width: int) -> str:
            del index  # proven by the planner: row m, column n
            vec = f", {width}" if width > 1 else ""
            return (f"load<float{vec}>(A::scores(smem) + r * A::SCORE_PITCH + "
                    f"{em.code(Index.of(n))})")

        def sink(i: int, x: Emitted) -> None:
            del i
            vec = f", {lanes}" if lanes > 1 else ""
            em.w.line(f"store<{t}{vec}>(A::probs(smem, r, {em.code(Index.of(n))}), {x});")

        em.bind_load(form.first.result, scores)
        emit_row_chain(em, n, [root], sink, team=warp_team(of_warp.team))

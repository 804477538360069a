"""A normalised left operand: each warp computes whole rows of it into shared memory.

    x[m, :] --cp.async--> panel row --row chain (mean, variance, scale...)--> panel row, in place

The rows of the one buffer that the chain reads per element arrive by cp.async before the weights
are requested, so that all rows of a tile are on their way at once; a chain that reads several
buffers per element, or another element type, reads global memory itself.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jaxmono.codegen.dot import DotCode, row_demands, store_offset
from jaxmono.codegen.emit import BodyEmitter, Emitted, c_type, vector_width
from jaxmono.codegen.operand import contiguous
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.traverse import walk
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.plan import Store
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class Panel:
    """How the rows of one dot's left operand are computed.

    Attributes:
      stores: outputs over (batch, m, k), a normalised value that others read too; written by the
        tiles of column 0 only.
      source: the buffer whose rows are copied into the panel first, with its element offset.
    """

    code: DotCode
    element: DType
    stores: tuple[Store, ...]
    source: tuple[Value, Index] | None

    @staticmethod
    def of(code: DotCode) -> Panel:
        assert code.element is not None
        stores = tuple(x for x in code.form.stores if code.form.k in x.over)
        panel = Panel(code, code.element, stores, None)
        return Panel(code, code.element, stores, panel._source())

    @property
    def outputs(self) -> list[RowOutput]:
        body = self.code.sig.body
        return [RowOutput(self.code.form.dot.lhs, self.code.form.lhs_index),
                *(RowOutput(body.outputs[x.result], x.index) for x in self.stores)]

    def _source(self) -> tuple[Value, Index] | None:
        """The one buffer that is read at (m, k), at one index, contiguous along k."""
        form, body = self.code.form, self.code.sig.body
        found: dict[tuple[Value, IndexMap], None] = {}
        for n in walk(body, [(o.value, o.index) for o in self.outputs],
                      reduction=lambda op, at: row_demands(op, at, form.k)):
            if n.op is None and any(i.depends_on(form.m) for i in n.index) and any(
                    i.depends_on(form.k) for i in n.index):
                found[n.value, n.index] = None
        if len(found) != 1:
            return None
        (value, index), = found
        offset = linearize(index, value.type.dims)
        fits = value.type.dtype is self.element and offset.is_static and contiguous(
            offset, form.k, 16 // self.element.itemsize)
        return (value, offset) if fits else None

    def emit_fetch(self, w: Writer, pointers: Mapping[Value, str], names: Mapping[Var, str],
                   threads: int) -> None:
        """Requests the tile's raw rows, a cp.async group of its own; each warp its own rows."""
        if self.source is None:
            return
        form, s = self.code.form, self.code.s
        value, offset = self.source
        piece = 16 // self.element.itemsize
        em = BodyEmitter(w, self.code.sig.body, pointers, lane=form.k, lanes=piece,
                         var_names={**names, form.m: "m", form.k: "k"})
        with rows_of_warp(w, s.bm, threads // 32, form.m.size, unroll=1):
            w.line(f"for (int k = lane_id() * {piece}; k < {form.k.size}; k += {32 * piece})")
            w.line(f"  cp_async_16(G::TileA::at(smem, r, k), {pointers[value]} + "
                   f"{em.code(offset)});")
        w.line("cp_async_commit();")

    def emit(self, w: Writer, pointers: Mapping[Value, str], outputs: Sequence[str],
             read_only: Sequence[Value], names: Mapping[Var, str], threads: int) -> None:
        """The loop over a warp's rows, after the right operand has been requested."""
        form, s, body, k = self.code.form, self.code.s, self.code.sig.body, self.code.form.k
        t = c_type(self.element)
        rows = self.outputs
        sinks = [(Index.of(k), self.element.itemsize)]
        sinks += [(store_offset(body, x), body.outputs[x.result].type.dtype.itemsize)
                  for x in self.stores]
        lanes = vector_width(body, [(r.value, r.index) for r in rows], sinks, k,
                             reduction=lambda op, at: row_demands(op, at, k),
                             limit=16 // self.element.itemsize)
        if self.source is not None:
            w.line("cp_async_wait<G::STAGES>();  // all but the right operand")
            w.line("syncwarp();")
        with rows_of_warp(w, s.bm, threads // 32, form.m.size,
                          unroll=max(1, min(2, 64 // max(k.size // 32, 1)))):
            em = BodyEmitter(w, body, pointers, lane=k, lanes=lanes,
                             var_names={**names, form.m: "m"}, read_only=read_only)
            vec = f", {lanes}" if lanes > 1 else ""

            def sink(i: int, x: Emitted) -> None:
                if i == 0:
                    to = f"G::TileA::at(smem, r, {em.code(Index.of(k))})"
                    em.w.line(f"store<{t}{vec}>({to}, {x});")
                    return
                out = body.outputs[self.stores[i - 1].result]
                with em.w.block("if (n0 == 0)"):
                    em.store(outputs[self.stores[i - 1].result],
                             store_offset(body, self.stores[i - 1]), x, out.type.dtype)

            def raw(index: IndexMap, width: int) -> str:
                del index  # `_source`: there is only one
                wide = f", {width}" if width > 1 else ""
                return f"load<float{wide}>(G::TileA::at(smem, r, {em.code(Index.of(k))}))"

            if self.source is not None:
                em.bind_load(self.source[0], raw)
            emit_row_chain(em, k, rows, sink)
            padded = self.code.k_tiles * s.bk
            if padded > k.size:
                w.line(f"for (int c = {k.size} + lane_id(); c < {padded}; c += 32) "
                       f"*G::TileA::at(smem, r, c) = convert<{t}>(0.0f);")


@contextmanager
def rows_of_warp(w: Writer, rows: int, warps: int, size: int, *, unroll: int) -> Generator[None]:
    """A loop over the rows ``r`` of a tile that a warp owns, ``m = m0 + r``, those below ``size``.

    Where the warps share the rows out evenly the loop has no test that could differ between the
    lanes of a warp: the compiler would guard every shuffle inside against it.

    Args:
      unroll: rows at once; the shuffles of one row's reduces hide behind those of the others.
    """
    w.directive(f"#pragma unroll {unroll}")
    if rows % warps:
        head = f"for (int r = warp_id(); r < {rows}; r += {warps})"
    else:
        head = f"for (int turn = 0; turn < {rows // warps}; ++turn)"
    with w.block(head):
        if rows % warps == 0:
            w.line(f"const int r = turn * {warps} + warp_id();")
        w.line("const int m = m0 + r;")
        if size % rows:
            w.line(f"if (m >= {size}) continue;  // rows of the tile that are never stored")
        yield

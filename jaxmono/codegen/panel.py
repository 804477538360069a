"""A normalised left operand: each warp computes whole rows of it into shared memory.

    x[m, :] --cp.async--> panel row --row chain (mean, variance, scale...)--> panel row, in place

The rows of the one buffer that the chain reads per element arrive by cp.async before the weights
are requested, so that all rows of a tile are on their way at once; a chain that reads several
buffers per element, or another element type, reads global memory itself.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jaxmono.codegen.dot import DotCode, row_demands, store_offset
from jaxmono.codegen.emit import BodyEmitter, Emitted, c_type, vector_width
from jaxmono.codegen.row_chain import RowOutput, emit_row_chain
from jaxmono.codegen.team import warp_team
from jaxmono.codegen.traverse import walk
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, contiguous, linearize
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
            if n.guards:  # some elements are not those of the buffer
                return None
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

    def _lanes(self) -> int:
        """Columns of a row that a lane handles at a time."""
        body, k = self.code.sig.body, self.code.form.k
        sinks = [(Index.of(k), self.element.itemsize)]
        sinks += [(store_offset(body, x), body.outputs[x.result].type.dtype.itemsize)
                  for x in self.stores]
        return vector_width(body, [(r.value, r.index) for r in self.outputs], sinks, k,
                            reduction=lambda op, at: row_demands(op, at, k),
                            limit=16 // self.element.itemsize)

    def _rows(self, threads: int) -> WarpRows:
        form = self.code.form
        return WarpRows.of(self.code.s.bm, threads // 32, form.m.size, form.k.size, self._lanes())

    def emit_fetch(self, w: Writer, pointers: Mapping[Value, str], names: Mapping[Var, str],
                   threads: int) -> None:
        """Requests the tile's raw rows, a cp.async group of its own; each warp its own rows."""
        if self.source is None:
            return
        form = self.code.form
        value, offset = self.source
        piece = 16 // self.element.itemsize
        em = BodyEmitter(w, self.code.sig.body, pointers, lane=form.k, lanes=piece,
                         var_names={**names, form.m: "m", form.k: "k"})
        with self._rows(threads).whole(w):
            w.line(f"for (int k = lane_id() * {piece}; k < {form.k.size}; k += {32 * piece})")
            w.line(f"  cp_async_16(G::TileA::at(smem, r, k), {pointers[value]} + "
                   f"{em.code(offset)});")
        w.line("cp_async_commit();")

    def emit(self, w: Writer, pointers: Mapping[Value, str], outputs: Sequence[str],
             read_only: Sequence[Value], names: Mapping[Var, str], threads: int,
             behind: str | int = "G::STAGES") -> None:
        """The loop over a warp's rows. ``behind``: cp.async groups requested after the rows'."""
        form, s, body, k = self.code.form, self.code.s, self.code.sig.body, self.code.form.k
        t = c_type(self.element)
        rows = self.outputs
        lanes = self._lanes()
        of_warp = self._rows(threads)
        if self.source is not None:
            w.line(f"cp_async_wait<{behind}>();  // the rows are there")
            w.line("syncwarp();")
        with of_warp.loop(w, unroll=max(1, min(2, 64 // max(k.size // 32, 1)))):
            em = BodyEmitter(w, body, pointers, lane=k, lanes=lanes,
                             var_names={**names, form.m: "m"}, read_only=read_only)
            vec = f", {lanes}" if lanes > 1 else ""

            def sink(i: int, x: Emitted) -> None:
                if i == 0:
                    to = f"G::TileA::at(smem, r, {em.code(Index.of(k))})"
                    if self.element is DType.F32 and self.code.s.family == "wgmma":
                        # wgmma would cut the low bits off.
                        to, value = f"reinterpret_cast<uint32_t*>({to})", f"to_tf32({x})"
                        em.w.line(f"store<uint32_t{vec}>({to}, {value});")
                        return
                    em.w.line(f"store<{t}{vec}>({to}, {x});")
                    return
                out = body.outputs[self.stores[i - 1].result]
                with em.w.block(" && ".join(filter(None, ("if (n0 == 0", of_warp.guard))) + ")"):
                    em.store(outputs[self.stores[i - 1].result],
                             store_offset(body, self.stores[i - 1]), x, out.type.dtype)

            def raw(index: IndexMap, width: int) -> str:
                del index  # `_source`: there is only one
                wide = f", {width}" if width > 1 else ""
                return f"load<float{wide}>(G::TileA::at(smem, r, {em.code(Index.of(k))}))"

            if self.source is not None:
                em.bind_load(self.source[0], raw)
            emit_row_chain(em, k, rows, sink, team=warp_team(of_warp.team))
            padded = self.code.k_tiles * s.bk
            if padded > k.size:
                w.line(f"for (int c = {k.size} + lane_id() % {of_warp.team}; c < {padded}; "
                       f"c += {of_warp.team}) "
                       f"*G::TileA::at(smem, r, c) = convert<{t}>(0.0f);")


@dataclass(frozen=True)
class WarpRows:
    """How the rows of a tile are dealt to the warps of a block.

    ``team`` neighbouring lanes share a row, so a warp has ``32 / team`` rows at a time: a row's
    reduces are chains of shuffles, and the chains of several rows hide each other's latency.

    Attributes:
      rows: of the tile. size: of the matrix; rows past it repeat its last one.
    """

    rows: int
    warps: int
    size: int
    team: int

    @staticmethod
    def of(rows: int, warps: int, size: int, cols: int, lanes: int) -> WarpRows:
        """As many rows at once as leave a lane no more than 24 elements of its row."""
        team = 32
        while (team > 1 and rows % (warps * 64 // team) == 0
               and math.ceil(cols / (team // 2 * lanes)) * lanes <= 24):
            team //= 2
        return WarpRows(rows, warps, size, team)

    @property
    def at_once(self) -> int:
        return 32 // self.team

    @property
    def turns(self) -> int:
        return math.ceil(self.rows / (self.warps * self.at_once))

    @property
    def guard(self) -> str:
        """C test that a row exists; empty if all do."""
        return f"m0 + r < {self.size}" if self.size % self.rows else ""

    @contextmanager
    def loop(self, w: Writer, *, unroll: int = 1) -> Generator[None]:
        """Row ``r`` of the tile, ``m`` of the matrix, for the lanes of each team.

        No test differs between the lanes of a warp: all take part in every shuffle.
        """
        w.directive(f"#pragma unroll {unroll}")
        with w.block(f"for (int turn = 0; turn < {self.turns}; ++turn)"):
            of_lane = f" + lane_id() / {self.team}" if self.at_once > 1 else ""
            if self.size % self.rows:  # nothing to do for this warp: the same for all its lanes
                w.line(f"if (m0 + (turn * {self.warps} + warp_id()) * {self.at_once} "
                       f">= {self.size}) break;")
            w.line(f"const int r = (turn * {self.warps} + warp_id()) * {self.at_once}{of_lane};")
            self._row(w)
            yield

    @contextmanager
    def whole(self, w: Writer) -> Generator[None]:
        """The same rows one after the other, all lanes of the warp on each."""
        with w.block(f"for (int i = 0; i < {self.turns * self.at_once}; ++i)"):
            n = self.at_once
            w.line(f"const int r = (i / {n} * {self.warps} + warp_id()) * {n} + i % {n};"
                   if n > 1 else f"const int r = i * {self.warps} + warp_id();")
            self._row(w)
            yield

    def _row(self, w: Writer) -> None:
        if self.rows % (self.warps * self.at_once):
            w.line(f"if (r >= {self.rows}) continue;  // the same for all lanes of a warp")
        w.line(f"const int m = min(m0 + r, {self.size - 1});" if self.size % self.rows
               else "const int m = m0 + r;")

"""Rows that lie turned and leave as rows: through shared memory, some neighbouring ones at a time.

    y[p, c] = f(x[c, p], all of x[:, p])        a norm over channels that come first

      x ── lanes read neighbouring p, a warp has some of the c ──► f ──► tile[p][c] ──► y

Lanes have rows of their own, which is how memory likes x to be read; stored as they are, the
elements of a row would go to as many lines of memory as there are lanes: norms over the channels of
32 x 96 x 56 x 56, with channels last behind it, took 165 us of an H200 so, 5.7 times as long as
XLA's. The rows of a task lie one behind the other in the result, so its tile leaves in one piece.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.index_code import fits_int
from jaxmono.codegen.names import storage
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.schedule import store_offset
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, stride
from jaxmono.fusion.plan import Sig, Store

MOST_BYTES = 100 << 10
"""Of the tiles of a task, two of which fit a multiprocessor then; without them it is worse."""
MOST_WORDS = 32
"""Of a thread's elements of a row: more lanes to a vector would take the registers of another
block."""
_WORD = 4


@dataclass(frozen=True)
class RowTile:
    """Of a result: its C type, columns, rows to a lane, bytes of an element, where it begins in
    shared memory (the tiles lie in front of what warps combine), and whether an int cannot count
    its elements in memory."""

    kind: str
    columns: int
    lanes: int
    itemsize: int
    begin: int
    far: bool

    @property
    def bytes(self) -> int:
        return 32 * self.lanes * (self.columns * self.itemsize // _WORD | 1) * _WORD

    @property
    def text(self) -> str:
        return f"RowTile<{self.kind}, {self.columns}, {self.lanes}>"

    def emit_put(self, em: BodyEmitter, x: Emitted, column: Index, function: Function) -> None:
        """Puts a lane's elements of a column into the tile."""
        whole = x if x.vector or self.lanes == 1 else f"splat<{self.lanes}>({x})"
        em.w.line(f"{self.text}::put({function.smem}{self._behind}, {em.code(column)}, {whole});")

    def emit_copy(self, w: Writer, output: str, own: int, rows: str, function: Function) -> None:
        """Copies ``rows`` rows, all that are there, to where the ``own`` rows of the task begin."""
        task = f"(long long){function.task}" if self.far else function.task
        w.line(f"{self.text}::copy<{function.threads}>({output} + {task} * "
               f"{own * self.columns}, {function.smem}{self._behind}, {rows});")

    @property
    def _behind(self) -> str:
        return f" + {self.begin}" if self.begin else ""


def turned(sig: Sig, s: Store, row: Var, col: Var, env: dict[Var, Index]) -> bool:
    """Whether lanes with neighbouring rows would store to lines of their own, and all rows of a
    task lie one behind the other, in whole words."""
    t = sig.body.outputs[s.result].type.dtype
    offset = store_offset(sig, s, env)
    return (col.size > 1 and t.itemsize <= _WORD and t.bits >= 8
            and col.size * t.itemsize % _WORD == 0 and offset.const == 0
            and stride(offset, col) == 1 and stride(offset, row) == col.size
            and {v for v, _ in offset.terms} == {row, col})


def tiles(sig: Sig, stores: Collection[Store], columns: int, lanes: int) -> dict[Store, RowTile]:
    """A tile for each of the stores; none where they are too large."""
    out: dict[Store, RowTile] = {}
    begin = 0
    for s in stores:
        t = sig.body.outputs[s.result].type.dtype
        out[s] = RowTile(storage(t), columns, lanes, t.itemsize, begin,
                         not fits_int(Index((), sig.body.outputs[s.result].type.size)))
        begin += out[s].bytes
    return out if begin <= MOST_BYTES else {}

"""Very many rows of a few elements that begin anywhere, through shared memory: a thread for each.

    softmax over the last of [524288, 21] in bf16

    memory  | 32 rows of 42 bytes, one behind the other: 336 words |  ── a warp copies lines ──►
    tile      the same in shared memory; each lane goes along its own row
    results   the same way back

A row of 21 has no vectors: 16 lanes of a warp shared it, of which five had a second element, and
its statistics took 150 us of an H200, ten times as long as memory. An odd number of elements to a
row puts those that lanes read at a time into different banks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.index_code import fits_int
from jaxmono.codegen.names import compute, storage
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.schedule import Places, store_offset
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.fusion.plan import Sig, Store
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS, DType

MOST_COLUMNS = 32
"""That a thread keeps in registers between sweeps."""
MIN_COLUMNS = 3
MIN_TASKS = 4
"""Of each multiprocessor: a thread has a row, and waits for the warp's copy alone."""
_MOST_BYTES = 64 << 10
_WARP, _WORD = 32, 4


@dataclass(frozen=True)
class Tile:
    """Of a warp's rows: a C pointer's name, element type, columns, and where it begins among those
    of the warp."""

    name: str
    dtype: DType
    columns: int
    begin: int

    @property
    def bytes(self) -> int:
        return _WARP * self.columns * self.dtype.itemsize

    def place(self, column: str) -> str:
        """C text: a lane's element."""
        return f"{self.name}[lane_id() * {self.columns} + {column}]"


@dataclass(frozen=True)
class Tiles:
    """What is read, and what is written, through tiles."""

    inputs: Mapping[Value, Tile]
    outputs: Mapping[Store, Tile]

    @property
    def bytes(self) -> int:
        """Of a warp."""
        return sum(x.bytes for x in (*self.inputs.values(), *self.outputs.values()))

    def emit_begin(self, w: Writer, em: BodyEmitter, row: Var, function: Function) -> None:
        """Declares the tiles, fills those that are read, and binds their loads."""
        w.line(f"unsigned char* const own = {function.smem} + warp_id() * {self.bytes};")
        for x in (*self.inputs.values(), *self.outputs.values()):
            t = storage(x.dtype)
            w.line(f"{t}* const {x.name} = reinterpret_cast<{t}*>(own + {x.begin});")
        w.line("syncthreads();  // the last task is done with shared memory")
        near = all(fits_int(Index((), v.type.size)) for v in self.inputs)  # addresses
        w.line(f"const {'int' if near else 'long long'} first_row = {function.task} * "
               f"{function.threads} + warp_id() * {_WARP};")
        if row.size % function.threads:
            w.line(f"if (first_row >= {row.size}) return;")
        for v, x in self.inputs.items():
            w.line(f"copy_words<{x.bytes // _WORD}>({x.name}, {function.pointers[v]} + first_row * "
                   f"{x.columns});")
        w.line("syncwarp();")
        for v, x in self.inputs.items():
            em.bind_load(v, lambda index, lanes, v=v, x=x: _load(em, row, v, x, index))

    def emit_put(self, em: BodyEmitter, s: Store, x: Emitted, column: Index) -> None:
        """A lane's element of a result."""
        tile = self.outputs[s]
        em.w.line(f"{tile.place(em.code(column))} = convert<{storage(tile.dtype)}>({x});")

    def emit_end(self, w: Writer, function: Function) -> None:
        """Copies the results to memory."""
        if self.outputs:
            w.line("syncwarp();")
        for s, x in self.outputs.items():
            w.line(f"copy_words<{x.bytes // _WORD}>({function.outputs[s.result]} + first_row * "
                   f"{x.columns}, {x.name});")


def _load(em: BodyEmitter, row: Var, v: Value, x: Tile, index: IndexMap) -> str:
    column = linearize(index, v.type.dims) - Index.of(row) * x.columns
    return f"convert<{compute(x.dtype)}>({x.place(em.code(column))})"


def tiles(sig: Sig, stores: Collection[Store], places: Places, row: Var, col: Var,
          env: Mapping[Var, Index]) -> Tiles | None:
    """What goes through tiles; None where nothing that is read would, or too much.

    Args:
      stores: at each column. places: of each input, over ``row`` and ``col``.
    """
    n = col.size
    if not MIN_COLUMNS <= n <= MOST_COLUMNS or row.size % _WARP:
        return None
    inputs: dict[Value, Tile] = {}
    outputs: dict[Store, Tile] = {}
    begin = 0
    for v, at in places.items():
        # Of a part that is joined with others, or padded, not all rows are there.
        if at and v.type.size >= row.size * n and not _has_vectors(v.type.dtype, n) \
                and all(_is_dense(linearize(i, v.type.dims), row, col) for i in at):
            inputs[v] = Tile(f"rows_in{len(inputs)}", v.type.dtype, n, begin)
            begin += inputs[v].bytes
    if not inputs:
        return None
    for s in stores:
        t = sig.body.outputs[s.result].type.dtype
        if _is_dense(store_offset(sig, s, dict(env)), row, col) and not _has_vectors(t, n):
            outputs[s] = Tile(f"rows_out{len(outputs)}", t, n, begin)
            begin += outputs[s].bytes
    made = Tiles(inputs, outputs)
    return made if made.bytes * 8 <= _MOST_BYTES else None


def _is_dense(offset: Index, row: Var, col: Var) -> bool:
    """Whether rows lie one behind the other, from the first element of a buffer on."""
    return offset.const == 0 and {v for v, _ in offset.terms} == {row, col} \
        and offset.coefficient(col) == 1 and offset.coefficient(row) == col.size


def _has_vectors(t: DType, columns: int) -> bool:
    """Whether rows begin at multiples of 8 bytes, or are no elements of whole bytes: lanes read
    vectors of them then, and threads with a row each would all read the same banks."""
    return t in FOUR_BITS or columns * t.itemsize % 8 == 0

"""The loader of a gathered left operand, a convolution's, in parts (device/gathered.cuh).

    offset(m, k) = offset of row m + offset of k         an address is a sum,
    guard:  low <= row's place + k's distance < high     padding a bit for each distance

    3x3 of 64 channels, images of 224 x 224, at (y, x); k = (dy, dx, channel):
      14336 * y + 64 * x - 14400  +  14336 * (k / 192) + k % 192      three taps in a row: one run
      0 <= y - 1 + k / 192 < 224                                      distances 0, 1, 2; x alike
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.index_code import fits_int
from jaxmono.codegen.operand import Operand
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.round_rows import DISTANCES
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class _Bound:
    """``low <= row + column < high``."""

    row: Index
    column: Index
    low: int
    high: int

    @property
    def first(self) -> int:
        """The least value of ``column``."""
        return self.column.bounds[0]

    @property
    def distances(self) -> int:
        """Values that ``column`` may have, from ``first`` on; 0: it is a constant, or ``row`` is,
        and no bits are needed."""
        if self.row.is_const or self.column.is_const:
            return 0
        return self.column.bounds[1] - self.first + 1


@dataclass(frozen=True)
class Parts:
    """An operand's element offset and guard, taken apart."""

    row: Index
    column: Index
    bounds: tuple[_Bound, ...]


def parts_of(x: Operand) -> Parts | None:
    """``x`` in parts of its rows and of k; None if something depends on both at once."""
    if not x.in_pieces or x.offset is None or x.others or not x.k_major:
        return None
    made = _separate(x.offset, x)
    if made is None or not all(map(fits_int, made)):
        return None
    bounds: list[_Bound] = []
    for index, low, high in x.guard.bounds:
        apart = _separate(index, x)
        if apart is None or not all(map(fits_int, apart)):
            return None
        bounds.append(_Bound(*apart, low, high))
    fits = sum(b.distances for b in bounds) <= DISTANCES
    return Parts(*made, tuple(bounds)) if fits else None


def _separate(index: Index, x: Operand) -> tuple[Index, Index] | None:
    """What of ``index`` depends on the rows, or nothing, and what on k."""
    row, column = Index((), index.const), Index()
    for atom, c in index.terms:
        term = Index.of(atom) * c
        if not term.is_static or (term.depends_on(x.k) and len(term.variables) > 1):
            return None
        if term.depends_on(x.k):
            column = column + term
        else:
            row = row + term
    return row, column


def emit_gathered(w: Writer, name: str, body: Graph, x: Operand, element: DType,
                  pointers: Mapping[Value, str], names: Mapping[Var, str],
                  tiles: Mapping[Var, int]) -> bool:
    """``const auto NAME``: a ``Gathered``; False, and nothing written, if `parts_of` is None."""
    parts = parts_of(x)
    if parts is None or element.itemsize not in (2, 4):
        return False
    assert x.param is not None
    # k is a tile and a column of it: where taps have whole tiles, what depends on the tap is
    # the same for all threads.
    depth = tiles[x.k]
    tile, col = Var("tile", -(-x.k.size // depth)), Var("col", depth)
    inside = {x.k: Index.of(tile) * depth + Index.of(col)}
    em = BodyEmitter(w, body, pointers, var_names={**names, x.outer: "o", tile: "tile", col: "col"})
    row, column = ["OUTSIDE_COLUMN"], ["OUTSIDE_ROW"]
    bit = 0
    for b in parts.bounds:
        if b.distances:
            place = em.code(b.row + b.first)
            row.append(f"missing<{b.distances}>({place}, {b.low}, {b.high}) << {bit}")
            distance = (b.column + (bit - b.first)).substitute(inside)
            beyond = " & 31" if x.k.size % depth else ""  # the last tap, where it does not count
            column.append(f"1u << (({em.code(distance)}){beyond})")
            bit += b.distances
            continue
        text = em.code((b.row + b.column).substitute(inside))
        test = f"({text} < {b.low} || {text} >= {b.high})"
        (row if b.column.is_const else column).append(
            f"({test} ? {'OUTSIDE_ROW' if b.column.is_const else 'OUTSIDE_COLUMN'} : 0u)")
    if x.k.size % depth:
        column.append(f"({depth} * tile + col < {x.k.size} ? 0u : OUTSIDE_COLUMN)")
    with w.block(f"const auto {name}_rows = [&](int o)", "};"):
        if x.outer.size % tiles[x.outer]:
            w.line(f"if (o >= {x.outer.size}) return GatheredRow{{0, ~0u}};")
        w.line(f"return GatheredRow{{{em.code(parts.row)}, {' | '.join(row)}}};")
    with w.block(f"const auto {name}_columns = [&](int tile, int col)", "};"):
        offset = em.code(parts.column.substitute(inside))
        w.line(f"return GatheredColumn<{c_type(element)}>{{{pointers[x.param]} + ({offset}), "
               f"{' | '.join(column)}}};")
    w.line(f"const auto {name} = gathered<{c_type(element)}>({name}_rows, {name}_columns);")
    return True

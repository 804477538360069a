"""The text of what loads an operand of a contraction, as `operand.py` has decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.codegen.emit import BodyEmitter, Emitted, c_type, vector_width
from jaxmono.codegen.gathered import emit_gathered
from jaxmono.codegen.index_code import guard_code, one_of
from jaxmono.codegen.operand import (
    MOST_ROWS,
    PIECE_BYTES,
    Operand,
    Source,
    has_rows,
    is_unaligned,
    paired_halves,
)
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, stride
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import FOUR_BITS, DType


def emit_loader(w: Writer, name: str, body: Graph, x: Operand, element: DType,
                pointers: Mapping[Value, str], names: Mapping[Var, str],
                read_only: Sequence[Value], tiles: Mapping[Var, int], *,
                strided: bool = False, gathered: bool = False, pair: str = "",
                copy: str = "cp_async", block: int = 0, lines: bool = False) -> None:
    """``const auto NAME = [&](void* to, int <outer or k>, int <k or outer>)``: fills one piece.

    The two indices come in the order of the tile's rows and columns: columns are ``x.major``.
    Elements outside the operand are written as zeros. An operand whose rows and columns have
    constant strides is a ``Strided`` instead, which is called alike and fills whole tiles with
    little address arithmetic; one whose rows and columns can be taken apart is a ``Gathered``; one
    whose rows begin anywhere is an ``Unaligned``.

    Args:
      tiles: extent of a tile along the operand's Vars; no test is made where it divides the size.
      strided, gathered: the family knows ``Strided``, and ``Unaligned`` if it takes such operands;
        ``Gathered``, for this operand.
      pair: C type of two neighbouring bytes, of which the family makes tiles; `is_strided` holds.
      copy: what copies bytes that lie in memory as the tile has them; as many are appended.
      block: columns of a tile that are pairs (`DotCode.pair_block`), 0 if none are.
      lines: the family brings the 16-byte lines that its rows lie in (`shifted`).
    """
    if strided and block:
        _emit_paired(w, name, body, x, element, pointers, names, tiles, block)
        return
    if strided and (lines or has_rows(x)):
        _emit_rows(w, name, body, x, element, pointers, names, tiles, pair,
                   unaligned=lines or is_unaligned(x))
        return
    if gathered and emit_gathered(w, name, body, x, element, pointers, names, tiles):
        return
    row = x.outer if x.k_major else x.k
    r, c = ("o", "k") if x.k_major else ("k", "o")
    piece = PIECE_BYTES // element.itemsize
    t = c_type(element)
    narrow = x.param is not None and x.width < PIECE_BYTES
    if block:
        r, c = ("column", "k") if x.k_major else ("k", "column")
    own = {**names, row: r, x.major: c}
    bounds = [f"{at} < {var.size}" for at, var in ((r, row), (f"{c}e" if narrow else c, x.major))
              if var.size % tiles[var]]
    inside = " && ".join(bounds) or "true"
    rows, columns = ("o", "k") if x.k_major else ("k", "o")
    with w.block(f"const auto {name} = [&](void* to, int {rows}, int {columns})", "};"):
        if block:
            w.line(f"const int column = pair_column<{block}, {x.outer.size // 2}>(o);")
        if narrow:
            w.directive("#pragma unroll")
            with w.block(f"for (int e = 0; e < {piece}; e += {x.width // element.itemsize})"):
                w.line(f"const int {c}e = {c} + e;")
                _emit_copy(w, body, x, row, inside, pointers, {**own, x.major: f"{c}e"},
                           read_only, copy, to=f"static_cast<{t}*>(to) + e")
            return
        if x.param is not None:
            _emit_copy(w, body, x, row, inside, pointers, own, read_only, copy)
            return
        w.line(f"Piece<{t}> piece{{}};")
        wide = vector_width(body, [(x.value, x.index)], [(Index.of(x.major), element.itemsize)],
                            x.major, limit=piece) == piece
        if wide and x.major.size % piece == 0:
            with w.block(f"if ({inside})"):
                em = BodyEmitter(w, body, pointers, lane=x.major, lanes=piece, var_names=own,
                                 read_only=read_only)
                v = em.emit(x.value, x.index)
                with w.block(f"for (int e = 0; e < {piece}; ++e)"):
                    w.line(f"piece.x[e] = convert<{t}>({lane_of(v, 'e')});")
        elif x.picked is not None and x.picked.param.type.size:
            _emit_picks(w, body, x.picked, t, piece, (r, row), (c, x.major), pointers, names,
                        read_only)
        else:
            with w.block(f"for (int e = 0; e < {piece} && {r} < {row.size}; ++e)"):
                w.line(f"const int {c}e = {c} + e;")
                w.line(f"if ({c}e >= {x.major.size}) break;")
                em = BodyEmitter(w, body, pointers, var_names={**own, x.major: f"{c}e"},
                                 read_only=read_only)
                w.line(f"piece.x[e] = convert<{t}>({em.emit(x.value, x.index)});")
        w.line(f"*static_cast<Piece<{t}>*>(to) = piece;")


def _emit_rows(w: Writer, name: str, body: Graph, x: Operand, element: DType,
               pointers: Mapping[Value, str], names: Mapping[Var, str], tiles: Mapping[Var, int],
               pair: str, *, unaligned: bool) -> None:
    """``const Strided<...> NAME{...};`` or ``const Unaligned<...> NAME{...};``."""
    source, row = x.source, x.outer if x.k_major else x.k
    assert source is not None
    packed = element in FOUR_BITS
    pitch, per = stride(source.offset, row), 2 if pair or packed else 1
    assert pitch is not None
    origin = source.offset.substitute({row: Index.of(0), x.major: Index.of(0)})
    first = BodyEmitter(w, body, pointers, var_names=names).code(origin)
    base, t = pointers[source.param], pair or ("uint8_t" if packed else c_type(element))
    checks = ("true" if v.size % tiles[v] else "false" for v in (row, x.major))
    args = [t, str(pitch // per), *checks]
    extent = f"{row.size}, {x.major.size // per}"
    if unaligned:
        size = source.param.type.nbytes
        w.line(f"const Unaligned<{', '.join(args)}> {name}{{{base}, {first}, {size}, {extent}}};")
        return
    begin = f"reinterpret_cast<const {pair}*>({base} + {first})" if pair \
        else f"({base} + {first}).address()" if packed else f"{base} + {first}"
    if x.ragged or x.width < PIECE_BYTES:
        args += [str(x.width), *(["true"] if x.ragged else [])]
    w.line(f"const Strided<{', '.join(args)}> {name}{{{begin}, {extent}}};")


def _emit_paired(w: Writer, name: str, body: Graph, x: Operand, element: DType,
                 pointers: Mapping[Value, str], names: Mapping[Var, str],
                 tiles: Mapping[Var, int], block: int) -> None:
    """``const Paired<...> NAME{...};``."""
    halves = paired_halves(x)
    assert halves is not None
    row = x.outer if x.k_major else x.k
    em = BodyEmitter(w, body, pointers, var_names=names)
    begins = ", ".join(f"{pointers[param]} + {em.code(at)}" for param, at in halves.begins)
    checks = ("true" if v.size % tiles[v] else "false" for v in (row, x.major))
    args = [c_type(element), str(halves.pitch), str(block), "true" if x.k_major else "false",
            *checks]
    extent = ", ".join(str(v.size // (2 if v is x.outer else 1)) for v in (row, x.major))
    w.line(f"const Paired<{', '.join(args)}> {name}{{{begins}, {extent}}};")


def _emit_copy(w: Writer, body: Graph, x: Operand, row: Var, inside: str,
               pointers: Mapping[Value, str], names: Mapping[Var, str],
               read_only: Sequence[Value], copy: str, to: str = "to") -> None:
    """One cp.async of ``x.width`` bytes, of zeros where they are outside or padding; of what is
    there of a `ragged` operand's last piece."""
    assert x.param is not None and x.offset is not None
    copy, lanes = f"{copy}_{x.width}", 8 * x.width // x.param.type.dtype.bits
    if x.ragged:
        offset = BodyEmitter(w, body, pointers, var_names=names).code(x.offset)
        size, left = x.param.type.dtype.itemsize, f"{x.major.size} - {names[x.major]}"
        w.line(f"const bool there = {inside};")
        # What is outside may not even begin at a multiple of 16 bytes.
        w.line(f"cp_async_part_16({to}, {pointers[x.param]} + (there ? {offset} : 0), "
               f"there ? min({left}, {lanes}) * {size} : 0);")
        return
    em = BodyEmitter(w, body, pointers, lane=x.major, lanes=lanes, var_names=names,
                     read_only=read_only)
    indices = (x.offset, *(at for at, _, _ in x.guard.bounds))
    if all(i.is_static for i in indices):
        guard = guard_code(x.guard, em.code, branches=False)
        test = f"({inside}) & {guard}" if guard and inside != "true" else guard or inside
        w.line(f"{copy}({to}, {_source(w, em, x, row, pointers, names)}, {test});")
        return
    with w.block(f"if ({inside})"):  # no index may be read for elements outside
        guard = guard_code(x.guard, em.code)
        with w.block(f"if ({guard})" if guard else ""):
            w.line(f"{copy}({to}, {pointers[x.param]} + {em.code(x.offset)}, true);")
            w.line("return;")
    w.line(f"{copy}({to}, {pointers[x.param]}, false);")


def _source(w: Writer, em: BodyEmitter, x: Operand, row: Var, pointers: Mapping[Value, str],
            names: Mapping[Var, str]) -> str:
    """Where a piece is. Of joined buffers the part and its rows' pitch are chosen first, the same
    for all rows: four producer warps have 88 registers each, and no predicates for a choice a row.
    """
    assert x.param is not None and x.offset is not None
    whole = [*((s.param, s.offset) for s in x.others), (x.param, x.offset)]
    tests = [guard_code(s.where, em.code, branches=False) for s in x.others]
    pitches = [stride(offset, row) for _, offset in whole]
    behind = row.size + MOST_ROWS  # more rows than the buffers have, where they are padded
    apart = all(p is not None and abs(p) * behind < 2**31 for p in pitches) and not any(
        i.depends_on(row) for s in x.others for i, _, _ in s.where.bounds)
    if not tests or not apart:
        return one_of(tests, [f"{pointers[p]} + {em.code(offset)}" for p, offset in whole])
    first = [(p, offset.substitute({row: Index.of(0)})) for p, offset in whole]
    begins = [f"{pointers[p]} + {em.code(offset)}" for p, offset in first]
    w.line(f"const auto* const part = {one_of(tests, begins)};")
    pitch, *others = dict.fromkeys(map(str, pitches))
    if others:
        pitch = "pitch"
        w.line(f"const int pitch = {one_of(tests, [str(p) for p in pitches])};")
    return f"part + {pitch} * {names[row]}"


def _emit_picks(w: Writer, body: Graph, source: Source, t: str, piece: int,
                row: tuple[str, Var], col: tuple[str, Var], pointers: Mapping[Value, str],
                names: Mapping[Var, str], read_only: Sequence[Value]) -> None:
    """The elements of a piece one by one, without branches: all loads are issued before the first
    has arrived. Where there is no element, another one is read and not used."""
    (r, outer), (c, major) = row, col
    load = "load_ro" if source.param in read_only else "load"
    w.directive("#pragma unroll")
    with w.block(f"for (int e = 0; e < {piece}; ++e)"):
        w.line(f"const int {c}e = {c} + e;")
        em = BodyEmitter(w, body, pointers, var_names={**names, outer: r, major: f"{c}e"})
        guard = guard_code(source.where, em.code, branches=False)
        tests = [f"({r} < {outer.size})", f"({c}e < {major.size})", *([guard] if guard else [])]
        w.line(f"const bool there = {' & '.join(tests)};")
        at = f"clamp_offset<{source.param.type.size}>({em.code(source.offset)})"
        w.line(f"const {t} x = {load}<{t}>({pointers[source.param]} + {at});")
        w.line(f"piece.x[e] = there ? x : {t}{{}};")


def lane_of(v: Emitted, lane: str) -> str:
    return f"{v}.x[{lane}]" if v.vector else v.name


def emit_element_loader(w: Writer, name: str, body: Graph, x: Operand, order: tuple[Var, Var],
                        accumulator: str, pointers: Mapping[Value, str],
                        names: Mapping[Var, str], read_only: Sequence[Value],
                        block: int = 0) -> None:
    """``const auto NAME = [&](int, int)``: one element as the accumulator's type, zero outside.
    ``block``: as of `emit_loader`, of what is ``order``'s second."""
    a, b = order
    with w.block(f"const auto {name} = [&](int i, int j) -> {accumulator}", "};"):
        if block:
            w.line(f"const int column = pair_column<{block}, {b.size // 2}>(j);")
        j = "column" if block else "j"
        w.line(f"if (i >= {a.size} || {j} >= {b.size}) return {accumulator}(0);")
        em = BodyEmitter(w, body, pointers, var_names={**names, a: "i", b: j},
                         read_only=read_only)
        w.line(f"return convert<{accumulator}>({em.emit(x.value, x.index)});")

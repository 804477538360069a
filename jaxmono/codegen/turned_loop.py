"""Loops whose source lies turned, through shared memory, a tile at a time.

    y[n, p, c] = f(x[n, c, p])        x's neighbours are places p, y's are channels c

      x ── neighbouring threads read neighbouring p ──► tile[c][p] ── they take neighbouring c ──► y

Memory is read and written in whole lines then. Without the tile (`loop_order`) a warp reads and
stores 32 bytes of each of several lines, or less: 32 x 256 x 56 x 56 with channels last took 186 us
of an H200 in bf16, and takes 28 so, of f32 127 and 51 (with tiles of 32 x 32 53). What else an
element needs (a bias, a residual that lies as the result does) is read when it is computed.

Variables that follow each other in the source, or in the result, are one here: 56 x 56 places are
3136, which vectors and tiles divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.loop_order import scattered, stored_lanes
from jaxmono.codegen.names import compute, is_narrow, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.sig_code import Function
from jaxmono.codegen.traverse import Access, Lane, Root, access
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, delinearize, linearize
from jaxmono.hlo.ir import Graph, Value

EDGE = 64
"""Of a tile, elements along either side: lines of 128 bytes of 16 bits, two of f32. 256 threads
have 16 elements each on their way, 4 blocks of a multiprocessor 32 KB of 16 bits."""
THREADS = 256
"""That a tile is dealt out to."""
MIN_SIDE = 32
"""Places, and neighbours of the result: fewer leave most of a tile empty."""
_VECTOR_BYTES, _MOST_LANES = 16, 8
_MOST_BYTES = 48 << 10
"""Of all tiles of a task."""


@dataclass(frozen=True)
class Turned:
    """How a loop is taken apart.

    Attributes:
      sources: what is read turned, at its indices over the loop's variables.
      places, columns, outer: along which neighbours of the source, and of the result, follow each
        other; of the rest.
      env: the loop's variables as functions of these.
      reads, writes: elements of a vector along ``places`` and along ``columns``.
    """

    sources: tuple[Root, ...]
    places: Var
    columns: Var
    outer: Var
    env: Mapping[Var, Index]
    reads: int
    writes: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Along the columns, and the places."""
        return math.ceil(self.columns.size / EDGE), math.ceil(self.places.size / EDGE)

    @property
    def tasks(self) -> int:
        return math.prod(self.tiles) * self.outer.size

    @property
    def shared_bytes(self) -> int:
        return sum(_tile_bytes(v) for v, _ in self.sources)


def turned_loop(body: Graph, roots: Sequence[Root], stores: Sequence[tuple[Index, int]],
                variables: Sequence[Var]) -> Turned | None:
    """How to take apart a loop that stores along the last of ``variables`` and reads along others;
    None where it does not, where sides are short, or where it reads too much for its tiles.

    Args:
      roots: what is stored, with its indices over ``variables``. stores: element offset and item
        size of every store.
    """
    if len(variables) < 2:
        return None
    last = variables[-1]
    writes = min(_MOST_LANES, stored_lanes(last, stores))
    found = scattered(body, roots, Lane(last, max(writes, 2)), variables) if writes else None
    if found is None or not found.steps[last]:
        return None
    others = [v for v in variables if v is not last and v.size > 1]
    first = next((v for v in others if found.steps[v] == 1), None)
    if first is None:
        return None
    strides = {v: {x.coefficient(v) for x, _ in stores} for v in others}
    across = _following([last], [v for v in others if v is not first], strides)
    down = _following([first], [v for v in others if v not in across],
                      {v: {found.steps[v]} for v in others})
    rest = [v for v in variables if v not in across and v not in down]
    p, c, o = (Var(name, math.prod(v.size for v in group))
               for name, group in (("p", down), ("c", across), ("o", rest)))
    if min(p.size, c.size) < MIN_SIDE:
        return None
    env: dict[Var, Index] = {}
    for var, group in ((p, down[::-1]), (c, across[::-1]), (o, rest)):
        at = delinearize(Index.of(var), [v.size for v in group])
        env.update(zip(group, at, strict=True))
    made = Turned(found.sources, p, c, o, env, 1, writes)
    if made.shared_bytes > _MOST_BYTES:
        return None
    reads = min(_MOST_LANES, _VECTOR_BYTES // max(v.type.dtype.itemsize for v, _ in found.sources))
    while reads > 1 and not all(_is_contiguous(made, x, reads) for x in found.sources):
        reads //= 2
    return replace(made, reads=reads)


def _following(group: list[Var], others: Sequence[Var], strides: Mapping[Var, Collection[int]],
               ) -> list[Var]:
    """``group``, whose innermost Var is its first, with those of ``others`` whose neighbours begin
    where its elements end."""
    found = list(group)
    while (v := next((v for v in others if v not in found and set(strides[v]) == {
            math.prod(x.size for x in found)}), None)) is not None:
        found.append(v)
    return found


def _is_contiguous(t: Turned, source: Root, lanes: int) -> bool:
    value, index = source
    lane = Lane(t.places, lanes)
    offset = linearize(_at(index, t.env), value.type.dims)
    return t.places.size % lanes == 0 and access(lane.split(offset), lane) is Access.CONTIGUOUS


def _at(index: IndexMap, env: Mapping[Var, Index]) -> IndexMap:
    return tuple(i.substitute(dict(env)) for i in index)


def _tile_bytes(value: Value) -> int:
    itemsize = 4 if is_narrow(value.type.dtype) else value.type.dtype.itemsize
    return math.ceil(EDGE * (EDGE + 1) * itemsize / 16) * 16


def emit_turned(w: Writer, body: Graph, t: Turned, function: Function,
                finish: Callable[[BodyEmitter], None]) -> None:
    """One task. ``finish`` computes and stores a vector of elements along ``t.columns``."""
    across, down = t.tiles
    w.line(f"const int column0 = {function.task} % {across} * {EDGE};")
    w.line(f"const int place0 = {function.task} / {across} % {down} * {EDGE};")
    w.line(f"const int o = {function.task} / {across * down};")
    at = 0
    for n, (v, _) in enumerate(t.sources):
        kind = compute(v.type.dtype)
        w.line(f"{kind}* const tile{n} = reinterpret_cast<{kind}*>({function.smem}"
               f"{f' + {at}' if at else ''});")
        at += _tile_bytes(v)
    names = {t.places: "p", t.columns: "c", t.outer: "o"}
    em = BodyEmitter(w, body, function.pointers, lane=t.places, lanes=t.reads, var_names=names,
                     read_only=function.read_only)
    count = EDGE * EDGE // t.reads // function.threads
    for n, (v, _) in enumerate(t.sources):
        w.line(f"{vector(compute(v.type.dtype), t.reads)} got{n}[{count}];")
    with em.scope(f"for (int u = 0; u < {count}; ++u)", pragma="unroll"):
        _emit_place(w, t.reads, function)
        w.line(f"const int c = min(column0 + row, {t.columns.size - 1}), "
               f"p = min(place0 + first, {t.places.size - t.reads});")
        for n, (v, index) in enumerate(t.sources):
            w.line(f"got{n}[u] = {em.emit(v, _at(index, t.env))};")
    w.line("syncthreads();  // the last task's elements have been read")
    with em.scope(f"for (int u = 0; u < {count}; ++u)", pragma="unroll"):
        _emit_place(w, t.reads, function)
        for n in range(len(t.sources)):
            x = f"got{n}[u]" if t.reads == 1 else f"got{n}[u].x[l]"
            w.line(f"for (int l = 0; l < {t.reads}; ++l) "
                   f"tile{n}[row * {EDGE + 1} + first + l] = {x};")
    w.line("syncthreads();")
    em = BodyEmitter(w, body, function.pointers, lane=t.columns, lanes=t.writes, var_names=names,
                     read_only=function.read_only, inline_reduces=True)
    with em.scope(f"for (int u = 0; u < {EDGE * EDGE // t.writes // function.threads}; ++u)",
                  pragma="unroll"):
        _emit_place(w, t.writes, function)
        w.line("const int p = place0 + row, c = column0 + first;")
        with em.scope(f"if (p < {t.places.size} && c < {t.columns.size})"):
            for n, (v, index) in enumerate(t.sources):
                w.line(f"{vector(compute(v.type.dtype), t.writes)} x{n};")
                w.line(f"for (int l = 0; l < {t.writes}; ++l) x{n}{'.x[l]' * (t.writes > 1)} = "
                       f"tile{n}[(first + l) * {EDGE + 1} + row];")
                em.bind_again(v, _at(index, t.env), Emitted(f"x{n}", vector=t.writes > 1))
            finish(em)


def _emit_place(w: Writer, lanes: int, function: Function) -> None:
    """C variables row and first: which vector of a tile's rows is this thread's."""
    vectors = EDGE // lanes
    w.line(f"const int i = thread_id() + u * {function.threads};")
    w.line(f"const int row = udiv<{vectors}>(i), first = umod<{vectors}>(i) * {lanes};")

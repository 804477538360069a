"""Results of 16 bits whose rows begin anywhere in memory, written in pieces of 16 bytes.

    logits[512, 50257]     row r begins 50257 r elements behind the first one, an odd number for
                           each second r: neighbours that a thread has are no word in memory

Element by element such a product's epilogue took a third of its time: on an H200 128 rows of 50257
words took 37 us, XLA's 32, 2048 rows 344 and 273. Here threads have pieces of 8
columns as ever, and exchange what lies in each other's lines (device/staggered.cuh). The tiles at
the end of the rows, where pieces are not whole, are written element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxmono.codegen.bias import Bias, emit_bias
from jaxmono.codegen.dot import DotCode, store_offset
from jaxmono.codegen.dot_wgmma_shared import BYTES, REGISTERS, is_pingpong
from jaxmono.codegen.early_loads import WIDE, early_loads, emit_fetch, touch_columns, touch_rows
from jaxmono.codegen.traverse import vector_width, walk
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, stride
from jaxmono.fusion.plan import Store
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import DType

LANES = 8
"""Elements of a piece; lanes of a warp that have neighbouring pieces of a row."""

_MANY_ROWS = 256
"""Of products whose weights pass through registers, which read more than they write: 128 rows of
50257 took 1.04 of their time so, 512 0.94."""


@dataclass(frozen=True)
class Staggered:
    """An epilogue over columns of which there are a few more, so that pieces divide them: tiles
    whose columns are all inside never reach those.

    Attributes:
      columns: the Var. stores, demanded: over it, as `DotForm.elements` and `DotCode.demanded`.
    """

    columns: Var
    stores: tuple[Store, ...]
    demanded: tuple[IndexMap, ...]


def staggered(code: DotCode) -> Staggered | None:
    """None where rows have an even number of elements, which leave in words of two (2048x30522x768
    took 1.14 of that time so), where they are not of 16 bits, or something else that is read begins
    anywhere, too; or in tiles that are not finished by rows of 64 columns."""
    s, form, body = code.s, code.form, code.sig.body
    n = form.n
    if s.family not in ("wgmma", BYTES) or s.split_k > 1 or code.reduced \
            or form.taps > 1 or form.pairs is not None or n.size % 2 == 0 \
            or s.bn // s.warps[1] % (LANES * LANES) or n.size < 2 * s.bn:
        return None
    if s.warps[2] == 2 if s.family == "wgmma" else form.m.size < _MANY_ROWS:
        return None
    types = {body.outputs[x.result].type.dtype for x in form.elements}
    if not types <= {DType.BF16, DType.F16} or any(
            stride(store_offset(body, x), n) != 1 for x in form.elements):
        return None
    wide = Var(n.name, -(-n.size // LANES) * LANES)
    to = {n: Index.of(wide)}
    stores = tuple(replace(x, index=_over(x.index, to)) for x in form.elements)
    roots = [(body.outputs[x.result], x.index) for x in stores]
    demanded = tuple(_over(x, to) for x in code.demanded)
    # Behind a reshape sums would be those of other places: these have too many columns.
    result = form.dot.result
    if any(n.value is result and n.index not in demanded
           for n in walk(body, roots, leaf=lambda v: v is result)):
        return None
    if vector_width(body, roots, [], wide, limit=LANES) < LANES:
        return None
    return Staggered(wide, stores, demanded)


def emit_staggered(w: Writer, code: DotCode, wide: Staggered, bias: Bias | None, again: str,
                   piece: Callable[..., None], pointers: Mapping[Value, str],
                   read_only: Sequence[Value], names: Mapping[Var, str]) -> None:
    """The products of a tile and its epilogue.

    Args:
      bias: what is added to fragments, if anything is. again: C text, what `consume` needs besides.
      piece: `emit_piece` with all that is the same in all of the tile.
    """
    form, s, body = code.form, code.s, code.sig.body
    result = bias.total if bias else form.dot.result
    touch_columns(w, body, form.elements, result, m=form.m, n=form.n, tile_n=s.bn,
                  pointers=pointers, names=names,
                  thread="thread_id() % 128" if is_pingpong(s) else "thread_id()")
    if s.family == BYTES:
        touch_rows(w, body, form.elements, result, m=form.m, n=form.n, tile_m=s.bm,
                   pointers=pointers, names=names)
    if bias:
        emit_bias(w, body, bias, columns=form.n, tile_n=s.bn, pointers=pointers, names=names,
                  read_only=read_only)
    w.line(f"G::consume(smem, roles, at, k_tiles, sums{', bias' if bias else again});")
    across = s.bm // s.warps[0] if s.family in REGISTERS else s.bn // s.warps[1]
    ends = Staggered(form.n, tuple(form.elements), tuple(code.demanded))
    for test, x, lanes in ((f"if (n0 + {s.bn} <= {form.n.size})", wide, LANES),
                           ("else", ends, 1)):
        with w.block(test):
            early = early_loads(body, x.stores, result, x.columns, lanes, read_only,
                                form.m if across <= WIDE else None)
            # Loads that are none, but for an epilogue that leaves by rows: as fragments only four
            # lanes have neighbours of a row.
            emit_fetch(w, body, early, m=form.m, n=x.columns, tile_m=s.bm, tile_n=s.bn,
                       lanes=lanes, pointers=pointers, names=names, none="NoEarly")
            with w.block(f"G::finish<{lanes}>(smem, sums, fetch, [&](int r, int c, const "
                         f"{code.accumulator} (&acc)[{lanes}], const auto& early)", "});"):
                w.line("(void)early;")
                piece(lanes=lanes, early=early, result=result, stores=x.stores, n=x.columns,
                      demanded=x.demanded, together=LANES if x is wide else 0)


def _over(index: Sequence[Index], to: dict[Var, Index]) -> IndexMap:
    return tuple(i.substitute(to) for i in index)

"""What a contraction's epilogue reduces of its elements before they leave registers.

    over rows      a warp has all of 16 rows, some at a time in its lanes: each thread combines
                   those of its columns, then lanes exchange halves until each has its own columns
    over columns   four neighbouring lanes, or more, have 32 columns of a row

(device/tile_reduce.cuh; `fusion/epilogue_reduces.py` tells which reduces.) A piece of the epilogue
must belong to a warp that goes through 16 rows of the same columns, from the first one on. So the
families that deal a tile to threads otherwise cannot: `refusal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.emit import BodyEmitter, Emitted
from jaxmono.codegen.names import compute, vector
from jaxmono.codegen.reducers import declare_reducer
from jaxmono.codegen.traverse import Root
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.epilogue_reduces import COLUMNS, ROWS, elements
from jaxmono.fusion.indexing import IndexMap, Var, linearize
from jaxmono.fusion.plan import DotForm, Store
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.rewrite import binary_kind
from jaxmono.hlo.types import DType

WARP = 32


@dataclass(frozen=True)
class Reduced:
    """One reduce of an epilogue.

    Attributes:
      op: in the body. stores: of its results, in their order, those that are stored.
      over_rows: else over columns. group: Var over the groups. size: of m or n.
      roots: what is reduced, where, over (batch, m, n).
    """

    op: ops.Reduce
    stores: tuple[Store, ...]
    over_rows: bool
    group: Var
    size: int
    roots: tuple[Root, ...]

    @property
    def is_ragged(self) -> bool:
        """Whether the last group has fewer elements than the others."""
        return bool(self.size % (ROWS if self.over_rows else COLUMNS))


def reduced_of(body: Graph, form: DotForm) -> tuple[Reduced, ...]:
    """The reduces that begin in a contraction's epilogue."""
    by_op: dict[ops.Reduce, list[Store]] = {}
    for s in form.reduced:
        op = body.producer[body.outputs[s.result]]
        assert isinstance(op, ops.Reduce)
        by_op.setdefault(op, []).append(s)
    found: list[Reduced] = []
    for op, stores in by_op.items():
        over, index = stores[0].over, stores[0].index
        over_rows = form.n in over
        (group,) = (x for x in over if x not in (form.batch, form.m, form.n))
        var = form.m if over_rows else form.n
        roots = (_root(body, op, *x) for x in elements(body, op, index, group, var))
        found.append(Reduced(op, tuple(stores), over_rows, group, var.size, tuple(roots)))
    return tuple(found)


def _root(body: Graph, op: ops.Reduce, value: Value, at: IndexMap) -> Root:
    """What is reduced for ``value``: of a sum what was there before it was rounded to 16 bits and
    made f32 again. XLA leaves these two out as well, by default. (A maximum is compared with what
    is stored.)"""
    wide = body.producer.get(value)
    narrow = body.producer.get(wide.operand) if isinstance(wide, ops.Convert) else None
    if isinstance(narrow, ops.Convert) and value.type.dtype is DType.F32 \
            and binary_kind(op.body) == "add" and narrow.operand.type.dtype is DType.F32 \
            and narrow.result.type.dtype in (DType.F16, DType.BF16):
        return narrow.operand, at
    return value, at


def refusal(reduced: Sequence[Reduced], across: int, lanes: int) -> str | None:
    """Why threads that take ``lanes`` neighbouring columns, ``across`` of them a row of the tile's
    part that a warp goes through, cannot reduce; None if they can."""
    if across < 2 or across > WARP or across & (across - 1):
        return f"{across} pieces to a row are no part of a warp"
    if across * lanes % COLUMNS and not all(r.over_rows for r in reduced):
        return f"a row of {across * lanes} columns does not have whole {COLUMNS}s"
    return None


def declare(w: Writer, body: Graph, reduced: Sequence[Reduced], across: int, lanes: int) -> None:
    """The C++ variables ``reduced0``... that a warp's pieces of 16 rows go to."""
    for i, r in enumerate(reduced):
        reducer = declare_reducer(BodyEmitter(w, body, {}, var_names={}), r.op)
        rows = f"ReduceRows<{reducer.name}, {across}, {lanes}, {reducer.along}>"
        kind = rows if r.over_rows else f"ReduceColumns<{reducer.along}, {COLUMNS}, {lanes}>"
        w.line(f"{kind} reduced{i};")


def emit_take(em: BodyEmitter, *, reduced: Sequence[Reduced], form: DotForm,
              tile: tuple[int, int], across: int, lanes: int,
              outputs: Sequence[str], pointers: Mapping[Value, str],
              names: Mapping[Var, str]) -> None:
    """Gives the elements of a piece to the variables of `declare`, and stores what is complete.

    C variables: r and c, in the ``tile``, which begins at m0 and n0; m and n, of a piece outside
    those of another one.
    """
    w, body = em.w, em.body
    row, column = "m0 + r", "n0 + c"
    rows, columns = (f"{at} < {v.size}" if v.size % size else "" for at, v, size in (
        (row, form.m, tile[0]), (column, form.n, tile[1])))
    for i, r in enumerate(reduced):
        xs = [em.rounded(em.emit(v, at), v.type.dtype) for v, at in r.roots]
        where, size, whole = ("r", ROWS, row) if r.over_rows else ("c", COLUMNS, column)
        own, other = (rows, columns) if r.over_rows else (columns, rows)
        take = f"take({where}, "
        if r.is_ragged and own:  # what does not exist has no effect
            take = f"take_some({where}, {own}, "
        tests = [f"reduced{i}.{take}{', '.join(x.name for x in xs)})"]
        tests += [f"({whole}) / {size} < {r.group.size}"] if own else []
        tests += [other] if other else []
        kept = max(lanes * across // WARP, 1) if r.over_rows else 1
        with w.block(f"if ({' && '.join(tests)})"):
            w.line(f"const int group = ({whole}) / {size};")
            if r.over_rows:
                w.line(f"const int own = n + reduced{i}.first();")
            out = BodyEmitter(w, body, pointers, lane=form.n if kept > 1 else None, lanes=kept,
                              var_names={**names, r.group: "group", form.m: "m", form.n: "own"})
            for s in r.stores:
                value = body.outputs[s.result]
                element = f"a{r.op.results.index(value)}"
                x = f"reduced{i}.acc[0].{element}"
                if kept > 1:
                    x = w.fresh("x")
                    w.line(f"{vector(compute(value.type.dtype), kept)} {x};")
                    w.line(f"for (int e = 0; e < {kept}; ++e) "
                           f"{x}.x[e] = reduced{i}.acc[e].{element};")
                out.store(outputs[s.result], linearize(s.index, value.type.dims),
                          Emitted(x, kept > 1), value.type.dtype)

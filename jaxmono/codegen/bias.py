"""A bias: what is added to a product, the same in all rows.

    relu(dot(x, w) + bias)     bias:  asked for before the products, two columns for each fragment
                               sums:  dot + bias, of which the epilogue makes the rest

The epilogue has one thing less to read for each piece, and what is little but sums leaves its
fragments without shared memory (`StagedRows::quads`). On an H200 products of 1280 and 2048 x 3072 x
768 take 2.3 and 0 % less time with a bias, with a hardswish 3.8 and 2.0, with a residual 3.8 and
1.1 (benchmarks/results/2026-11-25-epilogues-h200).

Only in a kernel's first stage, where the first k tile is on its way from memory. Behind a grid
barrier the tiles are there, and each task took 0.3 to 0.4 us longer for its loads: BERT-base b32
2.6 %, ViT-B/16 b16 0 to 1.5. With accumulators that begin with the bias, so that the products wait
for it, 4.5 and 2.2 %; alone these took as long as so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.codegen.early_loads import is_vector
from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.finder import orders
from jaxmono.codegen.operand import views_of_params
from jaxmono.codegen.traverse import Lane, Root
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Value
from jaxmono.hlo.types import DType

LANES = 2
"""Neighbouring columns that a thread has of a fragment."""


@dataclass(frozen=True)
class Bias:
    """Attributes:
      total: product and bias together.
      added: the input that is added, and at which index.
    """

    total: Value
    added: Root


def bias_of(body: Graph, result: Value, index: IndexMap, rows: Var, columns: Var) -> Bias | None:
    """What is added to the product ``result``, demanded at ``index``; None if nothing is that is
    the same in all ``rows`` and lies in memory as neighbours of 16 bits."""
    users = body.users.get(result, ())
    if len(users) != 1 or result in body.outputs or columns.size % LANES:
        return None
    (add,) = users
    if not (isinstance(add, ops.Elementwise) and add.kind == "add"):
        return None
    for own, other in orders(add):
        views = views_of_params(body, other, index) if own is result else None
        if not views or len(views) > 1 or views[0].guard.bounds:
            continue
        (view,) = views
        if view.param.type.dtype in (DType.BF16, DType.F16) \
                and not any(i.depends_on(rows) for i in view.index) \
                and is_vector(view.param, view.index, Lane(columns, LANES)):
            return Bias(add.results[0], (view.param, view.index))
    return None


def emit_bias(w: Writer, body: Graph, bias: Bias, *, columns: Var, tile_n: int,
              pointers: Mapping[Value, str], names: Mapping[Var, str],
              read_only: Sequence[Value]) -> None:
    """``const auto bias = [&](int c)``: of columns c and c + 1 of the tile.

    Columns outside the operand have what the last ones inside have.
    """
    value, index = bias.added
    kind = f"{c_type(value.type.dtype)}, {LANES}"
    with w.block(f"const auto bias = [&](int c) -> Vec<{kind}>", "};"):
        w.line("const int n = " + (f"min(n0 + c, {columns.size - LANES});" if columns.size % tile_n
                                   else "n0 + c;"))
        em = BodyEmitter(w, body, pointers, lane=columns, lanes=LANES,
                         var_names={**names, columns: "n"})
        offset: Index = linearize(index, value.type.dims)
        load = "load_ro" if value in read_only else "load"
        w.line(f"return {load}<{kind}>({pointers[value]} + {em.code(offset)});")

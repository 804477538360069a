"""The source operand of an epilogue (CUTLASS's C), which producers bring behind those of products.

    relu(dot(x, w) + bias + r)     r, an element for each of the result's: through the ring
                                   bias, by column: as before (early_loads.py)

See device/source_tiles.cuh. Of 16-bit elements, one buffer, whose rows and columns have constant
distances; the first such one that the stores read.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.codegen.early_loads import reads
from jaxmono.codegen.operand import Operand, analyse, is_looked_up, is_strided
from jaxmono.fusion.indexing import Var, stride
from jaxmono.fusion.plan import Store
from jaxmono.hlo.ir import Graph, Value


def source_operand(body: Graph, stores: Sequence[Store], result: Value, rows: Var, columns: Var,
                   ) -> Operand | None:
    """What the epilogue of ``result`` reads by ``rows`` and ``columns``; None if there is nothing
    that may go through the ring."""
    for value, index in reads(body, stores, result):
        if value.type.dtype.itemsize != 2:
            continue
        x = analyse(body, value, index, rows, columns, 2)
        if is_strided(x) and not is_looked_up(x) and x.k_major and x.offset is not None \
                and stride(x.offset, rows):
            return x
    return None

"""Loops that add to memory (`ops.Accumulate`): the statement for each vector.

    const int i3 = clamp_index<int>(v2, -1, 2707);                   // the line of an update
    accumulate_add<float, 4>(r0 + 64 * i3 + c, v7, i3 >= 0);         // four of its elements
"""

from __future__ import annotations

from jaxmono.codegen.emit import BodyEmitter
from jaxmono.codegen.names import storage
from jaxmono.codegen.op_code import Emitted
from jaxmono.fusion.indexing import Index, IndexMap
from jaxmono.hlo import ops


def emit_accumulate(em: BodyEmitter, pointer: str, offset: Index, x: Emitted, op: ops.Accumulate,
                    index: IndexMap) -> None:
    """Adds ``x``, all lanes of an update's elements, to those at ``offset``, if the update has a
    line. index: of the result; its first part is that line."""
    t = storage(op.result.type.dtype)
    at, line = em.code(offset), em.code(index[0])
    em.w.line(f"accumulate_{op.kind}<{t}, {em.lanes}>({pointer} + {at}, {x}, {line} >= 0);",
              f"{op.opcode}  {op.loc}")

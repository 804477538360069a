"""Vectors of every second element: the real parts of complex numbers, or their imaginary ones.

    const auto near0 = load_ro<float, 8>(p0 + 2 * e);       both, once
    const Vec<float, 4> v0 = every_second<0>(near0);
    const Vec<float, 4> v1 = every_second<1>(near0);
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxmono.codegen.names import FlaggedName, compute
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import every_second
from jaxmono.fusion.indexing import Index
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter

_MOST_BYTES = 32
"""Of the two vectors."""


def load_every_second(em: BodyEmitter, pointer: str, offset: Index, value: Value, read_only: bool,
                      ) -> Emitted | None:
    """A Vec of an input's elements out of two vectors; None where they do not lie so."""
    dtype, first = value.type.dtype, every_second(offset, em.lane)
    if first is None or em.reads_if or em.buffer(value) is None or dtype in FOUR_BITS \
            or isinstance(pointer, FlaggedName) or value.type.size % (2 * em.lanes) \
            or 2 * em.lanes * dtype.itemsize > _MOST_BYTES:
        return None
    em._emit_dynamics((offset,))
    load = "load_ro" if read_only else "load"
    near = em.once("const auto", "near", f"{load}<{compute(dtype)}, {2 * em.lanes}>({pointer} + "
                                         f"{em._code(offset - Index.of(first))})")
    em.reads += 1
    return em._name(Emitted(f"every_second<{first}>({near})", True), dtype)

"""Small inputs that a stage reads: requested into the L2 while the grid barrier in front opens.

A bias or a norm's scale comes from HBM in about 0.8 us, what the stage before has written comes
from the L2 in half of that: without the request every stage waits for its smallest inputs.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

from jaxmono.codegen.writer import Writer
from jaxmono.hlo.ir import Value
from jaxmono.hlo.types import FOUR_BITS

SMALL = 16 * 1024
"""Bytes of an input that every block may touch in whole: one 128-byte line a thread."""


def touch(w: Writer, inputs: Iterable[Value], pointers: Mapping[Value, str],
          read_only: Container[Value]) -> bool:
    """Emits the requests; False if there are none.

    Args:
      inputs: of a Sig's body, without those that the caller fetches itself.
      read_only: those that nothing in the launch writes, which alone are touched.
    """
    found = [v for v in inputs if v in read_only and 0 < v.type.nbytes <= SMALL
             and v.type.dtype not in FOUR_BITS]
    for v in found:
        lines = math.ceil(v.type.nbytes / 128)
        base = f"reinterpret_cast<const char*>({pointers[v]})"
        w.line(f"if (thread_id() < {lines}) prefetch_l2({base} + thread_id() * 128);")
    return bool(found)

"""Reshapes at the border of a body: the same bytes under another shape, so they go.

    graph body(%0: f32[1,32]) { %1 = f32[32] reshape(%0) ... }   ──►   graph body(%0: f32[32]) ...

A layer that reads the program's input and one that reads another layer's result then have equal
bodies. A buffer may therefore have another shape than the param that it is bound to; element
type and number of elements are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value


def bare_inputs(placed: Sequence[Op], reads: Sequence[Value]) -> dict[Value, Value]:
    """Values read that only reshapes to one shape use, to the first such reshape's result."""
    uses: dict[Value, list[Op]] = {v: [] for v in reads}
    for o in placed:
        for v in o.uses:
            if v in uses:
                uses[v].append(o)
    out: dict[Value, Value] = {}
    for v, users in uses.items():
        if users and all(isinstance(o, ops.Reshape) for o in users) \
                and len({o.result.type for o in users}) == 1:
            out[v] = users[0].result
    return out

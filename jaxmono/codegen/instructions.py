"""How much text an op is: instructions of an element, slow paths that are rarely taken included.

A thread that computes several elements has this text for each of them, one behind the other: with
16 elements of six sines each, 135 KB, an H200 took 248 us for what it computed in 190 with 4.
`fusion.cost.weight` is what an element takes when it runs.
"""

from __future__ import annotations

from jaxmono.fusion.cost import weight
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op

_F32 = {
    "divide": 11, "remainder": 74, "cbrt": 18, "exponential_minus_one": 30, "log": 28,
    "log_plus_one": 31, "sine": 42, "cosine": 42, "tan": 64, "atan2": 52, "power": 96, "erfc": 47,
    "erf_inv": 92, "asinh": 43, "acosh": 44, "atanh": 38, "lgamma": 217, "digamma": 343,
    "bessel_i1e": 82,
}
"""By NVRTC 13.0 for sm_90a. Others are about their weight."""
_INTEGER = {"divide": 36, "remainder": 36}
"""Of what is not divided by a literal."""


def instructions(body: Graph) -> int:
    """Of one element of a body without contractions, about."""
    made = body.producer

    def of(op: Op) -> int:
        if not isinstance(op, ops.Elementwise):
            return weight(op)
        if op.result.type.dtype.is_float:
            return max(weight(op), _F32.get(op.kind, 0))
        literal = isinstance(made.get(op.args[-1]), ops.Constant)
        return weight(op) if literal else _INTEGER.get(op.kind, 1)

    return sum(map(of, body.ops))

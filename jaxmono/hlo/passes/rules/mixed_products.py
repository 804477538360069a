"""Products of 16-bit rows and weights of few bits that JAX widened to f32 for want of a common
type.

    dot(convert[f32](x: bf16), convert[f32](q: s8)): f32      lax.dot_general(x, q,
      =>  dot(x, convert[bf16](q)): f32                           preferred_element_type=f32)

bf16 has every value of 8 bits and less, and a product of both 16 bits of digits: f32 holds it, as
it does those of the operands as they were. XLA multiplies such f32 as tf32, which has their values,
too. Not where precision is asked for: tensor cores cut the last bits of sums off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.conversion import lossless
from jaxmono.hlo.types import DType

_NARROW = (DType.BF16, DType.F16)
_FEW_BITS = 8


def mixed_product(op: ops.DotGeneral, scope: Scope) -> Sequence[Value] | None:
    """The product in 16 bits, with the sums of before."""
    if op.algorithm or op.precision != ("DEFAULT", "DEFAULT") or not op.result.type.size \
            or not op.lhs.type.dtype is op.rhs.type.dtype is DType.F32:
        return None
    made = [scope.made_by(v, ops.Convert) for v in (op.lhs, op.rhs)]
    given = [o.operand for o in made if o is not None]
    if len(given) != 2 or sorted(v.type.dtype.bits <= _FEW_BITS for v in given) != [False, True]:
        return None
    t = next((t for t in _NARROW if all(lossless(v.type.dtype, t) for v in given)), None)
    if t is None:
        return None
    x, y = (scope.convert(v, t) for v in given)
    return [scope.dot_general(x, y, batch=(op.lhs_batch, op.rhs_batch),
                              contract=(op.lhs_contract, op.rhs_contract),
                              dtype=op.result.type.dtype)]


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.DotGeneral: (mixed_product,)}

"""Threefry-2x32 as element-wise ops, each of one word.

    a, b = threefry2x32(k0, k1, n0, n1)          bits = threefry2x32_xor(k0, k1, n0, n1)
    bits = a ^ b                          ──►

JAX makes 32 random bits of both words (``jax_threefry_partitionable``).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope


def words(op: ops.Threefry2x32, scope: Scope) -> Sequence[Value]:
    """Both words; what nobody reads is dead code."""
    shape = op.results[0].type.dims
    args = [v if v.type.dims == shape else scope.broadcast_in_dim(v, shape, range(v.type.rank))
            for v in op.inputs]
    return [scope.elementwise(f"threefry2x32_{i}", *args) for i in range(2)]


def both_words(op: ops.Elementwise, scope: Scope) -> Sequence[Value] | None:
    """The exclusive or of both words."""
    if op.kind != "xor":
        return None
    a, b = (scope.made_by(v, ops.Elementwise) for v in op.args)
    if a is None or b is None or a.args != b.args \
            or {a.kind, b.kind} != {"threefry2x32_0", "threefry2x32_1"}:
        return None
    return [scope.elementwise("threefry2x32_xor", *a.args)]


RULES: dict[type[Op], Sequence[Rule]] = {ops.Threefry2x32: (words,),
                                         ops.Elementwise: (both_words,)}

"""The k largest of a line as k rounds of a maximum of keys (keys.py), each of what is behind the
one before.

    m1 = max(key);  m2 = max(select(key < m1, key, 0));  m3 = max(select(key < m2, key, 0)) ...

The rounds of a line share its row, whose keys stay in registers. A long line is first one of many,
of which each finds its k largest:

    [b, 250000]  ->  [b, 245, 1024]  ->  k of each: [b, 245 k]  ->  k: [b, k]

As `jax.lax.top_k`, in the total order of floats: NaN, inf, ..., 0, -0, ..., -inf, -NaN; of equal
values the one in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.keys import FLOATS, INTEGERS, keys_of, places, values
from jaxmono.hlo.types import DType

MOST = 64
"""Rounds. Texts are drawn from the 40 or 50 likeliest tokens; XLA has a kernel for up to 16."""

LINE, WHOLE = 1024, 4096
"""Elements of a part of a line; lines up to which are not taken apart."""


def refusal(op: ops.TopK) -> str:
    """Why ``op`` stays as it is; empty if it is expanded."""
    t = op.operand.type
    if op.k > MOST:
        return f"only up to {MOST} largest are generated; {op.k} are found by sorting"
    if op.k == 0 or t.dtype not in (*FLOATS, *INTEGERS):
        return f"the {op.k} largest of {t} are not generated"
    return ""


def expanded(op: ops.TopK) -> int:
    """How many ops ``op`` becomes, about; 1 if it has a `refusal`, for parts that find as many as
    they have would never end."""
    if refusal(op):
        return 1
    levels, n = 1, op.operand.type.dims[-1]
    while n > WHOLE:
        levels, n = levels + 1, math.ceil(n / LINE) * op.k
    return levels * (5 * op.k + 4) + 24


def top_k(op: ops.TopK, scope: Scope) -> Sequence[Value] | None:
    """Any that has no `refusal`."""
    if refusal(op):
        return None
    *outer, n = op.operand.type.dims
    lines = math.prod(outer)
    keys = scope.reshape(keys_of(scope, op.operand, len(outer)), (lines, n))
    while n > WHOLE:
        parts = math.ceil(n / LINE)
        none = scope.constant(0, DType.U64)
        keys = scope.pad(keys, none, (0, 0), (0, parts * LINE - n), (0, 0))
        keys = _rounds(scope, scope.reshape(keys, (lines, parts, LINE)), op.k)
        n = parts * op.k
        keys = scope.reshape(keys, (lines, n))
    keys = scope.reshape(_rounds(scope, keys, op.k), (*outer, op.k))
    return [values(scope, keys, op.operand.type.dtype), places(scope, keys, DType.S32)]


def _rounds(scope: Scope, keys: Value, k: int) -> Value:
    """The k largest along the last dimension, the largest first."""
    shape = keys.type.dims
    last = len(shape) - 1
    none = scope.constant(0, DType.U64)
    nothing = scope.splat(0, keys.type)
    found: list[Value] = []
    left = keys
    for _ in range(k):
        found.append(scope.reduce(left, none, "maximum", (last,)))
        behind = scope.compare("LT", keys, scope.broadcast_in_dim(found[-1], shape, range(last)))
        left = scope.elementwise("select", behind, keys, nothing)
    return scope.concatenate([scope.reshape(m, (*shape[:-1], 1)) for m in found], last)


RULES: dict[type[Op], Sequence[Rule]] = {ops.TopK: (top_k,)}

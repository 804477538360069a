"""Control flow: while and case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxmono.hlo import ops
from jaxmono.hlo.interp.core import Context, implements
from jaxmono.hlo.types import DType


@implements(ops.While)
def while_(op: ops.While, ctx: Context) -> Sequence[Any]:
    state = [ctx.get(v) for v in op.args]
    while bool(ctx.run(op.cond, state)[0]):
        state = ctx.run(op.body, state)
    return state


@implements(ops.Case)
def case(op: ops.Case, ctx: Context) -> Sequence[Any]:
    index = int(ctx.get(op.index))
    # An index out of range means the last branch.
    if op.index.type.dtype is not DType.PRED and not 0 <= index < len(op.branches):
        index = len(op.branches) - 1
    return ctx.run(op.branches[index], [])

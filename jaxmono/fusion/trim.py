"""Giving back what a draft should not write.

Growing takes everything it can. At the rim this may be too much: `convert` and `square` before a
norm's reduces would make the dot write two f32 arrays where one bf16 array is enough.

    dot -> add -> [convert -> reduce]     the consumer converts: fewer bytes written
                  [square  -> reduce]
    dot -> gelu -> [convert] -> dot       stays: the next dot wants its operand as it is
"""

from __future__ import annotations

import math

from jaxmono.fusion import cost
from jaxmono.fusion.demand import is_view
from jaxmono.fusion.draft import Draft, State
from jaxmono.fusion.indexing import Index, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value

LARGE = 1 << 20
"""Bytes of what would have to be written and read again."""


def trim(state: State) -> None:
    """Releases rim ops of every draft, last first."""
    outputs = state.outputs_set()
    for draft in state.drafts:
        for op in reversed(tuple(draft.ops)):
            if op is draft.anchor or isinstance(op, (ops.Reduce, ops.DotGeneral, ops.Stored)):
                continue
            if len(op.results) == 1 and op.result in draft.at and op.result not in outputs \
                    and _releasable(state, draft, op, outputs):
                _release(state, draft, op)


def escapes(state: State, draft: Draft, v: Value, outputs: frozenset[Value],
            besides: Op | None = None) -> bool:
    return v in outputs or any(
        u is not besides and not draft.has(u) for u in state.graph.users.get(v, ()))


def _releasable(state: State, draft: Draft, op: Op, outputs: frozenset[Value]) -> bool:
    if any(draft.has(u) for u in state.graph.users.get(op.result, ())):
        return False
    if any(v not in draft.at and draft.has(state.graph.producer.get(v)) for v in op.inputs):
        return False  # made here, and not at this place: rows that are pooled
    inside = [v for v in dict.fromkeys(op.inputs) if v in draft.at]
    extra = sum(v.type.nbytes for v in inside
                if not any(not draft.has(u) for u in state.graph.users[v]) and v not in outputs)
    if isinstance(op, ops.Transpose):
        return extra == 0 or not _improves(draft, op)
    if is_view(op) or _of_rows(state, draft, op):
        return True
    if cost.weight(op) > cost.CHEAP or _feeds_contraction(state, op.result):
        return False
    return extra < op.result.type.nbytes


def _of_rows(state: State, draft: Draft, op: Op) -> bool:
    """Whether a large value costs less to compute of positions and what its rows have one of than
    to read: of each row's nearest centre, [rows, centres] of zeros and ones, which products, too,
    compute on their way."""
    if draft.kind != "row" or op.result.type.nbytes < LARGE:
        return False
    rows = math.prod(v.size for v in draft.domain)
    weight, seen, todo = cost.weight(op), {op}, list(op.inputs)
    while todo:
        v = todo.pop()
        if v.type.size <= rows:
            continue
        made = state.graph.producer.get(v)
        if made is None or isinstance(made, (ops.Reduce, ops.DotGeneral, ops.Stored)):
            return False
        if made not in seen and not isinstance(made, (ops.Constant, ops.Iota)):
            seen.add(made)
            weight += cost.weight(made)
            todo += made.inputs
    return weight <= 2 * cost.CHEAP


def _improves(draft: Draft, op: ops.Transpose) -> bool:
    """Whether writing the transposed value makes neighbouring threads write neighbours."""
    minor = (draft.cols or draft.domain)[-1:]
    if not minor:
        return False
    return (_stride(draft, op.result, minor[0]) == 1
            and _stride(draft, op.operand, minor[0]) != 1)


def _stride(draft: Draft, v: Value, minor: Var) -> int:
    """Distance in elements between two positions next to each other along ``minor``."""
    index = draft.at[v]
    here = linearize(index, v.type.dims)
    zero = {minor: Index((), 0)}
    one = {minor: Index((), 1)}
    step = here.substitute(one) - here.substitute(zero)
    return step.const if step.is_const else 0


def _feeds_contraction(state: State, v: Value) -> bool:
    """Whether a contraction reads ``v``, perhaps through views."""
    todo = [v]
    while todo:
        for u in state.graph.users.get(todo.pop(), ()):
            if isinstance(u, ops.DotGeneral):
                return True
            if is_view(u) or isinstance(u, ops.Pad):
                todo.extend(u.results)
    return False


def _release(state: State, draft: Draft, op: Op) -> None:
    del draft.ops[op], draft.at[op.result], state.owner[op]

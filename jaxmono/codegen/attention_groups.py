"""Query heads that share keys and values, as rows of one tile.

    keys[b, n, k] the same for b = x * R ... x * R + R - 1     (repeated or broadcast heads)
      ->  batch x, rows r * M + m of R heads

So the keys are read once for the R heads, and a tile of a few queries has more rows. A group that
is a dimension of the contraction comes from the planner like this already.
"""

from __future__ import annotations

import dataclasses

from jaxmono.codegen.operand import Operand
from jaxmono.fusion.indexing import Index, IndexMap, Var
from jaxmono.fusion.plan import AttentionForm

MAX_GROUP = 64


def largest_group(form: AttentionForm, operands: tuple[Operand, ...]) -> int:
    """How many neighbouring batch entries read the same elements of these operands."""
    b = form.batch
    if any(x.param is None or x.others for x in operands):
        return 1
    for group in range(min(MAX_GROUP, b.size), 1, -1):
        if b.size % group:
            continue
        inner = Var("r", group)
        env = {b: Index.of(Var("x", b.size // group)) * group + Index.of(inner)}
        indices = [x.offset for x in operands if x.offset is not None]
        indices += [bound for x in operands for bound, *_ in x.guard.bounds]
        if all(i.is_static and not i.substitute(env).depends_on(inner) for i in indices):
            return group
    return 1


def grouped(form: AttentionForm, group: int) -> AttentionForm:
    """The same attention with ``group`` neighbouring batch entries as rows of one."""
    if group == 1:
        return form
    b = Var(form.batch.name, form.batch.size // group)
    m = Var(form.m.name, form.m.size * group)
    env = placement(form, b, m)

    def at(index: IndexMap) -> IndexMap:
        return tuple(i.substitute(env) for i in index)

    renamed = {form.batch: b, form.m: m}
    return dataclasses.replace(
        form, batch=b, m=m, lhs_index=at(form.lhs_index), rhs_index=at(form.rhs_index),
        p_index=at(form.p_index), value_index=at(form.value_index),
        stores=tuple(dataclasses.replace(s, index=at(s.index),
                                         over=tuple(renamed.get(v, v) for v in s.over))
                     for s in form.stores))


def placement(form: AttentionForm, b: Var, m: Var) -> dict[Var, Index]:
    """The form's batch entry and row by those of a grouped one."""
    group = form.batch.size // b.size
    rows = Index.of(m)
    return {form.batch: Index.of(b) * group + rows // form.m.size, form.m: rows % form.m.size}

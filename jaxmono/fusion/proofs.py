"""Is a Sig what its form says? Walked from the stores, independent of how it was grown.

    dot        every store needs the contraction at (batch, m, n) only, or at the rows m of its
               window, or at all of a group of rows or columns that a reduce makes one element of;
               other reduces only in a row prologue, there at (batch, m) only
    row        every reduce is needed at one index of the rows, and reduces exactly the columns
    attention  row (b, m) of the probabilities needs row (b, m) of the scores only
    loop       no contraction, no reduce
"""

from __future__ import annotations

import math

from jaxmono.fusion.attention import prove
from jaxmono.fusion.dots import demanded, operand_index, result_index
from jaxmono.fusion.epilogue_reduces import COLUMNS, ROWS, elements
from jaxmono.fusion.errors import PlanError
from jaxmono.fusion.indexing import Index, Var
from jaxmono.fusion.plan import AttentionForm, DotForm, RowForm, Sig, Store
from jaxmono.fusion.rows import reduced_shape, spread
from jaxmono.fusion.walk import Walk
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op


def check_form(sig: Sig) -> None:
    """Raises PlanError if the body does not have the structure that its form claims."""
    form = sig.form
    if isinstance(form, DotForm):
        _dot(sig, form)
    elif isinstance(form, RowForm):
        _row(sig, form)
    elif isinstance(form, AttentionForm):
        _attention(sig, form)
    elif any(isinstance(o, (ops.DotGeneral, ops.Reduce)) for o in sig.body.ops):
        raise PlanError(f"sig {sig.name} is a loop but holds a contraction or a reduce")


def _stop(walk: Walk, sig: Sig) -> None:
    if walk.failed is not None:
        raise PlanError(f"sig {sig.name}: {walk.failed.opcode} at {walk.failed.loc} is needed "
                        "element by element")


def _dot(sig: Sig, form: DotForm) -> None:
    dot = form.dot
    if form.rows.size * form.taps != form.m.size:
        raise PlanError(f"sig {sig.name}: {form.rows.size} windows of {form.taps} rows are not "
                        f"{form.m.size}")
    if form.pairs is not None and 2 * form.pairs.size != form.n.size:
        raise PlanError(f"sig {sig.name}: {form.pairs.size} pairs of columns are not "
                        f"{form.n.size}")
    epilogue = Walk(sig.body, lambda o: o is not dot)
    for s in form.elements:
        epilogue.demand(sig.body.outputs[s.result], s.index)
    for s in form.reduced:
        _reduced(sig, form, s, epilogue)
    _stop(epilogue, sig)
    if set(epilogue.reached.get(dot.result, ())) != set(demanded(form)):
        raise PlanError(f"sig {sig.name}: its stores need other elements of the contraction "
                        "than their own")
    sides = (("lhs", form.lhs_index, form.m), ("rhs", form.rhs_index, form.n))
    for side, index, free in sides:
        if index != operand_index(dot, side, Index.of(form.batch), Index.of(free),
                                  Index.of(form.k)):
            raise PlanError(f"sig {sig.name}: {side}_index is not that of its contraction")
    left = Walk(sig.body, lambda o: o is not dot,
                (lambda o: spread((form.k,), reduced_shape(o))) if form.row_prologue else None)
    left.demand(dot.lhs, form.lhs_index)
    _stop(left, sig)
    right = Walk(sig.body, lambda o: o is not dot)
    right.demand(dot.rhs, form.rhs_index)
    _stop(right, sig)
    if form.row_prologue:
        _reduces(sig, left, (form.k,), (form.batch, form.m))
    for s in form.stores:
        if form.k in s.over and left.only(sig.body.outputs[s.result]) != s.index:
            raise PlanError(f"sig {sig.name}: result {s.result} is stored where the left operand "
                            "does not have it")


def _reduced(sig: Sig, form: DotForm, s: Store, epilogue: Walk) -> None:
    """Demands what a reduce of groups of rows or columns reduces, at each element of the dot."""
    o = sig.body.producer.get(sig.body.outputs[s.result])
    if not isinstance(o, ops.Reduce) or form.takes_several:
        raise PlanError(f"sig {sig.name}: result {s.result} is stored over groups of elements, but "
                        "no reduce makes it")
    groups = [x for x in s.over if x not in (form.batch, form.m, form.n)]
    var, size = form.m if form.n in s.over else form.n, math.prod(reduced_shape(o))
    if len(groups) != 1 or groups[0].size != math.ceil(var.size / size) \
            or size != (ROWS if var is form.m else COLUMNS):
        raise PlanError(f"sig {sig.name}: result {s.result} is not stored over groups of {size}")
    for v, at in elements(sig.body, o, s.index, groups[0], var):
        epilogue.demand(v, at)


def _row(sig: Sig, form: RowForm) -> None:
    walk = Walk(sig.body, lambda o: True, lambda o: spread(form.cols, reduced_shape(o)))
    for s in form.stores:
        walk.demand(sig.body.outputs[s.result], s.index)
    _stop(walk, sig)
    _reduces(sig, walk, form.cols, form.rows)


def _reduces(sig: Sig, walk: Walk, cols: tuple[Var, ...], rows: tuple[Var, ...]) -> None:
    size = math.prod(c.size for c in cols)
    for o in sig.body.ops:
        if not isinstance(o, ops.Reduce):
            continue
        if math.prod(reduced_shape(o)) != size:
            raise PlanError(f"sig {sig.name}: the reduce at {o.loc} is not over {size} columns")
        at = {i for r in o.results for i in walk.reached.get(r, ())}
        if len(at) != 1 or any(x.variables - set(rows) for i in at for x in i):
            raise PlanError(f"sig {sig.name}: the reduce at {o.loc} is needed at more than its "
                            "own row")


def _attention(sig: Sig, form: AttentionForm) -> None:
    first, second = form.first, form.second
    side = "lhs" if form.probs is second.lhs else "rhs"
    out = Walk(sig.body, lambda o: o is not second)
    over = (form.batch, form.m, form.v)
    for s in form.stores:
        if s.over != over:
            raise PlanError(f"sig {sig.name}: result {s.result} is not stored over (b, m, v)")
        out.demand(sig.body.outputs[s.result], s.index)
    _stop(out, sig)
    m, v = Index.of(form.m), Index.of(form.v)
    free = (m, v) if side == "lhs" else (v, m)
    expected = result_index(second, Index.of(form.batch), *free)
    if set(out.reached.get(second.result, ())) != {expected}:
        raise PlanError(f"sig {sig.name}: its stores need other elements of the second "
                        "contraction than their own")
    between = _behind(sig, first, second)
    proof = prove(sig.body, first, second, side, between)
    if proof is None or proof.first_swapped != form.first_swapped:
        raise PlanError(f"sig {sig.name}: a row of probabilities needs more than its own scores")
    query, keys = ("rhs", "lhs") if proof.first_swapped else ("lhs", "rhs")
    if (form.lhs_index != operand_index(first, query, proof.batch, proof.m, Index.of(form.k))
            or form.rhs_index != operand_index(first, keys, proof.batch, Index.of(form.n),
                                               Index.of(form.k))):
        raise PlanError(f"sig {sig.name}: its query or key index is not that of its contraction")


def _behind(sig: Sig, first: Op, second: Op) -> set[Op]:
    after = set(first.results)
    out: set[Op] = set()
    for o in sig.body.ops:
        if o is not first and o is not second and any(v in after for v in o.uses):
            after.update(o.results)
            out.add(o)
    return out


"""Reduces of a few elements, each by one thread where it is demanded.

    float v3 = 0.0f;
    for (int r0 = 0; r0 < 3; ++r0) {
      v3 = op_add(v3, load_ro<float>(p0 + 3 * e + r0));
    }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxmono.codegen.names import is_narrow
from jaxmono.codegen.op_code import Emitted
from jaxmono.fusion.demand import reduction_index
from jaxmono.fusion.indexing import IndexMap, Var
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter


def serial_reduce(em: BodyEmitter, op: ops.Reduce, value: Value, index: IndexMap) -> Emitted:
    """A loop for each reduced dimension; all results of the op are at hand behind it."""
    wide = em.lane.varies(index) and not em._scopes[-1].lane
    dims = op.args[0].type.dims
    over = [Var(em.w.fresh("r"), dims[d]) for d in op.dimensions]
    names: list[str] = []
    for init, result in zip(op.inits, op.results, strict=True):
        x = em._emit(init, ())
        names.append(em.w.fresh())
        em.w.line(f"{em._type(result.type.dtype, wide)} {names[-1]} = {em.widen(x, wide)};",
                  em._remark(op))
    _loops(em, op, reduction_index(op, index, tuple(over)), over, names, wide=wide)
    out = [Emitted(n, wide, not is_narrow(r.type.dtype))
           for n, r in zip(names, op.results, strict=True)]
    for r, x in zip(op.results, out, strict=True):
        em._scopes[-1].values[r, index] = x
    return out[op.results.index(value)]


def _loops(em: BodyEmitter, op: ops.Reduce, at: IndexMap, over: list[Var], names: list[str], *,
           wide: bool) -> None:
    if over:
        var, rest = over[0], over[1:]
        em.name_vars({var: var.name})
        with em.scope(f"for (int {var.name} = 0; {var.name} < {var.size}; ++{var.name})"):
            _loops(em, op, at, rest, names, wide=wide)
        return
    elements = [em._emit(v, at) for v in op.args]
    before = [Emitted(n, wide, False) for n in names]
    after = em.region(op.body, before + elements)
    # An accumulator that becomes another one has to be read before that is overwritten.
    after = [em._name(x, r.type.dtype) if x in before else x
             for x, r in zip(after, op.results, strict=True)]
    for n, x in zip(names, after, strict=True):
        em.w.line(f"{n} = {em.widen(x, wide)};")

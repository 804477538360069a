"""What a thread loads of all its vectors before it computes the first.

    for (u...) in0[u] = load(p0 + e), in1[u] = load(p1 + e)        all in flight
    for (u...) { x = pow(in0[u], in1[u]); store(r0 + e, x); }

A power or a sine of f32 has a branch for each element, for the few that take more steps, and ptxas
moves no load in front of one: written in turn, a thread has the loads of one vector in flight while
it computes, and no others. Quotients and roots have none, but steps of AdamW take 1 to 5 % longer
in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxmono.codegen.early_loads import is_vector, read_by
from jaxmono.codegen.emit import BodyEmitter, c_type
from jaxmono.codegen.names import FlaggedName, compute, vector
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import GUARDED, Lane, Root
from jaxmono.codegen.writer import Writer
from jaxmono.fusion.indexing import Index, Var, linearize
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph
from jaxmono.hlo.types import DType

_WORDS = 96
"""Registers of a thread for what it loads first, beside those of what it computes."""

_IN_FRONT_OF = frozenset({
    "acosh", "asinh", "atan2", "atanh", "cosine", "digamma", "divide", "erf_inv", "lgamma",
    "log_plus_one", "logistic", "power", "remainder", "sine", "sqrt", "tan"})
"""Functions of f32 with branches in the machine code for sm_90a, and quotients and roots."""


def loads_first(body: Graph, roots: Sequence[Root], lane: Var, lanes: int) -> list[Root]:
    """(input, index) of the vectors that each vector of ``roots`` needs; none where no op is one of
    these functions, or where others of its loads would come behind these: those whose index is read
    from memory, or of parts of which one is chosen (DIEN's training step took 1.03 of its time)."""
    if not any(isinstance(o, ops.Elementwise) and o.kind in _IN_FRONT_OF
               and o.result.type.dtype is DType.F32 for o in body.ops) \
            or any(isinstance(o, GUARDED) for o in body.ops):
        return []
    shared, split = shared_by_all(body, roots, lane), Lane(lane, lanes)
    each = [root for root in read_by(body, roots) if root not in shared]
    return each if all(is_vector(v, at, split) for v, at in each) else []


def shared_by_all(body: Graph, roots: Sequence[Root], lane: Var) -> list[Root]:
    """(input, index) of the elements that all vectors need alike."""
    return [(v, at) for v, at in read_by(body, roots)
            if all(i.is_static and not i.depends_on(lane) for i in at)]


def most_first(loads: Iterable[Root], lanes: int) -> int:
    """Of how many vectors a thread can load that first."""
    words = sum(v.type.dtype.itemsize * lanes for v, _ in loads) // 4
    return max(1, _WORDS // max(words, 1))


def emit_loads(w: Writer, em: BodyEmitter, loads: Sequence[Root], unroll: int, at: str,
               ) -> dict[Root, str]:
    """Writes the first loop, in which ``at``, C text, is a vector's place; the arrays' names. What
    has to be waited for comes where it is needed."""
    names = {(v, index): w.fresh("in") for v, index in loads
             if not isinstance(em.params[v], FlaggedName)}
    for (v, _), name in names.items():
        w.line(f"{vector(c_type(v.type.dtype), em.lanes)} {name}[{unroll}];")
    w.directive("#pragma unroll")
    with w.block(f"for (int u = 0; u < {unroll}; ++u)"):
        w.line(at)
        for (v, index), name in names.items():
            load = "load_ro" if v in em.read_only else "load"
            offset: Index = linearize(index, v.type.dims)
            w.line(f"{name}[u] = {load}<{c_type(v.type.dtype)}, {em.lanes}>({em.params[v]} + "
                   f"{em.code(offset)});")
    return names


def bind_loads(em: BodyEmitter, names: Mapping[Root, str]) -> None:
    """Within the loop over u: element u of each array is that vector."""
    for (v, index), name in names.items():
        t, x = compute(v.type.dtype), em.w.fresh()
        em.w.line(f"const {vector(t, em.lanes)} {x} = convert<{t}>({name}[u]);")
        em.bind_again(v, index, Emitted(x, vector=True))

"""How an operand of a contraction reaches shared memory: copied in 16-byte pieces, or computed.

    copy     the operand is a view (transpose, reshape, slice, gather of rows...) of one buffer, and
             16 bytes along k (or along m / n) are contiguous and aligned there: cp.async
    compute  anything else: the elements of a piece are evaluated and stored to shared memory
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxmono.fusion.demand import demands
from jaxmono.fusion.indexing import Index, IndexMap, Var, linearize
from jaxmono.hlo.ir import Graph, Value


@dataclass(frozen=True)
class Operand:
    """One operand of a contraction as its loader sees it.

    Attributes:
      value, index: the root in the body and where it is demanded, over (batch, outer, k).
      outer: m or n. k: the contraction Var.
      major: the Var along which the 16 bytes of a piece run (k or outer).
      param: the buffer that is copied, or None if the elements are computed.
      offset: element offset in that buffer.
    """

    value: Value
    index: IndexMap
    outer: Var
    k: Var
    major: Var
    param: Value | None = None
    offset: Index | None = None

    @property
    def k_major(self) -> bool:
        return self.major == self.k


def view_of_param(body: Graph, value: Value, index: IndexMap) -> tuple[Value, IndexMap] | None:
    """The body input that ``value`` is a pure view of, and the index there; None if it is not one.

    Ops that only select elements (gather of rows, dynamic_slice) count as views.
    """
    inputs = set(body.inputs)
    while value not in inputs:
        op = body.producer.get(value)
        if op is None:
            return None
        needs = demands(op, index)
        if needs is None or len(needs) != 1 or needs[0].guard.bounds:
            return None
        if needs[0].value.type.dtype != value.type.dtype or not _selects(op.opcode):
            return None
        value, index = needs[0].value, needs[0].index
    return value, index


_SELECTING = frozenset({"reshape", "transpose", "broadcast_in_dim", "slice", "reverse",
                        "dynamic_slice", "gather", "optimization_barrier"})


def _selects(opcode: str) -> bool:
    return opcode in _SELECTING


def contiguous(offset: Index, var: Var, piece: int) -> bool:
    """True if ``piece`` elements along ``var`` (from a multiple of piece) are adjacent and aligned.

    Proven by substituting ``var = piece * hi + lo`` and looking at what is left of ``lo``.
    """
    if var.size % piece:
        return False
    high, low = Var(f"{var.name}_hi", var.size // piece), Var(f"{var.name}_lo", piece)
    split = offset.substitute({var: Index.of(high) * piece + Index.of(low)})
    rest = split - Index.of(low)
    return (split.coefficient(low) == 1 and not rest.depends_on(low)
            and rest.multiple_of() % piece == 0)


def stride(offset: Index, var: Var) -> int | None:
    """Elements between neighbours along ``var``; None if that is not constant."""
    if not offset.depends_on(var):
        return 0
    rest = offset - Index.of(var) * offset.coefficient(var)
    return None if rest.depends_on(var) else offset.coefficient(var)


def analyse(body: Graph, value: Value, index: IndexMap, outer: Var, k: Var,
            itemsize: int) -> Operand:
    """Decides how an operand demanded at ``index`` is loaded, for pieces of 16 bytes."""
    piece = 16 // itemsize
    source = view_of_param(body, value, index)
    if source is not None:
        param, at = source
        offset = linearize(at, param.type.dims)
        for var in (k, outer):
            if contiguous(offset, var, piece):
                return Operand(value, index, outer, k, var, param, offset)
        major = outer if stride(offset, outer) == 1 else k
        return Operand(value, index, outer, k, major)
    return Operand(value, index, outer, k, _computed_major(body, value, index, outer, k))


def _computed_major(body: Graph, value: Value, index: IndexMap, outer: Var, k: Var) -> Var:
    """The axis along which the largest parameter of a computed operand is contiguous."""
    best, best_size = k, -1
    inputs, seen = set(body.inputs), set[tuple[Value, IndexMap]]()
    work = [(value, index)]
    while work:
        v, at = work.pop()
        if (v, at) in seen:
            continue
        seen.add((v, at))
        if v in inputs:
            offset = linearize(at, v.type.dims)
            for var in (k, outer):
                if stride(offset, var) == 1 and v.type.size > best_size:
                    best, best_size = var, v.type.size
            continue
        op = body.producer.get(v)
        if op is not None:
            work.extend((d.value, d.index) for d in demands(op, at) or ())
    return best

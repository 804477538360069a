"""What may enter a kernel, as data: a table from op type to the reason why not.

The planner and the generator take everything else. A reason is one clause that `explain()` shows
beside the op's source line.
"""

from __future__ import annotations

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.types import DType

MAX_ATTENTION_KEYS = 4096
"""Longest row of scores that stays inside a block (f32 rows of a tile in shared memory)."""

MAX_ATTENTION_WIDTH = 512
"""Widest head (k or v) that stays inside a block."""

MAX_RANK = 16

REFUSED_OPS: dict[type[Op], str] = {
    ops.Scatter: "scatter is not generated yet",
    ops.ReduceWindow: "windowed reductions are not generated yet",
    ops.SelectAndScatter: "select_and_scatter is not generated yet",
    ops.Sort: "sorting is not generated yet",
    ops.TopK: "top_k is not generated yet",
    ops.Convolution: "convolutions are not generated yet",
    ops.While: "loops with a data-dependent trip count are not generated yet",
    ops.Case: "branches are not generated yet",
    ops.RngBitGenerator: "random bit generation is not generated yet",
    ops.CustomCall: "a custom call runs code that jaxmono cannot see",
    ops.OptimizationBarrier: "an optimization barrier keeps its sides apart on purpose",
    ops.Unknown: "jaxmono does not know this op",
}

REFUSED_DTYPES: dict[DType, str] = {
    DType.C64: "complex numbers are not generated",
    DType.C128: "complex numbers are not generated",
    DType.S4: "4-bit integers are not generated yet",
    DType.U4: "4-bit integers are not generated yet",
    DType.F8E4M3FN: "8-bit floats are not generated yet",
    DType.F8E5M2: "8-bit floats are not generated yet",
}

REFUSED_ELEMENTWISE: dict[str, str] = {
    kind: f"{kind} has no device function"
    for kind in ("bessel_i1e", "complex", "conj", "digamma", "erf_inv", "imag", "lgamma",
                 "polygamma", "real", "zeta", "next_after")
}

REDUCER_OPS = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.Constant,
               ops.ReducePrecision, ops.BroadcastInDim, ops.Reshape)


def refusal(op: Op) -> str | None:
    """Why this op stays with XLA, or None if a kernel may contain it."""
    if (reason := REFUSED_OPS.get(type(op))) is not None:
        return reason
    if isinstance(op, ops.Elementwise) and (reason := REFUSED_ELEMENTWISE.get(op.kind)):
        return reason
    for v in (*op.uses, *op.results):
        if (reason := _refused_type(v)) is not None:
            return reason
    if isinstance(op, ops.BitcastConvert) and op.operand.type.rank != op.result.type.rank:
        return "a bitcast between element types of different width is not generated yet"
    if isinstance(op, ops.Reduce):
        return _refused_reducer(op)
    return None


def _refused_type(v: Value) -> str | None:
    if not v.type.is_static:
        return f"the shape {v.type} is not known before run time"
    if v.type.rank > MAX_RANK:
        return f"the rank of {v.type} is above {MAX_RANK}"
    return REFUSED_DTYPES.get(v.type.dtype)


def _refused_reducer(op: ops.Reduce) -> str | None:
    if op.body.captures:
        return "the reducer reads values from outside its body"
    for o in op.body.ops:
        if not isinstance(o, REDUCER_OPS):
            return f"the reducer contains {o.opcode}"
        if isinstance(o, ops.Elementwise) and o.kind in REFUSED_ELEMENTWISE:
            return f"the reducer contains {REFUSED_ELEMENTWISE[o.kind]}"
        if any(r.type.rank for r in o.results):
            return "the reducer computes more than scalars"
    return None

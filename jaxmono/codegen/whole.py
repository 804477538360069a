"""Ops that are computed as one function of other values: of f16, of bf16, and of integers.

    x ── abs ── negate ── exponential ── log_plus_one ── add        ──►   softplus(x)
     └────────────────── maximum(0) ──────────────────────┘

Op by op such a chain loses digits that it is there to give, or takes a multiple of the
instructions. Nobody else may need what lies between, but for quotients of integers. The functions
are in device/narrow.cuh, those of integers in device/order.cuh and arithmetic.cuh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxmono.codegen import floor_division, gelu, rounded_integers, sigmoid
from jaxmono.codegen.finder import Finder, Whole
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op
from jaxmono.hlo.types import DType

_FORMS: Mapping[str, tuple[Callable[[Finder, ops.Elementwise], Whole | None], ...]] = {
    "multiply": (gelu.by_erfc, sigmoid.by_tanh),
    "add": (sigmoid.softplus,),
    "divide": (sigmoid.by_exp,),
    "logistic": (sigmoid.logistic,),
}
"""By the kind of their last op."""


def whole(op: Op, find: Finder) -> Whole | None:
    """The function that ``op`` and the ops behind it are, else None."""
    if isinstance(op, ops.Convert):
        return rounded_integers.by_round(find, op)
    if isinstance(op, ops.Elementwise) and op.kind == "select" and op.result.type.dtype.is_integer:
        return floor_division.quotient(find, op) or floor_division.remainder(find, op)
    if not isinstance(op, ops.Elementwise) or op.kind not in _FORMS \
            or op.result.type.dtype not in (DType.F16, DType.BF16):
        return None
    return next((found for form in _FORMS[op.kind] if (found := form(find, op))), None)

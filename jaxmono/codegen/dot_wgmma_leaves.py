"""How the sums of a ping-pong tile leave its warpgroup (dot_schedule_pingpong.py): through shared
memory, in which a warp turns its fragments into rows, or as they are, four lanes of a warp
exchanging what makes 16 bytes (`StagedRows::quads`).

    staged      128 x 192: 36 KB, and a ring of four slots
    unstaged                      a ring of five

Unstaged where an epilogue reads nothing but a bias. With one operand more, loaded in pieces by the
lanes that need them, 4096x3072x768 took 45 us of an H200; 37 where both warpgroups share a tile.
"""

from __future__ import annotations

from jaxmono.codegen.bias import Bias, bias_of
from jaxmono.codegen.dot import DotCode, legal_lanes
from jaxmono.codegen.early_loads import reads
from jaxmono.hlo.types import DType

_LANES = 8
"""Elements of 16 bytes."""


def bias_behind(code: DotCode) -> Bias | None:
    """What may be added to the fragments when the products are done, those of the other warpgroup
    beside it: in any stage of a kernel, where `bias.py` has that only in the first one."""
    form = code.form
    if form.pairs is not None or form.taps > 1 or code.element not in (DType.BF16, DType.F16):
        return None
    (index,) = code.demanded
    return bias_of(code.sig.body, form.dot.result, index, form.m, form.n)


def unstaged(code: DotCode) -> bool:
    """Whether all is computed of sums and a bias, and stored in pieces of 16 bytes."""
    form, body = code.form, code.sig.body
    if code.reduced or form.pairs is not None or form.taps > 1 or form.n.size % _LANES \
            or code.s.bn % (4 * _LANES) \
            or legal_lanes(body, form.elements, form.n, _LANES) < _LANES:
        return False
    bias = bias_behind(code)
    read = {code.lhs.param, code.rhs.param, bias.added[0] if bias else None}
    return read.issuperset(body.inputs) \
        and not reads(body, form.elements, bias.total if bias else form.dot.result)

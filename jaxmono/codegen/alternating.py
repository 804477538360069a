"""Neighbours that come from several operands in turn: a vector is made lane by lane.

    y[i, j] of stack([a, b], -1)       a0 b0 a1 b1 ...      rotary positions of pairs

    const auto near0 = load_ro<float, 4>(p0 + 4 * h);       what all lanes read, once
    const float v0 = near0.x[0] * ...;
    ...
    const Vec<float, 4> v4 = {{v0, v1, v2, v3}};

Element by element each thread would choose by a branch, which both halves of a warp take, and move
4 bytes at a time (GPT-J's rotation of 4 x 1024 x 16 x 64: 18 us of an H200, XLA 13).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import Lane, alternates, alternatives
from jaxmono.fusion.indexing import Index, IndexMap
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter


def emit_alternating(em: BodyEmitter, op: Op, value: Value, index: IndexMap) -> Emitted | None:
    """A Vec of an op's result whose lanes are of operands in turn; None where it is none, or where
    vectors are at hand, of which no lane is known by itself."""
    if em._bound or not isinstance(op, ops.Concatenate) \
            or not alternates((c.guard for c in alternatives(op, index)), em.lane):
        return None
    with em.lane_by_lane():
        each = [em.emit(value, at) for at in _lanes(em.lane, index)]
    name = em.w.fresh()
    em.w.line(f"const {em._type(value.type.dtype, True)} {name} = "
              f"{{{{{', '.join(x.name for x in each)}}}}};")
    return Emitted(name, True, all(x.exact for x in each))


def _lanes(lane: Lane, index: IndexMap) -> Iterable[IndexMap]:
    for i in range(lane.width):
        yield tuple(x.substitute({lane.low: Index.of(i)}) for x in index)

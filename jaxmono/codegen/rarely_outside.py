"""Pads of computed values of which few elements are outside: computed everywhere, then chosen.

    if (c < 50257) { v = f(load(x + c)); } else { v = 0; }
      ──►   inside = c < 50257;  v = f(load(x + (inside ? c : 0)));  v = inside ? v : 0;

Behind a branch nothing of one element is computed beside the next one's, however far the loop is
unrolled: 16 lines of 50257 keys of random bits took 16.3 us of an H100, without it 9.0. (A pad of a
buffer, or of joined ones, has no branch either: `BodyEmitter._padded`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxmono.codegen.index_code import guard_code
from jaxmono.codegen.names import FlaggedName
from jaxmono.codegen.op_code import Emitted
from jaxmono.codegen.traverse import uniform_guard, walk
from jaxmono.fusion.demand import Demand
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.rewrite import is_splat

if TYPE_CHECKING:
    from jaxmono.codegen.emit import BodyEmitter

MOST_OUTSIDE = 0.1
"""Of the elements: what is computed for nothing."""

_PLAIN = (ops.Elementwise, ops.Compare, ops.Convert, ops.BitcastConvert, ops.ReducePrecision,
          ops.Iota, ops.BroadcastInDim, ops.Reshape, ops.Transpose, ops.Slice, ops.Reverse)


def computed_everywhere(em: BodyEmitter, pad: ops.Pad, choices: Sequence[Demand],
                        ) -> Emitted | None:
    """The element of ``pad`` that ``choices`` are the alternatives of; None where it is to have a
    branch: many elements outside, or more than plain ops on elements of buffers."""
    if len(choices) != 2 or em.reads_if:
        return None
    inside, fill = choices
    if not _few_outside(pad, inside.value) or not _is_plain(em, inside) \
            or not isinstance(em.body.producer.get(fill.value), ops.Constant):
        return None
    guard = uniform_guard(inside.guard, em.lane) or inside.guard
    test = em.once("const bool", "inside", guard_code(guard, em.code, branches=False))
    with em.reading_if(test):
        x = em.emit(inside.value, inside.index)
    return Emitted(f"{test} ? {x} : {em.widen(em.emit(fill.value, fill.index), x.vector)}",
                   x.vector, x.exact)


def _few_outside(pad: ops.Pad, value: Value) -> bool:
    # Where it is cropped, sizes do not tell.
    return min((*pad.low, *pad.high), default=0) >= 0 \
        and pad.result.type.size * (1 - MOST_OUTSIDE) <= value.type.size


def _is_plain(em: BodyEmitter, inside: Demand) -> bool:
    for node in walk(em.body, [(inside.value, inside.index)], leaf=em.is_source):
        if node.op is None:
            pointer = em.buffer(node.value)
            if pointer is None or isinstance(pointer, FlaggedName) or not node.value.type.size:
                return False
        elif isinstance(node.op, ops.Constant):
            if node.value.type.rank and not is_splat(node.op.value):
                return False
        elif not isinstance(node.op, _PLAIN):
            return False
    return True

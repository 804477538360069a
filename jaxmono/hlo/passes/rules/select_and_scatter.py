"""The gradient of a max pool as the place of each window's largest element, and who finds it.

    select_and_scatter(x, source; window 3, stride 2)
      ──►   best[w] = which of the window's 3 elements is its largest          one byte
            result[2q + r] =   (best[q]     == r     ? source[q]     : 0)
                             + (best[q - 1] == r + 2 ? source[q - 1] : 0)

An element of the operand asks the windows that it is in, of which there are ceil(window / stride)
along each dimension: one for a pool without overlap. XLA adds up in memory from the windows' side,
in any order, narrow floats in their own type; here each sum has an order of its own, and is f32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.passes.peephole import Rule, Scope
from jaxmono.hlo.passes.rules.reduce_window import MAX_CHAIN
from jaxmono.hlo.rewrite import binary_kind
from jaxmono.hlo.types import DType, TensorType

_ORDERS = ("GE", "GT", "LE", "LT")


@dataclass(frozen=True)
class _Side:
    """A dimension: its elements, the window's, the step, what is padded in front, the windows."""

    size: int
    window: int
    stride: int
    low: int
    windows: int

    @property
    def overlap(self) -> int:
        """Windows that an element is in."""
        return -(-self.window // self.stride)

    @property
    def steps(self) -> int:
        """From window to window, over all elements."""
        return -(-(self.size + self.low) // self.stride)


def refusal(op: ops.SelectAndScatter) -> str:
    """Why ``op`` stays with XLA; empty if it is expanded."""
    if _direction(op.select) is None or binary_kind(op.scatter) != "add":
        return "select_and_scatter that selects by no comparison or does not add is not generated"
    if any(lo < 0 or hi < 0 or max(lo, hi) >= n
           for (lo, hi), n in zip(op.padding, op.window_dimensions, strict=True)):
        return "select_and_scatter with windows that lie in its padding is not generated"
    taps = math.prod(op.window_dimensions)
    if taps > MAX_CHAIN // 2:
        return f"select_and_scatter of windows of {taps} elements is not generated"
    return ""


def select_and_scatter(op: ops.SelectAndScatter, scope: Scope) -> Sequence[Value] | None:
    """Any that has no `refusal`."""
    if refusal(op) or not op.operand.type.size or not op.source.type.size:
        return None
    sides = [_Side(*of) for of in zip(
        op.operand.type.dims, op.window_dimensions, op.window_strides,
        (lo for lo, _ in op.padding), op.source.type.dims, strict=True)]
    radix = [s.overlap * s.stride for s in sides]
    weights = [math.prod(radix[d + 1:]) for d in range(len(radix))]
    nothing = math.prod(radix)  # no element's number
    dtype = DType.U8 if nothing < 1 << 8 else DType.S32
    best = _best(op, sides, weights, dtype, scope)
    made = _found(op, sides, weights, best, nothing, scope)
    start = scope.element(op.init)
    if start is None or start != 0:
        init = scope.broadcast_in_dim(scope.convert(op.init, made.type.dtype), made.type.dims, ())
        made = scope.elementwise("add", init, made)
    return [scope.convert(made, op.result.type.dtype)]


def _direction(body: Graph) -> str | None:
    """Of a comparison of the element held so far with the next one."""
    if len(body.ops) != 1 or not isinstance(compare := body.ops[0], ops.Compare):
        return None
    in_order = (compare.lhs, compare.rhs) == tuple(body.inputs)
    return compare.direction if in_order and compare.direction in _ORDERS else None


def _best(op: ops.SelectAndScatter, sides: Sequence[_Side], weights: Sequence[int], dtype: DType,
          scope: Scope) -> Value:
    """The number of each window's element: the one held gives way where it does not compare."""
    direction = _direction(op.select)
    assert direction is not None
    dims = op.source.type.dims
    x, inside = op.operand, None
    if any(p != (0, 0) for p in op.padding):
        low, high = zip(*op.padding, strict=True)
        x = scope.pad(x, scope.constant(0, x.type.dtype), low, high)
        whole = scope.splat(True, TensorType(op.operand.type.dims, DType.PRED))
        inside = scope.pad(whole, scope.constant(False, DType.PRED), low, high)
    held: Value | None = None
    number: Value | None = None
    there: Value | None = None
    for taps in itertools.product(*(range(s.window) for s in sides)):
        limit = [t + (s.windows - 1) * s.stride + 1 for t, s in zip(taps, sides, strict=True)]
        steps = [s.stride for s in sides]
        value = scope.slice(x, taps, limit, steps)
        own = scope.splat(sum(t * w for t, w in zip(taps, weights, strict=True)),
                          TensorType(dims, dtype))
        mine = None if inside is None else scope.slice(inside, taps, limit, steps)
        if held is None or number is None:
            held, number, there = value, own, mine
            continue
        keeps = scope.compare(direction, held, value)
        if mine is not None and there is not None:
            keeps = scope.elementwise("or", scope.elementwise("not", mine),
                                      scope.elementwise("and", there, keeps))
            there = scope.elementwise("or", there, mine)
        held = scope.elementwise("select", keeps, held, value)
        number = scope.elementwise("select", keeps, number, own)
    assert number is not None
    return scope.emit1(ops.Stored, number.type, operand=number)


def _found(op: ops.SelectAndScatter, sides: Sequence[_Side], weights: Sequence[int], best: Value,
           nothing: int, scope: Scope) -> Value:
    """What each element of the operand is given by the windows that have chosen it."""
    wide = DType.F32 if op.operand.type.dtype in (DType.F16, DType.BF16) else op.operand.type.dtype
    split = [n for s in sides for n in (s.steps, s.stride)]
    at = [2 * d for d in range(len(sides))]
    own = scope.splat(0, TensorType(tuple(split), best.type.dtype))
    for d, (s, weight) in enumerate(zip(sides, weights, strict=True)):
        if s.stride > 1:
            place = scope.elementwise("multiply", scope.iota(split, best.type.dtype, 2 * d + 1),
                                      scope.splat(weight, own.type))
            own = scope.elementwise("add", own, place)
    zero = scope.splat(0, TensorType(tuple(split), wide))

    def over(v: Value, filler: int, back: Sequence[int]) -> Value:
        """Each step's window, or the ``back``-th before it, over the step's elements."""
        high = [s.steps - s.windows for s in sides]
        v = scope.pad(v, scope.constant(filler, v.type.dtype), back,
                      [h - b for h, b in zip(high, back, strict=True)])
        return scope.broadcast_in_dim(v, split, at)

    total: Value | None = None
    for back in itertools.product(*(range(s.overlap) for s in sides)):
        further = sum(b * s.stride * w for b, s, w in zip(back, sides, weights, strict=True))
        number = scope.elementwise("add", own, scope.splat(further, own.type)) if further else own
        chosen = scope.compare("EQ", over(best, nothing, back), number)
        given = scope.elementwise("select", chosen,
                                  scope.convert(over(op.source, 0, back), wide), zero)
        total = given if total is None else scope.elementwise("add", total, given)
    assert total is not None
    whole = scope.reshape(total, [s.steps * s.stride for s in sides])
    return scope.slice(whole, [s.low for s in sides], [s.low + s.size for s in sides])


RULES: Mapping[type[Op], Sequence[Rule]] = {ops.SelectAndScatter: (select_and_scatter,)}

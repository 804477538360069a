"""gelu as one function of its argument: both forms of `jax.nn.gelu`, in f16 and bf16.

As ops one by one, 1 + tanh loses the digits that it is there to give, in 19 instructions (sm_90a)
instead of 9; the erfc form takes 15 instead of 13 (f16: 14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxmono.codegen.names import literal
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import DType

_SCALE = 2.0 ** 8
"""Scales from 1 / this to this have powers that fit in f32: the coefficients of bf16 hold them."""


@dataclass(frozen=True)
class Whole:
    """An op and the ops behind it, as a function of one value."""

    operand: Value
    function: str
    """Of device/narrow.cuh, without its prefix."""
    constants: tuple[str, ...] = ()
    """The function's further arguments, in C."""


def whole(op: Op, producer: Mapping[Value, Op], inner: Callable[[Value], bool]) -> Whole | None:
    """``x / 2 * erfc(-c x)`` and ``(1 + tanh(u)) / 2``, else None.

    Args:
      inner: whether nobody but its one user needs a value.
    """
    if not isinstance(op, ops.Elementwise) or op.kind != "multiply" \
            or op.result.type.dtype not in (DType.F16, DType.BF16):
        return None
    find = _Finder(producer, inner)
    return find.by_erfc(op) or find.by_tanh(op)


@dataclass(frozen=True)
class _Finder:
    producer: Mapping[Value, Op]
    inner: Callable[[Value], bool]

    def by_erfc(self, op: ops.Elementwise) -> Whole | None:
        for half, other in (op.args, op.args[::-1]):
            erfc, product = self._made(other, "erfc"), self._made(half, "multiply")
            x = product and self._without(product, 0.5)
            if erfc is None or x is None:
                continue
            value, scale = erfc.args[0], 1.0
            while value is not x and (inside := self._scaled(value)):
                value, scale = inside[0], scale * inside[1]
            if value is x and scale < 0:
                few = x.type.dtype is DType.BF16 and 1 / _SCALE <= -scale <= _SCALE
                bits = "bf16" if few else "narrow"
                return Whole(x, f"{bits}_gelu", (literal(-scale, DType.F32),))
        return None

    def by_tanh(self, op: ops.Elementwise) -> Whole | None:
        sum = self._without(op, 0.5)
        add = sum and self._made(sum, "add")
        value = add and self._without(add, 1.0)
        tanh = value and self._made(value, "tanh")
        return Whole(tanh.args[0], "narrow_tanh_gate") if tanh else None

    def _made(self, value: Value, kind: str) -> ops.Elementwise | None:
        """The op of that kind that makes a value for one user."""
        op = self.producer.get(value)
        if not isinstance(op, ops.Elementwise) or op.kind != kind or op.accuracy:
            return None
        return op if self.inner(value) else None

    def _scaled(self, value: Value) -> tuple[Value, float] | None:
        """``value`` as another one and its factor."""
        if negate := self._made(value, "negate"):
            return negate.args[0], -1.0
        if product := self._made(value, "multiply"):
            for x, y in (product.args, product.args[::-1]):
                if (factor := self._number(y)) is not None:
                    return x, factor
        return None

    def _without(self, op: ops.Elementwise, number: float) -> Value | None:
        """The other operand of an op one of whose operands is a number."""
        for x, y in (op.args, op.args[::-1]):
            if self._number(y) == number:
                return x
        return None

    def _number(self, value: Value) -> float | None:
        """What all elements of a constant are."""
        op = self.producer.get(value)
        if isinstance(op, ops.BroadcastInDim):
            op = self.producer.get(op.operand)
        if not isinstance(op, ops.Constant) or not is_splat(op.value):
            return None
        return float(splat_value(op.value))

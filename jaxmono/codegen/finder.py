"""What forms of several ops are recognised with (whole.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jaxmono.codegen.names import literal
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Op, Value
from jaxmono.hlo.rewrite import is_splat, splat_value
from jaxmono.hlo.types import DType


@dataclass(frozen=True)
class Whole:
    """An op and the ops behind it, as a function of other values."""

    operands: tuple[Value, ...]
    function: str
    """Of device/narrow.cuh, order.cuh or arithmetic.cuh, without its prefix."""
    constants: tuple[str, ...] = ()
    """The function's further arguments, in C."""

    @classmethod
    def narrow(cls, operand: Value, function: str, *constants: float) -> Whole:
        """The one for values of the operand's type, f16 or bf16."""
        return cls((operand,), f"{operand.type.dtype.value}_{function}",
                   tuple(literal(c, DType.F32) for c in constants))


@dataclass(frozen=True)
class Finder:
    """The ops behind a value.

    ``computed``: whether a value is not read or at hand; ``inner``: whether nobody but its one user
    needs it, besides.
    """

    producer: Mapping[Value, Op]
    computed: Callable[[Value], bool]
    inner: Callable[[Value], bool]

    def made(self, value: Value, kind: str) -> ops.Elementwise | None:
        """The op of that kind that makes a value for one user."""
        op = self.any_made(value, kind)
        return op if op and not op.accuracy and self.inner(value) else None

    def any_made(self, value: Value, kind: str) -> ops.Elementwise | None:
        """The op of that kind that makes a value, for any users."""
        op = self.producer.get(value)
        if isinstance(op, ops.Elementwise) and op.kind == kind and self.computed(value):
            return op
        return None

    def compared(self, value: Value, direction: str) -> ops.Compare | None:
        """The comparison in that direction that makes a value, for any users."""
        op = self.producer.get(value)
        if isinstance(op, ops.Compare) and op.direction == direction and self.computed(value):
            return op
        return None

    def operand(self, value: Value, *kinds: str) -> Value | None:
        """What a chain of ops with one operand each, the last one first, makes a value of."""
        for kind in kinds:
            op = self.made(value, kind)
            if op is None:
                return None
            value, = op.args
        return value

    def scaled(self, value: Value) -> tuple[Value, float] | None:
        """``value`` as another one and its factor."""
        if negate := self.made(value, "negate"):
            return negate.args[0], -1.0
        if product := self.made(value, "multiply"):
            for x, y in orders(product):
                if (factor := self.number(y)) is not None:
                    return x, factor
        return None

    def unscaled(self, value: Value, until: Value | None = None) -> tuple[Value, float]:
        """What products with numbers make a value of, and their factor: as far as ``until``."""
        scale = 1.0
        while value is not until and (inside := self.scaled(value)):
            value, scale = inside[0], scale * inside[1]
        return value, scale

    def without(self, op: ops.Elementwise, number: float) -> Value | None:
        """The other operand of an op one of whose operands is a number."""
        return next((x for x, y in orders(op) if self.number(y) == number), None)

    def number(self, value: Value) -> float | None:
        """What all elements of a constant are."""
        op = self.producer.get(value)
        if isinstance(op, ops.BroadcastInDim):
            op = self.producer.get(op.operand)
        if not isinstance(op, ops.Constant) or not is_splat(op.value):
            return None
        return float(splat_value(op.value))


def orders(op: ops.Elementwise) -> Iterator[tuple[Value, Value]]:
    """The two operands of an op, and the other way round."""
    a, b = op.args
    yield a, b
    yield b, a

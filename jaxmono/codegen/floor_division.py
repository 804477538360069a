"""Integers divided and rounded down, and what that leaves, as JAX lowers `//` and `%`:

    select(sign(a) != sign(b) and remainder(a, b) != 0, divide(a, b) - 1, divide(a, b))
                                                                    ──►   floor_divide(a, b)
    select((r < 0) != (b < 0) and r != 0, r + b, r) of r = remainder(a, b)
                                                                    ──►   floor_remainder(a, b)

As one function, of magnitudes, the first takes 31 instructions (sm_90a), as ops one by one 60. What
lies between may have other users: those share the division (arithmetic.cuh). By a number the
compiler knows better.
"""

from __future__ import annotations

from jaxmono.codegen.finder import Finder, Whole, orders
from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value


def quotient(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``op`` is the select."""
    wanted, down, cut = op.args
    divide, less = find.any_made(cut, "divide"), find.any_made(down, "subtract")
    if divide is None or less is None or less.args[0] is not cut or find.number(less.args[1]) != 1:
        return None
    a, b = divide.args
    for signs, rests in _both(find, wanted):
        left, right = (find.any_made(v, "sign") for v in (signs.lhs, signs.rhs))
        if left and right and left.args == (a,) and right.args == (b,) \
                and _is_rest(find, rests.lhs, a, b):
            return _of("floor_divide", find, a, b)
    return None


def remainder(find: Finder, op: ops.Elementwise) -> Whole | None:
    """``op`` is the select."""
    wanted, up, rest = op.args
    made, more = find.any_made(rest, "remainder"), find.any_made(up, "add")
    if made is None or more is None or (rest, made.args[1]) not in orders(more):
        return None
    a, b = made.args
    for signs, rests in _both(find, wanted):
        left, right = (find.compared(v, "LT") for v in (signs.lhs, signs.rhs))
        if left and right and left.lhs is rest and right.lhs is b and rests.lhs is rest \
                and all(find.number(c.rhs) == 0 for c in (left, right)):
            return _of("floor_remainder", find, a, b)
    return None


def _both(find: Finder, wanted: Value) -> list[tuple[ops.Compare, ops.Compare]]:
    """Of a conjunction: what differs, and what is not 0."""
    both = find.any_made(wanted, "and")
    pairs = [(find.compared(x, "NE"), find.compared(y, "NE")) for x, y in orders(both)] \
        if both else []
    return [(x, y) for x, y in pairs if x and y and find.number(y.rhs) == 0]


def _is_rest(find: Finder, value: Value, a: Value, b: Value) -> bool:
    rest = find.any_made(value, "remainder")
    return rest is not None and rest.args == (a, b)


def _of(function: str, find: Finder, a: Value, b: Value) -> Whole | None:
    if not a.type.dtype.is_signed or find.number(b) is not None:
        return None
    return Whole((a, b), function)

"""Reduces that search for the largest, as `jnp.argmax` writes them, or the smallest.

    reduce(x[b, n], iota; body(a, i, b, j): a > b or a is NaN, or a == b and i < j)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import ml_dtypes

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Graph, Op, Value
from jaxmono.hlo.types import highest, lowest

_KINDS = {"GT": "maximum", "LT": "minimum"}


def search_kind(body: Graph) -> str | None:
    """Whether a region finds the "maximum" of values and its place, or the "minimum"; None for any
    other."""
    if len(body.inputs) != 4 or body.captures:
        return None
    a, i, b, j = body.inputs
    may_be_nan = a.type.dtype.is_float
    value, place = (body.producer.get(v) for v in body.outputs)
    if not _is(value, "select") or not _is(place, "select") \
            or value.args[1:] != (a, b) or place.args[1:] != (i, j):
        return None
    better, chosen = value.args[0], body.producer.get(place.args[0])
    tied = _other(chosen, "or", better, body)
    equal = _parts(tied, "and", body)
    if not _any(equal, "EQ", a, b) or not _any(equal, "LT", i, j):
        return None
    made = body.producer.get(better)
    found = _parts(made, "or", body) if may_be_nan else [made]
    if may_be_nan and not _any(found, "NE", a, a):
        return None
    return next((kind for x, kind in _KINDS.items() if _any(found, x, a, b)), None)


def _is(op: Op | None, kind: str) -> TypeGuard[ops.Elementwise]:
    return isinstance(op, ops.Elementwise) and op.kind == kind


def _parts(op: Op | None, kind: str, body: Graph) -> list[Op | None]:
    return [body.producer.get(v) for v in op.args] if _is(op, kind) else []


def _other(op: Op | None, kind: str, one: Value, body: Graph) -> Op | None:
    """What makes the operand beside ``one``."""
    if not _is(op, kind) or one not in op.args:
        return None
    return body.producer.get(op.args[op.args[0] is one])


def _any(found: Sequence[Op | None], direction: str, lhs: Value, rhs: Value) -> bool:
    return any(isinstance(o, ops.Compare) and o.direction == direction
               and o.compare_type != "TOTALORDER" and (o.lhs, o.rhs) == (lhs, rhs) for o in found)


def begins(op: ops.Reduce, kind: str, number: Callable[[Value], Any]) -> bool:
    """Whether a search begins with what is behind all others, at place 0.

    Args:
      number: what all elements of a constant are, None of any other value.
    """
    value, place = map(number, op.inits)
    end = lowest if kind == "maximum" else highest
    return value is not None and place is not None and bool(
        value == end(op.args[0].type.dtype) and place == 0)


def counts(places: Value, producer: Mapping[Value, Op]) -> tuple[int, ...]:
    """The dimension along which values are their places, or the two that it is parted in, along
    either of which they count up:

        iota[n, 8192] along 1  ──reshape──►  [n, 256, 32], along 1 and 2
    """
    made = producer.get(places)
    if isinstance(made, ops.Iota):
        return (made.dimension,) if _reaches(made) else ()
    if isinstance(made, ops.BroadcastInDim):
        dims = [(d, made.dimensions[d]) for d in counts(made.operand, producer)]
        same = all(made.operand.type.dims[d] == places.type.dims[to] for d, to in dims)
        return tuple(to for _, to in dims) if same else ()
    if isinstance(made, ops.Reshape):
        old, new = made.operand.type.dims, places.type.dims
        for d in counts(made.operand, producer):
            if len(new) == len(old) + 1 and \
                    (*new[:d], math.prod(new[d:d + 2]), *new[d + 2:]) == old:
                return d, d + 1
    return ()


def _reaches(iota: ops.Iota) -> bool:
    """Whether its type has all places: one of 8 bits begins anew behind 127."""
    dtype = iota.result.type.dtype
    most = 2 ** (ml_dtypes.finfo(dtype.numpy).nmant + 1) if dtype.is_float else highest(dtype)
    return most is not None and iota.result.type.dims[iota.dimension] - 1 <= most

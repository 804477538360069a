"""Products of complex matrices as one product of matrices of floats.

z [m, k] and w [k, n], of parts a + bi and c + di. As they lie in memory they are matrices of
floats, [m, 2k] and [k, 2n]; each form makes one more of an operand, in front of its product:

    columns   z [m, 2k]  x   c0  d0  c1  d1 ...    w again, with 2k rows; of the result re and im
                            -d0  c0 -d1  c1 ...    are neighbours, as they lie in memory
    stacked   a    [2m, k]  x  w [k, 2n]           four parts, of which two sums are made
              b
    rows      a -b [2m, 2k] x  w [n, 2k]           where w's summed elements are neighbours
              b  a

The one that moves the fewest bytes besides. Where an operand was real, the other one's parts are
free elements beside it, and nothing is multiplied by zeros. Of a result whose real part alone is
looked at, half is made. Sums of up to `FEW` elements, and many small matrices, are products of
parts, which become loops (fusion/vector_dots.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.complex_functions import Pair, Parts
from jaxmono.hlo.types import PART

FEW = 4
SMALL, MANY = 16, 256
"""Sides of small matrices, and how many of them are many."""
_EXACT = 10_000_000
"""Elements of both operands below which XLA multiplies a product with a vector exactly."""
_HIGHEST = ("HIGHEST", "HIGHEST")


@dataclass(frozen=True)
class Side:
    """An operand.

    Attributes:
      re, im: its parts; an imaginary one of None is nothing.
      whole: gives the array whose last dimension are the two parts.
      batch, summed: dimensions.
    """

    re: Value
    im: Value | None
    whole: Callable[[], Value]
    batch: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.re.type.rank

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.rank) if i not in (*self.batch, *self.summed))

    @property
    def sums_neighbours(self) -> bool:
        return self.rank - 1 in self.summed and bool(self.free)

    def size(self, which: Sequence[int]) -> int:
        return math.prod(self.re.type.dims[i] for i in which)


@dataclass(frozen=True)
class _Operand:
    """What is multiplied in place of a `Side`, with dimensions of its own."""

    value: Value
    batch: tuple[int, ...]
    summed: tuple[int, ...]


def product(p: Parts, op: ops.DotGeneral, z: Side, w: Side, *, real: bool) -> Pair | Value:
    """The result's parts, or the array whose last dimension they are.

    Args:
      real: only the real part is looked at; the other one is then anything.
    """
    m, n, k = z.size(z.free), w.size(w.free), z.size(z.summed)
    # With a vector XLA multiplies and sums; what is made of it here need not be one.
    exact = min(m, n) == 1 and k * (m + n) < _EXACT
    t = PART[op.result.type.dtype]

    def dot(x: _Operand, y: _Operand) -> Value:
        return p.dot_general(x.value, y.value, batch=(x.batch, y.batch),
                             contract=(x.summed, y.summed), dtype=t,
                             precision=_HIGHEST if exact else op.precision)

    at = len(z.batch)  # of the result's first free dimension of z
    if k <= FEW or (max(m, n, k) <= SMALL and z.size(z.batch) >= MANY):
        return _of_parts(p, lambda x, y: p.dot_general(
            x, y, batch=(z.batch, w.batch), contract=(z.summed, w.summed), dtype=t,
            precision=op.precision), z, w)
    if z.im is None and w.im is None:
        return _alone(p, dot(_plain(z), _plain(w)))
    if w.im is None:
        return _alone(p, dot(_plain(z), _plain(w))) if real else \
            _both(p, dot(_stacked(p, z), _plain(w)), at)
    if z.im is None and real:
        return _alone(p, dot(_plain(z), _plain(w)))
    if z.im is None:
        return _both(p, dot(_plain(z), _stacked(p, w)), at + len(z.free)) if w.sums_neighbours \
            else dot(_plain(z), _whole(w))
    if real:
        if w.sums_neighbours and m < n:
            return _alone(p, dot(_real(p, z), _whole(w, summed=True)))
        return _alone(p, dot(_whole(z, summed=True), _real(p, w)))
    if w.sums_neighbours and m < n:
        return _both(p, dot(_spread(p, z, last=False), _whole(w, summed=True)), at)
    if not w.sums_neighbours and 16 * m * k + 24 * m * n < 24 * k * n:
        return _four(p, dot(_stacked(p, z), _whole(w)), at)
    y = dot(_whole(z, summed=True), _spread(p, w, last=not w.sums_neighbours))
    return _both(p, y, at + len(z.free)) if w.sums_neighbours else y


def _of_parts(p: Parts, dot: Callable[[Value, Value], Value], z: Side, w: Side) -> Pair:
    """Of as many products as there are parts."""
    re = dot(z.re, w.re)
    if z.im is not None and w.im is not None:
        re = p.sub(re, dot(z.im, w.im))
    im = [dot(x, y) for x, y in ((z.re, w.im), (z.im, w.re)) if x is not None and y is not None]
    return re, p.add(*im) if len(im) == 2 else im[0] if im else p.splat(0.0, re.type)


# ---- operands -----------------------------------------------------------------------------------


def _plain(x: Side) -> _Operand:
    return _Operand(x.re, x.batch, x.summed)


def _whole(x: Side, *, summed: bool = False) -> _Operand:
    """As it lies in memory: the parts are neighbours, free or summed."""
    return _Operand(x.whole(), x.batch, (*x.summed, x.rank) if summed else x.summed)


def _stacked(p: Parts, x: Side) -> _Operand:
    """Its real part, then its imaginary one: a free dimension in front of the others."""
    assert x.im is not None
    at = min(x.free, default=x.rank)
    (re, im), axis = _with_axes(p, (x.re, x.im), at)
    moved = _moved(x, at)
    return _Operand(p.concatenate((re, im), axis[0]), moved(x.batch), moved(x.summed))


def _real(p: Parts, x: Side) -> _Operand:
    """What gives the real part beside an operand whose parts are summed neighbours."""
    assert x.im is not None
    at = max(x.summed) + 1
    (re, im), axis = _with_axes(p, (x.re, x.im), at)
    moved = _moved(x, at)
    return _Operand(p.concatenate((re, p.op("negate", im)), axis[0]), moved(x.batch),
                    (*moved(x.summed), axis[0]))


def _spread(p: Parts, x: Side, *, last: bool) -> _Operand:
    """The matrix of two by two that each element is beside such an operand. last: the dimension of
    the result's parts is the last one, not in front of the free ones."""
    assert x.im is not None
    summed, parts = max(x.summed) + 1, x.rank if last else min(x.free, default=x.rank)
    (re, im), axes = _with_axes(p, (x.re, x.im), summed, parts)
    s, t = axes
    upper = p.concatenate((re, im), t)
    lower = p.concatenate((p.op("negate", im), re), t)
    moved = _moved(x, summed, parts)
    return _Operand(p.concatenate((upper, lower), s), moved(x.batch), (*moved(x.summed), s))


def _with_axes(p: Parts, values: Sequence[Value], *at: int,
               ) -> tuple[list[Value], tuple[int, ...]]:
    """Values with dimensions of one element in front of those named, and where these are; of two in
    front of the same the first one comes first."""
    order = sorted(range(len(at)), key=lambda i: at[i])
    where = {i: at[i] + place for place, i in enumerate(order)}
    out: list[Value] = []
    for v in values:
        dims = list(v.type.dims)
        for i in order:
            dims.insert(where[i], 1)
        out.append(p.reshape(v, dims))
    return out, tuple(where[i] for i in range(len(at)))


def _moved(x: Side, *at: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Where dimensions are once there are others in front of those named."""
    return lambda which: tuple(i + sum(a <= i for a in at) for i in which)


# ---- results ------------------------------------------------------------------------------------


def _alone(p: Parts, re: Value) -> Pair:
    return re, p.splat(0.0, re.type)


def _both(p: Parts, y: Value, axis: int) -> Pair:
    """Parts that lie one behind the other along a dimension."""
    return _part(p, y, axis, 0), _part(p, y, axis, 1)


def _four(p: Parts, y: Value, axis: int) -> Pair:
    """a c, a d, b c and b d: by rows of the one, by neighbours of the other."""
    last = y.type.rank - 2
    (ac, ad), (bc, bd) = [[_part(p, half, last, j) for j in (0, 1)] for half in _both(p, y, axis)]
    return p.sub(ac, bd), p.add(ad, bc)


def _part(p: Parts, y: Value, axis: int, i: int) -> Value:
    dims = y.type.dims
    start = [i if d == axis else 0 for d in range(len(dims))]
    limit = [i + 1 if d == axis else n for d, n in enumerate(dims)]
    return p.reshape(p.slice(y, start, limit), (*dims[:axis], *dims[axis + 1:]))

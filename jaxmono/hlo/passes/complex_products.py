"""Products of complex matrices as one product of matrices of floats.

z [m, k] and w [k, n], of parts a + bi and c + di. As they lie in memory they are matrices of
floats, [m, 2k] and [k, 2n]; each form makes one more of an operand, in front of its product:

    columns   z [m, 2k]  x   c0  d0  c1  d1 ...    w again, with 2k rows; of the result re and im
                            -d0  c0 -d1  c1 ...    are neighbours, as they lie in memory
    stacked   a    [2m, k]  x  w [k, 2n]           four parts, of which two sums are made
              b
    rows      a -b [2m, 2k] x  w [n, 2k]           where w's summed elements are neighbours
              b  a

The one that moves the fewest bytes besides. What does not lie in memory (a scan's states) has its
parts in two arrays, which are read as the halves of a row, [a | b]. Where an operand was real, the
other one's parts are free elements beside it, and nothing is multiplied by zeros. Of a result whose
real part alone is looked at, half is made. Sums of up to `FEW` elements, many small matrices, and
what XLA multiplies and sums (a vector is computed) are products of parts, which become loops and
rows (fusion/vector_dots.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxmono.hlo import ops
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.complex_functions import Pair, Parts
from jaxmono.hlo.precision import EXACT_VECTOR_ELEMENTS
from jaxmono.hlo.types import PART

FEW = 4
SMALL, MANY = 16, 256
"""Sides of small matrices, and how many of them are many."""
_HIGHEST = ("HIGHEST", "HIGHEST")


@dataclass(frozen=True)
class Side:
    """An operand.

    Attributes:
      re, im: its parts; an imaginary one of None is nothing.
      whole: gives the array whose last dimension are the two parts.
      batch, summed: dimensions.
      lies: whether the whole is in memory.
    """

    re: Value
    im: Value | None
    whole: Callable[[], Value]
    batch: tuple[int, ...]
    summed: tuple[int, ...]
    lies: bool

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
class Along:
    """A complex array: ``axis`` of ``value`` are its two parts."""

    value: Value
    axis: int


@dataclass(frozen=True)
class _Operand:
    """What is multiplied in place of a `Side`, with dimensions of its own."""

    value: Value
    batch: tuple[int, ...]
    summed: tuple[int, ...]


def product(p: Parts, op: ops.DotGeneral, z: Side, w: Side, *, real: bool) -> Pair | Along:
    """The result's parts, or the array that has both.

    Args:
      real: only the real part is looked at; the other one is then anything.
    """
    m, n, k = z.size(z.free), w.size(w.free), z.size(z.summed)
    # With a vector XLA multiplies and sums; what is made of it here need not be one.
    exact = min(m, n) == 1 and k * (m + n) < EXACT_VECTOR_ELEMENTS
    t = PART[op.result.type.dtype]

    def dot(x: _Operand, y: _Operand) -> Value:
        return p.dot_general(x.value, y.value, batch=(x.batch, y.batch),
                             contract=(x.summed, y.summed), dtype=t,
                             precision=_HIGHEST if exact else op.precision)

    at = len(z.batch)  # of the result's first free dimension of z
    if k <= FEW or (max(m, n, k) <= SMALL and z.size(z.batch) >= MANY) \
            or (exact and not (m == 1 and w.lies)):
        return _of_parts(p, lambda x, y: p.dot_general(
            x, y, batch=(z.batch, w.batch), contract=(z.summed, w.summed), dtype=t,
            precision=op.precision), z, w)
    if w.im is None:
        return _alone(p, dot(_plain(z), _plain(w))) if real or z.im is None else \
            Along(dot(_stacked(p, z), _plain(w)), at)
    if z.im is None and real:
        return _alone(p, dot(_plain(z), _plain(w)))
    if z.im is None:
        return Along(dot(_plain(z), _stacked(p, w)), at + len(z.free)) if w.sums_neighbours \
            else _last(dot(_plain(z), _whole(p, w)))
    i = max(range(len(z.summed)), key=lambda i: z.summed[i])  # whose elements are pairs
    if real:
        if w.sums_neighbours and m < n:
            return _alone(p, dot(_real(p, z, w, i), _row(p, w, i)))
        return _alone(p, dot(_row(p, z, i), _real(p, w, z, i)))
    if w.sums_neighbours and m < n:
        return Along(dot(_spread(p, z, w, i, last=False), _row(p, w, i)), at)
    if not w.sums_neighbours and 16 * m * k + 24 * m * n < 24 * k * n:
        return _four(p, dot(_stacked(p, z), _whole(p, w)), at)
    y = dot(_row(p, z, i), _spread(p, w, z, i, last=not w.sums_neighbours))
    return Along(y, at + len(z.free)) if w.sums_neighbours else _last(y)


def _of_parts(p: Parts, dot: Callable[[Value, Value], Value], z: Side, w: Side) -> Pair:
    """Of as many products as there are parts."""
    re = dot(z.re, w.re)
    if z.im is not None and w.im is not None:
        re = p.sub(re, dot(z.im, w.im))
    im = [dot(x, y) for x, y in ((z.re, w.im), (z.im, w.re)) if x is not None and y is not None]
    return re, p.add(*im) if len(im) == 2 else im[0] if im else p.zero(re.type)


# ---- operands -----------------------------------------------------------------------------------


def _plain(x: Side) -> _Operand:
    return _Operand(x.re, x.batch, x.summed)


def _whole(p: Parts, x: Side) -> _Operand:
    """As it lies in memory: the parts are neighbours, and free."""
    return _Operand(x.whole() if x.lies else _stored(p, x.whole()), x.batch, x.summed)


def _row(p: Parts, x: Side, i: int) -> _Operand:
    """Its parts are summed: neighbours where it lies in memory, else the halves of a row, of the
    summed dimension of that number."""
    assert x.im is not None
    if x.lies:
        return _Operand(x.whole(), x.batch, (*x.summed, x.rank))
    return _Operand(p.concatenate((x.re, x.im), x.summed[i]), x.batch, x.summed)


def _beside(p: Parts, x: Side, other: Side, i: int, first: Value, second: Value) -> _Operand:
    """What is multiplied by the real parts of such a row of ``other``, then what by its imaginary
    ones. x: whose dimensions these have."""
    if not other.lies:
        return _Operand(_stored(p, p.concatenate((first, second), x.summed[i])), x.batch, x.summed)
    at = x.summed[i] + 1
    first, second = _with_axis(p, (first, second), at)
    moved = _moved(at)
    return _Operand(_stored(p, p.concatenate((first, second), at)), moved(x.batch),
                    (*moved(x.summed), at))


def _stacked(p: Parts, x: Side) -> _Operand:
    """Its real part, then its imaginary one: a free dimension in front of the others."""
    assert x.im is not None
    at = min(x.free, default=x.rank)
    re, im = _with_axis(p, (x.re, x.im), at)
    moved = _moved(at)
    return _Operand(_stored(p, p.concatenate((re, im), at)), moved(x.batch), moved(x.summed))


def _real(p: Parts, x: Side, other: Side, i: int) -> _Operand:
    """What gives the real part beside a row of ``other``."""
    assert x.im is not None
    return _beside(p, x, other, i, x.re, p.negate(x.im))


def _spread(p: Parts, x: Side, other: Side, i: int, *, last: bool) -> _Operand:
    """The matrix of two by two that each element is beside a row of ``other``. last: the dimension
    of the result's parts is the last one, not in front of the free ones."""
    assert x.im is not None
    at = x.rank if last else min(x.free, default=x.rank)
    re, im = _with_axis(p, (x.re, x.im), at)
    moved = _moved(at)
    wide = replace(x, re=re, batch=moved(x.batch), summed=moved(x.summed))
    return _beside(p, wide, other, i, p.concatenate((re, im), at),
                   p.concatenate((p.negate(im), re), at))


def _stored(p: Parts, v: Value) -> Value:
    """In memory: products whose operands are computed on the way are slower by far."""
    return p.emit1(ops.Stored, v.type, operand=v)


def _with_axis(p: Parts, values: Sequence[Value], at: int) -> list[Value]:
    """Values with a dimension of one element in front of the one named."""
    return [p.reshape(v, (*v.type.dims[:at], 1, *v.type.dims[at:])) for v in values]


def _moved(at: int) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Where dimensions are once there is another one in front of that one."""
    return lambda which: tuple(i + (at <= i) for i in which)


# ---- results ------------------------------------------------------------------------------------


def _alone(p: Parts, re: Value) -> Pair:
    return re, p.zero(re.type)


def _last(y: Value) -> Along:
    return Along(y, y.type.rank - 1)


def parts_of(p: Parts, y: Value, axis: int) -> Pair:
    """Parts that lie one behind the other along a dimension."""
    return _part(p, y, axis, 0), _part(p, y, axis, 1)


def _four(p: Parts, y: Value, axis: int) -> Pair:
    """a c, a d, b c and b d: by rows of the one, by neighbours of the other."""
    last = y.type.rank - 2
    (ac, ad), (bc, bd) = (parts_of(p, half, last) for half in parts_of(p, y, axis))
    return p.sub(ac, bd), p.add(ad, bc)


def _part(p: Parts, y: Value, axis: int, i: int) -> Value:
    dims = y.type.dims
    start = [i if d == axis else 0 for d in range(len(dims))]
    limit = [i + 1 if d == axis else n for d, n in enumerate(dims)]
    return p.reshape(p.slice(y, start, limit), (*dims[:axis], *dims[axis + 1:]))

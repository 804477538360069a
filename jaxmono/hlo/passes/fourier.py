"""Fourier transforms of several dimensions, of real numbers, and long ones, as `ops.Fourier`.

    fft{[a, b]}(z)      ──►  along b, then along a: one array in memory each
    rfft(x)             ──►  of what has no imaginary parts; half of the results are made
    irfft(z)            ──►  of the half that it is; of odd and of long ones [z0 z1 .. conj(.. z1)],
                             of which the real parts are made
    of n = n1 n2        ──►  along n1 of [n1, n2], each times a root of one, to [n2, n1]; then along
                             n2 to [n2, n1], where the elements are in order
    of n with a prime   ──►  there and back along the next length from 2 n - 1 on without one:
                             a convolution with a chirp (Bluestein 1970, "A linear filtering
                             approach to the computation of discrete Fourier transform")

The one of two factors is the four-step algorithm (Gentleman and Sande 1966, "Fast Fourier
transforms: for fun and profit"): a block has one line of up to `longest` elements in shared memory,
and many lines are what keeps all blocks busy.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxmono.hlo import ops
from jaxmono.hlo.infer.transform import infer_fourier
from jaxmono.hlo.ir import Value
from jaxmono.hlo.passes.complex_functions import Pair, Parts, multiply
from jaxmono.hlo.passes.complex_products import parts_of
from jaxmono.hlo.types import PART, DType

LEAST_BYTES = 64 * 1024
"""Shared memory that any GPU's blocks have."""
LARGEST_PRIME = 13
"""Factors of a length up to which a thread transforms as many elements."""
CHIRPED = 2048
"""Longest line with larger ones: its chirp and that one's spectrum, some 6 floats for each of its
elements, are literals."""


def longest(dtype: DType, shared_bytes: int) -> int:
    """Elements, a power of two, of the longest line of which a block has room for two copies, with
    gaps; of real numbers twice as many, as pairs."""
    return 1 << ((shared_bytes - 1024) * 16 // (17 * 4 * dtype.itemsize)).bit_length() - 1


STEP = {t: longest(t, LEAST_BYTES) for t in PART.values()}
"""Elements of a step of a longer line, at most: they have room in any block."""


def refusal(op: ops.Fft) -> str | None:
    """Why these transforms stay with XLA, or None."""
    step = STEP[PART.get(op.operand.type.dtype, op.operand.type.dtype)]
    for n in op.fft_length:
        if not n:
            return "transforms of nothing are XLA's"
        if n <= CHIRPED or _is_smooth(n, step):
            continue
        hint = f"; pad to {_next(n, step)}" if n <= step * step else ""
        return (f"a Fourier transform of length {n} is XLA's: long ones are generated if their "
                f"prime factors are up to {LARGEST_PRIME} and two factors up to {step}{hint}")
    return None


def transform(p: Parts, op: ops.Fft, z: Value | Pair, *, real: bool, shared_bytes: int,
              ) -> Value | Pair:
    """The result's parts, or the array whose last dimension they are; of IRFFT the result.

    Args:
      z: what is transformed: of RFFT real numbers, else pairs.
      real: only the real parts of the result are looked at.
      shared_bytes: of a block.
    """
    axes = range(op.operand.type.rank - len(op.fft_length), op.operand.type.rank)
    order = list(reversed(axes)) if op.kind != "IRFFT" else list(axes)
    back = op.kind in ("IFFT", "IRFFT")
    pair: Pair = (z, p.zero(z.type)) if isinstance(z, Value) else z
    most = longest(pair[0].type.dtype, shared_bytes)
    made: Value | Pair = pair
    for axis in order:
        n, last = op.fft_length[axis - axes[0]], axis == order[-1]
        if axis == axes[-1] and op.kind == "IRFFT":
            if n % 2 == 0 and n <= 2 * most and largest_prime(n) <= LARGEST_PRIME:
                return _made(p, pair, axis, n, back=True, divisor=n, real=True, half=True)
            pair = _mirrored(p, pair, axis, n)
        kept = n // 2 + 1 if axis == axes[-1] and op.kind == "RFFT" else n
        alone = last and (real or op.kind == "IRFFT")
        if largest_prime(n) > LARGEST_PRIME:
            made = pair = _chirped(p, pair, axis, kept, most, back=back)
            continue
        made = _smooth(p, pair, axis, kept, most, back=back, real=alone)
        pair = (made, p.zero(made.type)) if alone else _parts(p, made)
    return pair[0] if op.kind == "IRFFT" else pair if real else made


def _smooth(p: Parts, z: Pair, axis: int, kept: int, most: int, *, back: bool, real: bool) -> Value:
    """Of a length without large prime factors, as one array."""
    dims = z[0].type.dims
    n = dims[axis]
    divisor = n if back else 1
    if n <= most * (1 + is_of_pairs(n, kept, z[1] in p.nothing, back=back)):
        return _made(p, z, axis, kept, back=back, divisor=divisor, real=real)
    n1, n2 = _halves(n)
    split = (*dims[:axis], n1, n2, *dims[axis + 1:])
    first = _made(p, _shaped(p, z, split), axis, n1, back=back, twist=n)
    second = _made(p, _parts(p, first), axis, n2, back=back, divisor=divisor, real=real)
    found = p.reshape(second, (*dims, *(() if real else (2,))))
    return found if kept == n else _first(p, found, axis, kept)


def _chirped(p: Parts, z: Pair, axis: int, kept: int, most: int, *, back: bool) -> Pair:
    """j k is (j^2 + k^2 - (j - k)^2) / 2: sums of products with roots of one are convolutions."""
    dims, n = z[0].type.dims, z[0].type.dims[axis]
    m = _next(2 * n - 1, STEP[z[0].type.dtype])
    places = np.arange(n)
    chirp = np.exp((1j if back else -1j) * np.pi / n * (places ** 2 % (2 * n)))
    filter_ = np.zeros(m, np.complex128)
    filter_[:n] = filter_[(m - places) % m] = chirp.conj()
    spectrum = np.fft.fft(filter_) / (n if back else 1)

    def along(values: NDArray[np.complex128], size: int) -> Pair:
        shape = (*dims[:axis], size, *dims[axis + 1:])
        re, im = (p.broadcast_in_dim(p.constant(x, z[0].type.dtype), shape, (axis,))
                  for x in (values.real, values.imag))
        return re, im

    longer = multiply(p, z, along(chirp, n))
    zero = p.constant(0, z[0].type.dtype)
    high = [m - n if d == axis else 0 for d in range(len(dims))]
    longer = tuple(p.pad(x, zero, [0] * len(dims), high) for x in longer)
    there = _smooth(p, (longer[0], longer[1]), axis, m, most, back=False, real=False)
    product = multiply(p, _parts(p, there), along(spectrum, m))
    again = _smooth(p, product, axis, kept, most, back=True, real=False)
    return multiply(p, _parts(p, again), along(chirp[:kept], kept))


def _made(p: Parts, z: Pair, axis: int, kept: int, *, back: bool, divisor: int = 1, twist: int = 0,
          real: bool = False, half: bool = False) -> Value:
    op = ops.Fourier(results=(), args=z[:1] if z[1] in p.nothing else z, axis=axis, kept=kept,
                     back=back, divisor=divisor, twist=twist, real=real, half=half)
    return p.emit1(ops.Fourier, *infer_fourier(op), args=op.args, **op.attributes)


def _mirrored(p: Parts, z: Pair, axis: int, n: int) -> Pair:
    """All n elements of what real numbers are transformed to: imaginary parts of the first one and
    of the middle one, which XLA does not look at either, are nothing."""
    def part(v: Value, first: int, behind: int) -> Value:
        start = [first if d == axis else 0 for d in range(v.type.rank)]
        return p.slice(v, start, [behind if d == axis else m for d, m in enumerate(v.type.dims)])

    def turned(v: Value) -> Value:
        return p.emit1(ops.Reverse, v.type, operand=v, dimensions=(axis,))

    def joined(*parts: Value) -> Value:
        return p.concatenate([v for v in parts if v.type.size], axis)

    middle = (n + 1) // 2
    re = joined(part(z[0], 0, n // 2 + 1), turned(part(z[0], 1, middle)))
    if z[1] in p.nothing:
        return re, p.zero(re.type)
    inner = part(z[1], 1, middle)
    none = p.splat(0.0, part(z[1], 0, 1).type)
    return re, joined(none, inner, *[none] * (n % 2 == 0), turned(p.negate(inner)))


def _first(p: Parts, v: Value, axis: int, size: int) -> Value:
    limit = [size if d == axis else m for d, m in enumerate(v.type.dims)]
    return v if limit == list(v.type.dims) else p.slice(v, [0] * len(limit), limit)


def _parts(p: Parts, whole: Value) -> Pair:
    return parts_of(p, whole, whole.type.rank - 1)


def _shaped(p: Parts, z: Pair, dims: tuple[int, ...]) -> Pair:
    re = p.reshape(z[0], dims)
    return re, p.zero(re.type) if z[1] in p.nothing else p.reshape(z[1], dims)


def is_of_pairs(n: int, kept: int, alone: bool, *, back: bool) -> bool:
    """Whether a transform of real numbers is made of one of half as many pairs, of which half is
    kept. RFFT's is along the last dimension, and no other keeps less than all."""
    return alone and not back and n % 2 == 0 and n > 2 and kept <= n // 2 + 1


@lru_cache(maxsize=256)
def largest_prime(n: int) -> int:
    """Of a number's factors; 1 of 1."""
    found = 1
    for f in (2, *range(3, math.isqrt(n) + 1, 2)):
        while n % f == 0:
            n, found = n // f, f
    return max(n, found)


@lru_cache(maxsize=256)
def _halves(n: int) -> tuple[int, int]:
    """Two factors of about the same size, the larger one in front."""
    small = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return n // small, small


def _is_smooth(n: int, step: int) -> bool:
    """Whether there are no large prime factors, and two factors of at most ``step``."""
    return largest_prime(n) <= LARGEST_PRIME and (n <= step or max(_halves(n)) <= step)


def _next(n: int, step: int) -> int:
    """The next such length, of up to the square of ``step``."""
    return next(m for m in range(n, step * step + 1) if _is_smooth(m, step))

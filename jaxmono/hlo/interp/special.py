"""Special functions on float64 arrays (SciPy is not a dependency).

Each takes and returns float64. Errors are a few units in the last place of f64, far below what
an f32 result can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def _scalar_map(f: Callable[[float], float], x: F64) -> F64:
    flat = np.fromiter(map(f, x.ravel().tolist()), np.float64, count=x.size)
    return flat.reshape(x.shape)


def erf(x: F64) -> F64:
    return _scalar_map(math.erf, x)


def erfc(x: F64) -> F64:
    return _scalar_map(math.erfc, x)


def _lgamma(x: float) -> float:
    # The C function returns +inf at the poles; Python raises there, and on overflow.
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):
        return math.inf


def lgamma(x: F64) -> F64:
    """log |gamma(x)|; +inf at zero and the negative integers."""
    return _scalar_map(_lgamma, x)


def erf_inv(x: F64) -> F64:
    """Inverse of erf: infinite at -1 and 1, NaN outside of [-1, 1].

    Winitzki's approximation (2e-3), then Halley steps, each of which triples the digits. The
    residual is taken on erfc for large arguments, where erf has lost its digits.
    """
    magnitude = np.abs(x)
    inner = np.where(magnitude < 1, magnitude, 0.0)
    a = 0.147
    log = np.log1p(-inner * inner)
    half = 2 / (math.pi * a) + log / 2
    y = np.sqrt(np.maximum(np.sqrt(half * half - log / a) - half, 0.0))
    for _ in range(3):
        residual = np.where(inner < 0.5, erf(y) - inner, (1 - inner) - erfc(y))
        slope = 2 / math.sqrt(math.pi) * np.exp(-y * y)
        y = y - residual / (slope + y * residual)
    # Near zero the square roots cancel: erf(y) = 2 y / sqrt(pi) to the last digit.
    y = np.where(inner < 1e-9, inner * (math.sqrt(math.pi) / 2), y)
    y = np.where(magnitude < 1, y, np.where(magnitude == 1, np.inf, np.nan))
    return np.copysign(y, x)


_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(x: F64) -> F64:
    """Derivative of lgamma; NaN at the negative integers; -inf at zeros (NaN until JAX 0.10).

    Reflection for x < 0.5, recurrence up to x >= 8, then the asymptotic series with Bernoulli
    numbers (Abramowitz and Stegun 6.3.7, 6.3.6, 6.3.18).
    """
    reflect = x < 0.5
    z = np.where(reflect, 1 - x, x)
    shift = np.zeros_like(z)
    for _ in range(8):
        small = z < 8
        shift = np.where(small, shift - 1 / z, shift)
        z = np.where(small, z + 1, z)
    inverse = 1 / (z * z)
    series = np.zeros_like(z)
    for b in reversed(_BERNOULLI):
        series = inverse * (b + series)
    y = np.log(z) - 0.5 / z - series + shift
    # tan has period pi: reducing first keeps its argument exact.
    y = np.where(reflect, y - math.pi / np.tan(math.pi * (x - np.rint(x))), y)
    pole = (x <= 0) & (x == np.floor(x))
    y = np.where(pole, np.where(x == 0, -np.inf, np.nan), y)
    return np.where(x == np.inf, np.inf, y)


def zeta(s: F64, q: F64) -> F64:
    """Hurwitz zeta sum_{k>=0} (k + q)^-s for s > 1, by Euler and Maclaurin.

    NaN for s < 1 and inf at s = 1; for q <= 0 inf at the integers, and elsewhere NaN unless s
    is an integer (the sum then has real terms), as in Cephes.
    """
    s, q = np.broadcast_arrays(s, q)
    terms = 12
    total = np.zeros(s.shape)
    z = q.astype(np.float64)
    for _ in range(terms):
        total += z ** -s
        z = z + 1
    # Negative q: go on until past zero, so that the series is asymptotic.
    for _ in range(int(min(1000, max(0.0, -np.nanmin(q, initial=0.0) + 1)))):
        more = z < terms
        total = np.where(more, total + z ** -s, total)
        z = np.where(more, z + 1, z)
    total += z ** (1 - s) / (s - 1) + 0.5 * z ** -s
    factor, power = s / z, z ** -s
    for j, b in enumerate((1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160,
                           -691 / 1307674368000)):
        total += b * factor * power
        factor = factor * (s + 2 * j + 1) * (s + 2 * j + 2) / (z * z)
    total = np.where(s < 1, np.nan, np.where(s == 1, np.inf, total))
    total = np.where((q <= 0) & (q == np.floor(q)), np.inf, total)
    return np.where((q <= 0) & (q != np.floor(q)) & (s != np.floor(s)), np.nan, total)


def polygamma(n: F64, x: F64) -> F64:
    """The n-th derivative of digamma for integers n >= 0; NaN for other n."""
    n, x = np.broadcast_arrays(n, x)
    whole = (n >= 0) & (n == np.floor(n))
    order = np.where(whole, n, 1.0)
    sign = np.where(order % 2 == 1, 1.0, -1.0)
    # n! zeta may overflow where only the product does not: go through logarithms when large.
    y = sign * np.exp(lgamma(order + 1)) * zeta(np.maximum(order + 1, 2.0), x)
    return np.where(whole, np.where(order == 0, digamma(x), y), np.nan)


def bessel_i1e(x: F64) -> F64:
    """exp(-|x|) I1(x), from I1(x) = 1/pi integral_0^pi exp(x cos t) cos t dt.

    The integrand is periodic and smooth, so the trapezoidal rule converges geometrically once
    it resolves the peak of width 1/sqrt(x); above 1e3 the asymptotic series is exact to f64.
    """
    magnitude = np.abs(x)
    near = np.minimum(magnitude, 1e3)
    points = 256
    t = (np.arange(points) + 0.5) * (math.pi / points)
    total = np.zeros(x.shape)
    for c in np.cos(t).tolist():
        total += np.exp(near * (c - 1)) * c
    far = np.maximum(magnitude, 1e3)
    u = 1 / (8 * far)
    series = 1 - 3 * u * (1 + 2.5 * u * (1 + 7 * u))
    y = np.where(magnitude <= 1e3, total / points, series / np.sqrt(2 * math.pi * far))
    return np.where(np.isnan(x), np.nan, np.copysign(y, x))

"""Prints coefficients of jaxmono/codegen/device/narrow.cuh, those of the highest power last.

    python scripts/fit_functions.py

Of polynomials whose largest weighted error is the least possible: Lawson's algorithm (C. Lawson,
1961; least squares whose weights are multiplied by the errors until all extremes are alike).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_POINTS, _ROUNDS = 1500, 1500


def nodes(end: float) -> Array:
    """Points of [0, end], dense at its ends."""
    return (1 - np.cos(np.linspace(0, np.pi, _POINTS))) / 2 * end


def minimax(x: Array, wanted: Array, weight: Array, powers: range) -> tuple[float, Array]:
    """The largest weighted error of the polynomial with these powers, and its coefficients."""
    columns = np.stack([x ** p for p in powers], 1)
    shares = np.full(x.size, 1 / x.size)
    best, found = math.inf, np.zeros(len(powers))
    for _ in range(_ROUNDS):
        scale = np.sqrt(shares) * weight
        c = np.linalg.lstsq(columns * scale[:, None], wanted * scale, rcond=None)[0].astype(
            np.float64)
        error = weight * np.abs(wanted - columns @ c)
        if error.max() < best:
            best, found = float(error.max()), c
        shares *= error / error.max() + 1e-12
        shares /= shares.sum()
    return best, found


def reciprocal_of_sum(degree: int) -> tuple[float, Array]:
    """1 / (1 + t) on [0, 1], in relative error, as 1/2 + (t - 1) r(t): right at 1.

    To be so in f32, narrow.cuh has f16's first coefficient one unit in the last place smaller.
    """
    t = nodes(1)[:-1]
    error, r = minimax(t, (1 / (1 + t) - 0.5) / (t - 1), (1 - t) * (1 + t), range(degree))
    q = np.zeros(degree + 1)
    q[1:], q[0] = r, 0.5
    q[:-1] -= r
    return error, q


def log_of_sum(degree: int) -> tuple[float, Array]:
    """log(1 + t) / t on [0, 1], in relative error."""
    t = nodes(1)[1:]
    h = np.log1p(t) / t
    return minimax(t, h, 1 / h, range(degree + 1))


def half_erfc(degree: int, least: float) -> tuple[float, Array]:
    """log2(erfc(a) / 2) + 1 on [0, 6 / sqrt(2)], without a constant term.

    The relative error of what it makes of x = sqrt(2) a, ``x / 2 erfc(a)``; by as much as that is
    below ``least`` the error may be larger, up to 16 times.
    """
    x = nodes(6)
    half = np.array([math.erfc(v / math.sqrt(2)) / 2 for v in x])
    allowed = np.clip(least / np.maximum(x * half, 1e-30), 1, 16)
    error, c = minimax(x / math.sqrt(2), np.log2(half) + 1, 1 / allowed, range(1, degree + 1))
    return error * math.log(2), c


def main() -> None:
    fits: dict[str, Callable[[], tuple[float, Array]]] = {
        "reciprocal_of_sum, bf16": lambda: reciprocal_of_sum(4),
        "reciprocal_of_sum, f16": lambda: reciprocal_of_sum(6),
        "bf16_softplus": lambda: log_of_sum(4),
        "bf16_gelu": lambda: half_erfc(5, 2.0 ** -10),
        "f16_gelu": lambda: half_erfc(7, 2.0 ** -12),
    }
    for name, fit in fits.items():
        error, c = fit()
        print(f"{name}: 2^{math.log2(error):.1f}: {', '.join(f'{v:.8g}' for v in c)}")


if __name__ == "__main__":
    main()

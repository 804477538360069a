"""When are two results of one program equal? Tolerances from dtypes and from measured errors.

Three opinions are at hand: ``expected`` (XLA's), ``reference64`` (`evaluate` with f64
accumulation, taken as the truth), and optionally ``rounded`` (`evaluate` with every op rounded
to its dtype). For integers and predicates equality is exact. For floats:

- An element is *well-conditioned* where the truth, rounded to the output's dtype, is of the same
  class (finite, NaN, +inf, -inf) as what XLA and ``rounded`` say. There, ``actual`` must be of
  that class. Elsewhere the class hangs on the last bit of some intermediate (an f16 that nearly
  overflows, say) and nothing is asked; but at most a twentieth of an array (and one element)
  may be so, or the program is no test and `compare` says so.
- A finite element must satisfy |actual - truth| <= atol + rtol * |truth|, both terms together,
  with rtol = 8 eps and atol = 8 eps * max(rms of the truth, 2^-10), where eps belongs to the
  coarsest format between inputs and output; plus four times the worst error that XLA or
  ``rounded`` make anywhere in that array, which is what the program's conditioning amounts to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

FACTOR = 8
MAX_ILL_CONDITIONED = 0.05


class Mismatch(AssertionError):
    """Two results differ; the message says where and by how much."""


class IllConditioned(Mismatch):
    """The references disagree on too many elements for a comparison with all of them."""


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _class(x: Array) -> Array:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    return np.where(np.isnan(x), 1, np.where(x == np.inf, 2, np.where(x == -np.inf, 3, 0)))


def compare(actual: Sequence[Any], expected: Sequence[Any], reference64: Sequence[Any], *,
            rounded: Sequence[Any] | None = None, eps: Sequence[float] | float | None = None,
            where: str = "") -> None:
    """Checks the outputs of a program.

    Args:
      actual: what is tested, one array per output.
      expected: XLA's outputs.
      reference64: `evaluate(..., accumulate="f64")`.
      rounded: `evaluate(..., accumulate="f32")`, where there is one.
      eps: per output, the machine epsilon of the coarsest float format that its value has been
        in; the output's own where it is not given or smaller.
      where: put in front of messages.

    Raises:
      Mismatch: at the first output that differs in dtype, shape, or value.
      IllConditioned: so many elements are that the comparison would mean nothing.
    """
    if not len(actual) == len(expected) == len(reference64):
        raise Mismatch(f"{where}{len(actual)} outputs, expected {len(expected)}")
    for i, (a, e, r) in enumerate(zip(actual, expected, reference64, strict=True)):
        a, e, r = np.asarray(a), np.asarray(e), np.asarray(r)
        at = f"{where}output {i}: "
        if a.dtype != e.dtype or a.shape != e.shape:
            raise Mismatch(f"{at}{a.dtype}{list(a.shape)}, expected {e.dtype}{list(e.shape)}")
        if not is_float(e.dtype):
            if rounded is not None and not np.array_equal(e, rounded[i]):
                raise IllConditioned(f"{at}the references disagree. "
                                     + _difference(np.asarray(rounded[i]), e, rounded[i] != e))
            if not np.array_equal(a, e):
                raise Mismatch(at + _difference(a, e, a != e))
            continue
        other = None if rounded is None else np.asarray(rounded[i])
        given = eps[i] if isinstance(eps, Sequence) else eps or 0.0
        _compare_floats(at, a, e, r, other, max(given, float(ml_dtypes.finfo(e.dtype).eps)))


def _compare_floats(at: str, actual: Array, expected: Array, truth: Array,
                    rounded: Array | None, eps: float) -> None:
    with np.errstate(all="ignore"):
        classes = _class(truth.astype(expected.dtype).astype(np.float64))
        a, e, t = (x.astype(np.float64) for x in (actual, expected, truth))
        peers = [e] if rounded is None else [e, rounded.astype(np.float64)]
        sound = np.logical_and.reduce([_class(p) == classes for p in peers])
        ill = int((~sound).sum())
        if ill > 1 + MAX_ILL_CONDITIONED * sound.size:
            raise IllConditioned(f"{at}{ill} of {sound.size} elements are ill-conditioned: the "
                                 "references disagree. " + _difference(e, t, ~sound))
        wrong = sound & (_class(a) != classes)
        if wrong.any():
            raise Mismatch(at + "NaN or infinity differs. " + _difference(a, e, wrong))
        finite = sound & (classes == 0)
        if not finite.any():
            return
        rms = float(np.sqrt(np.mean(np.square(t[finite]))))
        worst = max(float(np.abs(p - t)[finite].max()) for p in peers)
        limit = FACTOR * eps * (max(rms, 2.0 ** -10) + np.abs(t)) + 4 * worst
        wrong = finite & ~(np.abs(a - t) <= limit)
        if wrong.any():
            raise Mismatch(at + _difference(a, t, wrong)
                           + f" XLA's own worst error is {worst:.3g}, eps {eps:.3g}.")


def _difference(actual: Array, expected: Array, wrong: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (f"{int(wrong.sum())} of {wrong.size} elements differ; at {list(index)} "
            f"{actual[index]!r}, expected {expected[index]!r}.")
